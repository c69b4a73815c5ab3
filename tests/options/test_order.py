"""The splits of an option are parsed in every form."""

import pytest

from recordmill.base.errors import UsageError
from recordmill.options.order import parse_splits


def test_splits_are_parsed_in_every_form() -> None:
    pairs = (("train", 0.75), ("test", 0.25))
    for said in (pairs, list(pairs), dict(pairs), "train=0.75, test=0.25"):
        assert parse_splits(said, "splits") == pairs  # type: ignore[arg-type]
    for odd in (5, ("train", 0.75), [("train",)], {"train": None}, {3: 1.0}, "train", "=1"):
        with pytest.raises(UsageError, match="NAME=FRACTION"):
            parse_splits(odd, "splits")  # type: ignore[arg-type]
