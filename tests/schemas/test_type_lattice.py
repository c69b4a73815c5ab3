"""The texts of a column have the same dtype in any order of counting."""

from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.schemas.feature import Feature
from recordmill.schemas.type_lattice import (
    AWARE_CLASS,
    BEYOND_NANOS_CLASS,
    BOOL_CLASS,
    FLOAT32_CLASS,
    INT64_CLASS,
    MICROS_CLASS,
    MILLIS_CLASS,
    NAIVE_CLASS,
    NANOS_CLASS,
    SECONDS_CLASS,
    TEXT_CLASS,
    TextCounts,
    resolve_dtype,
)

counts = st.integers(0, 1 << 40)
moments = st.builds(
    lambda unit, zone, beyond: unit | zone | beyond,
    st.sampled_from([SECONDS_CLASS, MILLIS_CLASS, MICROS_CLASS, NANOS_CLASS]),
    st.sampled_from([NAIVE_CLASS, AWARE_CLASS]),
    st.sampled_from([0, BEYOND_NANOS_CLASS]),
)
classes_of_a_column = st.lists(
    st.one_of(st.sampled_from([BOOL_CLASS, INT64_CLASS, FLOAT32_CLASS, TEXT_CLASS]), moments),
    max_size=5,
).map(lambda value_classes: reduce(or_, value_classes, 0))
text_counts = st.builds(
    TextCounts,
    classes_of_a_column,
    counts,
    st.dictionaries(st.sampled_from(["", "NA", "-"]), counts),
    counts,
    counts,
    counts,
    counts,
)


@given(st.lists(text_counts, max_size=6), st.randoms(use_true_random=False))
def test_text_counts_sum_the_same_in_any_order_and_grouping(
    parts: list[TextCounts], random: object
) -> None:
    total = sum(parts, TextCounts())
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sum(shuffled, TextCounts()) == total
    assert reduce(lambda right, left: left + right, reversed(parts), TextCounts()) == total
    assert TextCounts() + total == total + TextCounts() == total


@given(classes_of_a_column, classes_of_a_column)
def test_resolved_dtype_of_joined_columns_is_never_narrower(first: int, second: int) -> None:
    height = {"bool": 1, "int64": 1, "float32": 2, "string": 9}
    joined_dtype = resolve_dtype(first | second)
    for part in (first, second):
        if part:
            assert height.get(joined_dtype, 3) >= height.get(
                resolve_dtype(part), 3
            ) or joined_dtype.startswith("timestamp")
    assert Feature("x", joined_dtype).dtype == joined_dtype


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        (0, "string"),
        (BOOL_CLASS, "bool"),
        (BOOL_CLASS | INT64_CLASS, "string"),
        (INT64_CLASS, "int64"),
        (FLOAT32_CLASS, "float32"),
        (INT64_CLASS | FLOAT32_CLASS, "float32"),
        (INT64_CLASS | TEXT_CLASS, "string"),
        (INT64_CLASS | SECONDS_CLASS | NAIVE_CLASS, "string"),
        (SECONDS_CLASS | NAIVE_CLASS, "timestamp[s]"),
        (SECONDS_CLASS | MILLIS_CLASS | NAIVE_CLASS, "timestamp[ms]"),
        (SECONDS_CLASS | MICROS_CLASS | AWARE_CLASS, "timestamp[us, UTC]"),
        (NANOS_CLASS | SECONDS_CLASS | AWARE_CLASS, "timestamp[ns, UTC]"),
        (SECONDS_CLASS | NAIVE_CLASS | AWARE_CLASS, "string"),
        (NANOS_CLASS | NAIVE_CLASS | BEYOND_NANOS_CLASS, "string"),
        (MICROS_CLASS | NAIVE_CLASS | BEYOND_NANOS_CLASS, "timestamp[us]"),
        (TEXT_CLASS, "string"),
    ],
)
def test_mixed_value_classes_resolve_to_one_dtype(classes: int, dtype: str) -> None:
    assert resolve_dtype(classes) == TextCounts(classes).dtype == dtype


def test_quoted_null_tokens_count_as_nulls_except_in_text() -> None:
    text_counts_of_column = TextCounts(INT64_CLASS, 10, {"": 2}, soft_nulls=3)
    assert (
        text_counts_of_column.null_count("int64"),
        text_counts_of_column.null_count("string"),
        text_counts_of_column.null_count("bytes"),
    ) == (
        5,
        2,
        2,
    )
