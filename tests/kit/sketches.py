"""Integers for sketches, and a comparison of two sketches of numbers."""

import numpy as np
from hypothesis import strategies as st

from recordmill.statistics.number_sketch import NumberSketch

INTS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-600, 600), max_size=60)


def assert_same_numbers(first: NumberSketch, second: NumberSketch) -> None:
    """Asserts that two sketches have the same state."""
    for name, value in vars(first).items():
        assert np.array_equal(value, getattr(second, name)), name
