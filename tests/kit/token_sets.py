"""Data sets of token lists."""

from pathlib import Path
from typing import Any

import numpy as np

from kit.data_sets import write_data_set
from recordmill.reader import Packed
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

ROWS = 317


SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("tokens", "int64", (None,), True),
        Feature("tags", "string", (None,)),
        Feature("weight", "float32", (None,)),
        Feature("kind", "int64", (), False, ("a", "b", "c")),
        Feature("name", "string", (), True),
    )
)


LENGTHS = [int(n) for n in np.random.default_rng(5).gamma(2, 6, ROWS)]


def tokens(record: int) -> list[int]:
    return [1000 * record + i + 1 for i in range(LENGTHS[record])]


def make_token_set(folder: Path) -> Dataset:
    """Writes and opens a data set with ROWS lists of tokens."""
    columns = {
        "id": list(range(ROWS)),
        "tokens": [tokens(i) for i in range(ROWS)],
        "tags": [None if i % 5 == 0 else ["t"] * (i % 4) for i in range(ROWS)],
        "weight": [[0.5] * LENGTHS[i] for i in range(ROWS)],
        "kind": [None if i % 7 == 0 else i % 3 for i in range(ROWS)],
        "name": [f"n{i}" for i in range(ROWS)],
    }
    return open(write_data_set(folder / "out", {"train": columns}, SCHEMA, shards=3))


MODES = [False, "window", "global"]


PACKED: dict[str, Any] = {"collate": {"tokens": Packed(24), "weight": Packed(30, value=-1)}}


def unpack_batch(batch: dict[str, Any]) -> dict[int, list[int]]:
    """Returns the lists of tokens of a packed batch, by record. Checks its other features."""
    lists = {}
    for row in range(len(batch["tokens"])):
        for number, record in enumerate(batch["id"][row], 1):
            in_segment = batch["tokens/segment"][row] == number
            lists[int(record)] = batch["tokens"][row][in_segment].tolist()
            assert batch["tokens/position"][row][in_segment].tolist() == list(
                range(in_segment.sum())
            )
            has_weight = batch["weight/segment"][row] == number
            assert (batch["weight"][row][has_weight] == 0.5).all()
            assert has_weight.sum() == min(LENGTHS[record], 30)
        is_padding = batch["tokens/segment"][row] == 0
        assert not batch["tokens"][row][is_padding].any()
        assert not batch["tokens/position"][row][is_padding].any()
        assert (batch["weight"][row][batch["weight/segment"][row] == 0] == -1).all()
    return lists
