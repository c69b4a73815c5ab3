"""Reviews of films, as a tutorial has them: word numbers padded to a maximum length beside a second input, opened by a
glob, trained on as NumPy batches; the loss falls below that of shuffled labels.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import FOLDER, write_data_set

from recordmill.reader import Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

WORDS, LENGTH = 2048, 400
SCHEMA = Schema(
    (
        Feature("words", "int64", (None,), True),
        Feature("exclamations", "float32", (), True),
        Feature("positive", "int64", (), True, ("neg", "pos")),
        Feature("shuffled", "int64", (), True),
    ),
    "positive",
)


@pytest.fixture(scope="module")
def reviews(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = shared_data / "text" / "movie_reviews" / "movie_reviews"
    files = sorted(folder.glob("*/*.txt"))
    assert len(files) == 2000
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    labels = np.array([int(path.parent.name == "pos") for path in files])
    columns = {
        "words": [[1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()] for text in texts],
        "exclamations": [text.count("!") / 10 for text in texts],
        "positive": labels,
        "shuffled": np.random.default_rng(0).permutation(labels),
    }
    arrow = to_arrow(SCHEMA)
    table = pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)
    out = write_data_set(tmp_path_factory.mktemp("reviews") / "out", {"train": table}, SCHEMA, shards=4)
    return open(str(out / FOLDER / "train-*.tfrecord"), schema=SCHEMA)


def losses(ds: Dataset, label: str, epochs: int = 6) -> list[float]:
    """The mean loss of a logistic regression on the words that occur and the second input, by epoch."""
    weights, found = np.zeros(WORDS + 1), []
    view = ds.select(["words", "exclamations", label])
    for epoch in range(epochs):
        seen = []
        for x, y in view.batches(50, shuffle="global", seed=epoch, label=label, collate={"words": Padded(LENGTH)}):
            assert sorted(x) == ["exclamations", "words", "words/length"]
            assert x["words"].shape == (50, LENGTH)
            features = np.zeros((50, WORDS + 1))
            np.put_along_axis(features, x["words"], 1.0, 1)
            features[:, 0], features[:, WORDS] = 1, x["exclamations"]
            chance = 1 / (1 + np.exp(-features @ weights))
            seen.append(-np.mean(np.log(np.where(y == 1, chance, 1 - chance) + 1e-9)))
            weights -= 0.02 * features.T @ (chance - y) / 5
        found.append(float(np.mean(seen)))
    return found


def test_it_learns_what_can_be_learnt(reviews: Dataset) -> None:
    true, shuffled = losses(reviews, "positive"), losses(reviews, "shuffled")
    assert true[-1] < 0.75 * true[0]
    assert true[-1] < 0.75 * shuffled[-1]


def test_what_is_longer_is_cut_and_told(reviews: Dataset) -> None:
    (batch,) = reviews.batches(2000, shuffle=False, collate={"words": Padded(LENGTH)})
    assert batch["words"].shape == (2000, LENGTH)
    assert (batch["words/length"] > LENGTH).mean() > 0.5
    assert np.array_equal((batch["words"] > 0).sum(1), np.minimum(batch["words/length"], LENGTH))
