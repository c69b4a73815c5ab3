"""The graph of a transform reports its inputs, its unchanged features and its constants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordmill.base.errors import DataError
from recordmill.preprocessing.graph import (
    GraphError,
    TransformGraph,
    list_vocabulary_files,
    load_graph,
)

tf = pytest.importorskip("tensorflow")

SIGNATURE = {
    "age": tf.TensorSpec([None], tf.float32),
    "city": tf.SparseTensorSpec([None, None], tf.string),
    "note": tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64),
    "unused": tf.TensorSpec([None], tf.float32),
}


class Model(tf.Module):  # type: ignore[misc]
    @tf.function(input_signature=[SIGNATURE])  # type: ignore[untyped-decorator]
    def transform_fn(self, inputs: dict[str, Any]) -> dict[str, Any]:
        minimum = tf.identity(tf.constant(5.0) - tf.constant(2.0), name="fitted_1_min")
        return {
            "age": tf.identity(inputs["age"]),
            "z": inputs["age"] - minimum,
            "city": inputs["city"],
            "mapped": tf.SparseTensor(
                inputs["city"].indices,
                tf.strings.length(inputs["city"].values),
                inputs["city"].dense_shape,
            ),
            "note": inputs["note"],
            "both": tf.cast(tf.strings.length(inputs["note"].flat_values), tf.float32)[:1]
            + inputs["age"],
        }


@pytest.fixture(scope="module")
def graph() -> TransformGraph:
    return TransformGraph(Model().transform_fn.get_concrete_function())


def test_inputs_and_outputs_consist_of_their_tensors(graph: TransformGraph) -> None:
    assert {name: len(tensors) for name, tensors in graph.inputs.items()} == {
        "age": 1,
        "city": 3,
        "note": 2,
        "unused": 1,
    }
    assert {name: len(tensors) for name, tensors in graph.outputs.items()} == {
        "age": 1,
        "both": 1,
        "city": 3,
        "mapped": 3,
        "note": 2,
        "z": 1,
    }
    assert isinstance(graph.specs["mapped"], tf.SparseTensor)


def test_output_depends_on_the_inputs_that_it_computes_with(graph: TransformGraph) -> None:
    inputs = {name: graph.find_inputs(name) for name in graph.outputs}
    assert inputs == {
        "age": {"age"},
        "z": {"age"},
        "city": {"city"},
        "mapped": {"city"},
        "note": {"note"},
        "both": {"note", "age"},
    }


def test_unchanged_input_is_found_through_identity_ops(graph: TransformGraph) -> None:
    passed_inputs = {name: graph.find_passed_input(name) for name in graph.outputs}
    assert passed_inputs == {
        "age": "age",
        "z": None,
        "city": "city",
        "mapped": None,
        "note": "note",
        "both": None,
    }
    assert graph.find_sparse_source("mapped") == "city"
    assert graph.find_sparse_source("z") is None


def test_results_of_analyzers_are_folded_constants(graph: TransformGraph) -> None:
    assert graph.read_fitted_values() == {(1, "min"): 3.0}


def test_captured_constants_are_arrays_without_paths_of_assets() -> None:
    mean, path = tf.constant([1.0, 2.0]), tf.constant("/x/transform_fn/assets/words")
    text = tf.constant("a text")

    @tf.function(input_signature=[{"x": tf.TensorSpec([None], tf.float32)}])  # type: ignore[untyped-decorator]
    def transform_fn(inputs: dict[str, Any]) -> dict[str, Any]:
        length = tf.strings.length(tf.strings.join([path, text]))
        return {"y": inputs["x"] + mean[0] + tf.cast(length, tf.float32)}

    constants = TransformGraph(transform_fn.get_concrete_function()).read_constants()
    values = [value.tolist() for value in constants.values()]
    assert sorted(values, key=str) == sorted([[1.0, 2.0], b"a text"], key=str)
    assert all(isinstance(value, np.ndarray) for value in constants.values())


def test_model_that_cannot_be_loaded_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="TensorFlow can't load it: ") as caught:
        load_graph(str(tmp_path))
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)
    tf.saved_model.save(tf.Module(), str(tmp_path / "transform_fn"))
    with pytest.raises(DataError, match="has no function called transform_fn"):
        load_graph(str(tmp_path))


def test_saved_function_is_loaded_with_its_signature(tmp_path: Path) -> None:
    class Small(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[{"x": tf.TensorSpec([None], tf.float32)}])  # type: ignore[untyped-decorator]
        def transform_fn(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {"y": inputs["x"] * 2}

    tf.saved_model.save(Small(), str(tmp_path / "transform_fn"))
    loaded = load_graph(str(tmp_path))
    assert loaded.transform_fn({"x": tf.constant([1.0, 2.0])})["y"].numpy().tolist() == [2.0, 4.0]


def test_vocabularies_are_the_assets_of_the_model(tmp_path: Path) -> None:
    assert list_vocabulary_files(str(tmp_path)) == []
    assets = tmp_path / "transform_fn" / "assets"
    assets.mkdir(parents=True)
    for name in ("b", "a"):
        (assets / name).write_text("word\n")
    assert list_vocabulary_files(str(tmp_path)) == [str(assets / "a"), str(assets / "b")]
