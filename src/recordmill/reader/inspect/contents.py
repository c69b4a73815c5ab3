"""Guesses at the values of a bytes feature: `Contents` counts images with their sizes, serialized messages, known file
formats, text and the rest.

A monoid over some values of each batch, so a guess as good as these values; `suggest_arrays` says which arrays
values of one length may be the memory of.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from recordmill.base.errors import DataError
from recordmill.base.magic import (
    IMAGE_HEAD_BYTES,
    sniff_file_format,
    sniff_image,
    sniff_unsupported_image,
)
from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.records.inference.infer import infer, joined
from recordmill.records.protobuf.message import TYPE_BYTES, message_classes
from recordmill.records.protobuf.tensor_proto import (
    BROKEN,
    PLAIN_DTYPES,
    TENSOR_DTYPES,
    read_headers,
    typed_values,
)
from recordmill.schemas.feature import ITEM_BYTES

KIND_EMPTY, KIND_TEXT, KIND_BINARY = "empty", "text", "binary"
KIND_EXAMPLE, KIND_SEQUENCE_EXAMPLE, KIND_ELWC, KIND_TENSOR = (
    "Example",
    "SequenceExample",
    "ExampleListWithContext",
    "TensorProto",
)

_VALUES_PER_BATCH = 24  # values looked at, evenly spaced: enough to see a mixture, and a batch has cost milliseconds before
_CHECKED_BYTES = 1 << 20  # 1 MiB of a value is enough to see whether its numbers are plausible
_AMBIGUOUS_FORMATS = ("PNM", "ICO", "JPEG XL")  # formats whose first bytes arrays have too
_CHANNEL_COUNTS = (3, 1, 4)
_DT_STRING = 7  # DT_STRING in TensorFlow's types.proto

SizeRange = tuple[int, int]


@dataclass(frozen=True)
class Contents:
    """Counts of the kinds of values.

    Attributes:
        looked_at: values seen.
        kinds: what they look like, to how many.
        heights: (least, most) pixels of the images.
        widths: (least, most) pixels of the images.
        dtypes: those whose numbers would be plausible in every binary value seen; None if there was none.
    """

    looked_at: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    heights: SizeRange | None = None
    widths: SizeRange | None = None
    dtypes: tuple[str, ...] | None = None

    def __add__(self, other: Contents) -> Contents:
        kinds = {
            kind: self.kinds.get(kind, 0) + other.kinds.get(kind, 0)
            for kind in {**self.kinds, **other.kinds}
        }
        dtypes = joined(
            self.dtypes,
            other.dtypes,
            lambda left, right: tuple(dtype for dtype in left if dtype in right),
        )
        heights = joined(self.heights, other.heights, union_range)
        widths = joined(self.widths, other.widths, union_range)
        return Contents(self.looked_at + other.looked_at, kinds, heights, widths, dtypes)

    @classmethod
    def count(cls, values: pa.Array) -> Contents:
        """Counts one batch's values, a flat array of binary."""
        total = cls()
        valid = values.drop_null() if values.null_count else values
        if not len(valid):
            return total
        count = min(len(valid), _VALUES_PER_BATCH)
        for index in np.unique(np.linspace(0, len(valid) - 1, count).astype(int)).tolist():
            total = total + _classify(valid[index].as_py())
        return total

    def to_json(self) -> dict[str, Any]:
        return {
            "looked_at": self.looked_at,
            "kinds": dict(self.kinds),
            "heights": self.heights,
            "widths": self.widths,
        }

    def describe(self) -> str:
        """Returns `JPEG 187 to 500 x 271 to 500`, `text 3, binary 5 of 8 looked at`; empty if there is nothing."""
        kinds = sorted(self.kinds.items(), key=lambda item: -item[1])
        if not kinds or [kind for kind, _ in kinds] == [KIND_BINARY]:
            return ""
        names = (
            kinds[0][0]
            if len(kinds) == 1
            else ", ".join(f"{kind} {count}" for kind, count in kinds)
            + f" of {self.looked_at} looked at"
        )
        if self.heights is None or self.widths is None:
            return names
        return f"{names}, {_show_range(self.heights)} x {_show_range(self.widths)} pixels"


def _show_range(span: SizeRange) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def union_range(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the range that holds both."""
    return min(left[0], right[0]), max(left[1], right[1])


def _classify(value: bytes) -> Contents:
    """Classifies one value."""
    if not value:
        return Contents(1, {KIND_EMPTY: 1})
    if (image := sniff_image(value[:IMAGE_HEAD_BYTES])) is not None:
        try:
            header = check_structure(np.frombuffer(value, np.uint8))
        except BadImage as error:
            return Contents(1, {f"{image} that is damaged ({error.reason})": 1})
        return Contents(
            1, {header.kind: 1}, (header.height, header.height), (header.width, header.width)
        )
    kind = _tensor_kind(value) or _message_kind(value) or _format_kind(value) or _text_kind(value)
    return (
        Contents(1, {kind: 1})
        if kind
        else Contents(1, {KIND_BINARY: 1}, dtypes=_plausible_dtypes(value))
    )


def _format_kind(value: bytes) -> str | None:
    if (
        foreign := sniff_unsupported_image(value[:IMAGE_HEAD_BYTES])
    ) is not None and foreign not in _AMBIGUOUS_FORMATS:
        return foreign
    sniffed = sniff_file_format(value)
    return None if sniffed is None else sniffed.name


def _text_kind(value: bytes) -> str | None:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return (
        None
        if any(character < " " and character not in "\t\n\v\f\r\x1b" for character in text)
        else KIND_TEXT
    )


def _tensor_kind(value: bytes) -> str | None:
    """Returns `TensorProto float32 [2, 3]`, if that is what it is: its values must fill its shape exactly."""
    header = read_headers(np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int64))
    dtype = TENSOR_DTYPES.get(int(header.dtype[0]))
    shape = header.dims[0, : header.rank[0]].tolist()
    if header.status[0] != BROKEN and int(header.dtype[0]) == _DT_STRING:
        return f"{KIND_TENSOR} string {shape}"
    if header.status[0] == BROKEN or dtype is None:
        return None
    size = int(np.prod(shape, dtype=object))
    if header.status[0] == PLAIN_DTYPES:
        is_complete = int(header.lengths[0]) == size * ITEM_BYTES[dtype]
    else:
        try:
            is_complete = size * ITEM_BYTES[dtype] <= 1 << 24 and bool(
                typed_values(value, dtype, size)
            ) == bool(size)
        except (DataError, ValueError, OverflowError):
            is_complete = False
    return f"{KIND_TENSOR} {dtype} {shape}" if is_complete else None


def _message_kind(value: bytes) -> str | None:
    """Returns which of TensorFlow's record messages a value is; only one with features can be told."""
    if value[0] not in (0x0A, 0x12):
        return None
    if (kind := _example_kind(value)) is not None:
        return kind
    parts = _elwc_messages(value)
    is_elwc = any(parts) and all(not part or _example_kind(part) == KIND_EXAMPLE for part in parts)
    return KIND_ELWC if is_elwc else None


def _example_kind(value: bytes) -> str | None:
    try:
        inference = infer(
            np.frombuffer(value, np.uint8), np.zeros(1, np.int64), np.array([len(value)], np.int64)
        )
    except DataError:
        return None
    if inference.others or not inference.features:
        return None
    return KIND_SEQUENCE_EXAMPLE if inference.sequences else KIND_EXAMPLE


def _elwc_messages(value: bytes) -> list[bytes]:
    """Returns the messages in an ExampleListWithContext; none if it is not that and nothing more."""
    try:
        message = _elwc_class().FromString(value)
    except DecodeError:
        return []
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return [*message.examples, message.context] if message.ByteSize() == size else []


@functools.cache
def _elwc_class() -> type[Any]:
    fields = {"ExampleListWithContext": {"*examples": TYPE_BYTES, "context": TYPE_BYTES}}
    return message_classes(fields)["ExampleListWithContext"]


def _plausible_dtypes(value: bytes) -> tuple[str, ...]:
    """Returns the dtypes the value may have, the surest first: plausible floats, small integers, bytes."""
    dtypes = []
    for dtype in ("float64", "float32", "int64", "int32"):
        size = ITEM_BYTES[dtype]
        if len(value) % size == 0:
            numbers = np.frombuffer(
                value[: _CHECKED_BYTES // size * size], np.dtype(dtype).newbyteorder("<")
            )
            if _are_plausible(numbers):
                dtypes.append(dtype)
    return (*dtypes, "uint8")


def _are_plausible(numbers: np.ndarray) -> bool:
    if numbers.dtype.kind == "i":
        return bool(((numbers > -(1 << 24)) & (numbers < 1 << 24)).all())
    with np.errstate(invalid="ignore"):
        size = np.abs(numbers)
        return bool(((size == 0) | ((size > 1e-12) & (size < 1e12)) | np.isnan(numbers)).all())


def suggest_arrays(contents: Contents, length: int, sizes: Mapping[str, int]) -> list[str]:
    """Returns the arrays (`float32[64,64,3]`) that values of `length` bytes may be, the likeliest first, at most three.

    Args:
        contents: the values.
        length: of all of them, in bytes.
        sizes: int64 features of one value in all records, by name: a height and a width among them are believed.

    >>> suggest_arrays(Contents(9, {KIND_BINARY: 9}, dtypes=("uint8",)), 784, {})
    ['uint8[28,28]', 'uint8[14,14,4]', 'uint8[784]']
    """
    if set(contents.kinds) != {KIND_BINARY} or not contents.dtypes:
        return []
    suggestions = []
    for dtype in contents.dtypes:
        if length % ITEM_BYTES[dtype] == 0 and length:
            suggestions += [
                f"{dtype}[{','.join(map(str, shape))}]"
                for shape in _likely_shapes(length // ITEM_BYTES[dtype], sizes)
            ]
    return suggestions[:3]


def _likely_shapes(count: int, sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Shapes of so many values: the height and width that the records say, squares, a vector."""
    sizes_by_name = {
        name.rpartition("/")[2].lower(): value for name, value in sizes.items() if value > 0
    }
    height, width = (
        sizes_by_name.get("height", sizes_by_name.get("rows", 0)),
        sizes_by_name.get("width", sizes_by_name.get("cols", 0)),
    )
    named_shapes = [
        (height, width, *((channels,) if channels > 1 else ()))
        for channels in _CHANNEL_COUNTS
        if height * width * channels == count and count
    ]
    yield from named_shapes
    if named_shapes:
        return
    for channels in _CHANNEL_COUNTS:
        side = round((count / channels) ** 0.5)
        if side > 3 and side * side * channels == count:
            yield (side, side, *((channels,) if channels > 1 else ()))
    yield (count,)
