"""Splits are texts, dicts or pairs. Impossible ones are refused with a remedy."""

from typing import Any

import pytest

from recordmill.base.errors import UsageError
from recordmill.options.order import BuildOrder, parse_split_at, parse_splits


@pytest.mark.parametrize(
    "value",
    [
        "train=0.9,test=0.1",
        " train = 0.9 , test=.1",
        {"train": 0.9, "test": "0.1"},
        [("train", 0.9), ("test", 0.1)],
        iter(["train=0.9", ("test", 0.1)]),
    ],
)
def test_splits_of_any_form_are_parsed(value: Any) -> None:
    assert parse_splits(value, "splits") == (("train", 0.9), ("test", 0.1))


@pytest.mark.parametrize(
    "value", ["train", "=0.5", "train=a", {"a": None}, [("a", 1, 2)], [5], 5, {3: 1}]
)
def test_invalid_splits_are_refused_with_an_example(value: Any) -> None:
    with pytest.raises(UsageError, match=r"NAME=FRACTION, as in train=0\.9,validation=0\.1"):
        parse_splits(value, "splits")


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("a=1", ("a", ("1",))),
        ("a=b=1, 2", ("a", ("b=1", "2"))),
        ({"a": [1, 2]}, ("a", ("1", "2"))),
        (("a", 2020), ("a", ("2020",))),
    ],
)
def test_boundaries_of_any_form_are_parsed(value: Any, result: object) -> None:
    assert parse_split_at(value, "split_at") == result


@pytest.mark.parametrize(
    "value", ["a", "=1", "a=", "a=1,", "a=1,2,3", {"a": 1, "b": 2}, {}, {"a": []}, 5]
)
def test_invalid_boundaries_are_refused_with_an_example(value: Any) -> None:
    with pytest.raises(UsageError, match="write COLUMN=VALUE or COLUMN=VALUE,VALUE"):
        parse_split_at(value, "split_at")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"a": 0.5, "b": 0.4}, r"sum to 0\.9, not 1, .* as in rest=0\.1"),
        ({"a": 0.8, "b": 0.4}, r"the fractions sum to 1\.2, and must sum to 1"),
        ({"a": 0.0, "b": 1}, r"split a=0\.0: a fraction must be above 0 and at most 1"),
        ({"a": 1.5}, r"split a=1\.5: a fraction must be above 0 and at most 1"),
        ({"a": float("nan")}, "a fraction must be above 0"),
        ([("a", 0.5), ("a", 0.5)], "split named twice in a, a"),
        ({"../a": 1}, "split"),
    ],
)
def test_impossible_fractions_are_refused(splits: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BuildOrder(splits=parse_splits(splits, "splits"))


def test_fractions_that_sum_to_1_within_rounding_are_accepted() -> None:
    order = BuildOrder(splits=tuple((f"s{number}", 0.1) for number in range(10)))
    assert len(order.fractions) == 10
    assert BuildOrder().fractions == ()


@pytest.mark.parametrize("name", ["seed", "split_seed"])
def test_seed_beyond_64_bits_is_refused(name: str) -> None:
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(UsageError, match=rf"^{name}={seed}: must be from -2\*\*63 to"):
            BuildOrder(**{name: seed})  # type: ignore[arg-type]
    BuildOrder(**{name: -(2**63)})  # type: ignore[arg-type]


def test_columns_that_determine_order_or_split_are_listed_once() -> None:
    order = BuildOrder(key="a", split_by="b", stratify="a", split_at=("c", ("1",)))
    assert order.columns == ("a", "b", "c")
    assert order.group_column == "b"
    assert BuildOrder(key="a").group_column == "a"
    assert BuildOrder().group_column is None
