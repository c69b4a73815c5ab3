"""A Keras run that is killed in mid-epoch goes on with exactly the batches of an unbroken run."""

from pathlib import Path

import numpy as np
import pytest
from killed_training import killed_and_resumed
from made_data_set import mixed_rows, write_data_set

from recordmill.reader.dataset import open

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")

ROWS, BATCH, EPOCHS = 300, 32, 3
SCRIPT = f"""
import json, os, signal, sys
import keras, numpy as np
import recordmill

out, folder, last = sys.argv[1:]
saved, log = os.path.join(folder, "saved.npz"), open(os.path.join(folder, "log"), "a")
keras.utils.set_random_seed(1)
inputs = {{"id": keras.Input((), name="id"), "matrix": keras.Input((2, 3), name="matrix")}}
dense = keras.layers.Dense(1, "tanh")(keras.layers.Flatten()(inputs["matrix"]))

class Logged(keras.Model):
    def train_step(self, data):
        log.write(json.dumps([int(self.optimizer.iterations), data[0]["id"].numpy().tolist()]) + "\\n")
        log.flush()
        if int(self.optimizer.iterations) == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(data)

class Saving(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        np.savez(saved + ".new.npz", *self.model.get_weights(), step=step)
        os.replace(saved + ".new.npz", saved)

model = Logged(inputs, dense)
model.compile(keras.optimizers.SGD(1e-4), "mse", run_eagerly=True)
step = 0
if os.path.exists(saved):
    with np.load(saved) as found:
        step = int(found["step"])
        model.set_weights([found[f"arr_{{i}}"] for i in range(2)])
    model.optimizer.iterations.assign(step)
ds = recordmill.open(out, columns=["id", "matrix", "label"])
per_epoch = int(ds.to_tf({BATCH}).cardinality())

def fit(step, epochs):
    batches = ds.to_tf({BATCH}, shuffle="window", seed=3, window_bytes=20_000, start_step=step, label=True)
    model.fit(batches, initial_epoch=step // per_epoch, epochs=epochs, callbacks=[Saving()], verbose=0)

if step % per_epoch:
    fit(step, step // per_epoch + 1)  # Keras takes the first epoch's length for that of all
fit(-(-step // per_epoch) * per_epoch, {EPOCHS})
np.savez(os.path.join(folder, "end.npz"), *model.get_weights())
"""


@pytest.mark.sweep
def test_a_killed_run_goes_on_with_the_batches_of_an_unbroken_one(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=3)
    ends = []
    for name, kills in (("unbroken", ()), ("killed", (4, 17))):
        (tmp_path / name).mkdir()
        steps = killed_and_resumed(SCRIPT, out, tmp_path / name, kills)
        truth = open(out).batches(BATCH, shuffle="window", seed=3, window_bytes=20_000, epochs=EPOCHS)
        assert steps == {step: batch["id"].tolist() for step, batch in enumerate(truth)}
        with np.load(tmp_path / name / "end.npz") as found:
            ends.append([found[weight] for weight in found.files])
    assert all(np.array_equal(one, other) for one, other in zip(*ends, strict=True))
