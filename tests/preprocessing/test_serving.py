"""The Keras layer transforms raw records as a build does.

This also holds for saved and exported models.
"""

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.runs import run_python
from kit.transformed_set import DECLARED, SPLITS, write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")
keras = pytest.importorskip("keras", reason="the layer needs Keras")

import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel  # noqa: E402

import recordmill  # noqa: E402
from recordmill.base.errors import DataError, UsageError  # noqa: E402
from recordmill.pipelines.build import build  # noqa: E402
from recordmill.preprocessing import serving  # noqa: E402
from recordmill.preprocessing.graph import load_graph  # noqa: E402
from recordmill.preprocessing.serving import VALID_MASK, serving_layer, serving_objects  # noqa: E402
from recordmill.schemas.feature import Feature, Schema  # noqa: E402
from recordmill.schemas.tfmd import to_pbtxt  # noqa: E402


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data sets of the same records, in the same order.

    `raw` has no transform. `made` has one.
    """
    root = tmp_path_factory.mktemp("sets")
    write_csv(root / "rides.csv", rows=700)
    declared = {**DECLARED, "fare_z": {"from": "fare", "zscore": None}}
    build(root / "rides.csv", root / "raw", splits=SPLITS, label="label")
    build(root / "rides.csv", root / "made", splits=SPLITS, label="label", transform=declared)
    return {name: root / name for name in ("raw", "made")}


def batches(out: Path, size: int, split: str = "validation") -> Any:
    return recordmill.open(out, split=split).to_tf(size, shuffle=False, label=False)


def bits(tensor: Any) -> tuple[Any, ...]:
    """Returns a value that is equal only for tensors with equal bits."""
    if isinstance(tensor, tf.RaggedTensor):
        return (*bits(tensor.flat_values), *bits(tensor.row_splits))
    array = np.asarray(tensor)
    return (
        str(array.dtype),
        array.shape,
        array.tolist() if array.dtype == object else array.tobytes(),
    )


def assert_same(outputs: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(outputs) == sorted(expected)
    for name, tensor in expected.items():
        assert bits(outputs[name]) == bits(tensor), name


@pytest.mark.parametrize("size", [1, 37, 1000])
def test_serving_layer_returns_the_values_of_the_reader(sets: dict[str, Path], size: int) -> None:
    layer = serving_layer(sets["made"])
    pairs = zip(batches(sets["raw"], size), batches(sets["made"], size), strict=True)
    for raw_batch, expected in list(pairs)[:20]:
        assert_same(layer(raw_batch), expected)


def test_outputs_whose_inputs_are_missing_are_left_out(sets: dict[str, Path]) -> None:
    layer = serving_layer(sets["made"])
    available = {
        name: tensor
        for name, tensor in next(iter(batches(sets["raw"], 8))).items()
        if name in ("age", "kind")
    }
    assert sorted(layer(available)) == ["age", "age_group", "kind"]
    assert sorted(layer.inputs()) == [
        "age",
        "city",
        "city/valid",
        "fare",
        "fare/valid",
        "id",
        "kind",
        "miles",
        "note",
    ]


CHILD = """
import sys
import numpy as np
import keras, tensorflow as tf
import recordmill
raw, saved, exported, expected = sys.argv[1:]
x = next(iter(recordmill.open(raw, split="validation").to_tf(50, shuffle=False, label=False)))
x = {name: tensor for name, tensor in x.items() if name not in ("label",)}
truth = np.load(expected)
model = keras.models.load_model(saved, custom_objects=recordmill.serving_objects())
given = {name: x[name] for name in model.input}
assert model(given).numpy().tobytes() == truth.tobytes(), "the .keras file predicts otherwise"
served = tf.saved_model.load(exported)
assert served.serve(given).numpy().tobytes() == truth.tobytes(), "the exported model predicts otherwise"
one = {name: tensor[3:4] for name, tensor in given.items()}
print(served.serve(one).numpy() - truth[3:4])
"""


@pytest.mark.sweep
def test_saved_and_exported_models_predict_the_same(sets: dict[str, Path], tmp_path: Path) -> None:
    keras.utils.set_random_seed(7)
    train = recordmill.open(
        sets["made"], split="train", columns=["age", "fare", "kind", "city", "label"]
    )
    names = {"age": (), "fare": (), "kind": (3,), "city": ()}
    model_inputs = {
        name: keras.Input(shape, name=name, dtype="int64" if name == "city" else "float32")
        for name, shape in names.items()
    }
    columns = [keras.layers.Reshape((1,))(model_inputs[name]) for name in ("age", "fare")]
    columns += [
        model_inputs["kind"],
        keras.layers.Flatten()(
            keras.layers.Embedding(7, 2)(keras.layers.Reshape((1,))(model_inputs["city"]))
        ),
    ]
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()(columns))
    trained_model = keras.Model(model_inputs, keras.layers.Dense(2)(hidden))
    trained_model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trained_model.fit(
        train.to_tf(64, label=True).map(lambda x, y: ({name: x[name] for name in names}, y)),
        epochs=1,
        verbose=0,
    )

    layer = serving_layer(sets["made"])
    inputs = {
        name: tensor for name, tensor in layer.inputs().items() if name.split("/")[0] in names
    }
    transformed = layer(inputs)
    serving_model = keras.Model(inputs, trained_model({name: transformed[name] for name in names}))
    expected_x = next(iter(batches(sets["made"], 50)))
    expected = trained_model({name: expected_x[name] for name in names}).numpy()
    serving_model.save(tmp_path / "model.keras")
    serving_model.export(tmp_path / "exported", verbose=False)
    np.save(tmp_path / "truth.npy", expected)
    (tmp_path / "moved").mkdir()
    made_folder = sets["made"].rename(tmp_path / "moved/made")
    try:
        process = run_python(
            "-c",
            CHILD,
            sets["raw"],
            *(tmp_path / name for name in ("model.keras", "exported", "truth.npy")),
            check=False,
            timeout=500,
        )
    finally:
        made_folder.rename(sets["made"])
    assert process.returncode == 0, process.stderr[-3000:]


def test_folder_of_a_loaded_layer_is_removed_with_the_layer(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = serving_layer(sets["made"])
    (tmp_path / "assets").mkdir()
    layer.save_assets(str(tmp_path / "assets"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    loaded = type(layer).from_config(layer.get_config())
    loaded.load_assets(str(tmp_path / "assets"))
    loaded.save_assets(str(tmp_path / "copy"))
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    del loaded
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def test_serving_a_data_set_without_transform_is_refused(sets: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="was built without a transform: there is none to serve"):
        serving_layer(sets["raw"])
    assert list(serving_objects()) == ["recordmill>TransformLayer"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    build({"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]}, tmp_path / "out", transform={"x": "zscore"})
    return tmp_path / "out"


def test_damaged_saved_model_is_reported_in_one_sentence(small: Path, tmp_path: Path) -> None:
    # TensorFlow raises many kinds of errors for a damaged model.
    (folder,) = small.glob("data-*/transform")
    original = SavedModel.FromString((folder / "transform_fn" / "saved_model.pb").read_bytes())

    def check_damaged_model(change: Callable[[Any], Any]) -> None:
        model = SavedModel.FromString(original.SerializeToString())
        change(model)
        (folder / "transform_fn" / "saved_model.pb").write_bytes(model.SerializeToString())
        with pytest.raises(
            DataError, match=r"transform/transform_fn: (TensorFlow can't load it: |has no function)"
        ):
            load_graph(str(folder))

    check_damaged_model(lambda model: model.meta_graphs.add().CopyFrom(model.meta_graphs[0]))
    check_damaged_model(lambda model: model.ClearField("meta_graphs"))
    check_damaged_model(lambda model: model.meta_graphs[0].graph_def.library.ClearField("function"))
    check_damaged_model(
        lambda model: setattr(
            model.meta_graphs[0].object_graph_def.nodes[0].children[0], "node_id", 99
        )
    )
    check_damaged_model(
        lambda model: [
            setattr(child, "local_name", "x")
            for child in model.meta_graphs[0].object_graph_def.nodes[0].children
        ]
    )
    for path in (folder / "transform_fn" / "variables").iterdir():
        path.write_bytes(b"no variables")
    check_damaged_model(lambda model: None)


def test_features_with_equal_keras_names_still_make_a_model() -> None:
    raw = Schema(
        tuple(
            Feature(name, "float32", required=name != "a b")
            for name in ("a b", "a_b", "a-b", "a_b_valid")
        )
    )
    entry = {"raw_schema": to_pbtxt(raw), "inputs": list(raw.names), "kept": [], "needs": {}}
    inputs = serving._layer_class()(entry, to_pbtxt(raw)).inputs()
    assert {name for name in inputs if not name.endswith(VALID_MASK)} == {*raw.names}
    names = [tensor.name for tensor in inputs.values()]
    assert len(set(names)) == len(names)
    model = keras.Model(inputs, keras.ops.add(inputs["a b"], inputs["a_b"]))
    values = {
        name: np.ones(2, bool if name.endswith(VALID_MASK) else np.float32) for name in inputs
    }
    assert model(values).numpy().tolist() == [2.0, 2.0]
