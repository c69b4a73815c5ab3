"""Schema of a CSV input, and notes about its columns.

Both follow from the results of the scan and the user's declarations.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.type_lattice import TextCounts, resolve_dtype
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv.head import CsvHead
from recordmill.sources.csv.messages import (
    STRAY_QUOTE_PROBLEM,
    STRAY_QUOTE_REMEDIES,
    dtype_remedy,
    quote_bytes,
)
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.parse import UnexpectedValue
from recordmill.sources.csv.ranges import ScannedRowRange
from recordmill.sources.csv.sniff_dialect import QuoteEvidence
from recordmill.sources.values.labels import ClassNames
from recordmill.sources.values.schema_unifier import (
    apply_dtypes,
    check_columns,
    finish_schema,
    note_float32_losses,
)
from recordmill.storage.file_table import InputFile

# 40 bytes: a longer text does not represent a missing value.
_MAX_TOKEN_BYTES = 40
# 20 columns are named in notes. A list of 3,000 columns would not help.
_MAX_SHOWN_COLUMNS = 20


@dataclass(frozen=True)
class ColumnSummary:
    """One column of all files.

    Attributes:
        name: The column name.
        counts: Counts of its values.
        missing_rows: Number of rows in files that lack the column.
        unexpected_value: (place, first text in a column of other values), or None.
    """

    name: str
    counts: TextCounts
    missing_rows: int
    unexpected_value: tuple[str, UnexpectedValue] | None = None


def unify_dialects(
    files: Sequence[InputFile], heads: Sequence[CsvHead], options: CsvOptions
) -> CsvOptions:
    """Returns the options with the delimiter and quote that all files share.

    Files with a single column are not compared, because they contain no delimiter.

    Args:
        files: The files.
        heads: The head of each file.
        options: The user's options. A declared delimiter or quote is kept.

    Raises:
        DataError: The detected dialects of two files differ.
    """
    # A file with one column does not contain its delimiter, so it is not compared.
    multi_column_files = (
        (file, head) for file, head in zip(files, heads, strict=True) if len(head.names) > 1
    )
    first_file, first_head = next(multi_column_files, (files[0], heads[0]))
    for file, head in multi_column_files:
        for property_name, value, first_value in (
            ("delimiter", head.delimiter, first_head.delimiter),
            ("quote", head.quote, first_head.quote),
        ):
            if value != first_value:
                raise DataError(
                    "its {name} seems to be {value}, but that of {first_file} is "
                    "{first_value}; choose with {option}",
                    name=property_name,
                    value=repr(value),
                    first_file=first_file.name,
                    first_value=repr(first_value),
                    option=option(property_name),
                    source=file.name,
                )
    return options.with_dialect(options.delimiter or first_head.delimiter, first_head.quote)


def check_quotes(totals: ScanTotals, quote: str, num_columns: int) -> tuple[str, tuple[str, ...]]:
    """Decides whether quotes are ordinary text, from the evidence of all rows.

    Call this function only for a quote that was detected, not declared.

    Args:
        totals: Totals of the scan.
        quote: The detected quote.
        num_columns: Number of columns of all files.

    Returns:
        (reason why quotes are text, notes). The reason is "" if they are not text but enclose
        fields.

    Raises:
        DataError: It is unclear whether quotes are text, or the quotes of some rows are wrong.
    """
    evidence, stray_problem = totals.quote_evidence, ""
    if evidence.first_stray_quote is not None:
        line, quoted_line = evidence.first_stray_quote
        stray_problem = f"{STRAY_QUOTE_PROBLEM} {quoted_line}" + (
            f" ({evidence.stray_quote_rows:,} rows alike)" if evidence.stray_quote_rows > 1 else ""
        )
        if not evidence.quotes_are_text:
            rejection = Message(
                "{quote} rejects {value}",
                quote=option("quote", quote),
                value="it" if evidence.stray_quote_rows == 1 else "them",
            )
            raise DataError(
                "{problem}; use {remedies}; {rejection}",
                problem=stray_problem,
                remedies=STRAY_QUOTE_REMEDIES,
                rejection=rejection,
                source=totals.stray_quote_file,
                place=f"line {line}",
            )
    if evidence.quotes_are_text:
        return (
            f"quotes are text: otherwise {evidence.rows_broken_by_quotes:,} rows "
            "would be incomplete",
            (),
        )
    if not evidence.rows_across_lines:
        return "", ()
    field_count = (
        f"{evidence.rows_across_lines:,} fields in quotes hold"
        if evidence.rows_across_lines > 1
        else "a field in quotes holds"
    )
    problem = f"{field_count} line breaks, and each of these lines is a complete row"
    remedy = Message("{quote} if quotes are text", quote=option("quote", "none"))
    # With one column, every line would be a row without quotes. So this is only evidence with
    # several columns.
    if num_columns > 1 and evidence.quotes_are_doubtful:
        raise DataError(
            "{problem}; use {remedy}, or {quote} if these lines belong together",
            problem=problem,
            remedy=remedy,
            quote=option("quote", quote),
            source=totals.across_lines_file,
            place=f"line {evidence.first_across_line}",
        )
    return "", (
        Message(
            "{problem} ({across_lines_file}, line {first_across_line}): use {remedy}",
            problem=problem,
            across_lines_file=totals.across_lines_file,
            first_across_line=evidence.first_across_line,
            remedy=remedy,
        ),
    )


class ScanTotals:
    """Totals of all scanned ranges.

    Args:
        column_names: The columns of all files.
        files: The files.
        heads: The head of each file.
        label: The label column, or None.

    Attributes:
        labels: Distinct values of the label.
        quote_evidence: Evidence of all rows for and against the detected quote.
        stray_quote_file: Name of the first file in which a field continues after its closing quote.
            "" if there is none.
        across_lines_file: Name of the first file with a quoted field of several lines that could be
            rows. "" if there is none.
    """

    def __init__(
        self,
        column_names: Sequence[str],
        files: Sequence[InputFile],
        heads: Sequence[CsvHead],
        label: str | None = None,
    ) -> None:
        self._files, self._heads, self._names = files, heads, frozenset(column_names)
        self._unexpected_values: dict[str, tuple[str, UnexpectedValue]] = {}
        self._next_line = (-1, 0)  # (file ordinal, line number where its next range starts)
        self.quote_evidence, self.stray_quote_file, self.across_lines_file = QuoteEvidence(), "", ""
        self._counts = dict.fromkeys(column_names, TextCounts())
        self._missing_rows = dict.fromkeys(column_names, 0)
        self.labels = ClassNames(label or "")

    def add(self, scanned: ScannedRowRange) -> None:
        """Adds a range. The ranges of a file must be added in order."""
        column_names = self._heads[scanned.file_ordinal].names
        for name, counts in zip(column_names, scanned.column_counts, strict=True):
            self._counts[name] += counts
        if len(column_names) < len(self._names):
            for name in self._names.difference(column_names):
                self._missing_rows[name] += scanned.rows
        self.labels += scanned.labels
        line = (
            self._next_line[1]
            if self._next_line[0] == scanned.file_ordinal
            else self._heads[scanned.file_ordinal].line
        )
        for column, unexpected_value in scanned.unexpected_values.items():
            self._add_unexpected(column_names[column], unexpected_value, scanned, line)
        # A streamed file counts lines from its beginning, a range from its own.
        self._add_quotes(scanned, 0 if self._heads[scanned.file_ordinal].is_streamed else line - 1)
        self._next_line = (scanned.file_ordinal, line + scanned.lines)

    def _add_quotes(self, scanned: ScannedRowRange, lines_before: int) -> None:
        evidence = scanned.quote_evidence.shifted(lines_before)
        file_name = self._files[scanned.file_ordinal].name
        if self.quote_evidence.first_stray_quote is None and evidence.first_stray_quote is not None:
            self.stray_quote_file = file_name
        if self.quote_evidence.first_across_line is None and evidence.first_across_line is not None:
            self.across_lines_file = file_name
        self.quote_evidence += evidence

    def _add_unexpected(
        self,
        name: str,
        unexpected_value: UnexpectedValue,
        scanned: ScannedRowRange,
        first_line: int,
    ) -> None:
        """Adds a text in a column of other values. The place of the first one is kept.

        Args:
            name: The column.
            unexpected_value: The text with its counts.
            scanned: The range that contains it.
            first_line: Line number in the file where the range starts.
        """
        if name not in self._unexpected_values:
            line_number = (
                unexpected_value.line
                if self._heads[scanned.file_ordinal].is_streamed
                else first_line + unexpected_value.line - 1
            )
            self._unexpected_values[name] = (
                f"{self._files[scanned.file_ordinal].name}, line {line_number}",
                unexpected_value,
            )
            return
        place, first_value = self._unexpected_values[name]
        self._unexpected_values[name] = place, first_value + unexpected_value

    def summarize_columns(self) -> tuple[ColumnSummary, ...]:
        return tuple(
            ColumnSummary(
                name=name,
                counts=counts,
                missing_rows=self._missing_rows[name],
                unexpected_value=self._unexpected_values.get(name),
            )
            for name, counts in self._counts.items()
        )


def make_csv_schema(
    columns: Sequence[ColumnSummary], classes: ClassNames | None, common: PlanOptions
) -> tuple[Schema, tuple[str, ...]]:
    """Returns the schema, and notes about differences from a declared one.

    Args:
        columns: All columns.
        classes: Distinct values of the label. None before they are known: the schema then has no
            label.
        common: The options of the plan.

    Raises:
        UsageError: A declared dtype, `columns` or the label names an unknown column, or a dtype is
            not possible in CSV.
        DataError: The label has too many distinct values, or a required column is missing.
    """
    if common.columns is not None:
        columns_by_name = {column.name: column for column in columns}
        check_columns(common.columns, columns_by_name)
        columns = [columns_by_name[name] for name in dict.fromkeys(common.columns)]
    inferred = apply_dtypes(
        Schema(tuple(Feature(c.name, c.counts.dtype) for c in columns)), common.dtypes
    )
    inferred = Schema(
        tuple(
            replace(
                feature,
                required=column.counts.null_count(feature.dtype) + column.missing_rows == 0,
            )
            for feature, column in zip(inferred, columns, strict=True)
        )
    )
    # Declared dtypes of columns outside of the schema have no effect.
    if common.schema is not None:
        declared_dtypes = {
            name: dtype for name, dtype in common.dtypes.items() if name in common.schema
        }
        common = replace(common, dtypes=declared_dtypes)
    # The label has no classes yet.
    common = common if classes is not None else replace(common, label=None)
    schema, notes = finish_schema(inferred, (), classes, common, "the CSV input")
    for feature in schema:
        if feature.shape:
            raise UsageError(
                f"column {feature.name!r} is to be {feature.describe()}, but a CSV field holds one value; leave the "
                "shape out"
            )
    return schema, notes


class SchemaPredictor:
    """Predicts the schema from the values that all threads have seen so far.

    The predicted schema has no label, because its class names are only known after the scan.
    Several threads may call the predictor at once.

    Args:
        column_names: The columns of all files.
        common: The options of the plan.
    """

    def __init__(self, column_names: Sequence[str], common: PlanOptions) -> None:
        self._common, self._lock = common, threading.Lock()
        self._classes = dict.fromkeys(column_names, 0)
        self._schema = self._predict()

    def __call__(self, classes_by_column: Mapping[str, int]) -> Schema | None:
        """Adds the value classes of a range, and returns the schema.

        The schema fits all values so far.

        Args:
            classes_by_column: The value classes in one range so far, by column name. They are bits
                of `schemas.type_lattice`.

        Returns:
            The schema, or None if no schema fits. As long as no dtype changes, it is the same
            object, so callers may compare it with `is`.
        """
        if any(classes & ~self._classes[name] for name, classes in classes_by_column.items()):
            # Most calls bring no new class, so they need no lock.
            with self._lock:
                previous_classes = dict(self._classes)
                for name, classes in classes_by_column.items():
                    self._classes[name] |= classes
                if any(
                    # The schema object only changes with a dtype. Batches of one range must have
                    # the same schema object.
                    resolve_dtype(previous_classes[name]) != resolve_dtype(self._classes[name])
                    for name in classes_by_column
                ):
                    self._schema = self._predict()
        return self._schema

    def _predict(self) -> Schema | None:
        # One missing row per column, so that no value is required.
        columns = [
            ColumnSummary(name, TextCounts(classes), 1) for name, classes in self._classes.items()
        ]
        try:
            return make_csv_schema(columns, None, self._common)[0]
        except RecordmillError:  # the plan reports it after the scan
            return None


def are_parsed_alike(first: Schema, second: Schema) -> bool:
    """Returns whether rows are parsed to the same values with both schemas.

    `required` is ignored. If it was inferred, it does not affect the parsing. If it was declared,
    it is the same in both.
    """
    own_features, other_features = (
        [(f.name, f.dtype, f.shape, f.classes) for f in schema] for schema in (first, second)
    )
    return own_features == other_features


def columns_without_inference(column_names: Sequence[str], common: PlanOptions) -> frozenset[str]:
    """Returns the columns that have a dtype independent of their values.

    Such columns are declared by the user, or are not read.
    """
    excluded = () if common.columns is None else {*column_names} - {*common.columns}
    return frozenset(column_names if common.schema is not None else {*common.dtypes, *excluded})


def note_dialect(dialect_reason: str, header_reason: str, num_files: int) -> tuple[str, ...]:
    """Returns a note on the detected delimiter, quote and header, or ().

    Args:
        dialect_reason: `CsvHead.dialect_reason` of the first file that has one.
        header_reason: Why the first row is a header. "" if the user has declared it.
        num_files: Number of files.
    """
    descriptions = [dialect_reason] if dialect_reason else []
    if header_reason:
        descriptions.append(f"header row: {header_reason}")
    if not descriptions:
        return ()
    num_other_files = num_files - 1
    other_files_text = (
        f" (and {num_other_files:,} more file{'s' * (num_other_files > 1)} alike)"
        if num_other_files
        else ""
    )
    return (
        Message(
            "detected{other_files}: {descriptions}",
            other_files=other_files_text,
            descriptions=join_messages("; ", descriptions),
        ),
    )


def note_columns(
    columns: Sequence[ColumnSummary],
    schema: Schema,
    heads: Sequence[CsvHead],
    null_tokens: Sequence[str],
) -> tuple[str, ...]:
    """Returns notes on columns: generated names, nulls, lost digits, and missing columns."""
    notes = []
    if generated_names := sorted(
        {name for head in heads for name in head.generated_names}
        & {column.name for column in columns},
        key=lambda name: (len(name), name),
    ):
        notes.append(
            f"columns without a name were named {', '.join(generated_names[:_MAX_SHOWN_COLUMNS])}"
        )
    present_columns = [(column, schema[column.name]) for column in columns if column.name in schema]
    column_notes = [
        note
        for column, feature in present_columns
        for note in _note_column(column, feature, null_tokens)
    ]
    notes.extend(column_notes[: 2 * _MAX_SHOWN_COLUMNS])
    if len(column_notes) > 2 * _MAX_SHOWN_COLUMNS:
        notes.append(f"and {len(column_notes) - 2 * _MAX_SHOWN_COLUMNS} more notes about columns")
    return tuple(notes)


def _note_stray_text(
    column: ColumnSummary, feature: Feature, null_tokens: Sequence[str]
) -> Iterator[str]:
    """Yields a note if a column is text only because of a few values."""
    if column.unexpected_value is None or feature.dtype != "string" or feature.classes is not None:
        return
    place, unexpected = column.unexpected_value
    dtype = resolve_dtype(unexpected.other_classes)
    if (
        dtype == "string"
        or not unexpected.is_exceptional
        or 2 * unexpected.text_count > unexpected.value_count
    ):
        return
    has_several, word_counts = unexpected.text_count > 1, unexpected.word_counts or {}
    # No argument of a command can contain NUL.
    is_named = bool(word_counts) and all(
        len(word) <= _MAX_TOKEN_BYTES and b"\0" not in word for word in word_counts
    )
    quoted_texts = quote_bytes(unexpected.value)
    count_text = f" and {unexpected.text_count - 1:,} more" if has_several else ""
    if is_named and len(word_counts) > 1:
        quoted_texts = ", ".join(map(quote_bytes, word_counts))
        count_text = f", {unexpected.text_count:,} values"
    elif is_named and has_several:
        count_text += " of it"
    remedies = []
    # A null token loses nothing, so it is suggested first.
    if is_named:
        tokens = option(
            "null_tokens",
            [*null_tokens, *(word.decode("utf-8", "replace") for word in word_counts)],
        )
        remedies.append(
            Message(
                "{tokens} reads {words} as a null, in every column",
                tokens=tokens,
                words="it" if len(word_counts) == 1 else "them",
            )
        )
    if not is_named or len(word_counts) == unexpected.text_count:
        rejection = Message(
            "{dtype_remedy} {max_rejects}",
            dtype_remedy=dtype_remedy(column.name, dtype),
            max_rejects=option("max_rejects", unexpected.text_count),
        )
        remedies.append(
            Message(
                "{rejection} rejects {value}",
                rejection=rejection,
                value="them" if has_several else "it",
            )
        )
    yield Message(
        "column {column} is text because of {texts}{count} ({place}); without {texts_word} "
        "{dtype}: {remedies}",
        column=repr(column.name),
        texts=quoted_texts,
        count=count_text,
        place=place,
        texts_word="them" if has_several else "it",
        dtype=dtype,
        remedies=join_messages("; ", remedies),
    )


def _note_column(column: ColumnSummary, feature: Feature, null_tokens: Sequence[str]) -> list[str]:
    counts, notes = column.counts, list(_note_stray_text(column, feature, null_tokens))
    nulls: Mapping[str, int] = counts.nulls
    null_counts = [
        f"{count:,} {'empty' if token == '' else repr(token)}" for token, count in nulls.items()
    ]
    if counts.soft_nulls and feature.dtype not in ("string", "bytes") and feature.classes is None:
        null_counts.append(f"{counts.soft_nulls:,} quoted")
    if column.missing_rows:
        null_counts.append(f"{column.missing_rows:,} in files without the column")
    if null_counts:
        notes.append(f"column {column.name!r}: nulls: {', '.join(null_counts)}")
    if feature.dtype == "float32":
        notes += note_float32_losses(
            column.name,
            f"column {column.name!r}",
            values=counts.values,
            rounded=counts.inexact_decimals,
            rejected=counts.inexact_integers + counts.overflows,
        )
    return notes
