"""Parsing of text columns in formats that the option `parse` declares.

The formats are numbers, times and lists, such as `price=decimal(",")`. A column with a declared
format is first read as text. Numbers are rewritten to the plain grammar of native/numbers.h, still
as text, and only then cast to the dtype of the column (float64 if none is declared). So they are
exact for every dtype, and a number that the dtype can't hold is a reject. Times become
timestamp[s]. A value in another format is a reject.

Without the option no value is changed, but a text column of a CSV file gets a note if a common
format fits it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import Fault, UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.sources.common.contract import Chunk, PlanOptions, Source
from recordmill.sources.common.options import TableOptions
from recordmill.sources.values.column_join import (
    JoinedRows,
    PlanFunction,
    join_columns,
    options_for_columns,
    plan_text_columns,
)
from recordmill.sources.values.conform import quote_value
from recordmill.sources.values.schema_unifier import SchemaUnifier, declared_dtypes
from recordmill.storage.file_table import FileTable

_SYMBOLS = "$€£¥₹"
# (pattern before the digits, pattern after them), by kind of format.
_AFFIXES = {
    "decimal": ("", ""),
    "percent": ("", r"\s?%"),
    "currency": (rf"(?:[{_SYMBOLS}]\s?|[A-Z]{{3}}\s)?", rf"(?:\s?[{_SYMBOLS}]|\s[A-Z]{{3}})?"),
}
_TIME_KINDS = ("date", "datetime")
# patterns of list items, by dtype
_ITEM_PATTERNS = {
    "string": ".*",
    "int64": r"[+-]?\d+",
    "float64": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
}
_USAGE = """give COLUMN=decimal(","), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|") or \
list("|", "int64")"""
# Formats that a note suggests if they can parse all values of a column.
_SUGGESTED_FORMATS = """decimal(",");decimal(",", thousands=".");decimal(".", thousands=",");percent;percent(",");currency
currency(",", thousands=".");date("%d.%m.%Y");date("%d/%m/%Y");date("%m/%d/%Y");date("%d-%m-%Y");date("%Y/%m/%d")
date("%d.%m.%y");date("%d/%m/%y");date("%m/%d/%y");datetime("%d.%m.%Y %H:%M");datetime("%d/%m/%Y %H:%M")
datetime("%m/%d/%Y %H:%M")""".replace("\n", ";").split(";")
_MAX_NOTES = 10


@dataclass(frozen=True)
class TextFormat:
    """The declared format of the values in a column of text.

    Attributes:
        text: The declaration, such as `decimal(',')`.
        kind: Name of the format, such as `decimal`.
        point: Decimal point of numbers.
        thousands: Separator between groups of three digits. Empty if there is none.
        time_format: Format of times, for strptime. Empty for other kinds.
        separator: Separator of list items. Empty for other kinds.
        item: dtype of list items.
    """

    text: str
    kind: str
    point: str = "."
    thousands: str = ""
    time_format: str = ""
    separator: str = ""
    item: str = "string"

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the column without a declared dtype."""
        if self.time_format:
            return self.read(pa.nulls(0, pa.string())).type
        return pa.list_(pa.type_for_alias(self.item)) if self.separator else pa.float64()

    @classmethod
    def from_text(cls, text: str) -> TextFormat:
        """Parses a declaration such as `decimal(',', thousands='.')`.

        Raises:
            UsageError: The declaration is invalid.
        """
        try:
            call = ast.parse(text.strip(), mode="eval").body
            call = call if isinstance(call, ast.Call) else ast.Call(call, [], [])
            kind, args = ast.unparse(call.func), [ast.literal_eval(arg) for arg in call.args]
            keywords = {
                str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
            }
            if kind in _TIME_KINDS:
                (time_format,) = args
                if not time_format or "%z" in time_format[:-2]:  # an offset is parsed at the end
                    raise ValueError(text)
                pc.strptime(pa.array(["x"]), format=time_format, unit="s", error_is_null=True)
                text_format = cls(text, kind, time_format=time_format, **keywords)
            elif kind == "list":
                text_format = cls(
                    text, kind, **dict(zip(("separator", "item"), args, strict=False)), **keywords
                )
                if (
                    not isinstance(text_format.separator, str)
                    or not text_format.separator
                    or text_format.item not in _ITEM_PATTERNS
                    or len(args) > 2
                ):
                    raise ValueError(text)
            else:
                default = {"thousands": ","} if kind == "currency" and not args else {}
                text_format = cls(
                    text,
                    kind,
                    **dict(zip(("point", "thousands"), args, strict=False)),
                    **{**default, **keywords},
                )
                if (
                    kind not in _AFFIXES
                    or len(text_format.point) != 1
                    or len(text_format.thousands) > 1
                    or text_format.point == text_format.thousands
                    or len(args) > 2
                ):
                    raise ValueError(text)
        except (SyntaxError, TypeError, ValueError, pa.ArrowException):
            raise UsageError(
                "{parse}: {usage}", parse=option("parse", text), usage=_USAGE
            ) from None
        return text_format

    def read(self, values: pa.Array) -> pa.Array:
        """Parses a column of texts in this format.

        Returns:
            timestamp[s] for times, lists of texts for lists, and texts in the plain grammar for
            numbers. A text in another format becomes null.
        """
        values = pc.cast(values, pa.string())
        if self.separator:
            return self._read_lists(values)
        return self._read_times(values) if self.time_format else self._read_numbers(values)

    def _read_numbers(self, values: pa.Array) -> pa.Array:
        prefix, suffix = _AFFIXES[self.kind]
        point, thousands = re.escape(self.point), re.escape(self.thousands)
        integer_part = rf"\d{{1,3}}(?:{thousands}\d{{3}})+|\d+" if thousands else r"\d+"
        pattern = (
            rf"^(?P<sign>[+-]?){prefix}(?P<whole>{integer_part})(?:{point}(?P<rest>\d+))?{suffix}$"
        )
        sign, integer_part, decimals = (
            pc.struct_field(pc.extract_regex(values, pattern), index) for index in range(3)
        )
        if thousands:
            integer_part = pc.replace_substring(integer_part, self.thousands, "")
        decimals = pc.if_else(
            pc.equal(decimals, ""), "", pc.binary_join_element_wise(".", decimals, "")
        )
        # As an exponent, the division by 100 is exact.
        exponent = "e-2" if self.kind == "percent" else ""
        return pc.binary_join_element_wise(sign, integer_part, decimals, exponent, "")

    def _read_times(self, values: pa.Array) -> pa.Array:
        time_format, offset_sec = self.time_format, None
        if time_format.endswith("%z"):
            time_format = time_format.removesuffix("%z")
            values, offset_sec = _split_offsets(values)
        times = pc.strptime(values, format=time_format, unit="s", error_is_null=True)
        # strptime accepts days that don't exist, such as 30.02., and turns them into other days
        is_exact = pc.equal(_unpadded(pc.strftime(times, format=time_format)), _unpadded(values))
        times = pc.if_else(pc.fill_null(is_exact, False), times, pa.scalar(None, times.type))
        if offset_sec is None:
            return times
        utc_sec = pc.subtract(pc.cast(times, pa.int64()), offset_sec)
        return pc.cast(utc_sec, pa.timestamp("s", "UTC"))

    def _read_lists(self, values: pa.Array) -> pa.Array:
        lists = pc.split_pattern(values, self.separator)
        items = pc.utf8_trim_whitespace(lists.flatten())
        is_item = pc.match_substring_regex(items, f"(?s)^(?:{_ITEM_PATTERNS[self.item]})$")
        bad_rows = pc.list_parent_indices(lists).filter(pc.invert(is_item)).to_numpy()
        fits = np.ones(len(lists), np.bool_)
        fits[bad_rows] = False
        rows_of_items = pa.ListArray.from_arrays(lists.offsets, items, mask=pc.is_null(lists))
        return pc.if_else(pa.array(fits), rows_of_items, pa.scalar(None, rows_of_items.type))


def _split_offsets(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Splits texts into the time and its UTC offset.

    Offsets are `Z`, `+HHMM` or `+HH:MM`.

    Returns:
        (time as text, number of seconds that its zone is ahead of UTC). Both are null for a text
        without an offset.
    """
    parts = pc.extract_regex(
        values, r"(?s)^(?P<time>.*?)(?:Z|(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>[0-5]\d))$"
    )
    time, sign, hours, minutes = (pc.struct_field(parts, index) for index in range(4))
    hour, minute = (
        pc.cast(pc.if_else(pc.equal(text, ""), "0", text), pa.int64()) for text in (hours, minutes)
    )
    seconds = pc.add(pc.multiply(hour, 3600), pc.multiply(minute, 60))
    return time, pc.if_else(pc.equal(sign, "-"), pc.negate(seconds), seconds)


def _unpadded(texts: pa.Array) -> pa.Array:
    return pc.utf8_lower(pc.replace_substring_regex(texts, r"\b0(\d)\b", r"\1"))


@dataclass(frozen=True)
class _FormattedColumns:
    """Replaces columns of text by their parsed form.

    Attributes:
        formats: The format of each column, by name.
    """

    formats: Mapping[str, TextFormat]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        columns, bad = dict[str, pa.Array](), dict[int, Fault]()
        assert isinstance(chunk.records, pa.RecordBatch)
        for name, text_format in self.formats.items():
            texts, parsed = chunk.records.column(name), text_format.read(chunk.records.column(name))
            for row in np.flatnonzero(pc.and_(pc.is_valid(texts), pc.is_null(parsed))).tolist():
                bad.setdefault(
                    row,
                    Fault(
                        "type",
                        f"{name}: {quote_value(texts[row].as_py())} is not {text_format.text}",
                    ),
                )
            columns[name] = parsed
        yield JoinedRows(chunk, pa.RecordBatch.from_pydict(columns), bad)


def join_parsed_texts(
    plan: PlanFunction, files: FileTable, common: PlanOptions, *, options: TableOptions
) -> Source:
    """Plans files, and parses the text columns that the option `parse` names.

    Args:
        plan: The function that plans the files themselves.
        files: The files.
        common: Options that all kinds of input share.
        options: Options of tables, with the declared formats.

    Raises:
        DataError: `plan` raised it.
        UsageError: A format is invalid, its column does not exist, or `plan` raised it.
    """
    declared_schema, columns_to_read = common.schema, options.columns
    formats = parse_text_formats(options.parse)
    names = [
        name
        for name in formats
        if (columns_to_read is None or name in columns_to_read)
        and (declared_schema is None or name in declared_schema)
    ]
    if not names:
        source = plan(files, common)
        notes = _format_notes(source, common) if source.kind == "csv" else ()
        return replace(source, notes=(*source.notes, *notes))  # type: ignore[type-var]
    base = plan_text_columns(files, common, plan, names=names, keyword="parse")
    format_options = options_for_columns(common, names.__contains__)
    joiner = _FormattedColumns({name: formats[name] for name in names})
    unifier = SchemaUnifier(declared_dtypes(format_options))
    fields = [
        pa.field(name, formats[name].type, nullable=not base.schema[name].required)
        for name in names
    ]
    unifier.add(pa.schema(fields), option("parse"))
    chunks = (chunk for unit in base.units for chunk in base.read(unit))
    labels = (joined.columns for chunk in chunks for joined in joiner.join(files, chunk))
    return join_columns(
        base,
        joiner,
        unifier=unifier,
        batches=labels,
        common=format_options,
        declared_schema=declared_schema,
        description="the files",
    )


def parse_text_formats(items: Sequence[str]) -> dict[str, TextFormat]:
    """Returns the format of each column from items such as `price=decimal(',')`.

    Raises:
        UsageError: An item is invalid.
    """
    matches = [re.fullmatch(r"(.+?)=([a-z]+(?:\(.*\))?)", item, re.DOTALL) for item in items]
    if invalid := [item for item, match in zip(items, matches, strict=True) if match is None]:
        raise UsageError("{parse}: {usage}", parse=option("parse", invalid[0]), usage=_USAGE)
    return {match[1]: TextFormat.from_text(match[2]) for match in matches if match is not None}


def _are_whole_numbers(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, r"^[+-]?\d+$")).as_py())


def _format_notes(source: Source, common: PlanOptions) -> Iterator[str]:
    """Yields a note for each text column that a common format can parse.

    Only the first chunk of the input is inspected.
    """
    names = [f.name for f in source.schema if f.dtype == "string" and f.name not in common.dtypes]
    if common.schema is not None or not names or not source.units:
        return
    chunk = next(source.read(source.units[0]), None)
    if chunk is None or not isinstance(chunk.records, pa.RecordBatch):
        return
    formats = {text: TextFormat.from_text(text) for text in _SUGGESTED_FORMATS}
    for name in names[:_MAX_NOTES]:
        values, candidates = chunk.records.column(name).drop_null(), dict[str, pa.Array]()
        if not len(values):
            continue
        # The first value is checked alone, because usually it is not a whole number.
        if _are_whole_numbers(values[:1]) and _are_whole_numbers(values):
            continue
        for text, text_format in formats.items():
            # the currency format also reads plain numbers, so it is only suggested after a symbol
            is_money = not {*_SYMBOLS}.isdisjoint(values[0].as_py())
            if (is_money or text_format.kind != "currency") and not text_format.read(
                values[:1]
            ).null_count:
                column = text_format.read(values)
                if not text_format.time_format:  # 1.50 and 1.5 are the same number
                    column = pc.cast(column, pa.float64())
                if not column.null_count and not any(
                    column.equals(candidate) for candidate in candidates.values()
                ):
                    candidates[text] = column
        if candidates:
            suggestions = join_messages(
                " or ", [option("parse", [f"{name}={text}"]) for text in candidates]
            )
            advice = (
                Message("{suggestions} reads them", suggestions=suggestions)
                if len(candidates) == 1
                else Message("they are ambiguous: use {suggestions}", suggestions=suggestions)
            )
            example = quote_value(values[0].as_py())
            yield Message(
                "column {column}: the first {count} values are text such as {example}; {advice}",
                column=repr(name),
                count=f"{len(values):,}",
                example=example,
                advice=advice,
            )
