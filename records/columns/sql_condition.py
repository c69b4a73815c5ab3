"""The text of an SQL condition to the columns that it names; one that gives another answer when it is asked again, or
for another batch, is refused.

DuckDB's own parser says what a condition names and calls (`json_serialize_sql`), and its catalogue what each function
is (`duckdb_functions`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option

# What SQL writes without parentheses, so that the parser takes it for a column: the binder makes functions of these
# where no column has the name.
_VALUES = frozenset(
    (
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
    )
) | {
    "localtime",
    "localtimestamp",
    "session_user",
    "user",
}
_ROW_NUMBERS = frozenset(("rowid", "recordmill row"))  # of a batch, and so of how the file was cut


def named_columns(connection: Any, condition: str, names: Sequence[str], said: str) -> tuple[str, ...]:
    """Those of the names that a condition, which DuckDB found valid over columns of all these names,
    looks at; case does not count. said: the condition as messages quote it.

    Raises:
        UsageError: it is not decided by a row's own values: it calls `random()`, `now()` or the like, names a row
            number, or has a query of its own.
    """
    nodes = _parse(connection, f"SELECT 1 WHERE (({condition}\n)::BOOLEAN)")
    for what in _undecided(connection, nodes, {name.lower() for name in names}):
        raise UsageError(
            f"{said}: {what}, so it would not select the same records each time; it may look at "
            "a record's own features only"
            + (f"; {option('sample')} with {option('seed')} takes a random share" if what.startswith("random") else "")
        )
    if any(node.get("class") == "STAR" for node in nodes):  # COLUMNS(...) may mean any column
        return tuple(names)
    parts = {part.lower() for node in nodes if node.get("class") == "COLUMN_REF" for part in node["column_names"]}
    return tuple(name for name in names if name.lower() in parts)


def _parse(connection: Any, sql: str) -> list[dict[str, Any]]:
    """All nodes of the statement's tree; none if it is not one plain SELECT."""
    parsed = json.loads(connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()[0][0])
    if parsed["error"] or len(parsed["statements"]) != 1 or parsed["statements"][0]["node"]["type"] != "SELECT_NODE":
        return []
    return list(_nodes(parsed))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _undecided(connection: Any, nodes: Sequence[dict[str, Any]], names: set[str]) -> Iterator[str]:
    """What is not decided by columns of these names."""
    if not nodes:
        yield "it is not one condition"
    for node in nodes:
        kind = node.get("class")
        if kind == "SUBQUERY":
            yield "it holds a query of its own, which sees some of the records only"
        elif kind == "COLUMN_REF":
            name = node["column_names"][-1].lower()
            if name not in names and name in _VALUES | _ROW_NUMBERS:
                yield f"{name} is not decided by the record"
        elif kind == "FUNCTION" and _changes(connection, node["function_name"]):
            yield f"{node['function_name']}() gives another value each time"


def _changes(connection: Any, name: str) -> bool:
    """Whether a function, or what a macro of that name calls, can give another value for the same arguments."""
    found = connection.execute(
        "SELECT stability, macro_definition FROM duckdb_functions() WHERE lower(function_name) = lower(?)", [name]
    ).fetchall()
    if any(stability is not None and stability != "CONSISTENT" for stability, _ in found):
        return True
    return any(
        any(_undecided(connection, _parse(connection, f"SELECT {definition}"), set()))
        for definition in {one for _, one in found if one}
    )
