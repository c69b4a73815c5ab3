"""The ways in which a feature of lists can be given.

"ragged"    as they are (`Ragged`), the default
"dense"     an array [rows, items, ...]; a row of another length than the others is an error
Padded()    an array [rows, length, ...], filled up, and `name/length` [rows]: how many items each row really has,
            also where it was cut; "padded" is Padded()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from recordmill.base.errors import UsageError


@dataclass(frozen=True)
class Padded:
    """length: of every batch; longer rows are cut to it. None: the batch's longest row, rounded up to a multiple.
    value: what fills up.

    Raises:
        UsageError: a number is below 1, or both are given.
    """

    length: int | None = None
    multiple: int = 1
    value: Any = 0

    def __post_init__(self) -> None:
        if self.multiple < 1 or (self.length is not None and self.length < 1):
            raise UsageError(f"Padded: length and multiple must be at least 1: {self}")
        if self.length is not None and self.multiple > 1:
            raise UsageError(f"Padded: give a length or a multiple, not both: {self}")


Collate = Literal["ragged", "dense", "padded"] | Padded
