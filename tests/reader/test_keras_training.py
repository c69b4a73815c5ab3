"""Keras models train on tables and sequences from the reader, and learn from them."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from kit.data_sets import write_data_set
from kit.runs import run_python

from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

keras = pytest.importorskip("keras")

ROWS = 600


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(1)


def make_set(out: Path, schema: Schema, columns: dict[str, list[object]]) -> Dataset:
    return open(write_data_set(out, {"train": columns}, schema, shards=3))


@pytest.mark.parametrize("is_built", [True, False])
def test_interrupted_training_resumes_to_the_same_weights(tmp_path: Path, is_built: bool) -> None:
    schema = Schema(
        (Feature("a", "float32", (3,), True), Feature("label", "float32", (), True)), "label"
    )
    rng = np.random.default_rng(1)
    a = rng.normal(size=(ROWS, 3)).astype(np.float32)
    ds = make_set(tmp_path / "out", schema, {"a": a.tolist(), "label": a[:, 0].tolist()})

    def fit_model(
        weights: list[np.ndarray] | None, start_step: int, steps: int
    ) -> list[np.ndarray]:
        model = keras.Sequential(
            [*([keras.Input((3,))] if is_built else []), keras.layers.Dense(1, "tanh")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        if weights is not None:
            model.build((None, 3))
            model.set_weights(weights)
        batches = ds.to_tf(32, seed=5, epochs=None, start_step=start_step, label=True)
        model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)
        return model.get_weights()  # type: ignore[no-any-return]

    keras.utils.set_random_seed(1)
    # 31 steps end in the middle of the second epoch. Each epoch has 19 steps.
    expected = fit_model(None, 0, 31)
    keras.utils.set_random_seed(1)
    resumed = fit_model(fit_model(None, 0, 7), 7, 24)
    assert all(
        np.array_equal(first, second) for first, second in zip(expected, resumed, strict=True)
    )


def test_model_fits_a_matrix_and_padded_sequences(tmp_path: Path) -> None:
    schema = Schema(
        (
            Feature("a", "float32", (), True),
            Feature("b", "int64", (2,), True),
            Feature("name", "string", (), True),
            Feature("words", "int64", (None,), True),
            Feature("label", "int64", (), True),
        ),
        "label",
    )
    a = np.random.default_rng(1).normal(size=ROWS)
    words = [[1 + (value > 0)] * (1 + i % 4) for i, value in enumerate(a)]
    columns = {
        "a": a,
        "b": [[i % 7, 0] for i in range(ROWS)],
        "name": ["x"] * ROWS,
        "words": words,
        "label": a > 0,
    }
    ds = make_set(tmp_path / "out", schema, {name: [*values] for name, values in columns.items()})
    dense = keras.Sequential([keras.layers.Normalization(), keras.layers.Dense(1, "sigmoid")])
    dense.layers[0].adapt(next(ds.batches(ROWS, matrix=["a", "b"]))["matrix"])
    lstm = keras.Sequential(
        [keras.layers.Embedding(3, 4), keras.layers.LSTM(4), keras.layers.Dense(1, "sigmoid")]
    )
    table = ds.to_keras(32, matrix=["a", "b"])
    for model, batches in (
        (dense, table),
        (lstm, ds[["words", "label"]].to_keras(32, collate="padded")),
    ):
        model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
        assert int(batches.cardinality()) == -(-ROWS // 32)
        with warnings.catch_warnings(record=True) as messages:
            history = model.fit(batches, epochs=3, verbose=0)
        assert not [
            message
            for message in messages
            if "keras" in message.filename or "shuffle" in str(message.message)
        ]
        assert history.history["accuracy"][-1] > 0.9
        assert model.optimizer.iterations.numpy() == 3 * -(-ROWS // 32)


_BACKEND_SCRIPT = """
import sys, warnings, keras, recordmill
warnings.simplefilter("error", UserWarning)
assert keras.backend.backend() == sys.argv[2]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
batches = recordmill.open(sys.argv[1]).to_keras(32, seed=1, matrix=["x"])
history = model.fit(batches, epochs=5, verbose=0).history["loss"]
assert history[-1] < history[0] / 4, history
assert int(model.optimizer.iterations) == 5 * 19
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_model_of_every_keras_backend_learns(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    schema = Schema((Feature("x", "float32", (3,), True), Feature("y", "float32", (), True)), "y")
    x = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)
    make_set(tmp_path / "out", schema, {"x": list(x), "y": list(x @ np.float32([1, -2, 3]))})
    run_python(
        "-c",
        _BACKEND_SCRIPT,
        tmp_path / "out",
        backend,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
