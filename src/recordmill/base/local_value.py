"""Handles of objects that exist only in this process.

Beam pickles the arguments of its steps, even if all steps run in this process. A handle is pickled
in place of the object that it names.
"""

from __future__ import annotations

import os
import socket
import uuid
import weakref
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from recordmill.base.errors import RecordmillError

_Value = TypeVar("_Value")

# Objects by the key of their handle. The values are weak, so that a handle keeps nothing alive.
_values: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class LocalValue(Generic[_Value]):
    """Small, picklable handle of an object of this process.

    The handle does not keep the object alive.

    Attributes:
        key: A unique text that identifies the object.
        kind: The class of the object, for errors.
    """

    key: str
    kind: str

    @classmethod
    def of(cls, value: _Value) -> LocalValue[_Value]:
        """Returns a new handle of an object."""
        handle = cls(uuid.uuid4().hex, type(value).__name__)
        _values[handle.key] = value
        return handle

    def find(self) -> _Value | None:
        """Returns the object. None in another process, or if it does not exist any more."""
        return _values.get(self.key)

    def load(self) -> _Value:
        """Returns the object.

        Raises:
            RecordmillError: The object belongs to another process, or does not exist any more.
        """
        if (value := self.find()) is None:
            raise RecordmillError(
                f"process {os.getpid()} on {socket.gethostname()} has no {self.kind} for this step: it is only in the "
                "process that has started the job, and only until the job ends"
            )
        return value
