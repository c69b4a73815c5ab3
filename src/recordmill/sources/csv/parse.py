"""Parses tokenized rows to a RecordBatch of the planned schema, with a Reject for each row that does not fit; no Python
object per value.

A row is rejected by the first of its columns that doesn't fit; the message names the column, the value and the option
that helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.arrays import Bytes, Int32s
from recordmill.schemas.arrow import arrow_type, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.csv.fields import TokenizedRows
from recordmill.sources.csv.messages import explain_fields
from recordmill.sources.values.labels import to_classes
from recordmill.sources.values.text_columns import NullTokens, TextFields, column_of_texts, convert_texts, texts

MISSING_FIELD = -1  # instead of a column's place in the file: the file lacks it


@dataclass(frozen=True)
class Parsed:
    """batch: the rows that fit. kept: [rows] which of the given rows they are, None if all. rejects: (row, reason,
    message) of the others.
    """

    batch: pa.RecordBatch
    good: npt.NDArray[np.bool_] | None
    rejects: Sequence[tuple[int, str, str]]


@dataclass(frozen=True)
class ParsedRows:
    """A column whose values were read while it was told what they are. values: int64 or float64 [rows]. valid: [rows],
    1 where there is one. nulls: how often there is none.
    """

    values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    valid: npt.NDArray[np.uint8]
    nulls: int


class Parser:
    """Turns rows into batches of a schema. places: for each feature its column in the file, or MISSING."""

    def __init__(self, schema: Schema, places: Sequence[int], tokens: NullTokens) -> None:
        self._features, self._places, self._tokens = tuple(schema), tuple(places), tokens
        self._arrow = to_arrow(schema)

    @classmethod
    def of(cls, schema: Schema, names: Sequence[str], tokens: NullTokens) -> Parser:
        """For a file whose columns have these names."""
        places = {name: place for place, name in enumerate(names)}
        return cls(schema, [places.get(feature.name, MISSING_FIELD) for feature in schema], tokens)

    def parse(self, data: Bytes, rows: TokenizedRows, ready: Mapping[int, ParsedRows] = MappingProxyType({})) -> Parsed:
        """Returns the rows; ready: by place, the columns that need not be read once more."""
        count = len(rows.ordinals)
        bad: npt.NDArray[np.bool_] | None = None
        rejects: list[tuple[int, str, str]] = []
        columns: list[pa.Array] = []
        for feature, place in zip(self._features, self._places, strict=True):
            if place == MISSING_FIELD:
                columns.append(pa.nulls(count, arrow_type(feature)))
                continue
            known = ready.get(place)
            valid, fault = np.ones(count, np.uint8) if known is None else known.valid, np.zeros(count, np.uint8)
            fields = TextFields(data, rows.starts[place], rows.infos[place], self._tokens, valid, fault)
            array, faults = self._column(feature, fields, known)
            if feature.required and array.null_count:
                faults += _mark_nulls(fields)
            if faults:
                bad = np.zeros(count, np.bool_) if bad is None else bad
                for row in np.flatnonzero((fields.fault != 0) & ~bad).tolist():
                    rejects.append((row, *explain_fields(feature, int(fault[row]), fields.text(row))))
                bad |= fields.fault != 0
            columns.append(array)
        if bad is None:
            return Parsed(_batch(columns, self._arrow, count), None, ())
        good = ~bad
        mask = pa.array(good)
        batch = _batch([pc.filter(column, mask) for column in columns], self._arrow, int(good.sum()))
        return Parsed(batch, good, sorted(rejects))

    def _column(self, feature: Feature, fields: TextFields, known: ParsedRows | None) -> tuple[pa.Array, int]:
        if known is not None:
            return column_of_texts(fields, feature, known.nulls, known.values), 0
        if feature.classes is not None:
            return _class_numbers(fields, feature.classes)
        if feature.dtype in ("string", "bytes"):
            return texts(fields, is_utf8=feature.dtype == "string")
        return convert_texts(fields, feature)


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    assert batch.num_rows == rows or not columns
    return batch


def _mark_nulls(fields: TextFields) -> int:
    """Returns a null in a required column is a fault, where there is no other."""
    nulls = (fields.valid == 0) & (fields.fault == 0)
    fields.fault[nulls] = native.NO_VALUE
    return int(nulls.sum())


def _class_numbers(fields: TextFields, classes: Sequence[str]) -> tuple[pa.Array, int]:
    names, faults = texts(fields)
    if faults:
        names = pc.if_else(pa.array(fields.fault == 0), names, pa.scalar(None, names.type))
    cast = to_classes(names, classes)
    if cast.bad is None:
        return cast.values, faults
    fields.fault[cast.bad] = native.NO_CLASS
    return cast.values, faults + int(np.count_nonzero(cast.bad))


def text_column(data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens) -> tuple[pa.Array, Bytes]:
    """Returns (the column as large_string, where it is no UTF-8); what stands in those rows must not be used."""
    fields = TextFields.of(data, starts, infos, tokens)
    return texts(fields)[0], fields.fault
