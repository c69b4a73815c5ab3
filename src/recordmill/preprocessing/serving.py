"""The transform of a data set as a Keras 3 layer, for serving.

The layer takes raw features and returns transformed ones, with the same bits as the reader. It is
saved as a part of `.keras` files and by `model.export`.

Features have the form of `Dataset.to_tf`. They are dense tensors, and lists are RaggedTensors. A
feature that may be missing has an additional mask called `NAME/valid`. Keras and TensorFlow are
imported when the layer is made.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import weakref
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.preprocessing.graph import load_graph
from recordmill.preprocessing.metadata import restore_transform
from recordmill.preprocessing.tensors import (
    DENSE_LAYOUT,
    PAD_ROWS,
    RAGGED_LAYOUT,
    choose_tensor_layout,
    tensor_dtype,
)
from recordmill.schemas.feature import Feature
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, load_manifest
from recordmill.storage.files import parse_local_path
from recordmill.storage.folders import copy_tree, make_scratch_folder, remove

# The suffix of masks for features that may be missing, as in the reader.
VALID_MASK = "/valid"


@suggest_keywords
def serving_layer(out: str | os.PathLike[str]) -> Any:
    """Returns the transform of a data set as a Keras layer.

    The input and the output of the layer are dicts of tensors. `layer.inputs()` makes the
    `keras.Input` objects for it. Outputs that need a missing input, such as the label, are left
    out. A transform is a program, so serve only transforms that you trust.

    Args:
        out: The folder of the data set.

    Returns:
        A `keras.layers.Layer`.

    Raises:
        UsageError: The data set was built without a transform.
        DataError: A file differs from the manifest.
        MissingExtraError: Keras or TensorFlow is not installed.
    """
    out = parse_local_path(out)
    manifest = load_manifest(out)
    if not manifest.transform:
        raise UsageError(f"{out} was built without a transform: there is none to serve")
    folder = Path(out, manifest.transform_folder, TRANSFORM_FOLDER)
    layer = _layer_class()(dict(manifest.transform), manifest.schema)
    layer.load(os.fspath(folder))
    return layer


@suggest_keywords
def serving_objects() -> dict[str, Any]:
    """Returns the `custom_objects` that `keras.models.load_model` needs for the layer."""
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
        """Keras layer that applies the transform of a data set.

        A new layer knows its inputs and outputs, but it can't compute them until `load` was called.

        Args:
            about: The entry of the manifest for the transform.
            schema: The schema of the transformed records, as text of a schema.pbtxt.
        """

        def __init__(self, about: dict[str, Any], schema: str, **settings: Any) -> None:
            super().__init__(**{**settings, "autocast": False, "trainable": False})
            self._about, self._schema = about, from_pbtxt(schema)
            self._raw = from_pbtxt(about["raw_schema"])
            self._folder: str | None = None

        def load(self, folder: str) -> None:
            """Checks the files of a saved transform, and loads its graph.

            Args:
                folder: The folder that contains `transform_fn/`. The layer needs it as long as it
                    exists.

            Raises:
                DataError: A file is missing or differs from the manifest, or can't be loaded.
            """
            # This raises an error if a file differs from the manifest. Its result is not needed.
            restore_transform(folder, self._about, self._schema)
            self._folder, self._graph = folder, load_graph(folder)

        def inputs(self) -> dict[str, Any]:
            """Returns a `keras.Input` for each raw feature of the transform except the label."""
            names = [
                name
                for name in self._raw.names
                if name in self._raw_names() and name != self._raw.label
            ]
            keras_inputs: dict[str, Any] = {}
            for name in names:
                keras_inputs |= _make_inputs(
                    keras, self._raw[name], {tensor.name for tensor in keras_inputs.values()}
                )
            return keras_inputs

        def _raw_names(self) -> set[str]:
            return {*self._about["inputs"], *(source for _, source in self._about["kept"])}

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "about": self._about, "schema": to_pbtxt(self._schema)}

        def save_assets(self, dir_path: str) -> None:
            assert self._folder is not None
            copy_tree(self._folder, dir_path)

        def load_assets(self, dir_path: str) -> None:
            folder = make_scratch_folder("recordmill-transform-")
            # `save_assets` needs the folder as long as the layer exists.
            weakref.finalize(self, _remove_own_folder, folder, os.getpid())
            copy_tree(dir_path, folder)
            self.load(folder)

        def compute_output_spec(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            """Returns the types of the outputs.

            They come from the schema, because Keras calls this before the graph of a .keras file is
            loaded.
            """
            specs = {}
            for feature in self._computable_features(inputs):
                dtype = "string" if feature.kind == "bytes" and not feature.raw else _dtype(feature)
                specs[feature.name] = keras.KerasTensor(
                    (None, *feature.shape), dtype, ragged=bool(feature.ragged_rank)
                )
                if _is_masked(feature):
                    specs[feature.name + VALID_MASK] = keras.KerasTensor((None,), "bool")
            return specs

        def _computable_features(self, inputs: Mapping[str, Any]) -> list[Feature]:
            """Returns the transformed features that can be computed from the inputs.

            This requires all of their raw features.
            """
            copied = {name: [source] for name, source in self._about["kept"]}
            needs = {**copied, **self._about["needs"]}
            return [f for f in self._schema if all(name in inputs for name in needs[f.name])]

        def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            features = self._computable_features(inputs)
            rows = tf.shape(_pick_row_tensor(tf, inputs), out_type=tf.int64)[0]
            arguments = {
                name: _make_graph_input(tf, self._raw[name], inputs, rows)
                for name in self._about["inputs"]
            }
            with tf.device("/CPU:0"):
                outputs = self._graph.transform_fn(arguments)
            copied = dict(self._about["kept"])
            results: dict[str, Any] = {}
            for feature in features:
                if feature.name in copied:
                    results |= _copy_feature(
                        tf, self._raw[copied[feature.name]], feature.name, inputs
                    )
                else:
                    results |= _convert_output(tf, feature, outputs[feature.name], rows)
            return results

    return TransformLayer


def _remove_own_folder(folder: str, process: int) -> None:
    """Removes a folder, but not in a fork of the process that made it."""
    if os.getpid() == process:
        remove(folder, ignore_errors=True)


def _is_masked(feature: Feature) -> bool:
    return not feature.required and not feature.ragged_rank


def _dtype(feature: Feature) -> str:
    return "int64" if feature.timestamp else feature.dtype


def _make_inputs(keras: Any, feature: Feature, taken_names: Set[str]) -> dict[str, Any]:
    """Creates the Keras inputs of a feature.

    There is one for its values and, if the feature may be missing, one for its mask.

    Args:
        keras: The module.
        taken_names: Names of the Keras inputs of other features. The new names must differ from
            them.

    Returns:
        The inputs, by their names in records. The names inside Keras can differ from these, because
        Keras accepts only letters, digits and underscores.
    """
    word = re.sub(r"\W", "_", feature.name)
    numbered = (f"{word}_{number}" for number in itertools.count(2))
    keras_name = next(
        name
        for name in itertools.chain([word], numbered)
        if taken_names.isdisjoint((name, f"{name}_valid"))
    )
    dtype = "string" if feature.dtype in ("string", "bytes") else _dtype(feature)
    keras_inputs = {
        feature.name: keras.Input(
            feature.shape, name=keras_name, dtype=dtype, ragged=bool(feature.ragged_rank)
        )
    }
    if _is_masked(feature):
        keras_inputs[feature.name + VALID_MASK] = keras.Input(
            (), name=f"{keras_name}_valid", dtype="bool"
        )
    return keras_inputs


def _pick_row_tensor(tf: Any, inputs: Mapping[str, Any]) -> Any:
    """Returns a tensor that has the number of rows as its first dimension."""
    value = next(iter(inputs.values()))
    return value.row_lengths() if isinstance(value, tf.RaggedTensor) else value


def _make_graph_input(tf: Any, feature: Feature, inputs: Mapping[str, Any], rows: Any) -> Any:
    """Converts an input of the layer to the tensor that the graph takes.

    The tensor has the same padding as in `tensors.flatten_values`, because the bits of a result
    depend on the padding. If the inputs lack the feature, its values are empty or zero.

    Args:
        tf: The module.
        feature: The raw feature.
        inputs: The inputs of the layer.
        rows: The number of rows, as a scalar int64 tensor.
    """
    dtype = tf.as_dtype(tensor_dtype(feature))
    num_padding = tf.where(rows > 0, -rows % PAD_ROWS + PAD_ROWS, tf.zeros_like(rows))
    value = inputs.get(feature.name)
    if choose_tensor_layout(feature) == RAGGED_LAYOUT:
        value = tf.zeros([rows, 0], dtype) if value is None else value
        lists = value if isinstance(value, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(value)
        values, splits = _pad_values(
            tf, tf.cast(lists.flat_values, dtype), tf.cast(lists.row_splits, tf.int64), num_padding
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    shape = [-1, *feature.inner_shape]
    values = (
        tf.zeros([rows, *feature.inner_shape], dtype)
        if value is None
        else tf.reshape(tf.cast(value, dtype), shape)
    )
    if choose_tensor_layout(feature) == DENSE_LAYOUT:
        return tf.concat([values, tf.repeat(values[:1], num_padding, axis=0)], 0)
    valid = inputs.get(feature.name + VALID_MASK, tf.fill([rows], value is not None))
    valid = tf.reshape(tf.cast(valid, tf.bool), [-1])
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(tf.cast(valid, tf.int64))], 0)
    values, splits = _pad_values(tf, tf.boolean_mask(values, valid), splits, num_padding)
    row = tf.repeat(tf.range(rows + num_padding), splits[1:] - splits[:-1])
    return tf.SparseTensor(
        tf.stack([row, tf.zeros_like(row)], 1), values, tf.stack([rows + num_padding, 1])
    )


def _pad_values(tf: Any, values: Any, splits: Any, num_padding: Any) -> tuple[Any, Any]:
    """Pads the number of values to a multiple of PAD_ROWS.

    The padding rows contain the added values. The first of the added rows get one value each, and
    the others are empty.

    Args:
        tf: The module.
        values: The flat values.
        splits: [rows + 1]. The values of row r are `values[splits[r]:splits[r + 1]]`.
        num_padding: The number of rows to add.

    Returns:
        (padded values, padded splits).
    """
    count = tf.size(values, out_type=tf.int64)
    num_extra = -count % PAD_ROWS
    ends = count + tf.minimum(tf.range(1, num_padding + 1, dtype=tf.int64), num_extra)
    return tf.concat([values, tf.repeat(values[:1], num_extra)], 0), tf.concat([splits, ends], 0)


def _copy_feature(tf: Any, raw: Feature, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a raw feature that the transform copies, as outputs of the layer.

    Args:
        tf: The module.
        raw: The raw feature.
        name: Name of the output.
        inputs: The inputs of the layer.

    Returns:
        The value by its output name. If the feature may be missing, also its mask.
    """
    value = inputs[raw.name]
    if isinstance(value, tf.RaggedTensor) or raw.ragged_rank:
        return {name: value}
    results = {name: tf.reshape(value, [-1, *raw.inner_shape])}
    if _is_masked(raw):
        valid = inputs.get(raw.name + VALID_MASK)
        results[name + VALID_MASK] = (
            tf.ones_like(value, tf.bool) if valid is None else tf.reshape(valid, [-1])
        )
    return results


def _convert_output(tf: Any, feature: Feature, output: Any, rows: Any) -> dict[str, Any]:
    """Converts an output of the graph to the form of the layer.

    The padding rows are removed. A SparseTensor of lists becomes a RaggedTensor. Any other
    SparseTensor becomes a dense tensor and a mask.

    Args:
        tf: The module.
        feature: The transformed feature.
        output: The tensor that the graph returned.
        rows: The number of rows without padding.

    Returns:
        The value by feature name, and perhaps its mask.
    """
    if isinstance(output, tf.SparseTensor) and feature.ragged_rank:
        output = tf.RaggedTensor.from_sparse(output)
    if not isinstance(output, tf.SparseTensor):
        return {feature.name: _cast_output(tf, feature, output[:rows])}
    place = output.indices[:, :1]
    size = output.dense_shape[:1]
    if output.dtype == tf.string:
        values = tf.tensor_scatter_nd_update(tf.fill(size, ""), place, output.values)
    else:
        values = tf.scatter_nd(place, output.values, size)
    valid = tf.scatter_nd(place, tf.ones_like(place[:, 0], tf.int32), size) > 0
    return {
        feature.name: _cast_output(tf, feature, values[:rows]),
        feature.name + VALID_MASK: valid[:rows],
    }


def _cast_output(tf: Any, feature: Feature, output: Any) -> Any:
    return tf.cast(
        output, tf.string if feature.dtype in ("string", "bytes") else tf.as_dtype(_dtype(feature))
    )
