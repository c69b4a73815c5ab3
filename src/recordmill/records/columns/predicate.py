"""Conditions on features, which select rows of a batch.

A condition is a `pyarrow.compute` expression, or the text of an SQL WHERE clause, which DuckDB
evaluates. SQL is refused if its result could change between calls or between batches.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, MissingExtraError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema

if TYPE_CHECKING:
    import pyarrow.compute as pc

# SQL writes these functions without parentheses. DuckDB's parser treats them as columns. Its binder
# treats them as functions if no column has the name.
_VOLATILE_NAME_LIST = """
current_catalog current_date current_role current_schema current_time current_timestamp current_user localtime
localtimestamp session_user user
"""
_VOLATILE_NAMES = frozenset(_VOLATILE_NAME_LIST.split())
# Row numbers count within a batch, so they depend on how the file is divided.
_ROW_NUMBER_NAMES = frozenset(("rowid", "recordmill row"))
# the column of row numbers that a query returns
_ROW_NUMBER_COLUMN = "recordmill row"
_thread_state = threading.local()


def find_referenced_columns(
    connection: Any, condition: str, names: Sequence[str], quoted_condition: str
) -> tuple[str, ...]:
    """Returns the columns that an SQL condition uses. Case is ignored.

    The caller has checked with DuckDB that the condition is valid for these columns.

    Args:
        connection: The DuckDB connection.
        condition: The SQL text.
        names: The names of all columns.
        quoted_condition: The condition in the form in which messages quote it.

    Raises:
        UsageError: The condition depends on more than the values of a row. For example, it calls
            `random()` or `now()`, uses a row number, or contains a query.
    """
    nodes = _parse(connection, f"SELECT 1 WHERE (({condition}\n)::BOOLEAN)")
    for cause in _find_volatile_parts(connection, nodes, {name.lower() for name in names}):
        raise UsageError(
            "{condition}: {cause}, so it would not select the same records each "
            "time; it may use only the features of a record{remedy}",
            condition=quoted_condition,
            cause=cause,
            remedy=(
                Message(
                    "; {sample} with {seed} takes a random share",
                    sample=option("sample"),
                    seed=option("seed"),
                )
                if cause.startswith("random")
                else ""
            ),
        )
    # `COLUMNS(...)` may mean any column.
    if any(node.get("class") == "STAR" for node in nodes):
        return tuple(names)
    # A reference may be qualified, as in `records.label`, so all its parts are compared.
    referenced_names = {
        part.lower()
        for node in nodes
        if node.get("class") == "COLUMN_REF"
        for part in node["column_names"]
    }
    return tuple(name for name in names if name.lower() in referenced_names)


def _parse(connection: Any, sql: str) -> list[dict[str, Any]]:
    """Returns all nodes of the syntax tree of an SQL text.

    DuckDB parses the text. The list is empty if the text is not a single plain SELECT.
    """
    tree = json.loads(
        connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()[0][0]
    )
    if (
        tree["error"]
        or len(tree["statements"]) != 1
        or tree["statements"][0]["node"]["type"] != "SELECT_NODE"
    ):
        return []
    return list(_iter_nodes(tree))


def _iter_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    ):
        yield from _iter_nodes(child)


def _find_volatile_parts(
    connection: Any, nodes: Sequence[dict[str, Any]], names: set[str]
) -> Iterator[str]:
    """Yields a message for each part of a condition that may change its result.

    Args:
        connection: The DuckDB connection.
        nodes: The result of `_parse`.
        names: The names of all columns, in lower case.
    """
    if not nodes:
        yield "it is not one condition"
    for node in nodes:
        kind = node.get("class")
        if kind == "SUBQUERY":
            yield "it contains a query, which would see only some of the records"
        elif kind == "COLUMN_REF":
            name = node["column_names"][-1].lower()
            if name not in names and name in _VOLATILE_NAMES | _ROW_NUMBER_NAMES:
                yield f"{name} does not depend on the record"
        elif kind == "FUNCTION" and _is_volatile(connection, node["function_name"]):
            yield f"{node['function_name']}() gives another value each time"


def _is_volatile(connection: Any, name: str) -> bool:
    """Returns whether an SQL function can return different values for the same arguments.

    A macro is volatile if a function that it calls is.
    """
    functions = connection.execute(
        "SELECT stability, macro_definition FROM duckdb_functions() WHERE lower(function_name) = lower(?)",
        [name],
    ).fetchall()
    if any(stability is not None and stability != "CONSISTENT" for stability, _ in functions):
        return True
    return any(
        any(_find_volatile_parts(connection, _parse(connection, f"SELECT {definition}"), set()))
        for definition in {macro for _, macro in functions if macro}
    )


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition that selects rows.

    Attributes:
        condition: SQL text or a `pyarrow.compute.Expression`.
        prefix: The text before the condition in messages. By default it is the option `where`.
    """

    condition: str | pc.Expression
    prefix: str = ""

    @property
    def text(self) -> str:
        """The condition for messages."""
        return f"{self.prefix}{self.condition}" if self.prefix else option("where", self.condition)

    def __str__(self) -> str:
        return str(self.text)

    def referenced_columns(self, schema: Schema) -> tuple[str, ...]:
        """Returns the features that the condition uses.

        Raises:
            UsageError: The condition is not valid for the schema, or depends on more than the
                features of a row.
            MissingExtraError: The condition is SQL, and DuckDB is not installed.
        """
        arrow = to_arrow(schema)
        if isinstance(self.condition, str):
            lower = [name.lower() for name in schema.names]
            if repeated := [name for name in schema.names if lower.count(name.lower()) > 1]:
                raise UsageError(
                    "{condition}: SQL does not distinguish {names}; use a pyarrow "
                    "expression in Python",
                    condition=self.text,
                    names=" from ".join(map(repr, repeated[:2])),
                )
        # An evaluation without rows finds unknown names and wrong types.
        errors: tuple[type[Exception], ...] = (TypeError, *_error_types())
        try:
            self._matching_rows(arrow.empty_table())
        except errors as error:
            raise UsageError(
                "{condition}: {error}", condition=self.text, error=_shorten_message(error)
            ) from None
        if isinstance(self.condition, str):
            return find_referenced_columns(_connection(), self.condition, schema.names, self.text)
        # An expression does not list its columns. It uses a column if it is invalid without it.
        return tuple(
            name
            for index, name in enumerate(schema.names)
            if not self._is_valid_for(arrow.remove(index))
        )

    def evaluate(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Returns whether each row matches, bool [rows].

        Raises:
            UsageError: The condition is not a truth value. DuckDB detects this only if there are
                rows.
            DataError: The condition can't be evaluated for these values, for example because a
                division or a cast overflows.
        """
        is_match = np.zeros(batch.num_rows, np.bool_)
        try:
            is_match[self._matching_rows(pa.Table.from_batches([batch]))] = True
        except _error_types() as error:
            kind = UsageError if "Unimplemented type for cast" in str(error) else DataError
            raise kind(
                "{condition}: {error}", condition=self.text, error=_shorten_message(error)
            ) from None
        return is_match

    def _is_valid_for(self, arrow: pa.Schema) -> bool:
        try:
            self._matching_rows(arrow.empty_table())
        except _error_types():
            return False
        return True

    def _matching_rows(self, table: pa.Table) -> npt.NDArray[np.int64]:
        # Both libraries return matching rows instead of a mask, so each row carries its number.
        numbered_table = table.append_column(
            _ROW_NUMBER_COLUMN, pa.array(np.arange(table.num_rows))
        )
        if not isinstance(self.condition, str):
            return numbered_table.filter(self.condition)[_ROW_NUMBER_COLUMN].to_numpy()
        connection = _connection()
        connection.register("records", _without_half_floats(numbered_table))
        try:
            # The line break ends a comment in the condition. The parentheses keep an OR inside.
            rows = connection.execute(
                f'SELECT "{_ROW_NUMBER_COLUMN}" FROM records WHERE (({self.condition}\n)::BOOLEAN)'
            ).fetchnumpy()[_ROW_NUMBER_COLUMN]
        finally:
            connection.unregister("records")
        return np.asarray(rows, np.int64)


def _connection() -> Any:
    """Returns the in-memory DuckDB connection of this thread.

    The connection has no access to files.
    """
    if not hasattr(_thread_state, "connection"):
        try:
            import duckdb
        except ImportError:
            raise MissingExtraError(
                Message("{where} with SQL", where=option("where")), "sql", "duckdb"
            ) from None
        _thread_state.connection = duckdb.connect(
            ":memory:", config={"enable_external_access": "false", "threads": "1"}
        )
        # The condition of a user must not be able to enable access to files again.
        _thread_state.connection.execute("SET lock_configuration=true")
    return _thread_state.connection


def _error_types() -> tuple[type[Exception], ...]:
    try:
        import duckdb
    except ImportError:
        return (pa.ArrowException,)
    return (pa.ArrowException, duckdb.Error)


def _without_half_floats(table: pa.Table) -> pa.Table:
    """Casts float16 to float32, because DuckDB has no float16."""
    return table.cast(
        pa.schema([field.with_type(_widen_half_float(field.type)) for field in table.schema])
    )


def _widen_half_float(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(arrow):
        return pa.float32()
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(_widen_half_float(arrow.value_type), arrow.list_size)
    return (
        pa.large_list(_widen_half_float(arrow.value_type))
        if pa.types.is_large_list(arrow)
        else arrow
    )


def _shorten_message(error: Exception) -> str:
    return " ".join(str(error).split())[:250]


def names_to_read(selected: Sequence[str], extra_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the columns to read.

    The selected columns come first, followed by the extra ones that are not selected.
    """
    return (*selected, *(name for name in extra_names if name not in selected))
