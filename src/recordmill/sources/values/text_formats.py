"""Reads numbers, times and lists that columns of text spell in other ways, as `--parse` declares, and notes columns of
CSV that are text because of such spellings alone.

A declared column is read as text, and its values become float64, timestamp[s] or a list, from which its dtype is cast;
one that is not spelled so is a reject. No value is changed without the option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.sources.common.contract import Chunk, PlanOptions, Source, TableOptions
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
_AFFIXES = {  # what stands before and after the digits
    "decimal": ("", ""),
    "percent": ("", r"\s?%"),
    "currency": (rf"(?:[{_SYMBOLS}]\s?|[A-Z]{{3}}\s)?", rf"(?:\s?[{_SYMBOLS}]|\s[A-Z]{{3}})?"),
}
_TIME_KINDS = ("date", "datetime")
_ITEM_PATTERNS = {
    "string": ".*",
    "int64": r"[+-]?\d{1,18}",
    "float64": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
}  # by dtype, of lists
_USAGE = """give COLUMN=decimal(","), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|") or \
list("|", "int64")"""
_SUGGESTED_FORMATS = """decimal(",");decimal(",", thousands=".");decimal(".", thousands=",");percent;percent(",");currency
currency(",", thousands=".");date("%d.%m.%Y");date("%d/%m/%Y");date("%m/%d/%Y");date("%d-%m-%Y");date("%Y/%m/%d")
date("%d.%m.%y");date("%d/%m/%y");date("%m/%d/%y");datetime("%d.%m.%Y %H:%M");datetime("%d/%m/%Y %H:%M")
datetime("%m/%d/%Y %H:%M")""".replace("\n", ";").split(";")
_MAX_NOTES = 10


@dataclass(frozen=True)
class TextFormat:
    """How the values of a column are spelled.

    Attributes:
        text: As it was given.
        point, thousands: Of numbers.
        time_format: Of times, as strptime has it.
        separator, item: Of lists: what stands between items, and their dtype.
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
        """What `read` gives."""
        return self.read(pa.nulls(0, pa.string())).type

    @classmethod
    def from_text(cls, text: str) -> TextFormat:
        """Parses `decimal(',', thousands='.')` and the like.

        Raises:
            UsageError: It is none.
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
                    or len(args) > 2
                ):
                    raise ValueError(text)
        except (SyntaxError, TypeError, ValueError, pa.ArrowException):
            raise UsageError(f"{option('parse', text)}: {_USAGE}") from None
        return text_format

    def read(self, values: pa.Array) -> pa.Array:
        """Returns float64, timestamp[s] or lists, null where a value is not spelled so."""
        values = pc.cast(values, pa.string())
        if self.separator:
            return self._read_lists(values)
        if self.time_format:
            times = pc.strptime(values, format=self.time_format, unit="s", error_is_null=True)
            is_exact = pc.equal(
                _unpadded(pc.strftime(times, format=self.time_format)), _unpadded(values)
            )  # 30.02. is none
            return pc.if_else(pc.fill_null(is_exact, False), times, pa.scalar(None, times.type))
        prefix, suffix = _AFFIXES[self.kind]
        point, thousands = re.escape(self.point), re.escape(self.thousands)
        whole = rf"\d{{1,3}}(?:{thousands}\d{{3}})+|\d+" if thousands else r"\d+"
        pattern = rf"^(?P<sign>[+-]?){prefix}(?P<whole>{whole})(?:{point}(?P<rest>\d+))?{suffix}$"
        sign, whole, rest = (
            pc.struct_field(pc.extract_regex(values, pattern), index) for index in range(3)
        )
        whole = pc.replace_substring(whole, self.thousands, "") if thousands else whole
        text = pc.binary_join_element_wise(
            pc.replace_substring(sign, "+", ""), whole, ".", rest, "0", ""
        )
        numbers = pc.cast(text, pa.float64())
        return pc.divide(numbers, 100.0) if self.kind == "percent" else numbers

    def _read_lists(self, values: pa.Array) -> pa.Array:
        lists = pc.split_pattern(values, self.separator)
        items = pc.utf8_trim_whitespace(lists.flatten())
        is_item = pc.match_substring_regex(items, f"(?s)^(?:{_ITEM_PATTERNS[self.item]})$")
        bad_rows = pc.list_parent_indices(lists).filter(pc.invert(is_item)).to_numpy()
        fits = np.ones(len(lists), np.bool_)
        fits[bad_rows] = False
        items = pc.cast(pc.if_else(is_item, items, None), self.item)
        rows_of_items = pa.ListArray.from_arrays(lists.offsets, items, mask=pc.is_null(lists))
        return pc.if_else(pa.array(fits), rows_of_items, pa.scalar(None, rows_of_items.type))


def _unpadded(texts: pa.Array) -> pa.Array:
    return pc.utf8_lower(pc.replace_substring_regex(texts, r"\b0(\d)\b", r"\1"))


@dataclass(frozen=True)
class _FormattedColumns:
    """Columns of text as what they are spelled as."""

    formats: Mapping[str, TextFormat]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        columns, bad = dict[str, pa.Array](), dict[int, tuple[str, str]]()
        assert isinstance(chunk.records, pa.RecordBatch)
        for name, text_format in self.formats.items():
            texts, parsed = chunk.records.column(name), text_format.read(chunk.records.column(name))
            for row in np.flatnonzero(pc.and_(pc.is_valid(texts), pc.is_null(parsed))).tolist():
                bad.setdefault(
                    row,
                    ("type", f"{name}: {quote_value(texts[row].as_py())} is no {text_format.text}"),
                )
            columns[name] = parsed
        yield JoinedRows(chunk, pa.RecordBatch.from_pydict(columns), bad)


def plan_with_text_formats(
    plan: PlanFunction, options: TableOptions, files: FileTable, common: PlanOptions
) -> Source:
    """Plans the files by `plan`, with columns of other spellings if the options declare some.

    Raises:
        DataError, UsageError: As plan does; a spelling is unknown, or of no column.
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
    """Returns the spelling of each column of `price=decimal(',')` items.

    Raises:
        UsageError: An item is none.
    """
    matches = [re.fullmatch(r"(.+?)=([a-z]+(?:\(.*\))?)", item, re.DOTALL) for item in items]
    if wrong := [item for item, match in zip(items, matches, strict=True) if match is None]:
        raise UsageError(f"{option('parse', wrong[0])}: {_USAGE}")
    return {match[1]: TextFormat.from_text(match[2]) for match in matches if match is not None}


def _format_notes(source: Source, common: PlanOptions) -> Iterator[str]:
    """Yields notes on columns of text whose first values all have one of the usual spellings."""
    names = [f.name for f in source.schema if f.dtype == "string" and f.name not in common.dtypes]
    if common.schema is not None or not names or not source.units:
        return
    chunk = next(source.read(source.units[0]), None)
    if chunk is None or not isinstance(chunk.records, pa.RecordBatch):
        return
    for name in names[:_MAX_NOTES]:
        values, candidates = chunk.records.column(name).drop_null(), dict[str, pa.Array]()
        if not len(values) or pc.all(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py():
            continue
        for text, text_format in (
            (text, TextFormat.from_text(text)) for text in _SUGGESTED_FORMATS
        ):
            is_money = not {*_SYMBOLS}.isdisjoint(values[0].as_py())
            if (is_money or text_format.kind != "currency") and not text_format.read(
                values[:1]
            ).null_count:
                column = text_format.read(values)
                if not column.null_count and not any(
                    column.equals(candidate) for candidate in candidates.values()
                ):
                    candidates[text] = column
        if candidates:
            suggestions = " or ".join(option("parse", [f"{name}={text}"]) for text in candidates)
            advice = (
                f"{suggestions} reads them"
                if len(candidates) == 1
                else f"they are ambiguous: say {suggestions}"
            )
            example = quote_value(values[0].as_py())
            yield f"column {name!r}: the first {len(values):,} values are text such as {example}; {advice}"
