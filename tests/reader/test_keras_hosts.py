"""Two processes of JAX train one Keras model by `DataParallel`, on each record once an epoch; skipped without JAX."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from made_data_set import mixed_rows, write_data_set

pytest.importorskip("jax", reason="needs jax, which is no dependency")
pytest.importorskip("keras")
ROWS, ROWS_OF_HOST = 200, 10

# A weight for each record, from which plain descent takes 1 whenever the record is trained on.
HOST = f"""
import json, sys
import jax
data, port, number, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
jax.distributed.initialize("127.0.0.1:" + port, num_processes=2, process_id=number)
import keras
import numpy as np
import recordmill
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
ds = recordmill.open(data, columns=["id"])
table = keras.layers.Embedding({ROWS}, 1, embeddings_initializer="zeros")
model = keras.Sequential([keras.Input((), dtype="int32"), table])
model.compile(keras.optimizers.SGD(float({ROWS_OF_HOST} * jax.process_count())), lambda wanted, given: given)
fit = options.pop("fit")
batches = ds.to_tf({ROWS_OF_HOST}, drop_remainder=True, **options, **recordmill.hosts(jax))
model.fit(batches.map(lambda row: (row["id"], row["id"])), verbose=0, **fit)
print(json.dumps(np.rint(-np.asarray(table.embeddings)).astype(int).ravel().tolist()))
"""


def trained(data: Path, fit: dict[str, int], **options: object) -> list[int]:
    """How often two hosts together have trained on each record."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = json.dumps({"fit": fit, "seed": 3, **options})
    environ = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, str(data), port, str(number), given],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        counts = [json.loads(host.communicate(timeout=240)[0].splitlines()[-1]) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert counts[0] == counts[1]  # one model
    return counts[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("hosts") / "out", {"train": mixed_rows(ROWS)}, shards=3)


@pytest.mark.parametrize(
    ("fit", "options"), [({"epochs": 2}, {}), ({"epochs": 2, "steps_per_epoch": 10}, {"epochs": None})]
)
def test_each_record_is_trained_on_once_an_epoch(data: Path, fit: dict[str, int], options: dict[str, object]) -> None:
    assert trained(data, fit, **options) == [2] * ROWS


def test_a_resumed_run_trains_on_the_rest_of_the_epoch(data: Path) -> None:
    import recordmill

    done = [
        n
        for host in range(2)
        for batch in list(recordmill.open(data).batches(ROWS_OF_HOST, seed=3, num_hosts=2, host_index=host))[:4]
        for n in batch["id"].tolist()
    ]
    counts = trained(data, {"epochs": 1, "steps_per_epoch": 6}, epochs=None, start_step=4)
    assert len(done) == 80
    assert counts == [int(n not in done) for n in range(ROWS)]
