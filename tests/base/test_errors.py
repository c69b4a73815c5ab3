"""A pickled error keeps its text, and the options in it."""

import pickle

import pytest

from recordmill.base.errors import DataError, MissingExtraError, RecordmillError, UsageError
from recordmill.base.messages import render
from recordmill.base.option_names import option


@pytest.mark.parametrize(
    "error",
    [
        UsageError("{seed} of {file}", seed=option("seed", 3), file="{x} seed=3.csv"),
        DataError("{limit} is reached", source="{a}", place="line 1", limit=option("limit", 2)),
        MissingExtraError(option("where"), "sql", "duckdb"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_error_keeps_its_text_and_options(error: RecordmillError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    received_text, text = (
        render(item, lambda mention: f"--{mention.name} {mention.value}")
        for item in (received, error)
    )
    assert received_text == text
    assert "--" in text
