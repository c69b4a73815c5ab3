"""Parsing of tokenized rows to a RecordBatch of the planned schema.

No Python object is created per value. A row with a value that does not fit becomes a reject. Its
message names the first such column, the value and an option that helps.

`ColumnProfiler` counts the values of each column during the scan. `RowCacheWriter` parses the same
rows with the predicted schema and keeps them for the build.

In this module a value class is a type that a text can have, such as int64 or bool. Value classes
are bits of `schemas.type_lattice` and not the classes of a label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int32s, Int64s, allocate
from recordmill.base.errors import Fault
from recordmill.schemas.arrow import arrow_type, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.type_lattice import TEXT_CLASS, TextCounts
from recordmill.sources.common.scan_cache import (
    CachedBatch,
    CachedReject,
    ScanCache,
    ScanCacheWriter,
)
from recordmill.sources.csv.fields import TokenizedRows
from recordmill.sources.csv.messages import explain_field, explain_row, quote_first_line
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.values.labels import ClassNames, to_class_numbers
from recordmill.sources.values.text_columns import (
    NullTokens,
    TextFields,
    build_number_column,
    build_text_column,
    classify_texts,
    native_field_type,
    parse_values,
    text_at,
)

_MAX_SHOWN_BYTES = 256  # of a value in a note
# A column is text by accident if at most a tenth of its values are text.
_STRAY_RATIO = 10
# 4 distinct texts: this many may all represent a missing value, such as -, N/A and ?.
_MAX_WORDS = 4
# 1,000 texts are inspected first. If they contain many distinct ones, the column has many.
_WORD_SAMPLE_ROWS = 1000
# Dtypes of numbers that the inference can return.
INFERRED_NUMBER_DTYPES = ("int64", "float32")


@dataclass(frozen=True)
class ParseResult:
    """Parsed rows.

    Attributes:
        batch: The rows that fit the schema.
        good_rows: [rows] whether each row fits. None if all do.
        faults: The fault of each row that does not fit, by row.
    """

    batch: pa.RecordBatch
    good_rows: npt.NDArray[np.bool_] | None
    faults: Mapping[int, Fault]


@dataclass(frozen=True)
class ParsedColumn:
    """Values of a column that were parsed while its values were counted.

    Attributes:
        values: int64 or float64 [rows].
        valid: [rows] 1 for a value, 0 for a null.
    """

    values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    valid: npt.NDArray[np.uint8]


class RowParser:
    """Parses rows to batches of a schema.

    Args:
        schema: The schema of the batches.
        column_names: The columns of the file, in its order. A feature without a column is null.
        null_tokens: Texts that are nulls.
    """

    def __init__(
        self, schema: Schema, column_names: Sequence[str], null_tokens: NullTokens
    ) -> None:
        self._features = tuple(schema)
        self._null_tokens = null_tokens
        self._arrow_schema = to_arrow(schema)
        self._column_indices = {
            name: column_index for column_index, name in enumerate(column_names)
        }

    def parse(
        self,
        data: Bytes,
        rows: TokenizedRows,
        parsed_columns: Mapping[int, ParsedColumn] = MappingProxyType({}),
    ) -> ParseResult:
        """Parses tokenized rows.

        Args:
            data: The buffer with the fields.
            rows: The rows. Bad ones are not included.
            parsed_columns: Columns that are parsed already, by column index.
        """
        count = len(rows.ordinals)
        bad_rows: npt.NDArray[np.bool_] | None = None
        faults: dict[int, Fault] = {}
        arrays: list[pa.Array] = []
        for feature in self._features:
            if (column_index := self._column_indices.get(feature.name)) is None:
                arrays.append(pa.nulls(count, arrow_type(feature)))
                continue
            parsed_column = parsed_columns.get(column_index)
            validity = np.ones(count, np.uint8) if parsed_column is None else parsed_column.valid
            fault_codes = np.zeros(count, np.uint8)
            fields = TextFields(
                data,
                rows.starts[column_index],
                rows.infos[column_index],
                self._null_tokens,
                validity,
                fault_codes,
            )
            array, num_faults = self._parse_column(feature, fields, parsed_column)
            if feature.required and array.null_count:
                num_faults += _mark_missing_values(fields)
            if num_faults:
                bad_rows = np.zeros(count, np.bool_) if bad_rows is None else bad_rows
                # Rows with a fault in an earlier column are rejected already.
                for row in np.flatnonzero((fields.fault != 0) & ~bad_rows).tolist():
                    faults[row] = explain_field(feature, int(fault_codes[row]), fields.text(row))
                bad_rows |= fields.fault != 0
            arrays.append(array)
        if bad_rows is None:
            return ParseResult(_make_batch(arrays, self._arrow_schema, count), None, faults)
        good_rows = ~bad_rows
        good_mask = pa.array(good_rows)
        batch = _make_batch(
            [pc.filter(column, good_mask) for column in arrays],
            self._arrow_schema,
            int(good_rows.sum()),
        )
        return ParseResult(batch, good_rows, faults)

    def _parse_column(
        self, feature: Feature, fields: TextFields, parsed_column: ParsedColumn | None
    ) -> tuple[pa.Array, int]:
        if parsed_column is not None:
            return build_number_column(fields, feature, parsed_column.values), 0
        if feature.classes is not None:
            return _to_class_column(fields, feature.classes)
        if feature.dtype in ("string", "bytes"):
            return build_text_column(fields, is_utf8=feature.dtype == "string")
        return parse_values(fields, feature)


def _make_batch(arrays: list[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    assert batch.num_rows == num_rows or not arrays
    return batch


def _mark_missing_values(fields: TextFields) -> int:
    """Marks the nulls of a required column as faults, and counts them.

    A null that has another fault keeps it.
    """
    nulls = (fields.valid == 0) & (fields.fault == 0)
    fields.fault[nulls] = native.FieldFault.MISSING
    return int(nulls.sum())


def _to_class_column(fields: TextFields, classes: Sequence[str]) -> tuple[pa.Array, int]:
    texts, faults = build_text_column(fields)
    if faults:
        # Invalid UTF-8 must not reach the lookup of class names.
        texts = pc.if_else(pa.array(fields.fault == 0), texts, pa.scalar(None, texts.type))
    class_numbers = to_class_numbers(texts, classes)
    if class_numbers.bad_mask is None:
        return class_numbers.values, faults
    fields.fault[class_numbers.bad_mask] = native.FieldFault.NOT_A_CLASS
    return class_numbers.values, faults + int(np.count_nonzero(class_numbers.bad_mask))


@dataclass(frozen=True)
class UnexpectedValue:
    """The first text in a column of numbers, times or booleans.

    The counts refer to all values that were searched for the text. They serve for a note that
    explains why the column is text.

    Attributes:
        line: Line number of the row with the text, in the numbering of the batch that contains it.
        value: The text, cut to _MAX_SHOWN_BYTES.
        text_count: Number of values that are text.
        value_count: Number of all values.
        other_classes: Value classes of the values that are not text.
        word_counts: Number of occurrences of each distinct text. None if there are more than
            _MAX_WORDS distinct ones.
    """

    line: int
    value: bytes
    text_count: int
    value_count: int
    other_classes: int
    word_counts: Mapping[bytes, int] | None

    def __add__(self, later: UnexpectedValue) -> UnexpectedValue:
        """Returns the counts plus those of later values, with the line and text of `self`."""
        text_count = self.text_count + later.text_count
        value_count = self.value_count + later.value_count
        word_counts = None
        if self.word_counts is not None and later.word_counts is not None:
            counts = {
                word: self.word_counts.get(word, 0) + later.word_counts.get(word, 0)
                for word in (*self.word_counts, *later.word_counts)
            }
            word_counts = counts if len(counts) <= _MAX_WORDS else None
        return replace(
            self,
            text_count=text_count,
            value_count=value_count,
            other_classes=self.other_classes | later.other_classes,
            word_counts=word_counts,
        )

    @property
    def is_exceptional(self) -> bool:
        """Whether the texts look like accidents in a column of another type.

        The result is True if there are few distinct texts, or if only a small share of the values
        are text.
        """
        return self.word_counts is not None or _STRAY_RATIO * self.text_count <= self.value_count


class ColumnProfiler:
    """Counts the values, value classes and nulls of each column, and collects the label.

    Args:
        null_tokens: Texts that are nulls.
        is_typed: [columns] Whether the type of the column depends on its values. If not, only
            values and nulls are counted.
        label_column: Index of the label column, or None.

    Attributes:
        labels: The distinct values of the label.
        unexpected_values: The first text in a column of other values, by column index.
    """

    def __init__(
        self, null_tokens: Sequence[str], is_typed: Sequence[bool], label_column: int | None
    ) -> None:
        self._token_names = tuple(null_tokens)
        self._null_tokens = NullTokens.from_texts(null_tokens)
        self._label_column = label_column
        self._counts = [
            # The class TEXT stops the classification of a column from the start.
            native.ColumnCounts(classes=0 if is_column_typed else TEXT_CLASS)
            for is_column_typed in is_typed
        ]
        self._nulls = np.zeros((len(is_typed), len(self._token_names)), np.int64)
        self._is_typed = tuple(is_typed)
        self.labels = ClassNames("")
        self.unexpected_values: dict[int, UnexpectedValue] = {}

    def add(
        self,
        data: Bytes,
        rows: TokenizedRows,
        features_to_parse: Mapping[int, Feature] = MappingProxyType({}),
    ) -> dict[int, ParsedColumn]:
        """Counts the next rows.

        Args:
            data: The buffer with the fields.
            rows: The rows.
            features_to_parse: Features of the columns to parse as well, by column index. This saves
                a second pass over the data.

        Returns:
            The parsed columns by column index. A column is missing if one of its values does not
            fit the feature.
        """
        parsed_columns: dict[int, ParsedColumn] = {}
        for column, counts in enumerate(self._counts):
            was_text, num_parsed = counts.classes & TEXT_CLASS, 0
            starts, infos, nulls = rows.starts[column], rows.infos[column], self._nulls[column]
            if not was_text and column in features_to_parse:
                num_parsed, parsed_column = parse_leading_values(
                    data, starts, infos, self._null_tokens, features_to_parse[column], counts, nulls
                )
                if num_parsed == len(starts):
                    parsed_columns[column] = parsed_column
            # A value that does not fit stopped the parsing. The remaining fields are only counted.
            if num_parsed < len(starts):
                remaining = self._null_tokens.fields(data, starts[num_parsed:], infos[num_parsed:])
                native.read_fields(remaining, native.FieldType(), None, None, None, counts, nulls)
            # The batch in which a column becomes text contains the value for the note. Columns that
            # are clearly text are not inspected again.
            if not was_text and counts.classes & TEXT_CLASS:
                self.unexpected_values[column] = self._find_unexpected(data, rows, column)
            elif column in self.unexpected_values and self.unexpected_values[column].is_exceptional:
                self.unexpected_values[column] += self._find_unexpected(data, rows, column)
        self._add_labels(data, rows)
        return parsed_columns

    def _add_labels(self, data: Bytes, rows: TokenizedRows) -> None:
        if self._label_column is not None:
            fields = TextFields.create(
                data,
                rows.starts[self._label_column],
                rows.infos[self._label_column],
                self._null_tokens,
            )
            values, faults = build_text_column(fields)
            self.labels.add(values.filter(fields.fault == 0) if faults else values)

    def classes(self) -> list[int]:
        """Returns the value classes of each column so far, as bits.

        A column that is not typed has 0.
        """
        return [
            counts.classes if is_typed else 0
            for counts, is_typed in zip(self._counts, self._is_typed, strict=True)
        ]

    def _find_unexpected(self, data: Bytes, rows: TokenizedRows, column: int) -> UnexpectedValue:
        starts, infos = rows.starts[column], rows.infos[column]
        classes = classify_texts(TextFields.create(data, starts, infos, self._null_tokens))
        text_rows = np.flatnonzero(classes == TEXT_CLASS)
        other_classes = int(np.bitwise_or.reduce(classes[classes != TEXT_CLASS]))
        line, value = (
            (int(rows.lines[text_rows[0]]), text_at(data, starts, infos, text_rows[0]))
            if len(text_rows)
            else (0, b"")
        )
        text_column, _ = build_text_column(
            TextFields.create(data, starts[text_rows], infos[text_rows], self._null_tokens),
            is_utf8=False,
        )
        word_counts = None
        if (
            # The cheap test of a sample avoids counting all values of most text columns.
            len(text_column[:_WORD_SAMPLE_ROWS].unique()) <= _MAX_WORDS
            and len(value_counts := text_column.value_counts()) <= _MAX_WORDS
        ):
            pairs = zip(*(array.to_pylist() for array in value_counts.flatten()), strict=True)
            word_counts = {word[:_MAX_SHOWN_BYTES]: count for word, count in pairs}
        totals = len(text_rows), int(np.count_nonzero(classes)), other_classes, word_counts
        return UnexpectedValue(line, value[:_MAX_SHOWN_BYTES], *totals)

    def text_counts(self) -> list[TextCounts]:
        """Returns the counts of each column. Columns that are not typed have no value classes."""
        result = []
        for counts, nulls, is_typed in zip(
            self._counts, self._nulls.tolist(), self._is_typed, strict=True
        ):
            nulls_by_token = {
                name: count for name, count in zip(self._token_names, nulls, strict=True) if count
            }
            result.append(
                TextCounts(
                    classes=counts.classes if is_typed else 0,
                    values=counts.values,
                    nulls=nulls_by_token,
                    soft_nulls=counts.soft_nulls,
                    inexact_decimals=counts.inexact_decimals,
                    inexact_integers=counts.inexact_integers,
                    overflows=counts.beyond_float32,
                )
            )
        return result


def parse_leading_values(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    null_tokens: NullTokens,
    feature: Feature,
    counts: native.ColumnCounts,
    nulls: Int64s,
) -> tuple[int, ParsedColumn]:
    """Parses the fields of a column up to the first misfit.

    Args:
        data: The buffer.
        starts: [rows] The offset of each field in `data`.
        infos: [rows] The length of each field and its flag, see `TokenizedRows`.
        null_tokens: Texts that are nulls.
        feature: The feature of the column: a number or a time.
        counts: The parsed fields are added to these counts.
        nulls: [null tokens] The nulls among the parsed fields are added to these counts.

    Returns:
        (number of parsed fields, their values). The caller must count the remaining fields.
    """
    is_integer = feature.dtype == "int64" or feature.timestamp is not None
    values = allocate(len(starts), np.int64 if is_integer else np.float64)
    validity = np.ones(len(starts), np.uint8)
    fields, field_type = null_tokens.fields(data, starts, infos), native_field_type(feature)
    num_parsed = native.read_fields(
        fields, field_type, values.view(np.uint8), validity, None, counts, nulls
    )
    return num_parsed, ParsedColumn(values, validity)


# Function of the value classes so far, by column name. It returns the predicted schema, or None if
# no schema fits yet.
SchemaPrediction = Callable[[Mapping[str, int]], Schema | None]


class RowCacheWriter:
    """Parses the rows of one range with the predicted schema, and caches them.

    Args:
        predict_schema: Returns the schema that fits the value classes so far.
        cache: Receives the rows.
        column_names: The columns of the file.
        options: The options of the files.
    """

    def __init__(
        self,
        predict_schema: SchemaPrediction,
        cache: ScanCache,
        column_names: Sequence[str],
        options: CsvOptions,
    ) -> None:
        self._predict_schema = predict_schema
        self._names = tuple(column_names)
        self._max_line_bytes = options.max_line_bytes
        self._null_tokens = NullTokens.from_texts(options.null_tokens)
        self._writer = ScanCacheWriter(cache)
        self._parser: RowParser | None = None
        self._schema: Schema | None = None
        self._requested_schema: Schema | None = None  # the schema that determined _columns_to_parse
        self._columns_to_parse: Mapping[int, Feature] = {}

    def columns_to_parse(self) -> Mapping[int, Feature]:
        """Returns the columns that the profiler should parse in the next rows.

        Only columns of numbers and times are parsed there.

        Returns:
            Their features by column index. Empty if no schema is predicted, or if the rows of this
            range were discarded.
        """
        # Nothing of this range is cached any more, so parsing is useless.
        if not self._writer.is_active:
            return {}
        schema = self._schema or self._predict_schema({})
        if schema is not self._requested_schema:
            features = (
                {}
                if schema is None
                else {
                    feature.name: feature
                    for feature in schema
                    if feature.dtype in INFERRED_NUMBER_DTYPES or feature.timestamp
                }
            )
            self._columns_to_parse = {
                column: features[name]
                for column, name in enumerate(self._names)
                if name in features
            }
            self._requested_schema = schema
        return self._columns_to_parse

    def add(
        self,
        data: Bytes,
        rows: TokenizedRows,
        classes: Sequence[int],
        parsed_columns: Mapping[int, ParsedColumn],
    ) -> None:
        """Parses the next rows.

        If the predicted schema has changed, all rows of the range are discarded.

        Args:
            data: The buffer with the fields.
            rows: The rows.
            classes: The value classes of each column so far.
            parsed_columns: The columns of `columns_to_parse` that are parsed already, by column
                index.
        """
        if not self._writer.is_active:
            return
        schema = self._predict_schema(dict(zip(self._names, classes, strict=True)))
        if schema is None or (self._schema is not None and schema is not self._schema):
            self._writer.discard()
            return
        if self._parser is None:
            self._parser, self._schema = RowParser(schema, self._names, self._null_tokens), schema
        # Columns that were parsed for another schema may have other dtypes.
        parsed = self._parser.parse(
            data, rows, parsed_columns if schema is self._requested_schema else {}
        )
        self._writer.add(
            make_cached_batch(data, rows, parsed, self._max_line_bytes, len(self._names)), schema
        )

    def discard(self) -> None:
        """Discards the rows of this range."""
        self._writer.discard()

    def store(self, file_ordinal: int, begin: int) -> None:
        """Ends the range and puts its rows into the cache."""
        self._writer.store((file_ordinal, begin))


def make_cached_batch(
    data: Bytes, rows: TokenizedRows, parsed: ParseResult, max_line_bytes: int, num_columns: int
) -> CachedBatch:
    """Joins parsed rows with the rejects of all other rows.

    Args:
        data: The buffer with the fields.
        rows: The tokenized rows. Their bad rows become rejects, too.
        parsed: The parsed rows.
        max_line_bytes: Maximum length of a row, for messages.
        num_columns: Number of columns of the file, for messages.
    """
    rejects = [
        CachedReject(int(rows.ordinals[row]), int(rows.lines[row]), fault)
        for row, fault in parsed.faults.items()
    ]
    for row, line, _, width, field_start, _ in rows.bad_rows.tolist():
        rejects.append(
            CachedReject(
                row,
                line,
                explain_row(
                    width, num_columns, quote_first_line(data[field_start:]), max_line_bytes
                ),
            )
        )
    ordinals = rows.ordinals if parsed.good_rows is None else rows.ordinals[parsed.good_rows]
    return CachedBatch.from_ordinals(
        parsed.batch,
        ordinals,
        tuple(sorted(rejects, key=lambda reject: reject.ordinal)),
        rows.num_rows,
    )
