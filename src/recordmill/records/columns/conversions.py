"""Decoding of records with conversions of their columns, and the parser for these conversions.

Users write a conversion as text, such as `image=float32[64,64,3]` or `boxes=[-1,4]`. The parser
returns steps of `records.columns.convert`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.records.columns.convert import (
    ConversionStep,
    DecodeRaw,
    MakeRagged,
    Pad,
    Reshape,
    convert_columns,
    output_schema,
)
from recordmill.records.example.decode import decode_lenient, make_record_error
from recordmill.records.example.locate import BadRecord
from recordmill.schemas.feature import ITEM_BYTES, Schema


@dataclass(frozen=True)
class Decoding:
    """Decoder of records that also converts their columns.

    Attributes:
        stored_schema: The features in the form in which the records contain them.
        steps: The conversions, in the order in which they are applied.
    """

    stored_schema: Schema
    steps: tuple[ConversionStep, ...] = ()

    @classmethod
    def from_schema(cls, schema: Schema | Decoding) -> Decoding:
        """Returns a `Decoding` of a schema, without conversions.

        A `Decoding` is returned unchanged.
        """
        return schema if isinstance(schema, Decoding) else cls(schema)

    @cached_property
    def schema(self) -> Schema:
        """The features after the conversions.

        Raises:
            UsageError: A step can't be applied to its feature.
        """
        return output_schema(self.steps, self.stored_schema)

    def decode(
        self,
        data: Bytes,
        starts: Int64s,
        lengths: Int64s,
        *,
        location: Callable[[int], tuple[str, str]],
    ) -> pa.RecordBatch:
        """Decodes and converts records. Record i is `data[starts[i] : starts[i] + lengths[i]]`.

        Args:
            data: uint8 [bytes], a buffer that contains the payloads.
            starts: int64 [rows], the offset of each payload.
            lengths: int64 [rows], the size of each payload.
            location: Returns (source, place) of the record of a row, for messages.

        Raises:
            DataError: A record can't be decoded or converted.
        """
        batch, _, bad = decode_lenient(data, starts, lengths, self.stored_schema)
        if bad:
            row = bad[0].row
            source, place = location(row)
            if self._has_no_feature(data, starts[row : row + 1], lengths[row : row + 1]):
                raise DataError(
                    f"has none of the features of the other records, such as {bad[0].feature!r:.60}. Name "
                    "the files to read, without this one",
                    source=source,
                    place=place,
                )
            raise make_record_error(bad[0], source, place)
        return self.convert(batch, location)

    def _has_no_feature(self, data: Bytes, start: Int64s, length: Int64s) -> bool:
        """Returns whether a record has none of the features of the schema."""
        optional = [replace(feature, required=False) for feature in self.stored_schema]
        schema = replace(self.stored_schema, features=tuple(optional))
        batch, _, bad = decode_lenient(data, start, length, schema)
        return not bad and len(optional) > 1 and all(column.null_count for column in batch.columns)

    def convert(
        self, batch: pa.RecordBatch, location: Callable[[int], tuple[str, str]]
    ) -> pa.RecordBatch:
        """Converts the columns of records that were decoded without conversions.

        Args:
            batch: Columns of the stored schema.
            location: Returns (source, place) of the record of a row, for messages.

        Raises:
            DataError: A value can't be converted. The error names the first such record.
        """
        if not self.steps:
            return batch
        result = convert_columns(self.steps, batch, self.stored_schema)
        if result.bad_records:
            bad = result.bad_records[0]
            raise make_record_error(bad, *location(bad.row))
        return result.batch

    def decode_lenient(
        self, data: Bytes, starts: Int64s, lengths: Int64s
    ) -> tuple[pa.RecordBatch, Int64s, list[BadRecord]]:
        """Decodes and converts records, and leaves out bad ones.

        Returns:
            (batch of the good records, the index of each of them in `starts`, the bad records in
            order).
        """
        batch, good, bad = decode_lenient(data, starts, lengths, self.stored_schema)
        if not self.steps:
            return batch, good, bad
        result = convert_columns(self.steps, batch, self.stored_schema)
        # The row numbers of a conversion count only the decoded records, so they are converted
        # back.
        bad = bad + [
            BadRecord(int(good[bad_record.row]), bad_record.feature, bad_record.message)
            for bad_record in result.bad_records
        ]
        return (
            result.batch,
            np.asarray(good[result.rows], np.int64),
            sorted(bad, key=lambda record: record.row),
        )


_TYPED_SPEC = re.compile(r"(?s)(.+)=([<>]?)(\w+)(?:\[([-\d,\s]*)\])?")
_PAD_SPEC = re.compile(r"(?s)(.+?)=(\d+):(.*)")
_SHAPE_SPEC = re.compile(r"(?s)(.+)=\[([-\d,\s]*)\]")
CONVERSION_DTYPES = f"a dtype is one of {', '.join(ITEM_BYTES)}"
Specs = Sequence[str] | str | None


def normalize_specs(
    specs: Specs | Mapping[str, str] | Mapping[str, str | Sequence[int]], keyword: str
) -> Sequence[str]:
    """Converts the conversions of an option to texts `FEATURE=...`.

    Users can write them in several forms.

    Args:
        specs: A text, several texts, or a mapping from features to the part after `=`. None means
            no conversion.
        keyword: The name of the option, for messages.

    Raises:
        UsageError: A conversion has another form.
    """
    if isinstance(specs, str):
        return [specs]
    if isinstance(specs, Mapping):
        specs = [f"{name}={_spec_text(name, value, keyword)}" for name, value in specs.items()]
    specs = () if specs is None else specs
    if not isinstance(specs, Sequence) or not all(isinstance(text, str) for text in specs):
        raise UsageError(
            "{option}: must be a text FEATURE=..., a list of them, or a dict of "
            "texts by feature, not {specs}",
            option=option(keyword),
            specs=f"{specs!r:.99}",
        )
    return specs


def _spec_text(name: str, value: object, keyword: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(size, int) for size in value):
        return f"[{','.join(map(str, value))}]"
    raise UsageError(
        "{option}: must be a text such as 'float32[256,256]' or '[-1,4]', not {value}",
        option=option(keyword, name),
        value=f"{value!r:.99}",
    )


def parse_typed_spec(text: str) -> tuple[str, str, str, str | None] | None:
    """Splits a text `FEATURE=DTYPE[SHAPE]`.

    The dtype may begin with `<` or `>`, the byte order.

    >>> parse_typed_spec("depth=>float32[256,256]")
    ('depth', '>', 'float32', '256,256')

    Returns:
        (feature, byte order or "", dtype, text inside the brackets). The last item is None without
        brackets. None instead of the tuple if the text has another form.
    """
    match = _TYPED_SPEC.fullmatch(text)
    return None if match is None else (match[1], match[2], match[3], match[4])


def parse_decode_raw(text: str) -> DecodeRaw:
    """Parses `FEATURE=DTYPE[SHAPE]`.

    Raises:
        UsageError: The text has another form.
    """
    match = parse_typed_spec(text)
    if match is None or match[2] not in ITEM_BYTES:
        raise UsageError(
            "{decode_raw}: write FEATURE=DTYPE[SHAPE], as in depth=float32[256,256], "
            "or >float32[...] if it is big-endian; {conversion_dtypes}",
            decode_raw=option("decode_raw", text),
            conversion_dtypes=CONVERSION_DTYPES,
        )
    return DecodeRaw(
        match[0],
        dtype=match[2],
        shape=parse_shape(match[3] or "", option("decode_raw", text)),
        is_big_endian=match[1] == ">",
    )


def parse_reshape(text: str) -> Reshape:
    """Parses `FEATURE=[SHAPE]`.

    Raises:
        UsageError: The text has another form.
    """
    match = _SHAPE_SPEC.fullmatch(text)
    if match is None:
        raise UsageError(
            "{reshape}: write FEATURE=[SHAPE], as in boxes=[-1,4]", reshape=option("reshape", text)
        )
    return Reshape(
        match[1], parse_shape(match[2], option("reshape", text), allows_any_position=True)
    )


def parse_conversion_steps(
    decode_raw: Specs | Mapping[str, str] = None,
    reshape: Specs | Mapping[str, str | Sequence[int]] = None,
    pad: Specs | Mapping[str, str] = None,
    pad_or_cut: Specs = None,
    ragged: Specs = None,
) -> tuple[ConversionStep, ...]:
    """Parses the conversions of all options to steps.

    The steps are in the order in which they are applied. The order is: decode, reshape, then pad or
    make ragged.

    Raises:
        UsageError: A text has a wrong form, or a feature is decoded, reshaped or padded twice.
    """
    raw_steps = [parse_decode_raw(text) for text in normalize_specs(decode_raw, "decode_raw")]
    reshape_steps = [parse_reshape(text) for text in normalize_specs(reshape, "reshape")]
    length_steps: list[ConversionStep] = [
        *(_parse_pad(text, "pad", False) for text in normalize_specs(pad, "pad")),
        *(
            _parse_pad(text, "pad_or_cut", True)
            for text in normalize_specs(pad_or_cut, "pad_or_cut")
        ),
        *(
            MakeRagged(name.strip())
            for text in normalize_specs(ragged, "ragged")
            for name in text.split(",")
        ),
    ]
    for action, steps in (
        ("decoded", raw_steps),
        ("reshaped", reshape_steps),
        ("padded or made ragged", length_steps),
    ):
        check_converted_once([step.feature for step in steps], action)
    return (*raw_steps, *reshape_steps, *length_steps)


def _parse_pad(text: str, keyword: str, cuts_longer: bool) -> Pad:
    match = _PAD_SPEC.fullmatch(text)
    if match is None or int(match[2]) < 1:
        raise UsageError(
            "{option}: write FEATURE=LENGTH:VALUE, as in tokens=128:0", option=option(keyword, text)
        )
    return Pad(match[1], length=int(match[2]), value=match[3], cuts_longer=cuts_longer)


def parse_shape(
    text: str, option_text: str, allows_any_position: bool = False
) -> tuple[int | None, ...]:
    """Parses a shape such as `-1,4`. A size of -1 becomes None.

    Args:
        text: The sizes, separated by commas.
        option_text: The option, for messages.
        allows_any_position: Whether -1 may be at any position. Otherwise it must be the first.

    Raises:
        UsageError: The text is not a shape.

    >>> parse_shape("-1,4", "reshape")
    (None, 4)
    """
    try:
        sizes = [int(size) for size in text.split(",")] if text.strip() else []
    except ValueError:
        raise UsageError(
            "{option}: a shape must be numbers with commas between them, as in [28,28]",
            option=option_text,
        ) from None
    if (
        any(size < 1 and size != -1 for size in sizes)
        or sizes.count(-1) > 1
        or (-1 in sizes[1:] and not allows_any_position)
    ):
        raise UsageError(
            "{option}: dimensions are 1 or more; one may be -1, which varies{condition}",
            option=option_text,
            condition="" if allows_any_position else ", if it is the first",
        )
    return tuple(None if size == -1 else size for size in sizes)


def check_converted_once(names: Sequence[str | None], action: str) -> None:
    """Raises UsageError if two conversions of the same kind are for the same feature.

    Args:
        names: The feature of each conversion.
        action: The past participle for the message, such as `reshaped`.
    """
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"feature {repeated[0]!r} is to be {action} twice")
