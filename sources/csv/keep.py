"""Rows that the scan has looked at, parsed by the schema that is expected, to what is kept of them until the build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from recordmill.base.byte_masks import Bytes
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.csv.fields import Rows
from recordmill.sources.csv.infer import NUMBERS
from recordmill.sources.csv.messages import explain_row
from recordmill.sources.csv.parse import Parsed, Parser, Ready
from recordmill.sources.inputs.kept import Keeping, Kept, KeptReject, Piece
from recordmill.sources.values.null_tokens import NullTokens

# by what columns were seen to be (their classes, by name), the schema that is expected, or None where none fits yet
Expects = Callable[[Mapping[str, int]], Schema | None]


class RowKeeper:
    """Parses the rows of one range, or file, by the schema that is expected after each look at them, and keeps them.

    names: of the file's columns.
    """

    def __init__(
        self, expects: Expects, kept: Kept[Piece], names: Sequence[str], null_tokens: Sequence[str], max_row_bytes: int
    ) -> None:
        self._expects, self._names, self._max_row_bytes = expects, tuple(names), max_row_bytes
        self._tokens, self._keeping = NullTokens.of(null_tokens), Keeping(kept)
        self._parser: Parser | None = None
        self._schema: Schema | None = None
        self._asked: Schema | None = None  # whose columns are wanted
        self._wanted: Mapping[int, Feature] = {}

    def wanted(self) -> Mapping[int, Feature]:
        """By place, the columns of numbers and times whose values will be asked for, if they stay what they are."""
        if not self._keeping.goes_on:
            return {}
        schema = self._schema or self._expects({})
        if schema is not self._asked:
            features = {} if schema is None else {f.name: f for f in schema if f.dtype in NUMBERS or f.timestamp}
            self._wanted = {at: features[name] for at, name in enumerate(self._names) if name in features}
            self._asked = schema
        return self._wanted

    def add(self, data: Bytes, rows: Rows, classes: Sequence[int], ready: Mapping[int, Ready]) -> None:
        """The next rows; classes: what the columns were seen to be. ready: of what was wanted, what was read."""
        if not self._keeping.goes_on:
            return
        schema = self._expects(dict(zip(self._names, classes, strict=True)))
        if schema is None or (self._schema is not None and schema is not self._schema):
            self._keeping.give_up()
            return
        if self._parser is None:
            self._parser, self._schema = Parser.of(schema, self._names, self._tokens), schema
        parsed = self._parser.parse(data, rows, ready if schema is self._asked else {})
        self._keeping.add(_piece(data, rows, parsed, self._max_row_bytes, len(self._names)), schema)

    def give_up(self) -> None:
        """Keep nothing of these rows."""
        self._keeping.give_up()

    def put(self, file: int, start: int) -> None:
        """That was all."""
        self._keeping.put((file, start))


def parse_piece(data: Bytes, rows: Rows, parser: Parser, max_row_bytes: int, columns: int) -> Piece:
    """Some rows, parsed; columns: how many the file has."""
    return _piece(data, rows, parser.parse(data, rows), max_row_bytes, columns)


def _piece(data: Bytes, rows: Rows, parsed: Parsed, max_row_bytes: int, columns: int) -> Piece:
    found = [
        KeptReject(int(rows.ordinals[row]), int(rows.lines[row]), reason, message)
        for row, reason, message in parsed.rejects
    ]
    for row, line, start, width in rows.bad.tolist():
        found.append(
            KeptReject(row, line, *explain_row(width, columns, data[start : start + 256].tobytes(), max_row_bytes))
        )
    all_there = len(rows.ordinals) == rows.count and parsed.kept is None
    ordinals = None if all_there else rows.ordinals.copy() if parsed.kept is None else rows.ordinals[parsed.kept]
    return Piece(parsed.batch, ordinals, tuple(sorted(found, key=lambda one: one.ordinal)), rows.count)
