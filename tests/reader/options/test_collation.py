"""Collation options apply to the features that they fit, and are refused for others."""

from typing import Any

import pytest
from kit.token_sets import ROWS

from recordmill.base.errors import DataError, UsageError
from recordmill.reader import Bucketed, OneHot, Packed, Padded
from recordmill.reader.dataset import Dataset


def test_class_numbers_become_one_hot(token_set: Dataset) -> None:
    for batch in token_set.batches(
        50, shuffle=False, collate={"kind": "one_hot", "id": OneHot(ROWS)}
    ):
        assert batch["id"].argmax(1).tolist() == batch["id"].nonzero()[1].tolist()
        for record, row in zip(batch["id"].argmax(1), batch["kind"], strict=True):
            assert row.tolist() == [float(record % 7 > 0 and record % 3 == i) for i in range(3)]
    with pytest.raises(DataError, match="feature 'id' is 5, and there are 5 classes"):
        next(token_set.batches(50, shuffle=False, collate={"id": OneHot(5)}))


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        ({"token": "padded"}, "did you mean tokens"),
        ({"id": "padded"}, "'id' is not a selected list"),
        ({"id": "one_hot"}, r"use OneHot\(depth\)"),
        ({"name": "one_hot"}, "takes one whole number"),
        ({"tags": Packed(5)}, "Packed takes lists of numbers"),
        ({"tokens": Padded(value=1.5)}, "padded with 1.5"),
        ({"tags": Padded(value=7)}, "padded with 7"),
        ({"tokens": "bucketed", "tags": "bucketed"}, "only one feature can be bucketed"),
        ({"tokens": Packed(4), "tags": "padded"}, "'tags' becomes a list for each packed row"),
        ({"tokens": Packed(4), "weight": "bucketed"}, "choose one"),
    ],
)
def test_collation_that_does_not_fit_a_feature_is_refused(
    token_set: Dataset, collate: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        token_set.batches(8, collate=collate)


@pytest.mark.parametrize(
    ("collation", "options"),
    [
        (Bucketed, {"boundaries": (4, 4)}),
        (Bucketed, {"boundaries": ()}),
        (Bucketed, {"boundaries": (0, 3)}),
        (Bucketed, {"boundaries": "auto"}),
        (Bucketed, {"buckets": 0}),
        (Packed, {"length": 0}),
        (OneHot, {"depth": 0}),
        (Padded, {"length": 0}),
        (Padded, {"multiple": 0}),
        (Padded, {"length": 3, "multiple": 2}),
    ],
)
def test_invalid_collation_parameters_are_refused(collation: Any, options: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError,
        match=collation.__name__ if "boundaries" not in options else "boundaries are lengths",
    ):
        collation(**options)
