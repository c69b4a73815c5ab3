"""Decides how strings of JSON stand for bytes: as base64, as `read` writes them, or as their UTF-8.

`--dtype x=base64` and `--dtype x=bytes` say which. Where a given schema alone says bytes, the strings tell: base64 if
all are and some end in its padding, which other text does not; text if some are no base64; else it is asked for.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.sources.common.contract import PlanOptions

BASE64 = "base64"


@dataclass(frozen=True)
class StringCounts:
    """Counts of a feature's strings, of those that are base64, and of those that are padded. Two of them add up."""

    strings: int = 0
    base64: int = 0
    padded: int = 0

    def __add__(self, other: StringCounts) -> StringCounts:
        return StringCounts(self.strings + other.strings, self.base64 + other.base64, self.padded + other.padded)

    @classmethod
    def of(cls, texts: pa.Array) -> StringCounts:
        """Counts a column of strings."""
        there = texts.drop_null()
        wrong = int(np.count_nonzero(decode_base64(there)[1]))
        return cls(len(there), len(there) - wrong, pc.sum(pc.ends_with(there, "=")).as_py() or 0)


def declared_base64(common: PlanOptions) -> tuple[PlanOptions, frozenset[str]]:
    """Returns the options with bytes where base64 is declared, and these features."""
    names = frozenset(name for name, dtype in common.dtypes.items() if dtype.strip().partition("[")[0] == BASE64)
    dtypes = {
        name: dtype.replace(BASE64, "bytes", 1) if name in names else dtype for name, dtype in common.dtypes.items()
    }
    return replace(common, dtypes=dtypes), names


def undeclared_bytes(common: PlanOptions) -> frozenset[str]:
    """Returns the features that are bytes by a schema, which does not say how text stands for them."""
    features = () if common.schema is None else common.schema.features
    return frozenset(f.name for f in features if f.dtype == "bytes" and f.name not in common.dtypes)


def tell_base64(seen: Mapping[str, StringCounts]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Returns the features whose strings are base64, and notes.

    Raises:
        DataError: The strings of a feature may be base64 or not.
    """
    decoded, notes = [], []
    for name, found in seen.items():
        if found.base64 < found.strings:
            others = found.strings - found.base64
            notes.append(
                f"{name}: its text is taken as it is, as UTF-8: {others:,} of {found.strings:,} values are no base64"
            )
        elif found.padded:
            decoded.append(name)
            notes.append(
                f"{name}: all its text is base64, so it is decoded; {option('dtypes', {name: 'bytes'})} keeps the text"
            )
        elif found.strings:
            raise DataError(
                f"{name!r} is bytes by the schema, and its text may be base64 or not: "
                f"{option('dtypes', {name: 'base64'})} decodes "
                f"it, {option('dtypes', {name: 'bytes'})} keeps it as it is"
            )
    return frozenset(decoded), tuple(notes)


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Decodes base64 as RFC 4648 has it: the alphabet with `+` and `/`, padded, the bits after the last byte 0.

    Args:
        texts: large_string.

    Returns:
        The values as large_binary, and which of the texts are no base64.
    """
    encoded = texts.cast(pa.large_binary()).to_pylist()
    values = [None if text is None else _decoded(text) for text in encoded]
    wrong = [text is not None and value is None for text, value in zip(encoded, values, strict=True)]
    return pa.array(values, pa.large_binary()), np.array(wrong, np.bool_)


def _decoded(text: bytes) -> bytes | None:
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error:
        return None
    return data if binascii.b2a_base64(data, newline=False) == text else None
