"""Texts of a column have one dtype, whatever the order in which they are counted."""

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

# The lattice
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
).map(lambda seen: reduce(or_, seen, 0))
seens = st.builds(
    TextCounts,
    classes_of_a_column,
    counts,
    st.dictionaries(st.sampled_from(["", "NA", "-"]), counts),
    counts,
    counts,
    counts,
    counts,
)


@given(st.lists(seens, max_size=6), st.randoms(use_true_random=False))
def test_text_counts_sum_the_same_in_any_order_and_grouping(
    parts: list[TextCounts], random: object
) -> None:
    whole = sum(parts, TextCounts())
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sum(shuffled, TextCounts()) == whole
    assert reduce(lambda right, left: left + right, reversed(parts), TextCounts()) == whole
    assert TextCounts() + whole == whole + TextCounts() == whole


@given(classes_of_a_column, classes_of_a_column)
def test_resolved_dtype_of_joined_columns_is_never_narrower(one: int, other: int) -> None:
    height = {"bool": 1, "int64": 1, "float32": 2, "string": 9}
    both = resolve_dtype(one | other)
    for part in (one, other):
        if part:
            assert height.get(both, 3) >= height.get(resolve_dtype(part), 3) or both.startswith(
                "timestamp"
            )
    assert Feature("x", both).dtype == both


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
    seen = TextCounts(INT64_CLASS, 10, {"": 2}, soft_nulls=3)
    assert (seen.null_count("int64"), seen.null_count("string"), seen.null_count("bytes")) == (
        5,
        2,
        2,
    )
