"""Many steps at once as flat arrays (a block), and in the graph the steps cut out of a block as tensors by feature
name.

TensorFlow takes about a thousand elements a second from Python, whatever their size: so it gets blocks. What is
collated is as `batches.collate` gives it; the types are those of `program`.
"""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from recordmill.base.buffers import Int64s
from recordmill.reader.batches import collate
from recordmill.reader.batches.grouping import packed_rows, segments
from recordmill.reader.batches.plan import StepChunk
from recordmill.reader.options.collation import Bucketed, Collation, OneHot, Packed, Padded
from recordmill.reader.options.images import Images
from recordmill.reader.tensorflow.program import unconverted
from recordmill.records.columns.numpy_arrays import (
    ColumnArrays,
    assemble_array,
    extract_arrays,
    is_bytes,
    numpy_dtype,
)
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Feature, Schema

BLOCK_SIZE = "size"  # [2]: steps of the block, rows of each of them
Arrays = dict[str, Any]
Tensors = dict[str, Any]


def decoded_schema(
    schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]
) -> Schema:
    """The schema of what blocks hold: images are tensors, which only lack where nothing stands for them."""
    features = tuple(
        Feature(
            f.name,
            images[f.name].numpy_dtype.name,
            images[f.name].layout_shape,
            f.required or f.name in defaults,
        )
        if f.name in images
        else f
        for f in schema
    )
    return replace(schema, features=features)


@dataclass(frozen=True)
class BlockColumn:
    """A feature as it goes over, and its number; binned: it is a list per packed row."""

    at: int
    feature: Feature
    collation: Collation | None
    binned: bool

    @property
    def lists(self) -> int:
        """Number of variable dimensions that go over as such."""
        if isinstance(self.collation, Packed) or self.padded:
            return 0
        return self.feature.ragged_rank + self.binned

    @property
    def padded(self) -> bool:
        """True if it is padded before it goes over; text and nested lists are in the graph."""
        collations = isinstance(self.collation, Padded | Bucketed) or self.collation == "dense"
        return collations and self.feature.ragged_rank == 1 and not is_bytes(self.feature)

    @property
    def one_length(self) -> int | None:
        """The length that all of its rows are padded to, in every step."""
        if isinstance(self.collation, Packed) or (
            isinstance(self.collation, Padded) and self.padded
        ):
            return self.collation.length
        return None

    @property
    def by_step(self) -> bool:
        """True if each step's part is cut out by itself."""
        return self.lists > 0 or (self.padded and self.one_length is None)

    @property
    def has_valid(self) -> bool:
        return (
            not self.feature.required
            and not self.feature.ragged_rank
            and not isinstance(self.collation, OneHot)
        )

    def key(self, what: str) -> str:
        """Returns the key of one of its arrays in a block."""
        return f"{self.at}/{what}"


def block_columns(schema: Schema, collations: Mapping[str, Collation]) -> list[BlockColumn]:
    """Returns how each feature goes over."""
    packed = any(isinstance(collation, Packed) for collation in collations.values())
    return [
        BlockColumn(
            at,
            feature,
            collations.get(feature.name),
            packed and not isinstance(collations.get(feature.name), Packed),
        )
        for at, feature in enumerate(schema)
    ]


def step_blocks(chunk: StepChunk, columns: list[BlockColumn]) -> list[Arrays]:
    """Returns the flat arrays of each feature. Steps of a block have equally many rows, so a shorter last one is a
    block of its own.
    """
    return [_block(part, columns) for part in _of_one_size(chunk)]


def _of_one_size(chunk: StepChunk) -> list[StepChunk]:
    edges = chunk.rows.edges
    sizes = np.diff(edges)
    if len(sizes) < 2 or sizes[-1] == sizes[0]:
        return [chunk]
    cut = int(edges[-2])
    lengths = (None, None) if chunk.lengths is None else (chunk.lengths[:-1], chunk.lengths[-1:])
    first, last = (
        chunk.chosen(slice(0, cut), edges[:-1]),
        chunk.chosen(slice(cut, int(edges[-1])), edges[-2:] - cut),
    )
    return [replace(part, lengths=own) for part, own in zip((first, last), lengths, strict=True)]


def _block(chunk: StepChunk, columns: list[BlockColumn]) -> Arrays:
    edges = chunk.rows.edges
    steps = len(edges) - 1
    block: Arrays = {BLOCK_SIZE: np.array([steps, int(edges[-1]) // steps], np.int64)}
    for one in columns:
        column = chunk.rows.batch.column(one.at)
        if one.feature.name in chunk.images:
            arrays = _decoded(one, column, chunk)
        else:
            arrays = _arrays(one, extract_arrays(column, one.feature), chunk)
        for what, array in arrays.items():
            block[one.key(what)] = array
    return block


def _decoded(one: BlockColumn, column: pa.Array, chunk: StepChunk) -> Arrays:
    made: Arrays = {"values": chunk.images[one.feature.name]}
    return (
        {**made, "valid": column.is_valid().to_numpy(zero_copy_only=False)}
        if one.has_valid
        else made
    )


def _arrays(one: BlockColumn, parts: ColumnArrays, chunk: StepChunk) -> Arrays:
    if isinstance(one.collation, Packed):
        return _packed(one.collation, Ragged(parts.values, parts.splits[0]), chunk)
    if one.padded:
        return _padded(one, Ragged(parts.values, parts.splits[0]), chunk)
    if isinstance(one.collation, OneHot):
        column = assemble_array(parts, one.feature)
        assert isinstance(column, np.ndarray)
        collate.check_classes(one.feature.name, column, one.collation)
        return {"values": np.ma.filled(np.ma.asarray(column, np.int64), -1)}
    values, splits = parts.values, list(parts.splits)
    if is_bytes(one.feature):
        # One text with all texts: an object array of them would cost TensorFlow a Python object for each.
        made: Arrays = {"values": np.array(values.tobytes(), object), "offsets": splits.pop()}
    else:
        made = {"values": values.view(np.int64) if one.feature.timestamp else values}
    if one.binned:
        assert chunk.bins is not None
        splits = [chunk.bins, *splits]
    elif one.collation is not None and one.collation != "ragged":
        made |= _step_lengths(one, np.diff(splits[0]), chunk)
    made |= {f"splits{level}": offsets for level, offsets in enumerate(splits)}
    return {**made, "valid": parts.valid} if one.has_valid else made


def _packed(collation: Packed, records: Ragged, chunk: StepChunk) -> Arrays:
    assert chunk.bins is not None
    edges = chunk.rows.edges
    rows = packed_rows(records, chunk.bins)
    flat, _ = collate.padded_flat(
        rows, edges, np.full(len(edges) - 1, collation.length, np.int64), collation.value
    )
    numbers, positions = segments(records, chunk.bins, collation.length)
    return {
        "values": flat.reshape(-1, collation.length, *flat.shape[1:]),
        "segment": numbers,
        "position": positions,
    }


def _padded(one: BlockColumn, column: Ragged, chunk: StepChunk) -> Arrays:
    lengths_ = _step_lengths(one, column.lengths, chunk)
    flat, starts = collate.padded_flat(
        column, chunk.rows.edges, lengths_["steps"], getattr(one.collation, "value", 0)
    )
    if one.feature.timestamp:
        flat = flat.view(np.int64)
    if one.one_length is not None:
        flat = flat.reshape(-1, one.one_length, *flat.shape[1:])
    return {"values": flat, "starts": starts, **lengths_}


def _step_lengths(one: BlockColumn, lengths: Int64s, chunk: StepChunk) -> Arrays:
    """ "length": the items of each row; "steps": what each step is padded to."""
    if isinstance(one.collation, Padded | Bucketed):
        steps = {"steps": collate.step_lengths(lengths, chunk, one.collation)}
        return {**steps, "length": lengths} if one.collation.lengths else steps
    collate.check_dense(one.feature.name, lengths, chunk.rows.edges)
    return {"steps": lengths[chunk.rows.edges[:-1]]}


def block_spec(columns: list[BlockColumn]) -> Arrays:
    """The tf.TensorSpec of each array of a block."""
    spec = {BLOCK_SIZE: tf.TensorSpec([2], tf.int64)}
    for one in columns:
        feature = one.feature
        if is_bytes(feature):
            spec[one.key("values")] = tf.TensorSpec([], tf.string)
        else:
            whole = feature.timestamp or isinstance(one.collation, OneHot)
            dtype = tf.int64 if whole else tf.as_dtype(numpy_dtype(feature))
            inner = (
                [one.one_length, *feature.inner_shape]
                if one.one_length is not None
                else feature.inner_shape
            )
            spec[one.key("values")] = tf.TensorSpec([None, *inner], dtype)
        names: list[str] = [
            *["offsets"] * is_bytes(feature),
            *(f"splits{level}" for level in range(one.lists)),
        ]
        if isinstance(one.collation, Packed):
            for what in ("segment", "position"):
                spec[one.key(what)] = tf.TensorSpec([None, one.collation.length], tf.int32)
        elif one.collation is not None and not isinstance(one.collation, OneHot):
            names += (
                ["steps"]
                + ["starts"] * one.padded
                + ["length"] * getattr(one.collation, "lengths", False)
            )
        spec |= {one.key(name): tf.TensorSpec([None], tf.int64) for name in names}
        if one.has_valid:
            spec[one.key("valid")] = tf.TensorSpec([None], tf.bool)
    return spec


_NUMBER = "\x00number"  # of a step in its block
_AHEAD = 2  # blocks: one is prepared while the steps of the other are taken


def prepared_steps(
    blocks: tf.data.Dataset,
    columns: list[BlockColumn],
    defaults: Mapping[str, Any],
    batch_size: int | None,
    assemble: Callable[[Tensors], Any],
) -> tf.data.Dataset:
    """Turns a data set of blocks into one of their steps.

    What takes time is done for a whole block, ahead and in threads of its own; a step is views of that.

    Args:
        defaults: feature name to what fills records that lack it.
        batch_size: rows of every step, where all have as many; None: where the last may be shorter.
        assemble: a step's tensors by feature name to the batch.
    """
    apart = [one for one in columns if one.by_step]

    @unconverted
    def prepare(block: Tensors) -> Any:
        sliced: Tensors = {}
        for one in columns:
            sliced |= _sliced(block, one, defaults)
        for name, value in sliced.items():
            sliced[name] = tf.reshape(
                value, tf.concat([block[BLOCK_SIZE], tf.shape(value, tf.int64)[1:]], 0)
            )
            sliced[name].set_shape([None, batch_size, *value.shape[1:]])
        return (
            assemble(sliced)
            if not apart
            else (sliced, _whole(block, apart, defaults), _about(block, apart))
        )

    @unconverted
    def cut(sliced: Tensors, whole: dict[str, Tensors], about: Tensors) -> Any:
        steps, rows = about[BLOCK_SIZE][0], about[BLOCK_SIZE][1]

        @unconverted
        def step(tensors: Tensors) -> Any:
            number = tensors.pop(_NUMBER)
            for one in apart:
                tensors |= _cut_out(about, one, whole[str(one.at)], number, rows, batch_size)
            return assemble(tensors)

        return tf.data.Dataset.from_tensor_slices({**sliced, _NUMBER: tf.range(steps)}).map(step)

    prepared = blocks.map(prepare, num_parallel_calls=_AHEAD, deterministic=True).prefetch(_AHEAD)
    slices = unconverted(lambda *block: tf.data.Dataset.from_tensor_slices(one_element(block)))
    return prepared.flat_map(cut if apart else slices)


@functools.cache
def free_iterators_at_exit() -> None:
    """Sees to it that iterators which are left when the process ends are freed while Python still runs.

    TensorFlow frees them as modules are taken down, and waits then for its threads, which wait for the interpreter, in
    which no other thread runs any more: the process would never end.
    """
    atexit.register(_free_iterators)


def _free_iterators() -> None:
    for one in gc.get_objects():
        if issubclass(type(one), tf.data.Iterator):
            vars(one).clear()


def one_element(parts: tuple[Any, ...]) -> Any:
    """Returns the element of a data set whose parts `map` and `flat_map` give by themselves, if it is a tuple."""
    return parts if len(parts) > 1 else parts[0]


def _whole(
    block: Tensors, apart: list[BlockColumn], defaults: Mapping[str, Any]
) -> dict[str, Tensors]:
    """The values of a whole block that are cut out step by step, by the feature's number."""
    return {
        str(one.at): _or_valid(
            one.feature.name,
            _values(block, one),
            block.get(one.key("valid")),
            one.feature,
            defaults,
        )
        for one in apart
    }


def _about(block: Tensors, apart: list[BlockColumn]) -> Tensors:
    """Returns where each step's part begins and ends."""
    keys = [
        one.key(what)
        for one in apart
        for what in ("starts", "steps", *(f"splits{i}" for i in range(one.lists)))
    ]
    return {key: block[key] for key in [BLOCK_SIZE, *keys] if key in block}


def _sliced(block: Tensors, one: BlockColumn, defaults: Mapping[str, Any]) -> Tensors:
    """Returns [rows, ...] what of a feature has the same shape in every step."""
    name = one.feature.name
    lengths_ = (
        {name + collate.LENGTH_FEATURE: block[one.key("length")]}
        if one.key("length") in block
        else {}
    )
    if one.by_step:
        return lengths_
    value = _values(block, one)
    if isinstance(one.collation, Packed):
        return {
            name: value,
            name + collate.SEGMENT: block[one.key("segment")],
            name + collate.POSITION: block[one.key("position")],
        }
    if isinstance(one.collation, OneHot):
        default = tf.cast(defaults.get(name, -1), tf.int64)
        return {name: tf.one_hot(tf.where(value < 0, default, value), one.collation.depth)}
    return lengths_ | _or_valid(name, value, block.get(one.key("valid")), one.feature, defaults)


def _or_valid(
    name: str, value: Any, valid: Any, feature: Feature, defaults: Mapping[str, Any]
) -> Tensors:
    """The value, filled where it may be missing, or with what says which rows have it."""
    if valid is None:
        return {name: value}
    if name in defaults:
        return {name: _filled(value, valid, defaults[name], feature)}
    return {name: value, name + collate.VALID: valid}


def _cut_out(
    block: Tensors, one: BlockColumn, whole: Tensors, number: Any, rows: Any, batch_size: int | None
) -> Tensors:
    """A feature's tensors in one step."""
    if one.padded:
        starts, length = block[one.key("starts")], block[one.key("steps")][number]
        ((name, flat),) = whole.items()
        part = tf.reshape(
            flat[starts[number] : starts[number + 1]], [rows, length, *one.feature.inner_shape]
        )
        part.set_shape([batch_size, None, *one.feature.inner_shape])
        return {name: part}
    splits = [block[one.key(f"splits{level}")] for level in range(one.lists)]
    begin = number * rows
    cut = {name: _lists(values, splits, begin, begin + rows) for name, values in whole.items()}
    if one.collation is None or one.binned:
        return cut
    return {
        name: padded_tensor(
            ragged,
            block[one.key("steps")][number],
            getattr(one.collation, "value", None),
            one.feature,
        )
        for name, ragged in cut.items()
    }


def padded_tensor(ragged: Any, length: Any, value: Any, feature: Feature) -> Any:
    """Returns [rows, length, ...] of lists: longer ones cut, shorter ones filled up; nested ones to their longest."""
    flat = ragged.flat_values
    inner = [-1] * (feature.ragged_rank - 1) + list(feature.inner_shape)
    shape = tf.concat([[-1], [tf.cast(length, tf.int64)], tf.constant(inner, tf.int64)], 0)
    fill = (
        None
        if value is None
        else tf.cast(tf.constant(value), flat.dtype)
        if flat.dtype != tf.string
        else value
    )
    return ragged.to_tensor(fill, shape=shape)


def _values(block: Tensors, one: BlockColumn) -> Any:
    values = block[one.key("values")]
    if one.feature.dtype == "bfloat16":
        return tf.cast(values, tf.bfloat16)
    if not is_bytes(one.feature):
        return values
    offsets = block[one.key("offsets")]
    texts = tf.strings.substr(values, offsets[:-1], offsets[1:] - offsets[:-1])
    inner = one.feature.inner_shape
    return tf.reshape(texts, [-1, *inner]) if inner else texts


def _lists(values: Any, splits: list[Any], begin: Any, end: Any) -> Any:
    """Rows [begin, end) of a column of lists."""
    own = []
    for offsets in splits:
        part = offsets[begin : end + 1]
        begin, end = part[0], part[-1]
        own.append(part - begin)
    return tf.RaggedTensor.from_nested_row_splits(values[begin:end], own, validate=False)


def _filled(value: Any, valid: Any, default: Any, feature: Feature) -> Any:
    there = tf.reshape(valid, [-1, *[1] * len(feature.inner_shape)])
    return tf.where(
        there, value, tf.cast(default, value.dtype) if value.dtype != tf.string else default
    )
