"""Numbers are cast only if they keep their value, and floats round like NumPy."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from recordmill.schemas.feature import Feature
from recordmill.sources.values.casting import cast_values
from recordmill.sources.values.text_columns import find_inexact, narrow_floats


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
)
def test_integers_become_floats_only_if_exact(numbers: list[int], dtype: str) -> None:
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]

    def holds(number: int) -> bool:
        magnitude = abs(number)
        while magnitude and magnitude % 2 == 0:
            magnitude //= 2
        return magnitude < 2**bits and (dtype != "float16" or abs(number) <= 65504)

    assert find_inexact(np.array(numbers, np.int64), dtype).tolist() == [
        not holds(number) for number in numbers
    ]
    cast = cast_values(pa.array(numbers, pa.int64()), Feature("x", dtype))
    for number, value, bad in zip(
        numbers,
        cast.values.to_pylist(),
        cast.bad_mask if cast.bad_mask is not None else [False] * len(numbers),
        strict=True,
    ):
        assert bad or int(value) == number


@given(st.lists(st.floats(width=64), max_size=20))
def test_float64_narrows_as_numpy_rounds(numbers: list[float]) -> None:
    array = np.array(numbers, np.float64)
    with np.errstate(over="ignore"):
        expected = array.astype(np.float32)
    cast = cast_values(pa.array(array), Feature("x", "float32"))
    bad = cast.bad_mask if cast.bad_mask is not None else np.zeros(len(array), np.bool_)
    assert bad.tolist() == (np.isinf(expected) & ~np.isinf(array)).tolist()
    assert np.array_equal(
        cast.values.to_numpy(zero_copy_only=False)[~bad], expected[~bad], equal_nan=True
    )


def test_bfloat16_rounds_to_nearest_even() -> None:
    narrow, num_rounded = narrow_floats(
        np.array([1.0, 1.00390625, 1.01171875, 3.4e38, np.nan, -np.inf]), "bfloat16"
    )
    assert narrow.tolist()[:3] == [1.0, 1.0, 1.015625]
    assert np.isinf(narrow[3])
    assert np.isnan(narrow[4])
    assert narrow[5] == -np.inf
    assert num_rounded == 3
