"""The lattice: a monoid whose result does not depend on order or grouping,
and the table of what each mixture becomes.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.schemas.feature import Feature
from recordmill.schemas.type_lattice import (
    AWARE,
    BEYOND_NANOS,
    BOOL,
    FLOAT32,
    INT64_TYPE,
    MICROS,
    MILLIS,
    NAIVE,
    NANO_TIME,
    SECONDS,
    TEXT_TYPE,
    TextCounts,
    resolve_dtype,
)

counts = st.integers(0, 1 << 40)
moments = st.builds(
    lambda unit, zone, beyond: unit | zone | beyond,
    st.sampled_from([SECONDS, MILLIS, MICROS, NANO_TIME]),
    st.sampled_from([NAIVE, AWARE]),
    st.sampled_from([0, BEYOND_NANOS]),
)
classes_of_a_column = st.lists(
    st.one_of(st.sampled_from([BOOL, INT64_TYPE, FLOAT32, TEXT_TYPE]), moments), max_size=5
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
def test_order_and_grouping_do_not_matter(parts: list[TextCounts], random: object) -> None:
    whole = sum(parts, TextCounts())
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sum(shuffled, TextCounts()) == whole
    assert reduce(lambda right, left: left + right, reversed(parts), TextCounts()) == whole
    assert TextCounts() + whole == whole + TextCounts() == whole


@given(classes_of_a_column, classes_of_a_column)
def test_a_column_never_becomes_narrower(one: int, other: int) -> None:
    height = {"bool": 1, "int64": 1, "float32": 2, "string": 9}
    both = resolve_dtype(one | other)
    for part in (one, other):
        if part:
            assert height.get(both, 3) >= height.get(resolve_dtype(part), 3) or both.startswith("timestamp")
    assert Feature("x", both).dtype == both


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        (0, "string"),
        (BOOL, "bool"),
        (BOOL | INT64_TYPE, "string"),
        (INT64_TYPE, "int64"),
        (FLOAT32, "float32"),
        (INT64_TYPE | FLOAT32, "float32"),
        (INT64_TYPE | TEXT_TYPE, "string"),
        (INT64_TYPE | SECONDS | NAIVE, "string"),
        (SECONDS | NAIVE, "timestamp[s]"),
        (SECONDS | MILLIS | NAIVE, "timestamp[ms]"),
        (SECONDS | MICROS | AWARE, "timestamp[us, UTC]"),
        (NANO_TIME | SECONDS | AWARE, "timestamp[ns, UTC]"),
        (SECONDS | NAIVE | AWARE, "string"),
        (NANO_TIME | NAIVE | BEYOND_NANOS, "string"),
        (MICROS | NAIVE | BEYOND_NANOS, "timestamp[us]"),
        (TEXT_TYPE, "string"),
    ],
)
def test_mixtures(classes: int, dtype: str) -> None:
    assert resolve_dtype(classes) == TextCounts(classes).dtype == dtype


def test_quoted_null_tokens_are_values_of_text_only() -> None:
    seen = TextCounts(INT64_TYPE, 10, {"": 2}, soft_nulls=3)
    assert (seen.null_count("int64"), seen.null_count("string"), seen.null_count("bytes")) == (5, 2, 2)
