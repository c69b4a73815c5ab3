"""The transform of a data set as a Keras 3 layer: raw features in, what the reader gives of transformed records
out, to the bit; it goes along in `.keras` files and in `model.export`.

Features are as `Dataset.to_tf` has them: dense tensors, lists as RaggedTensors, and `NAME/valid` beside what may be
missing. Keras and TensorFlow are imported when the layer is made.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.preprocessing.graph import load_graph
from recordmill.preprocessing.metadata import restore
from recordmill.preprocessing.tensors import DENSE, PAD_ROWS, RAGGED_TENSOR, layout, tensor_dtype
from recordmill.schemas.feature import Feature
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, load_manifest
from recordmill.storage.files import parse_local_path
from recordmill.storage.folders import copy_tree, make_scratch_folder

VALID_MASK = "/valid"  # after the name of a feature that may be missing, as the reader has it


def serving_layer(out: str | os.PathLike[str]) -> Any:
    """The transform of the data set at `out`, as a `keras.layers.Layer` whose input and output are dicts of tensors.

    `layer.inputs()` makes the `keras.Input`s that it takes. What needs an input that is not given, as the label does at
    serving, is left out of its output. The transform is a program: serve only those that you trust.

    Raises:
        UsageError: the data set was built without a transform. DataError: its files are not what the manifest says.
        MissingExtraError: Keras or TensorFlow is not installed.
    """
    out = parse_local_path(out)
    manifest = load_manifest(out)
    if not manifest.transform:
        raise UsageError(f"{out} was built without a transform: there is none to serve")
    folder = Path(out, manifest.parts[-1].folder, TRANSFORM_FOLDER)
    layer = _layer_class()(dict(manifest.transform), manifest.schema)
    layer.load(os.fspath(folder))
    return layer


def serving_objects() -> dict[str, Any]:
    """Returns the `custom_objects` by which `keras.models.load_model` loads a model with the layer."""
    return {"recordmill>TransformLayer": _layer_class()}


@functools.lru_cache(maxsize=1)
def _layer_class() -> Any:
    try:
        import keras
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtraError("serving_layer", "tf", error.name or "tensorflow") from None

    @keras.saving.register_keras_serializable(package="recordmill")
    class TransformLayer(keras.layers.Layer):  # type: ignore[misc]
        """Keras layer that applies the transform. It has no graph until `load`.

        Attributes:
            about: the manifest's `transform`.
            schema: the text of its schema.pbtxt.
        """

        def __init__(self, about: dict[str, Any], schema: str, **settings: Any) -> None:
            super().__init__(**{**settings, "autocast": False, "trainable": False})
            self._about, self._schema = about, from_pbtxt(schema)
            self._raw = from_pbtxt(about["raw_schema"])
            self._folder: str | None = None

        def load(self, folder: str) -> None:
            """Takes the graph that lies in the folder."""
            restore(folder, self._about, self._schema)  # which checks the files
            self._folder, self._graph = folder, load_graph(folder)

        def inputs(self) -> dict[str, Any]:
            """A `keras.Input` for each raw feature that it takes, but for the label."""
            wanted = [
                name
                for name in self._raw.names
                if name in self._taken() and name != self._raw.label
            ]
            made: dict[str, Any] = {}
            for name in wanted:
                made |= _inputs(keras, self._raw[name], {tensor.name for tensor in made.values()})
            return made

        def _taken(self) -> set[str]:
            return {*self._about["inputs"], *(source for _, source in self._about["kept"])}

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "about": self._about, "schema": to_pbtxt(self._schema)}

        def save_assets(self, dir_path: str) -> None:
            assert self._folder is not None
            copy_tree(self._folder, dir_path, exist_ok=True)

        def load_assets(self, dir_path: str) -> None:
            folder = make_scratch_folder("recordmill-transform-")
            copy_tree(dir_path, folder, exist_ok=True)
            self.load(folder)

        def compute_output_spec(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            """Known without the graph, which a .keras file brings later."""
            made = {}
            for feature in self._given(inputs):
                dtype = "string" if feature.kind == "bytes" and not feature.raw else _dtype(feature)
                made[feature.name] = keras.KerasTensor(
                    (None, *feature.shape), dtype, ragged=bool(feature.ragged_rank)
                )
                if _is_masked(feature):
                    made[feature.name + VALID_MASK] = keras.KerasTensor((None,), "bool")
            return made

        def _given(self, inputs: Mapping[str, Any]) -> list[Feature]:
            """The features that these inputs suffice for."""
            copied = {name: [source] for name, source in self._about["kept"]}
            needs = {**copied, **self._about["needs"]}
            return [f for f in self._schema if all(name in inputs for name in needs[f.name])]

        def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            given = self._given(inputs)
            rows = tf.shape(_some_values(tf, inputs), out_type=tf.int64)[0]
            taken = {
                name: _padded(tf, self._raw[name], inputs, rows) for name in self._about["inputs"]
            }
            with tf.device("/CPU:0"):
                outputs = self._graph.transform_fn(taken)
            copied = dict(self._about["kept"])
            made: dict[str, Any] = {}
            for feature in given:
                if feature.name in copied:
                    made |= _passed(tf, self._raw[copied[feature.name]], feature.name, inputs)
                else:
                    made |= _finished(tf, feature, outputs[feature.name], rows)
            return made

    return TransformLayer


def _is_masked(feature: Feature) -> bool:
    return not feature.required and not feature.ragged_rank


def _dtype(feature: Feature) -> str:
    return "int64" if feature.timestamp else feature.dtype


def _inputs(keras: Any, feature: Feature, taken: Set[str]) -> dict[str, Any]:
    """Returns inputs by name in the records, under words that Keras takes and that are none of those taken."""
    word = re.sub(r"\W", "_", feature.name)
    numbered = (f"{word}_{number}" for number in itertools.count(2))
    plain = next(
        name
        for name in itertools.chain([word], numbered)
        if taken.isdisjoint((name, f"{name}_valid"))
    )
    dtype = "string" if feature.dtype in ("string", "bytes") else _dtype(feature)
    made = {
        feature.name: keras.Input(
            feature.shape, name=plain, dtype=dtype, ragged=bool(feature.ragged_rank)
        )
    }
    if _is_masked(feature):
        made[feature.name + VALID_MASK] = keras.Input((), name=f"{plain}_valid", dtype="bool")
    return made


def _some_values(tf: Any, inputs: Mapping[str, Any]) -> Any:
    """A tensor with a row for each row."""
    first = next(iter(inputs.values()))
    return first.row_lengths() if isinstance(first, tf.RaggedTensor) else first


def _padded(tf: Any, feature: Feature, inputs: Mapping[str, Any], rows: Any) -> Any:
    """The feature as the graph takes it, padded as `tensors.flat_values` does; empty values if it is not given."""
    dtype = tf.as_dtype(tensor_dtype(feature))
    more = tf.where(rows > 0, -rows % PAD_ROWS + PAD_ROWS, tf.zeros_like(rows))
    given = inputs.get(feature.name)
    if layout(feature) == RAGGED_TENSOR:
        given = tf.zeros([rows, 0], dtype) if given is None else given
        lists = given if isinstance(given, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(given)
        values, splits = _more(
            tf, tf.cast(lists.flat_values, dtype), tf.cast(lists.row_splits, tf.int64), more
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    shape = [-1, *feature.inner_shape]
    values = (
        tf.zeros([rows, *feature.inner_shape], dtype)
        if given is None
        else tf.reshape(tf.cast(given, dtype), shape)
    )
    if layout(feature) == DENSE:
        return tf.concat([values, tf.repeat(values[:1], more, axis=0)], 0)
    valid = inputs.get(feature.name + VALID_MASK, tf.fill([rows], given is not None))
    valid = tf.reshape(tf.cast(valid, tf.bool), [-1])
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(tf.cast(valid, tf.int64))], 0)
    values, splits = _more(tf, tf.boolean_mask(values, valid), splits, more)
    row = tf.repeat(tf.range(rows + more), splits[1:] - splits[:-1])
    return tf.SparseTensor(
        tf.stack([row, tf.zeros_like(row)], 1), values, tf.stack([rows + more, 1])
    )


def _more(tf: Any, values: Any, splits: Any, more: Any) -> tuple[Any, Any]:
    """Pads values to a multiple of LANES, in rows of one value after the others."""
    count = tf.size(values, out_type=tf.int64)
    extra = -count % PAD_ROWS
    ends = count + tf.minimum(tf.range(1, more + 1, dtype=tf.int64), extra)
    return tf.concat([values, tf.repeat(values[:1], extra)], 0), tf.concat([splits, ends], 0)


def _passed(tf: Any, raw: Feature, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A feature that stays as it is."""
    given = inputs[raw.name]
    if isinstance(given, tf.RaggedTensor) or raw.ragged_rank:
        return {name: given}
    made = {name: tf.reshape(given, [-1, *raw.inner_shape])}
    if _is_masked(raw):
        valid = inputs.get(raw.name + VALID_MASK)
        made[name + VALID_MASK] = (
            tf.ones_like(given, tf.bool) if valid is None else tf.reshape(valid, [-1])
        )
    return made


def _finished(tf: Any, feature: Feature, output: Any, rows: Any) -> dict[str, Any]:
    """Returns the graph's outputs, without the padding, as the reader gives them."""
    if isinstance(output, tf.SparseTensor) and feature.ragged_rank:
        output = tf.RaggedTensor.from_sparse(output)
    if not isinstance(output, tf.SparseTensor):
        return {feature.name: _typed(tf, feature, output[:rows])}
    place = output.indices[:, :1]
    size = output.dense_shape[:1]
    if output.dtype == tf.string:
        values = tf.tensor_scatter_nd_update(tf.fill(size, ""), place, output.values)
    else:
        values = tf.scatter_nd(place, output.values, size)
    valid = tf.scatter_nd(place, tf.ones_like(place[:, 0], tf.int32), size) > 0
    return {
        feature.name: _typed(tf, feature, values[:rows]),
        feature.name + VALID_MASK: valid[:rows],
    }


def _typed(tf: Any, feature: Feature, output: Any) -> Any:
    return tf.cast(
        output, tf.string if feature.dtype in ("string", "bytes") else tf.as_dtype(_dtype(feature))
    )
