"""Real images through every output: the same pixels or refusals; models learn from them, not of shuffled labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import table_of
from made_data_set import write_data_set

from recordmill.reader import Images
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore::UserWarning")]
IMAGE = Feature("image", "bytes", (), True)


def made(folder: Path, columns: dict[str, list[Any]], *features: Feature, label: str | None = None) -> Dataset:
    schema = Schema(features, label)
    table = table_of(columns, schema)
    return open(write_data_set(folder / "out", {"train": table}, schema, shards=3))


def losses(history: Any) -> float:
    return float(history.history["loss"][-1])


def test_a_classifier_of_photographs_learns(shared_data: Path, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    kinds = ("dress", "shoes", "pants")
    root = shared_data / "images" / "clothing-small"
    files = [(file, kind) for kind in kinds for file in sorted(root.glob(f"*/{kind}/*.jpg"))]
    images, labels = [file.read_bytes() for file, _ in files], [kinds.index(kind) for _, kind in files]
    shuffled = np.random.default_rng(0).permutation(labels).tolist()
    features = (IMAGE, Feature("y", "int64", (), True, kinds))
    ds, other = (
        made(tmp_path / name, {"image": images, "y": y}, *features, label="y")
        for name, y in (("true", labels), ("shuffled", shuffled))
    )
    wanted = Images(32, 32, scale=1 / 255, orientation=True)

    def fitted(data: Dataset, way: str) -> float:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(16, 5, 2, activation="relu"), keras.layers.Conv2D(32, 3, 2, activation="relu")]
        tail = [keras.layers.Flatten(), keras.layers.Dense(len(kinds))]
        model = keras.Sequential([keras.Input((32, 32, 3)), *layers, *tail])
        model.compile(keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        if way != "batches":
            batches = data.to_tf(32, label=True, decode_images=wanted)
            return losses(model.fit(batches, epochs=8, verbose=0))
        batches = data.batches(32, shuffle=True, label="y", epochs=8, decode_images=wanted)
        found = [float(model.train_on_batch(x, y)) for x, y in batches]
        return float(np.mean(found[-8:]))

    baseline = fitted(other, "to_tf")
    for way in ("to_tf", "batches"):
        assert fitted(ds, way) < 0.75 * baseline, way


def test_files_of_other_projects_are_the_same_by_every_face(shared_data: Path, tmp_path: Path) -> None:
    """What one face refuses the other refuses."""
    pytest.importorskip("tensorflow")
    paths = sorted((shared_data / "images").glob("torture-[pe]*/**/*"))  # Pillow's own, and orientations
    files = {path.name: path.read_bytes() for path in paths if path.is_file() and path.stat().st_size < 1 << 21}
    names = list(files)
    ds = made(
        tmp_path, {"image": list(files.values()), "n": list(range(len(names)))}, IMAGE, Feature("n", "int64", (), True)
    )
    for wanted in (Images(24, 24, orientation=True), Images(24, 24, 1), Images(24, 24, 4, antialias=True)):
        options: dict[str, Any] = {"decode_images": {"image": wanted}, "on_bad": "skip"}
        (mine,) = ds.batches(1000, shuffle=False, **options)
        (fed,) = ds.to_tf(1000, shuffle=False, **options)
        assert 300 < len(mine["n"]) < len(names)
        assert np.array_equal(mine["n"], fed["n"])
        assert np.array_equal(mine["image"], fed["image"])
