"""Pipelines as tutorials have them, on real data: Keras and NumPy learn from what the reader gives, and learn less of
the same data under shuffled labels. (Images and boxes: `test_image_trial`.)
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from kit import table_of
from made_data_set import FOLDER, write_data_set

import recordmill
from recordmill.reader import Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:When providing `inputs` as a dict"),
]


def test_a_dict_of_two_inputs(shared_data: Path, tmp_path: Path) -> None:
    """Flights, straight from the build: the carrier's number and how late a flight left say whether it comes late."""
    table = pyarrow.csv.read_csv(shared_data / "csv" / "nycflights13" / "flights.csv", convert_options=NULLS)
    table = table.select(["carrier", "dep_delay", "arr_delay"]).drop_null().slice(0, 3_000)
    late = pc.greater(table["arr_delay"], 0).cast(pa.int64()).to_pylist()
    data = {
        "carrier": table["carrier"].to_pylist(),
        "delay": pc.divide(table["dep_delay"].cast(pa.float32()), 30.0).to_pylist(),
        "late": late,
        "shuffled": np.random.default_rng(0).permutation(np.asarray(late)).tolist(),
    }
    recordmill.build(data, tmp_path / "out", label="late", transform={"carrier": {"vocabulary": {"top_k": 16}}})
    ds = recordmill.open(tmp_path / "out")

    def losses(label: str) -> list[float]:
        keras.utils.set_random_seed(1)
        given = {"carrier": keras.Input((), name="carrier", dtype="int64"), "delay": keras.Input((), name="delay")}
        carrier = keras.layers.Embedding(17, 4)(given["carrier"])
        both = keras.layers.Concatenate()([carrier, keras.layers.Reshape((1,))(given["delay"])])
        model = keras.Model(given, keras.layers.Dense(2, "softmax")(keras.layers.Dense(8, "relu")(both)))
        model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy")
        batches = ds.select(["carrier", "delay", label]).to_tf(32, seed=2, label=label)
        return list(model.fit(batches, epochs=4, verbose=0).history["loss"])

    true, shuffled = losses("late"), losses("shuffled")
    assert true[-1] < 0.95 * true[0]
    assert true[-1] < 0.85 * shuffled[-1]


def test_globs_and_numpy_out_of_batches(shared_data: Path, tmp_path: Path) -> None:
    """Ten towns' weather, built of a glob of CSV files and opened by a glob of shards; least squares in NumPy."""
    files = str(shared_data / "csv" / "fivethirtyeight" / "us-weather-history" / "K*.csv")
    recordmill.build(files, tmp_path / "out", num_shards=4)
    inputs = ["average_min_temp", "average_max_temp", "actual_min_temp"]
    ds = recordmill.open(str(tmp_path / "out" / "data-*" / "train-*.tfrecord")).select([*inputs, "actual_max_temp"])
    assert len(ds) == 10 * 365
    random = np.random.default_rng(0)

    def losses(shuffled: bool) -> list[float]:
        weights, found = np.zeros(4), []
        for epoch in range(8):
            seen = []
            for x, y in ds.batches(50, shuffle="global", seed=epoch, label="actual_max_temp"):
                features = np.stack([*(x[name] / 100 for name in inputs), np.ones(len(y))], 1)
                wanted = (random.permutation(y) if shuffled else y) / 100
                error = features @ weights - wanted
                seen.append(float(np.mean(error**2)))
                weights -= 0.3 * features.T @ error / len(y)
            found.append(float(np.mean(seen)))
        return found

    true, shuffled = losses(False), losses(True)
    assert true[-1] < 0.5 * true[0]
    assert true[-1] < 0.5 * shuffled[-1]


NULLS = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


# Reviews of films, as a tutorial has them


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
    table = table_of(columns, SCHEMA)
    out = write_data_set(tmp_path_factory.mktemp("reviews") / "out", {"train": table}, SCHEMA, shards=4)
    return open(str(out / FOLDER / "train-*.tfrecord"), schema=SCHEMA)


def losses(ds: Dataset, label: str, epochs: int = 6) -> list[float]:
    """The mean loss of a logistic regression on the words that occur and the second input, by epoch."""
    weights, found = np.zeros(WORDS + 1), []
    view = ds.select(["words", "exclamations", label])
    for epoch in range(epochs):
        seen = []
        for x, y in view.batches(50, shuffle="global", seed=epoch, label=label, collate={"words": Padded(LENGTH)}):
            assert sorted(x) == ["exclamations", "words"]
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
    (batch,) = reviews.batches(2000, shuffle=False, collate={"words": Padded(LENGTH, lengths=True)})
    assert batch["words"].shape == (2000, LENGTH)
    assert (batch["words/length"] > LENGTH).mean() > 0.5
    assert np.array_equal((batch["words"] > 0).sum(1), np.minimum(batch["words/length"], LENGTH))
