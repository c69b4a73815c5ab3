"""The preprocessing function of tf.Transform for a `Declaration`.

The function converts a dict of tensors to a dict of tensors. Each result of an analyzer passes
through an operation named `fitted_COLUMN_RESULT`, so that the manifest can list the result. Numbers
are computed in float64 and returned as float32, so that the results are the same as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_transform import analyzer_nodes, analyzers

from recordmill.preprocessing.declaration import (
    NAN_BUCKET,
    NONFINITE_RESULT,
    UNLISTED_RESULT,
    Declaration,
    DeclaredColumn,
    TransformStep,
    is_whole_number,
    round_bounds,
)


@dataclass(frozen=True)
class DeclaredFunction:
    """The preprocessing function of a declaration.

    Objects of this class can be pickled.
    """

    declaration: Declaration

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        columns = self.declaration.columns
        return {
            column.name: _make_tensor(inputs[column.source], column, number)
            for number, column in enumerate(columns)
        }


def _make_tensor(tensor: Any, column: DeclaredColumn, column_number: int) -> Any:
    for step_number, step in enumerate(column.steps):
        tensor = _STEPS[step.name](
            tensor, step, _ResultNames(column_number, column.name, step_number)
        )
    dtype = {"float32": tf.float32, "int64": tf.int64}.get(column.value.dtype, tf.string)
    return tf.cast(tensor, dtype) if tensor.dtype != dtype else tensor


@dataclass(frozen=True)
class _ResultNames:
    """Names for the results of one step, in the graph and in files.

    Attributes:
        number: Index of the column.
        column: Name of the column.
        place: Index of the step in the column.
    """

    number: int
    column: str
    place: int

    def mark(self, result: str, tensor: Any) -> Any:
        """Returns the same tensor from an operation named after the column and `result`."""
        return tf.identity(tensor, name=f"fitted_{self.number}_{result}")

    @property
    def vocabulary(self) -> str:
        """File name of a vocabulary.

        Names of features may contain any character, so only ASCII letters and digits are kept.
        """
        plain = "".join(
            letter if letter.isascii() and letter.isalnum() else "_" for letter in self.column
        )
        return f"vocabulary_{self.number}_{plain[:80]}" + (f"_{self.place}" if self.place else "")


def _map_values(tensor: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to the values of a dense, sparse or ragged tensor."""
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensor(tensor.indices, function(tensor.values), tensor.dense_shape)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(function(tensor.flat_values))
    return function(tensor)


def _flat_values(tensor: Any) -> Any:
    """Returns the values of a dense, sparse or ragged tensor.

    A dense tensor is returned as it is.
    """
    return getattr(tensor, "flat_values", getattr(tensor, "values", tensor))


def _to_float64(tensor: Any) -> Any:
    return _map_values(tensor, lambda values: tf.cast(values, tf.float64))


def _finite_values(tensor: Any, results: _ResultNames) -> Any:
    """Returns the values without NaN and infinity, as a tensor [n]. Analyzers use only these.

    For floats, it also counts the other values, as the result NONFINITE_RESULT.

    Args:
        tensor: A dense, sparse or ragged tensor of numbers.
        results: Names the result.
    """
    values = tf.reshape(_flat_values(tensor), [-1])
    if not values.dtype.is_floating:
        return values
    is_finite = tf.math.is_finite(values)
    results.mark(NONFINITE_RESULT, tft.sum(tf.cast(tf.logical_not(is_finite), tf.int64)))
    return tf.boolean_mask(values, is_finite)


def _zscore(tensor: Any, _: TransformStep, results: _ResultNames) -> Any:
    numbers, fitted = _to_float64(tensor), tf.cast(_finite_values(tensor, results), tf.float64)
    mean = results.mark("mean", tft.mean(fitted))
    variance = results.mark("variance", tft.var(fitted))
    return _map_values(
        numbers, lambda values: tf.math.divide_no_nan(values - mean, tf.sqrt(variance))
    )


def _minmax(tensor: Any, _: TransformStep, results: _ResultNames) -> Any:
    numbers, fitted = _to_float64(tensor), tf.cast(_finite_values(tensor, results), tf.float64)
    min_value, max_value = (
        results.mark("min", tft.min(fitted)),
        results.mark("max", tft.max(fitted)),
    )
    return _map_values(
        numbers, lambda values: tf.math.divide_no_nan(values - min_value, max_value - min_value)
    )


def _bucketize(tensor: Any, step: TransformStep, results: _ResultNames) -> Any:
    numbers = _to_float64(tensor)
    fitted = tf.cast(_finite_values(tensor, results), tf.float64)
    boundaries = results.mark("boundaries", _quantiles(fitted, step.argument))

    def find_buckets(values: Any) -> Any:
        number = tf.searchsorted(
            tf.reshape(boundaries, [-1]), tf.reshape(values, [-1]), "right", tf.int64
        )
        number = tf.reshape(number, tf.shape(values))
        return tf.where(tf.math.is_nan(values), tf.constant(NAN_BUCKET, tf.int64), number)

    return _map_values(numbers, find_buckets)


def _quantiles(values: Any, count: int) -> Any:
    """Returns the boundaries between `count` buckets of equal frequency, [1, count - 1].

    `tft.quantiles` does the same, but rounds the result to float32 although its sketches are in
    float64. Large numbers would then become equal.
    """
    # tf.Transform distinguishes analyzers by this scope.
    with tf.compat.v1.name_scope(None, "quantiles"):
        combiner = analyzers.QuantilesCombiner(
            count, min(1.0 / count, 0.01), np.float64, output_shape=[1, count - 1]
        )
        (boundaries,) = analyzers.apply_cacheable_combine_operation(combiner, values)
        return analyzer_nodes.wrap_as_tensor(boundaries)


def _vocabulary(tensor: Any, step: TransformStep, results: _ResultNames) -> Any:
    # tf.Transform leaves out these words, because a vocabulary has one word in each line.
    if tensor.dtype == tf.string:
        words = tf.reshape(_flat_values(tensor), [-1])
        results.mark(
            UNLISTED_RESULT,
            tft.sum(tf.cast(tf.strings.regex_full_match(words, r"^$|\C*[\n\r]\C*"), tf.int64)),
        )
    return tft.compute_and_apply_vocabulary(
        tensor,
        top_k=step.argument["top_k"],
        frequency_threshold=step.argument["min_count"],
        num_oov_buckets=step.argument["oov_buckets"],
        vocab_filename=results.vocabulary,
    )


def _hash(tensor: Any, step: TransformStep, _: _ResultNames) -> Any:
    text = tensor if tensor.dtype == tf.string else _map_values(tensor, tf.strings.as_string)
    return tft.hash_strings(text, step.argument)


def _log1p(tensor: Any, _: TransformStep, __: _ResultNames) -> Any:
    return _map_values(_to_float64(tensor), tf.math.log1p)


def _clip(tensor: Any, step: TransformStep, _: _ResultNames) -> Any:
    def clip(values: Any) -> Any:
        low, high = step.argument
        if values.dtype.is_integer:
            values = tf.cast(values, tf.int64)
            low, high = round_bounds(low, high)
        if low is not None:
            values = tf.maximum(values, tf.constant(low, values.dtype))
        return values if high is None else tf.minimum(values, tf.constant(high, values.dtype))

    return _map_values(tensor, clip)


def _one_hot(tensor: Any, step: TransformStep, _: _ResultNames) -> Any:
    return tf.one_hot(tensor, step.argument, dtype=tf.float32)


def _tokenize(tensor: Any, step: TransformStep, _: _ResultNames) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        tensor = _fill_missing(tensor, "")
    if step.argument["lower"]:
        tensor = tf.strings.lower(tensor, encoding="utf-8")
    return tf.strings.split(tensor, sep=step.argument["separator"])


def _impute(tensor: Any, step: TransformStep, results: _ResultNames) -> Any:
    filling = step.argument
    if tensor.dtype != tf.string and (
        filling == "mean" or (tensor.dtype.is_integer and not is_whole_number(filling))
    ):
        tensor = _to_float64(tensor)
    if filling == "mean" and tensor.dtype != tf.string:
        filling = results.mark("mean", tft.mean(_finite_values(tensor, results)))
    return _fill_missing(tensor, filling) if isinstance(tensor, tf.SparseTensor) else tensor


def _fill_missing(tensor: Any, filling: Any) -> Any:
    """Converts a SparseTensor to a dense tensor [rows], with `filling` for missing values.

    The SparseTensor has at most one value per row.
    """
    if tf.is_tensor(filling):
        default = tf.cast(filling, tensor.dtype)
    else:
        # The filling of an integer feature may be written as 1e15.
        default = tf.constant(int(filling) if tensor.dtype.is_integer else filling, tensor.dtype)
    return tf.reshape(tft.sparse_tensor_to_dense_with_shape(tensor, [None, 1], default), [-1])


def _image(tensor: Any, step: TransformStep, _: _ResultNames) -> Any:
    height, width = step.argument["resize"]
    channels, scale = step.argument["channels"], step.argument["scale"]

    def decode(data: Any) -> Any:
        pixels = tf.io.decode_image(data, channels=channels, expand_animations=False)
        return tf.ensure_shape(
            tf.image.resize(pixels, [height, width]) * scale, [height, width, channels]
        )

    return tf.map_fn(
        decode, tensor, fn_output_signature=tf.TensorSpec([height, width, channels], tf.float32)
    )


_STEPS: dict[str, Callable[[Any, TransformStep, _ResultNames], Any]] = {
    "zscore": _zscore,
    "minmax": _minmax,
    "bucketize": _bucketize,
    "vocabulary": _vocabulary,
    "hash": _hash,
    "log1p": _log1p,
    "clip": _clip,
    "one_hot": _one_hot,
    "tokenize": _tokenize,
    "impute": _impute,
    "image": _image,
}
