"""Decodes payloads to columns that are converted (`Decoding`), and parses conversions as people write them
(`image=float32[64,64,3]`, `boxes=[-1,4]`) to the steps of `records.columns.convert`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.records.columns.convert import (
    ConversionStep,
    DecodeRaw,
    MakeRagged,
    Pad,
    Reshape,
    convert_column,
    output_schema,
)
from recordmill.records.example.decode import decode, decode_lenient, failure
from recordmill.records.example.locate import BadRecord
from recordmill.schemas.feature import ITEM_BYTES, Schema


@dataclass(frozen=True)
class Decoding:
    """stored: the features as the records have them. steps: what becomes of them, in this order."""

    stored: Schema
    steps: tuple[ConversionStep, ...] = ()

    @classmethod
    def of(cls, wanted: Schema | Decoding) -> Decoding:
        """Features of a schema as they are, or converted."""
        return wanted if isinstance(wanted, Decoding) else cls(wanted)

    @cached_property
    def schema(self) -> Schema:
        """Returns the features after the steps; UsageError where one is nothing that its step takes."""
        return output_schema(self.steps, self.stored)

    def decode(
        self,
        data: Bytes,
        starts: Int64s,
        lengths: Int64s,
        *,
        source: str = "",
        first_record: int = 0,
        offsets: Int64s | None = None,
    ) -> pa.RecordBatch:
        """Decodes as `records.example.decode.decode` does, and converts; DataError where a record can't be."""
        batch = decode(
            data,
            starts,
            lengths,
            self.stored,
            source=source,
            first_record=first_record,
            offsets=offsets,
        )
        places = starts if offsets is None else offsets
        return self.converted(
            batch, source, lambda row: f"record {first_record + row}, byte {int(places[row])}"
        )

    def converted(
        self, batch: pa.RecordBatch, source: str, place: Callable[[int], str]
    ) -> pa.RecordBatch:
        """Converts the columns of records as they have them by the steps. DataError names the place of the record of a
        row.
        """
        if not self.steps:
            return batch
        found = convert_column(self.steps, batch, self.stored)
        if found.bad:
            raise failure(found.bad[0], source, place(found.bad[0].row))
        return found.batch

    def decode_lenient(
        self, data: Bytes, starts: Int64s, lengths: Int64s
    ) -> tuple[pa.RecordBatch, Int64s, list[BadRecord]]:
        """Decodes as `decode` does; returns (the batch of the good records, their rows, the bad ones in order)."""
        batch, good, bad = decode_lenient(data, starts, lengths, self.stored)
        if not self.steps:
            return batch, good, bad
        found = convert_column(self.steps, batch, self.stored)
        bad = bad + [BadRecord(int(good[one.row]), one.feature, one.reason) for one in found.bad]
        return (
            found.batch,
            np.asarray(good[found.rows], np.int64),
            sorted(bad, key=lambda record: record.row),
        )


_TYPED = re.compile(r"(?s)(.+)=([<>]?)(\w+)(?:\[([-\d,\s]*)\])?")
_PADDED = re.compile(r"(?s)(.+?)=(\d+):(.*)")
_SHAPED = re.compile(r"(?s)(.+)=\[([-\d,\s]*)\]")
CONVERSION_DTYPES = f"a dtype is one of {', '.join(ITEM_BYTES)}"
Specs = Sequence[str] | str | None


def listed_names(
    specs: Specs | Mapping[str, str] | Mapping[str, str | Sequence[int]], keyword: str
) -> Sequence[str]:
    """Returns one text for each feature; a mapping says the same as `FEATURE=...`. UsageError: one is no text."""
    if isinstance(specs, str):
        return [specs]
    if isinstance(specs, Mapping):
        specs = [f"{name}={_text(name, what, keyword)}" for name, what in specs.items()]
    specs = () if specs is None else specs
    if not isinstance(specs, Sequence) or not all(isinstance(text, str) for text in specs):
        raise UsageError(
            f"{option(keyword)}: a text FEATURE=..., several of them, or texts by feature, not {specs!r:.99}"
        )
    return specs


def _text(name: str, what: object, keyword: str) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, Sequence) and all(isinstance(size, int) for size in what):
        return f"[{','.join(map(str, what))}]"
    raise UsageError(
        f"{option(keyword, name)}: a text such as 'float32[256,256]' or '[-1,4]', not {what!r:.99}"
    )


def typed(text: str) -> tuple[str, str, str, str | None] | None:
    """Returns (feature, "<", ">" or "", dtype, what stands in [] if there is such) of `FEATURE=DTYPE[SHAPE]`."""
    match = _TYPED.fullmatch(text)
    return None if match is None else (match[1], match[2], match[3], match[4])


def raw_step(text: str) -> DecodeRaw:
    """Parses `FEATURE=DTYPE[SHAPE]`; UsageError where it is not written so."""
    match = typed(text)
    if match is None or match[2] not in ITEM_BYTES:
        raise UsageError(
            f"{option('decode_raw', text)}: FEATURE=DTYPE[SHAPE], as in depth=float32[256,256], or >float32[...] if "
            f"it is big-endian; {CONVERSION_DTYPES}"
        )
    return DecodeRaw(
        match[0], match[2], shape_of(match[3] or "", option("decode_raw", text)), match[1] == ">"
    )


def reshape_step(text: str) -> Reshape:
    """Parses `FEATURE=[SHAPE]`; UsageError where it is not written so."""
    match = _SHAPED.fullmatch(text)
    if match is None:
        raise UsageError(f"{option('reshape', text)}: FEATURE=[SHAPE], as in boxes=[-1,4]")
    return Reshape(match[1], shape_of(match[2], option("reshape", text), anywhere=True))


def conversion_steps(
    decode_raw: Specs | Mapping[str, str] = None,
    reshape: Specs | Mapping[str, str | Sequence[int]] = None,
    pad: Specs | Mapping[str, str] = None,
    pad_or_cut: Specs = None,
    ragged: Specs = None,
) -> tuple[ConversionStep, ...]:
    """Returns the steps in the order in which they are done: decode, reshape, pad or make ragged.

    Raises:
        UsageError: one is not written as it must be, or a feature is decoded, reshaped or padded twice.
    """
    raw = [raw_step(text) for text in listed_names(decode_raw, "decode_raw")]
    shaped = [reshape_step(text) for text in listed_names(reshape, "reshape")]
    padded: list[ConversionStep] = [
        *(_pad(text, "pad", False) for text in listed_names(pad, "pad")),
        *(_pad(text, "pad_or_cut", True) for text in listed_names(pad_or_cut, "pad_or_cut")),
        *(
            MakeRagged(name.strip())
            for text in listed_names(ragged, "ragged")
            for name in text.split(",")
        ),
    ]
    for what, group in (("decoded", raw), ("reshaped", shaped), ("padded or made ragged", padded)):
        check_once([step.feature for step in group], what)
    return (*raw, *shaped, *padded)


def _pad(text: str, keyword: str, cut: bool) -> Pad:
    match = _PADDED.fullmatch(text)
    if match is None or int(match[2]) < 1:
        raise UsageError(f"{option(keyword, text)}: FEATURE=LENGTH:VALUE, as in tokens=128:0")
    return Pad(match[1], int(match[2]), match[3], cut)


def shape_of(text: str, given: str, anywhere: bool = False) -> tuple[int | None, ...]:
    """Returns the numbers of a shape; -1 is None, in the first place only unless anywhere. UsageError quotes the
    option, `given`.
    """
    try:
        sizes = [int(size) for size in text.split(",")] if text.strip() else []
    except ValueError:
        raise UsageError(
            f"{given}: a shape is numbers with commas between them, as in [28,28]"
        ) from None
    if (
        any(size < 1 and size != -1 for size in sizes)
        or sizes.count(-1) > 1
        or (-1 in sizes[1:] and not anywhere)
    ):
        raise UsageError(
            f"{given}: dimensions are 1 or more; one may be -1, which "
            f"varies{'' if anywhere else ', if it is the first'}"
        )
    return tuple(None if size == -1 else size for size in sizes)


def check_once(names: Sequence[str | None], what: str) -> None:
    """Raises UsageError where a feature is named twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"feature {twice[0]!r} is to be {what} twice")
