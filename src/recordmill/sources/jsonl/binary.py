"""Bytes in JSON, which has no bytes: strings in base64, as `read` writes them, or any text, as its UTF-8.

`--dtype x=base64` and `--dtype x=bytes` say which. Where a given schema alone says bytes, the strings tell: base64 if
all are and some end in its padding, which other text does not; text if some are no base64; else it is asked for.
"""

from __future__ import annotations

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
_WRONG, _PADDING = 255, 64
_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_SEXTETS = np.full(256, _WRONG, np.uint8)
_SEXTETS[np.frombuffer(_DIGITS, np.uint8)] = np.arange(len(_DIGITS))


@dataclass(frozen=True)
class StringCounts:
    """How many strings a feature has, how many are base64, and how many of those are padded. Two of them add up."""

    strings: int = 0
    base64: int = 0
    padded: int = 0

    def __add__(self, other: StringCounts) -> StringCounts:
        return StringCounts(self.strings + other.strings, self.base64 + other.base64, self.padded + other.padded)

    @classmethod
    def of(cls, texts: pa.Array) -> StringCounts:
        """Of a column of strings."""
        there = texts.drop_null()
        wrong = int(np.count_nonzero(decode_base64(there)[1]))
        return cls(len(there), len(there) - wrong, pc.sum(pc.ends_with(there, "=")).as_py() or 0)


def declared_base64(common: PlanOptions) -> tuple[PlanOptions, frozenset[str]]:
    """(the options with bytes where base64 is declared, these features)."""
    names = frozenset(name for name, dtype in common.dtypes.items() if dtype.strip().partition("[")[0] == BASE64)
    dtypes = {
        name: dtype.replace(BASE64, "bytes", 1) if name in names else dtype for name, dtype in common.dtypes.items()
    }
    return replace(common, dtypes=dtypes), names


def untold_bytes(common: PlanOptions) -> frozenset[str]:
    """The features that are bytes because a schema says so, which does not say how text stands for them."""
    features = () if common.schema is None else common.schema.features
    return frozenset(f.name for f in features if f.dtype == "bytes" and f.name not in common.dtypes)


def tell_base64(seen: Mapping[str, StringCounts]) -> tuple[frozenset[str], tuple[str, ...]]:
    """(the features whose strings are base64, what to note).

    Raises:
        DataError: the strings of a feature may be base64 or not.
    """
    told, notes = [], []
    for name, found in seen.items():
        if found.base64 < found.strings:
            others = found.strings - found.base64
            notes.append(
                f"{name}: its text is taken as it is, as UTF-8: {others:,} of {found.strings:,} values are no base64"
            )
        elif found.padded:
            told.append(name)
            notes.append(
                f"{name}: all its text is base64, so it is decoded; {option('dtypes', {name: 'bytes'})} keeps the text"
            )
        elif found.strings:
            raise DataError(
                f"{name!r} is bytes by the schema, and its text may be base64 or not: "
                f"{option('dtypes', {name: 'base64'})} decodes "
                f"it, {option('dtypes', {name: 'bytes'})} keeps it as it is"
            )
    return frozenset(told), tuple(notes)


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """(large_string as the large_binary that it stands for, which of them are no base64). RFC 4648: the alphabet with
    `+` and `/`, padded, the bits behind the last byte 0.
    """
    offsets, data = _utf8(texts)
    wrong = np.diff(offsets) % 4 != 0
    if wrong.any():
        texts = pc.if_else(pa.array(wrong), pa.scalar("", pa.large_string()), texts)
        offsets, data = _utf8(texts)
    sextets = _SEXTETS[data].reshape(-1, 4)  # a text has whole groups of four, so all together have
    padding = np.count_nonzero(sextets == _PADDING, axis=1)
    last = np.zeros(len(sextets), np.bool_)
    last[(offsets[1:][np.diff(offsets) > 0] // 4) - 1] = True
    bad = (sextets == _WRONG).any(axis=1) | (sextets[:, :2] == _PADDING).any(axis=1)
    bad |= (sextets[:, 2] == _PADDING) & (sextets[:, 3] != _PADDING)
    bad |= (padding > 0) & ~last
    bad |= ((padding == 1) & (sextets[:, 2] & 3 != 0)) | ((padding == 2) & (sextets[:, 1] & 15 != 0))
    groups = np.concatenate([[0], np.cumsum(bad)])
    wrong |= groups[offsets[1:] // 4] > groups[offsets[:-1] // 4]
    return _octets(sextets, padding, offsets, texts), wrong


def _octets(
    sextets: npt.NDArray[np.uint8], padding: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], texts: pa.Array
) -> pa.Array:
    sizes = 3 - np.minimum(padding, 3)
    octets = np.empty((len(sextets), 3), np.uint8)
    octets[:, 0] = sextets[:, 0] << 2 | sextets[:, 1] >> 4 & 3
    octets[:, 1] = sextets[:, 1] << 4 | sextets[:, 2] >> 2 & 15
    octets[:, 2] = sextets[:, 2] << 6 | sextets[:, 3] & 63
    values = octets[np.arange(3) < sizes[:, None]]
    places = np.concatenate([[0], np.cumsum(sizes)])[offsets // 4]
    validity = pa.array(texts.is_valid()).buffers()[1] if texts.null_count else None
    return pa.Array.from_buffers(
        pa.large_binary(), len(texts), [validity, pa.py_buffer(places.astype(np.int64)), pa.py_buffer(values)]
    )


def _utf8(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """(offsets from 0 on, bytes) of large_string."""
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int64, len(texts) + 1, texts.offset * 8)
    if data is None:
        return offsets - offsets[0], np.zeros(0, np.uint8)
    return offsets - offsets[0], np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
