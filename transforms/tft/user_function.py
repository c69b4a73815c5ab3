"""The user's own preprocessing function.

The function is loaded from a file, and wrapped so that errors show the user's own line. Workers
don't have the file, so the code of the function is sent to them.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.user_code import UserCodeError, describe_user_error, load_file_function
from recordmill.storage.folders import is_file, no_file_message

DEFAULT_FUNCTION_NAME = "preprocessing_fn"


def load_function(option_value: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Loads the function that the option `transform` names.

    Args:
        option_value: `FILE.py:NAME`, or `FILE.py` for a function called DEFAULT_FUNCTION_NAME.

    Raises:
        UsageError: The file or the function does not exist, or importing the file fails. In the
            last case the message contains the line.
    """
    path, _, name = option_value.partition(".py:")
    path, name = (path + ".py", name) if name else (option_value, DEFAULT_FUNCTION_NAME)
    if not is_file(path):
        raise UsageError(
            "{transform}: {path}: {no_file_message}",
            transform=option("transform", option_value),
            path=path,
            no_file_message=no_file_message(path),
        )
    stem = os.path.splitext(os.path.basename(path))[0]
    try:
        return load_file_function(path, name, f"recordmill_transform_{stem}")
    except UserCodeError as error:
        raise UsageError(
            "{transform}: {user_error}",
            transform=option("transform", option_value),
            user_error=error,
        ) from None


@dataclass(frozen=True)
class GuardedFunction:
    """Calls the user's function, and checks its result.

    Integers and booleans are returned as int64, and other numbers as float32. tf.Transform supports
    no other types of numbers.

    Attributes:
        function: The user's function.

    Raises:
        UsageError: The function raises an error or returns an invalid result. The message contains
            the user's own line.
    """

    function: Callable[[dict[str, Any]], dict[str, Any]]

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        path = self._code.co_filename if self._code else "<transform>"
        try:
            outputs = self.function(inputs)
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"transform: {os.path.basename(path)}, {describe_user_error(error, path)}"
            ) from error
        if not isinstance(outputs, dict) or not outputs:
            raise UsageError(
                f"transform: {self._location}: it returns {_describe_type(outputs)}, not a dict of tensors"
            )
        return {self._name(name): self._output(name, tensor) for name, tensor in outputs.items()}

    @property
    def _code(self) -> Any:
        return getattr(self.function, "__code__", None)

    @property
    def _location(self) -> str:
        """File name, line number and first line of the function, for messages."""
        if self._code is None:
            return repr(self.function)
        line = linecache.getline(self._code.co_filename, self._code.co_firstlineno).strip()
        return f"{os.path.basename(self._code.co_filename)}, line {self._code.co_firstlineno}: `{line}`"

    def _name(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"transform: {self._location}: the name of an output is {name!r}, "
                "which is not a text"
            )
        return name

    def _output(self, name: str, tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
            raise UsageError(
                f"transform: {self._location}: output {name!r} is {_describe_type(tensor)}, not a tensor"
            )
        if tensor.dtype in (tf.string, tf.int64, tf.float32):
            return tensor
        if tensor.dtype.is_integer or tensor.dtype.is_bool:
            return tf.cast(tensor, tf.int64)
        if tensor.dtype.is_floating:
            return tf.cast(tensor, tf.float32)
        raise UsageError(
            f"transform: {self._location}: output {name!r} is of {tensor.dtype.name}, "
            "which no feature can have"
        )


def _describe_type(value: Any) -> str:
    return (
        "an empty dict" if value == {} and isinstance(value, dict) else f"a {type(value).__name__}"
    )


def register_pickling_by_value(function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Makes Beam's pickler send the code of the function to workers.

    Workers don't have the module of the function.

    Raises:
        UsageError: The function uses a value that can't be pickled. The message names it.
    """
    from apache_beam.internal import cloudpickle_pickler, pickler
    from apache_beam.internal.cloudpickle import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", "") or "")
    if module is not None and module.__name__.startswith("recordmill_transform_"):
        cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle_pickler.dumps(function)
    except Exception as error:
        culprit = _name_unpicklable(function, pickler)
        raise UsageError(
            f"transform: {culprit} can't be sent to workers ({type(error).__name__}: {str(error).splitlines()[0]}); "
            "make it inside the function"
        ) from None


def _name_unpicklable(function: Any, pickler: Any) -> str:
    """Returns a phrase that names the variable that can't be pickled.

    Global names and closure variables that the function uses are tried one by one. The phrase is
    only the name of the function if none of them fails.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    closure = dict(
        zip(
            code.co_freevars,
            (cell.cell_contents for cell in function.__closure__ or ()),
            strict=False,
        )
    )
    for name, value in {
        **{n: function.__globals__.get(n) for n in code.co_names},
        **closure,
    }.items():
        try:
            pickler.dumps(value)
        except Exception:
            return f"{name!r}, which {function.__name__} uses,"
    return repr(function.__name__)
