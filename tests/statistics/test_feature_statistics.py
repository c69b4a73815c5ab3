"""Statistics of a feature have the figures of its elements, or none if they are damaged."""

import json
from typing import Any

import pytest

from recordmill.statistics.feature_statistics import ElementStatistics

FIGURES = ("finite", "mean", "variance", "min", "max", "q01", "q50", "q99")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sampled": 1}', '{"sampled": "x", "finite": [1]}', "[" * 100_000, "NaN"],
)
def test_elements_in_another_form_are_ignored(text: str) -> None:
    assert ElementStatistics.from_json(text) is None


@pytest.mark.parametrize("wrong", [5, [], [[1]], ["a"], None])
def test_elements_with_a_wrong_array_are_ignored(wrong: Any) -> None:
    document = {name: [1.0] for name in FIGURES} | {"sampled": 1, "q99": wrong}
    assert ElementStatistics.from_json(json.dumps(document)) is None
