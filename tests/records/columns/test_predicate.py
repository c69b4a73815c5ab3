"""A condition selects the same rows each time.

A wrong condition is refused before any read.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import DataError, UsageError
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema


def test_condition_finds_features_named_like_functions() -> None:
    schema = Schema(
        (
            Feature("id", "int64"),
            Feature("user", "string"),
            Feature("now", "int64"),
            Feature("list", "int64", (None,)),
        )
    )
    for sql, names in [
        ("user = 'ada'", ("user",)),
        ("now > 3 AND records.id = 1", ("id", "now")),
        ("len([x FOR x IN list IF x > 2]) > 1", ("list",)),
        ("COLUMNS('id|now') > 1", schema.names),
        ("list_sum(LIST) > if(id > 3, 1, 2) -- a comment", ("id", "list")),
        ("hash(id) % 2 = 0 OR true", ("id",)),
        ("1 = 1", ()),
    ]:
        assert Predicate(sql).referenced_columns(schema) == tuple(names)


def test_condition_refuses_names_that_differ_only_in_case_and_reads_float16() -> None:
    schema = Schema(
        (Feature("a", "int64"), Feature("A", "int64"), Feature("h", "float16", (2,), True))
    )
    with pytest.raises(UsageError, match="SQL does not distinguish 'a' from 'A'"):
        Predicate("a = 1").referenced_columns(schema)
    assert Predicate(pc.field("A") == 1).referenced_columns(schema) == ("A",)
    selected_schema = schema.select(["a", "h"])
    arrow = to_arrow(selected_schema)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1, None]),
            pa.FixedSizeListArray.from_arrays(pa.array([1.5, 2, 3, 4], pa.float16()), 2),
        ],
        schema=arrow,
    )
    assert Predicate("h[1] > 2 AND a IS NULL").evaluate(batch).tolist() == [False, True]
    assert Predicate("h[1] > 2 AND a IS NULL").referenced_columns(selected_schema) == ("a", "h")


SCHEMA = Schema((Feature("id", "int64"), Feature("name", "string"), Feature("x", "float32")))


def rows(ids: list[int | None]) -> pa.RecordBatch:
    names = [None if number is None else f"n{number}" for number in ids]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int64()),
            pa.array(names, pa.large_string()),
            pa.array(ids, pa.float32()),
        ],
        schema=to_arrow(SCHEMA),
    )


@given(st.lists(st.none() | st.integers(-9, 9), max_size=30), st.integers(-9, 9))
def test_sql_and_pyarrow_select_the_rows_of_python(ids: list[int | None], limit: int) -> None:
    expected = [number is not None and (number > limit or number == 0) for number in ids]
    sql = Predicate(f"id > {limit} OR id = 0")
    expression = Predicate((pc.field("id") > limit) | (pc.field("id") == 0))
    assert sql.evaluate(rows(ids)).tolist() == expected
    assert expression.evaluate(rows(ids)).tolist() == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("random() < 0.5", "random.* gives another value each time.*sample"),
        ("id > 3; DROP TABLE records", "syntax error at or near"),
        ("id IN (SELECT id FROM records)", "it contains a query"),
        ("current_date > '2020-01-01'", "gives another value|does not depend on the record"),
        ("rowid < 3", "rowid does not depend on the record|rowid"),
        ("missing > 1", "missing"),
        ("id > ", "syntax error at or near"),
        ("name + 1 > x[3]", "No function matches"),
        (pc.field("missing") > 1, "missing"),
        (pc.field("name") > 1, "no kernel matching input types"),
    ],
)
def test_condition_that_may_select_other_rows_or_is_wrong_is_refused(
    condition: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Predicate(condition).referenced_columns(SCHEMA)  # type: ignore[arg-type]
    assert str(error.value).startswith("where=")
    assert "\n" not in str(error.value)


def test_condition_cannot_read_files() -> None:
    with pytest.raises(UsageError):
        Predicate("id IN (SELECT 1 FROM read_csv('/etc/passwd'))").referenced_columns(SCHEMA)
    with pytest.raises(UsageError):
        Predicate("len(getenv('HOME')) > 1").referenced_columns(SCHEMA)


def test_value_that_a_condition_cannot_cast_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="where="):
        Predicate("CAST(name AS INTEGER) > 1").evaluate(rows([1]))


def test_columns_to_read_are_the_selected_ones_and_those_of_the_condition() -> None:
    assert names_to_read(["b", "a"], ["a", "c"]) == ("b", "a", "c")
