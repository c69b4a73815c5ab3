"""Guesses about the contents of binary values.

The kinds of values are images, messages, file formats, text and arrays.

`Contents` counts the kinds of some values of each batch. `suggest_arrays` suggests arrays for
values of equal length.
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
from recordmill.records.inference.infer import combine_known, infer
from recordmill.records.protobuf.message import TYPE_BYTES, make_message_classes
from recordmill.records.protobuf.tensor_proto import (
    TENSOR_DTYPES,
    TensorStatus,
    decode_typed_list,
    read_tensor_headers,
)
from recordmill.schemas.feature import ITEM_BYTES

KIND_EMPTY, KIND_TEXT, KIND_BINARY = "empty", "text", "binary"
KIND_EXAMPLE, KIND_SEQUENCE_EXAMPLE, KIND_ELWC, KIND_TENSOR = (
    "Example",
    "SequenceExample",
    "ExampleListWithContext",
    "TensorProto",
)

# Number of values of a batch that are classified. They are evenly spaced, to find a mixture of
# kinds. Classifying them takes less time than decoding the batch.
_VALUES_PER_BATCH = 24
_CHECKED_BYTES = 1 << 20  # 1 MiB of a value is enough to see whether its numbers are plausible
_AMBIGUOUS_FORMATS = ("PNM", "ICO", "JPEG XL")  # arrays may begin with the same bytes
_CHANNEL_COUNTS = (3, 1, 4)
_DT_STRING = 7  # DT_STRING in TensorFlow's types.proto

SizeRange = tuple[int, int]


@dataclass(frozen=True)
class Contents:
    """Counts of the kinds of values. The counts of several batches can be added.

    Attributes:
        looked_at: Number of values that were classified.
        kinds: Number of values of each kind, by a description of the kind.
        heights: (minimum, maximum) height of the images, in pixels.
        widths: (minimum, maximum) width of the images, in pixels.
        dtypes: The dtypes that fit every binary value, the most likely one first. None if no value
            is binary.
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
        dtypes = combine_known(
            self.dtypes,
            other.dtypes,
            lambda left, right: tuple(dtype for dtype in left if dtype in right),
        )
        heights = combine_known(self.heights, other.heights, union_range)
        widths = combine_known(self.widths, other.widths, union_range)
        return Contents(
            looked_at=self.looked_at + other.looked_at,
            kinds=kinds,
            heights=heights,
            widths=widths,
            dtypes=dtypes,
        )

    @classmethod
    def count(cls, values: pa.Array) -> Contents:
        """Counts the kinds of up to 24 values of a batch, evenly spaced.

        Args:
            values: A flat array of binary values. Null values are left out.
        """
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
        """Returns the counts as text, for example `JPEG 187 to 500 x 271 to 500 pixels`.

        Empty if there are no values, or if all are binary.

        >>> Contents(8, {"text": 3, "binary": 5}).describe()
        'binary 5, text 3 of 8 examined'
        """
        kinds = sorted(self.kinds.items(), key=lambda item: -item[1])
        if not kinds or [kind for kind, _ in kinds] == [KIND_BINARY]:
            return ""
        names = (
            kinds[0][0]
            if len(kinds) == 1
            else ", ".join(f"{kind} {count:,}" for kind, count in kinds)
            + f" of {self.looked_at:,} examined"
        )
        if self.heights is None or self.widths is None:
            return names
        return f"{names}, {_show_range(self.heights)} x {_show_range(self.widths)} pixels"


def _show_range(span: SizeRange) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def union_range(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the smallest range that contains both ranges.

    >>> union_range((1, 3), (2, 8))
    (1, 8)
    """
    return min(left[0], right[0]), max(left[1], right[1])


def _classify(value: bytes) -> Contents:
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
    """Returns the dtype and shape of a TensorProto, for example `TensorProto float32 [2, 3]`.

    None if the value is something else. The values of a TensorProto must fill its shape exactly.
    """
    header = read_tensor_headers(
        np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int64)
    )
    dtype = TENSOR_DTYPES.get(int(header.dtype[0]))
    shape = header.dims[0, : header.rank[0]].tolist()
    if header.status[0] != TensorStatus.NOT_A_TENSOR and int(header.dtype[0]) == _DT_STRING:
        return f"{KIND_TENSOR} string {shape}"
    if header.status[0] == TensorStatus.NOT_A_TENSOR or dtype is None:
        return None
    size = int(np.prod(shape, dtype=object))
    if header.status[0] == TensorStatus.IN_CONTENT:
        is_complete = int(header.lengths[0]) == size * ITEM_BYTES[dtype]
    else:
        # The values are in typed fields, so they have to be decoded: at most 16 MiB for a guess.
        try:
            is_complete = size * ITEM_BYTES[dtype] <= 1 << 24 and bool(
                decode_typed_list(value, dtype, size)
            ) == bool(size)
        except (DataError, ValueError, OverflowError):
            is_complete = False
    return f"{KIND_TENSOR} {dtype} {shape}" if is_complete else None


def _message_kind(value: bytes) -> str | None:
    """Returns the kind of record message of TensorFlow that the value contains.

    A message without features can't be recognised.
    """
    # the tags of fields 1 and 2, with which an Example and its relatives begin
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
    if inference.other_records or not inference.features:
        return None
    return KIND_SEQUENCE_EXAMPLE if inference.sequences else KIND_EXAMPLE


def _elwc_messages(value: bytes) -> list[bytes]:
    """Returns the messages in an ExampleListWithContext.

    Empty if the value is something else, or has other fields.
    """
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
    return make_message_classes(fields)["ExampleListWithContext"]


def _plausible_dtypes(value: bytes) -> tuple[str, ...]:
    """Returns the dtypes that the value may contain, the most likely one first.

    Floats and integers need plausible numbers. Any value may be uint8.
    """
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
        # other bytes usually become large numbers if they are read as integers
        return bool(((numbers > -(1 << 24)) & (numbers < 1 << 24)).all())
    with np.errstate(invalid="ignore"):
        size = np.abs(numbers)
        return bool(((size == 0) | ((size > 1e-12) & (size < 1e12)) | np.isnan(numbers)).all())


def suggest_arrays(contents: Contents, length: int, sizes: Mapping[str, int]) -> list[str]:
    """Suggests arrays that values of equal length may contain, for example `float32[64,64,3]`.

    Args:
        contents: The kinds of the values.
        length: Length of each value, in bytes.
        sizes: Features of type int64 that have the same value in all records, by name. A height and
            a width among them are used as the shape.

    Returns:
        At most three suggestions, the most likely one first.

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
    """Yields likely shapes of `count` values.

    If the records contain a matching height and width, only shapes with this size are yielded.
    Otherwise square shapes and a vector are yielded.
    """
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
