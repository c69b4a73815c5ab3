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
from recordmill.sources.values.conform import quoted_value
from recordmill.sources.values.joined import (
    JoinedRows,
    Plan,
    join_columns,
    options_of,
    plan_as_text,
)
from recordmill.sources.values.overrides import Unifier, declared_columns
from recordmill.storage.file_table import FileTable

_SYMBOLS = "$€£¥₹"
_AROUND = {  # what stands before and after the digits
    "decimal": ("", ""),
    "percent": ("", r"\s?%"),
    "currency": (rf"(?:[{_SYMBOLS}]\s?|[A-Z]{{3}}\s)?", rf"(?:\s?[{_SYMBOLS}]|\s[A-Z]{{3}})?"),
}
_TIMES = ("date", "datetime")
_ITEMS = {
    "string": ".*",
    "int64": r"[+-]?\d{1,18}",
    "float64": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
}  # by dtype, of lists
_HELP = """give COLUMN=decimal(","), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|") or \
list("|", "int64")"""
_TOLD = """decimal(",");decimal(",", thousands=".");decimal(".", thousands=",");percent;percent(",");currency
currency(",", thousands=".");date("%d.%m.%Y");date("%d/%m/%Y");date("%m/%d/%Y");date("%d-%m-%Y");date("%Y/%m/%d")
date("%d.%m.%y");date("%d/%m/%y");date("%m/%d/%y");datetime("%d.%m.%Y %H:%M");datetime("%d/%m/%Y %H:%M")
datetime("%m/%d/%Y %H:%M")""".replace("\n", ";").split(";")
_MOST_NOTES = 10


@dataclass(frozen=True)
class Spelling:
    """How the values of a column are spelled.

    Attributes:
        text: As it was given.
        point, thousands: Of numbers.
        form: Of times, as strptime has it.
        separator, item: Of lists: what stands between items, and their dtype.
    """

    text: str
    kind: str
    point: str = "."
    thousands: str = ""
    form: str = ""
    separator: str = ""
    item: str = "string"

    @property
    def type(self) -> pa.DataType:
        """What `read` gives."""
        return self.read(pa.nulls(0, pa.string())).type

    @classmethod
    def of(cls, text: str) -> Spelling:
        """Parses `decimal(',', thousands='.')` and the like.

        Raises:
            UsageError: It is none.
        """
        try:
            call = ast.parse(text.strip(), mode="eval").body
            call = call if isinstance(call, ast.Call) else ast.Call(call, [], [])
            kind, args = ast.unparse(call.func), [ast.literal_eval(arg) for arg in call.args]
            named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            if kind in _TIMES:
                (form,) = args
                pc.strptime(pa.array(["x"]), format=form, unit="s", error_is_null=True)
                found = cls(text, kind, form=form, **named)
            elif kind == "list":
                found = cls(
                    text, kind, **dict(zip(("separator", "item"), args, strict=False)), **named
                )
                if (
                    not isinstance(found.separator, str)
                    or not found.separator
                    or found.item not in _ITEMS
                    or len(args) > 2
                ):
                    raise ValueError(text)
            else:
                default = {"thousands": ","} if kind == "currency" and not args else {}
                found = cls(
                    text,
                    kind,
                    **dict(zip(("point", "thousands"), args, strict=False)),
                    **{**default, **named},
                )
                if (
                    kind not in _AROUND
                    or len(found.point) != 1
                    or len(found.thousands) > 1
                    or len(args) > 2
                ):
                    raise ValueError(text)
        except (SyntaxError, TypeError, ValueError, pa.ArrowException):
            raise UsageError(f"{option('parse', text)}: {_HELP}") from None
        return found

    def read(self, values: pa.Array) -> pa.Array:
        """Returns float64, timestamp[s] or lists, null where a value is not spelled so."""
        values = pc.cast(values, pa.string())
        if self.separator:
            return self._lists(values)
        if self.form:
            found = pc.strptime(values, format=self.form, unit="s", error_is_null=True)
            same = pc.equal(
                _unpadded(pc.strftime(found, format=self.form)), _unpadded(values)
            )  # 30.02. is none
            return pc.if_else(pc.fill_null(same, False), found, pa.scalar(None, found.type))
        before, after = _AROUND[self.kind]
        point, thousands = re.escape(self.point), re.escape(self.thousands)
        whole = rf"\d{{1,3}}(?:{thousands}\d{{3}})+|\d+" if thousands else r"\d+"
        pattern = rf"^(?P<sign>[+-]?){before}(?P<whole>{whole})(?:{point}(?P<rest>\d+))?{after}$"
        sign, whole, rest = (
            pc.struct_field(pc.extract_regex(values, pattern), at) for at in range(3)
        )
        whole = pc.replace_substring(whole, self.thousands, "") if thousands else whole
        text = pc.binary_join_element_wise(
            pc.replace_substring(sign, "+", ""), whole, ".", rest, "0", ""
        )
        numbers = pc.cast(text, pa.float64())
        return pc.divide(numbers, 100.0) if self.kind == "percent" else numbers

    def _lists(self, values: pa.Array) -> pa.Array:
        lists = pc.split_pattern(values, self.separator)
        items = pc.utf8_trim_whitespace(lists.flatten())
        is_item = pc.match_substring_regex(items, f"(?s)^(?:{_ITEMS[self.item]})$")
        bad_rows = pc.list_parent_indices(lists).filter(pc.invert(is_item)).to_numpy()
        fits = np.ones(len(lists), np.bool_)
        fits[bad_rows] = False
        items = pc.cast(pc.if_else(is_item, items, None), self.item)
        found = pa.ListArray.from_arrays(lists.offsets, items, mask=pc.is_null(lists))
        return pc.if_else(pa.array(fits), found, pa.scalar(None, found.type))


def _unpadded(texts: pa.Array) -> pa.Array:
    return pc.utf8_lower(pc.replace_substring_regex(texts, r"\b0(\d)\b", r"\1"))


@dataclass(frozen=True)
class _SpelledColumns:
    """Columns of text as what they are spelled as."""

    spellings: Mapping[str, Spelling]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        columns, bad = dict[str, pa.Array](), dict[int, tuple[str, str]]()
        assert isinstance(chunk.records, pa.RecordBatch)
        for name, spelling in self.spellings.items():
            given, found = chunk.records.column(name), spelling.read(chunk.records.column(name))
            for row in np.flatnonzero(pc.and_(pc.is_valid(given), pc.is_null(found))).tolist():
                bad.setdefault(
                    row,
                    ("type", f"{name}: {quoted_value(given[row].as_py())} is no {spelling.text}"),
                )
            columns[name] = found
        yield JoinedRows(chunk, pa.RecordBatch.from_pydict(columns), bad)


def plan_spelled(
    plan: Plan, options: TableOptions, files: FileTable, common: PlanOptions
) -> Source:
    """Plans the files by `plan`, with columns of other spellings if the options declare some.

    Raises:
        DataError, UsageError: As plan does; a spelling is unknown, or of no column.
    """
    given, chosen = common.schema, options.columns
    spellings = parse_spellings(options.parse)
    names = [
        name
        for name in spellings
        if (chosen is None or name in chosen) and (given is None or name in given)
    ]
    if not names:
        source = plan(files, common)
        notes = _spelling_notes(source, common) if source.kind == "csv" else ()
        return replace(source, notes=(*source.notes, *notes))  # type: ignore[type-var]
    own, mine = (
        plan_as_text(files, common, plan, names, "parse"),
        options_of(common, names.__contains__),
    )
    columns, unifier = (
        _SpelledColumns({name: spellings[name] for name in names}),
        Unifier(declared_columns(mine)),
    )
    fields = [
        pa.field(name, spellings[name].type, nullable=not own.schema[name].required)
        for name in names
    ]
    unifier.add(pa.schema(fields), option("parse"))
    chunks = (chunk for unit in own.units for chunk in own.read(unit))
    labels = (joined.values for chunk in chunks for joined in columns.join(files, chunk))
    return join_columns(own, columns, unifier, labels, mine, given, "the files")


def parse_spellings(items: Sequence[str]) -> dict[str, Spelling]:
    """Returns the spelling of each column of `price=decimal(',')` items.

    Raises:
        UsageError: An item is none.
    """
    each = [re.fullmatch(r"(.+?)=([a-z]+(?:\(.*\))?)", item, re.DOTALL) for item in items]
    if wrong := [item for item, match in zip(items, each, strict=True) if match is None]:
        raise UsageError(f"{option('parse', wrong[0])}: {_HELP}")
    return {match[1]: Spelling.of(match[2]) for match in each if match is not None}


def _spelling_notes(source: Source, common: PlanOptions) -> Iterator[str]:
    """Yields notes on columns of text whose first values all have one of the usual spellings."""
    names = [f.name for f in source.schema if f.dtype == "string" and f.name not in common.dtypes]
    if common.schema is not None or not names or not source.units:
        return
    chunk = next(source.read(source.units[0]), None)
    if chunk is None or not isinstance(chunk.records, pa.RecordBatch):
        return
    for name in names[:_MOST_NOTES]:
        values, found = chunk.records.column(name).drop_null(), dict[str, pa.Array]()
        if not len(values) or pc.all(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py():
            continue
        for text, spelling in ((text, Spelling.of(text)) for text in _TOLD):
            is_money = not {*_SYMBOLS}.isdisjoint(values[0].as_py())
            if (is_money or spelling.kind != "currency") and not spelling.read(
                values[:1]
            ).null_count:
                column = spelling.read(values)
                if not column.null_count and not any(
                    column.equals(other) for other in found.values()
                ):
                    found[text] = column
        if found:
            said = " or ".join(option("parse", [f"{name}={text}"]) for text in found)
            how = f"{said} reads them" if len(found) == 1 else f"they are ambiguous: say {said}"
            shown = quoted_value(values[0].as_py())
            yield f"column {name!r}: the first {len(values):,} values are text such as {shown}; {how}"
