"""Pipelines as tutorials have them, on real data: Keras and NumPy learn from what the reader gives, and learn less of
the same data under shuffled labels. (Images and boxes: `test_image_trial`.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

import recordmill

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
