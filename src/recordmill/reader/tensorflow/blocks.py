"""Blocks of many steps as flat arrays, and their division into steps in TensorFlow.

TensorFlow takes about a thousand elements per second from Python, of any size. So this process
passes it blocks of many steps, and the graph slices the steps. Collated features have the values of
`batches.collate`. Dtypes are as in `program`.
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
from recordmill.reader.batches.grouping import compute_segments, join_packed_lists
from recordmill.reader.batches.plan import StepBlock
from recordmill.reader.options.collation import Bucketed, Collation, OneHot, Packed, Padded
from recordmill.reader.options.images import Images, make_pixel_schema
from recordmill.reader.tensorflow.program import without_autograph
from recordmill.records.columns.numpy_arrays import (
    ColumnArrays,
    assemble_array,
    extract_arrays,
    is_bytes,
    numpy_dtype,
)
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Feature, Schema

BLOCK_SHAPE = "size"  # key of int64 [2]: number of steps of the block, and of rows of each step
FlatArrays = dict[str, Any]
Tensors = dict[str, Any]


def make_decoded_schema(
    schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]
) -> Schema:
    """Returns the schema in which decoded images are tensors.

    Args:
        schema: The stored features.
        images: The target of each image feature.
        defaults: Values that replace missing ones, by feature. So an image with a default is never
            missing.
    """
    features = tuple(
        replace(f, required=f.required or f.name in defaults) if f.name in images else f
        for f in make_pixel_schema(schema, images)
    )
    return replace(schema, features=features)


@dataclass(frozen=True)
class BlockColumn:
    """Representation of a feature in a block.

    Attributes:
        index: Index of the feature in the schema.
        feature: The feature.
        collation: Collation of the feature. None if its lists stay as they are.
        is_grouped_by_row: True if other features are packed. Each packed row then has a list of
            this feature's values, one per record.
    """

    index: int
    feature: Feature
    collation: Collation | None
    is_grouped_by_row: bool

    @property
    def ragged_levels(self) -> int:
        """Number of dimensions of variable length that the feature has in the block."""
        if isinstance(self.collation, Packed) or self.is_padded:
            return 0
        return self.feature.ragged_rank + self.is_grouped_by_row

    @property
    def is_padded(self) -> bool:
        """True if the feature is padded before it is passed to TensorFlow.

        Text and nested lists are padded by TensorFlow.
        """
        has_padding = isinstance(self.collation, Padded | Bucketed) or self.collation == "dense"
        return has_padding and self.feature.ragged_rank == 1 and not is_bytes(self.feature)

    @property
    def fixed_length(self) -> int | None:
        """Padded length, if it is the same in all steps. Otherwise None."""
        if isinstance(self.collation, Packed) or (
            isinstance(self.collation, Padded) and self.is_padded
        ):
            return self.collation.length
        return None

    @property
    def is_cut_per_step(self) -> bool:
        """True if the length of the rows differs between steps.

        Then each step is sliced by itself.
        """
        return self.ragged_levels > 0 or (self.is_padded and self.fixed_length is None)

    @property
    def has_valid(self) -> bool:
        return (
            not self.feature.required
            and not self.feature.ragged_rank
            and not isinstance(self.collation, OneHot)
        )

    def key(self, array_name: str) -> str:
        """Returns the key of one of the column's arrays in a block."""
        return f"{self.index}/{array_name}"


def make_block_columns(schema: Schema, collations: Mapping[str, Collation]) -> list[BlockColumn]:
    """Returns the representation of each feature in a block."""
    has_packed = any(isinstance(collation, Packed) for collation in collations.values())
    return [
        BlockColumn(
            index,
            feature,
            collations.get(feature.name),
            is_grouped_by_row=has_packed and not isinstance(collations.get(feature.name), Packed),
        )
        for index, feature in enumerate(schema)
    ]


def to_flat_blocks(step_block: StepBlock, columns: list[BlockColumn]) -> list[FlatArrays]:
    """Returns the flat arrays of a block by key.

    The steps of a block have the same number of rows, so a shorter last step becomes a block of its
    own.
    """
    return [_to_flat_arrays(part, columns) for part in _split_by_batch_size(step_block)]


def _split_by_batch_size(step_block: StepBlock) -> list[StepBlock]:
    edges = step_block.rows.edges
    sizes = np.diff(edges)
    if len(sizes) < 2 or sizes[-1] == sizes[0]:
        return [step_block]
    # only the last step of a block can have another size
    last_begin = int(edges[-2])
    length_parts = (
        (None, None)
        if step_block.padded_lengths is None
        else (step_block.padded_lengths[:-1], step_block.padded_lengths[-1:])
    )
    first, last = (
        step_block.select_rows(slice(0, last_begin), edges[:-1]),
        step_block.select_rows(slice(last_begin, int(edges[-1])), edges[-2:] - last_begin),
    )
    return [
        replace(part, padded_lengths=padded_lengths)
        for part, padded_lengths in zip((first, last), length_parts, strict=True)
    ]


def _to_flat_arrays(step_block: StepBlock, columns: list[BlockColumn]) -> FlatArrays:
    edges = step_block.rows.edges
    steps = len(edges) - 1
    arrays_by_key: FlatArrays = {BLOCK_SHAPE: np.array([steps, int(edges[-1]) // steps], np.int64)}
    for column in columns:
        arrow_column = step_block.rows.batch.column(column.index)
        if column.feature.name in step_block.images:
            arrays = _image_arrays(column, arrow_column, step_block)
        else:
            arrays = _column_arrays(
                column, extract_arrays(arrow_column, column.feature), step_block
            )
        for array_name, array in arrays.items():
            arrays_by_key[column.key(array_name)] = array
    return arrays_by_key


def _image_arrays(column: BlockColumn, arrow_column: pa.Array, step_block: StepBlock) -> FlatArrays:
    images = step_block.images[column.feature.name]
    if isinstance(images, Ragged):
        assert isinstance(images.values, np.ndarray)
        parts = ColumnArrays(images.values, (images.row_splits,), valid=None)
        return _column_arrays(column, parts, step_block)
    arrays: FlatArrays = {"values": images}
    return (
        {**arrays, "valid": arrow_column.is_valid().to_numpy(zero_copy_only=False)}
        if column.has_valid
        else arrays
    )


def _column_arrays(column: BlockColumn, parts: ColumnArrays, step_block: StepBlock) -> FlatArrays:
    if isinstance(column.collation, Packed):
        return _packed_arrays(column.collation, Ragged(parts.values, parts.splits[0]), step_block)
    if column.is_padded:
        return _padded_arrays(column, Ragged(parts.values, parts.splits[0]), step_block)
    if isinstance(column.collation, OneHot):
        numbers = assemble_array(parts, column.feature)
        assert isinstance(numbers, np.ndarray)
        collate.check_classes(column.feature.name, numbers, column.collation)
        # -1 marks a missing number: tf.one_hot encodes it as zeros
        return {"values": np.ma.filled(np.ma.asarray(numbers, np.int64), -1)}
    values, splits = parts.values, list(parts.splits)
    if is_bytes(column.feature):
        # All texts form one string, and the graph slices it. An object array would need a Python
        # object for each text.
        arrays: FlatArrays = {"values": np.array(values.tobytes(), object), "offsets": splits.pop()}
    else:
        # TensorFlow has no type for timestamps
        arrays = {"values": values.view(np.int64) if column.feature.timestamp else values}
    if column.is_grouped_by_row:
        assert step_block.row_edges is not None
        # the outermost list of a packed row contains one value per record
        splits = [step_block.row_edges, *splits]
    elif column.collation is not None and column.collation != "ragged":
        arrays |= _length_arrays(column, np.diff(splits[0]), step_block)
    arrays |= {f"splits{level}": offsets for level, offsets in enumerate(splits)}
    return {**arrays, "valid": parts.valid} if column.has_valid else arrays


def _packed_arrays(collation: Packed, records: Ragged, step_block: StepBlock) -> FlatArrays:
    assert step_block.row_edges is not None
    edges = step_block.rows.edges
    packed_lists = join_packed_lists(records, step_block.row_edges)
    flat, _ = collate.pad_flat(
        packed_lists, edges, np.full(len(edges) - 1, collation.length, np.int64), collation.value
    )
    segment_ids, positions = compute_segments(records, step_block.row_edges, collation.length)
    return {
        "values": flat.reshape(-1, collation.length, *flat.shape[1:]),
        "segment": segment_ids,
        "position": positions,
    }


def _padded_arrays(column: BlockColumn, lists: Ragged, step_block: StepBlock) -> FlatArrays:
    length_arrays = _length_arrays(column, lists.lengths, step_block)
    # steps may be padded to different lengths, so `starts` marks each one in the flat array
    flat, starts = collate.pad_flat(
        lists, step_block.rows.edges, length_arrays["steps"], getattr(column.collation, "value", 0)
    )
    if column.feature.timestamp:
        flat = flat.view(np.int64)
    if column.fixed_length is not None:
        flat = flat.reshape(-1, column.fixed_length, *flat.shape[1:])
    return {"values": flat, "starts": starts, **length_arrays}


def _length_arrays(column: BlockColumn, lengths: Int64s, step_block: StepBlock) -> FlatArrays:
    """Returns the arrays with the lengths of a collated feature.

    Returns:
        "steps" is the padded length of each step. If the collation requests lengths, "length" is
        the number of items of each row.
    """
    if isinstance(column.collation, Padded | Bucketed):
        steps = {"steps": collate.compute_step_lengths(lengths, step_block, column.collation)}
        return {**steps, "length": lengths} if column.collation.lengths else steps
    collate.check_dense(column.feature.name, lengths, step_block.rows.edges)
    return {"steps": lengths[step_block.rows.edges[:-1]]}


def make_block_spec(columns: list[BlockColumn]) -> FlatArrays:
    """Returns the tf.TensorSpec of each array of a block."""
    spec = {BLOCK_SHAPE: tf.TensorSpec([2], tf.int64)}
    for column in columns:
        feature = column.feature
        if is_bytes(feature):
            spec[column.key("values")] = tf.TensorSpec([], tf.string)
        else:
            is_int64 = feature.timestamp or isinstance(column.collation, OneHot)
            dtype = tf.int64 if is_int64 else tf.as_dtype(numpy_dtype(feature))
            inner = (
                [column.fixed_length, *feature.inner_shape]
                if column.fixed_length is not None
                else feature.inner_shape
            )
            spec[column.key("values")] = tf.TensorSpec([None, *inner], dtype)
        names: list[str] = [
            *["offsets"] * is_bytes(feature),
            *(f"splits{level}" for level in range(column.ragged_levels)),
        ]
        if isinstance(column.collation, Packed):
            for array_name in ("segment", "position"):
                spec[column.key(array_name)] = tf.TensorSpec(
                    [None, column.collation.length], tf.int32
                )
        elif column.collation is not None and not isinstance(column.collation, OneHot):
            names += (
                ["steps"]
                + ["starts"] * column.is_padded
                + ["length"] * getattr(column.collation, "lengths", False)
            )
        spec |= {column.key(name): tf.TensorSpec([None], tf.int64) for name in names}
        if column.has_valid:
            spec[column.key("valid")] = tf.TensorSpec([None], tf.bool)
    return spec


_STEP_INDEX_KEY = "\x00number"  # key of the index that a step has in its block
# One block is prepared while the steps of the block before it are consumed.
_PREFETCHED_BLOCKS = 2


def split_into_steps(
    flat_blocks: tf.data.Dataset,
    columns: list[BlockColumn],
    defaults: Mapping[str, Any],
    batch_size: int | None,
    assemble: Callable[[Tensors], Any],
) -> tf.data.Dataset:
    """Converts a tf.data.Dataset of blocks to one of steps.

    Threads of tf.data do the expensive work on complete blocks, ahead of the consumer. The steps
    are slices of the result.

    Args:
        flat_blocks: The blocks, from `to_flat_blocks`.
        columns: Representation of each feature in a block.
        defaults: Values that replace missing ones, by feature.
        batch_size: Number of rows of every step. None if the last step can be shorter.
        assemble: Converts the tensors of a step, by feature name, to the batch.
    """
    step_columns = [column for column in columns if column.is_cut_per_step]

    @without_autograph
    def prepare(block: Tensors) -> Any:
        sliced: Tensors = {}
        for column in columns:
            sliced |= _uniform_tensors(block, column, defaults)
        for name, value in sliced.items():
            # [steps, rows, ...], so that tf.data slices the steps along the first dimension
            sliced[name] = tf.reshape(
                value, tf.concat([block[BLOCK_SHAPE], tf.shape(value, tf.int64)[1:]], 0)
            )
            sliced[name].set_shape([None, batch_size, *value.shape[1:]])
        return (
            assemble(sliced)
            if not step_columns
            else (
                sliced,
                _block_values(block, step_columns, defaults),
                _step_bounds(block, step_columns),
            )
        )

    @without_autograph
    def cut_steps(sliced: Tensors, block_values: dict[str, Tensors], step_bounds: Tensors) -> Any:
        steps, rows = step_bounds[BLOCK_SHAPE][0], step_bounds[BLOCK_SHAPE][1]

        @without_autograph
        def make_step(tensors: Tensors) -> Any:
            step_index = tensors.pop(_STEP_INDEX_KEY)
            for column in step_columns:
                tensors |= _slice_step(
                    step_bounds,
                    column,
                    block_values[str(column.index)],
                    step_index=step_index,
                    rows=rows,
                    batch_size=batch_size,
                )
            return assemble(tensors)

        return tf.data.Dataset.from_tensor_slices({**sliced, _STEP_INDEX_KEY: tf.range(steps)}).map(
            make_step
        )

    prepared_blocks = flat_blocks.map(
        prepare, num_parallel_calls=_PREFETCHED_BLOCKS, deterministic=True
    ).prefetch(_PREFETCHED_BLOCKS)
    slices = without_autograph(
        lambda *block: tf.data.Dataset.from_tensor_slices(join_element(block))
    )
    return prepared_blocks.flat_map(cut_steps if step_columns else slices)


@functools.cache
def free_iterators_at_exit() -> None:
    """Frees iterators that remain at exit while Python still runs.

    Otherwise TensorFlow frees them during the teardown of modules. It then waits for its threads,
    which wait for an interpreter that no longer runs other threads, and the process never ends.
    """
    atexit.register(_free_iterators)


def _free_iterators() -> None:
    for tracked_object in gc.get_objects():
        if issubclass(type(tracked_object), tf.data.Iterator):
            vars(tracked_object).clear()


def join_element(parts: tuple[Any, ...]) -> Any:
    """Returns the element that `map` or `flat_map` passes to a function.

    TensorFlow passes the items of a tuple as separate arguments.
    """
    return parts if len(parts) > 1 else parts[0]


def _block_values(
    block: Tensors, step_columns: list[BlockColumn], defaults: Mapping[str, Any]
) -> dict[str, Tensors]:
    """Returns the values that are sliced step by step, by feature index.

    Args:
        block: The arrays of a block by key.
        step_columns: Columns with `is_cut_per_step`.
        defaults: Values that replace missing ones, by feature.
    """
    return {
        str(column.index): _fill_or_add_valid(
            column.feature.name,
            _decode_values(block, column),
            block.get(column.key("valid")),
            column.feature,
            defaults,
        )
        for column in step_columns
    }


def _step_bounds(block: Tensors, step_columns: list[BlockColumn]) -> Tensors:
    """Returns the arrays that `_slice_step` needs to find the rows of a step.

    Args:
        block: The arrays of a block by key.
        step_columns: Columns with `is_cut_per_step`.
    """
    keys = [
        column.key(array_name)
        for column in step_columns
        for array_name in ("starts", "steps", *(f"splits{i}" for i in range(column.ragged_levels)))
    ]
    return {key: block[key] for key in [BLOCK_SHAPE, *keys] if key in block}


def _uniform_tensors(block: Tensors, column: BlockColumn, defaults: Mapping[str, Any]) -> Tensors:
    """Returns the tensors of a feature that are not sliced step by step, [rows, ...]."""
    name = column.feature.name
    length_tensors = (
        {name + collate.LENGTH_SUFFIX: block[column.key("length")]}
        if column.key("length") in block
        else {}
    )
    if column.is_cut_per_step:
        return length_tensors
    value = _decode_values(block, column)
    if isinstance(column.collation, Packed):
        return {
            name: value,
            name + collate.SEGMENT_SUFFIX: block[column.key("segment")],
            name + collate.POSITION_SUFFIX: block[column.key("position")],
        }
    if isinstance(column.collation, OneHot):
        default = tf.cast(defaults.get(name, -1), tf.int64)
        return {name: tf.one_hot(tf.where(value < 0, default, value), column.collation.depth)}
    return length_tensors | _fill_or_add_valid(
        name, value, block.get(column.key("valid")), column.feature, defaults
    )


def _fill_or_add_valid(
    name: str, value: Any, valid: Any, feature: Feature, defaults: Mapping[str, Any]
) -> Tensors:
    """Replaces missing values by the default. Without a default, adds the mask `name/valid`.

    Args:
        value: The tensor of the feature.
        valid: Bool tensor, False for missing values. None if no value can be missing.
    """
    if valid is None:
        return {name: value}
    if name in defaults:
        return {name: _fill_default(value, valid, defaults[name], feature)}
    return {name: value, name + collate.VALID_SUFFIX: valid}


def _slice_step(
    block: Tensors,
    column: BlockColumn,
    block_values: Tensors,
    step_index: Any,
    rows: Any,
    batch_size: int | None,
) -> Tensors:
    """Slices the tensors of a feature for one step.

    Args:
        block: The arrays from `_step_bounds`.
        column: A column with `is_cut_per_step`.
        block_values: The values of the feature in the block, by column name.
        step_index: Index of the step in the block.
        rows: Number of rows of the step.
        batch_size: Number of rows of every step. None if the last step can be shorter.
    """
    if column.is_padded:
        starts, length = block[column.key("starts")], block[column.key("steps")][step_index]
        ((name, flat),) = block_values.items()
        part = tf.reshape(
            flat[starts[step_index] : starts[step_index + 1]],
            [rows, length, *column.feature.inner_shape],
        )
        part.set_shape([batch_size, None, *column.feature.inner_shape])
        return {name: part}
    splits = [block[column.key(f"splits{level}")] for level in range(column.ragged_levels)]
    begin = step_index * rows
    ragged_parts = {
        name: _slice_lists(values, splits, begin, begin + rows)
        for name, values in block_values.items()
    }
    if column.collation is None or column.is_grouped_by_row:
        return ragged_parts
    return {
        name: pad_ragged_tensor(
            ragged,
            block[column.key("steps")][step_index],
            getattr(column.collation, "value", None),
            column.feature,
        )
        for name, ragged in ragged_parts.items()
    }


def pad_ragged_tensor(ragged: Any, length: Any, value: Any, feature: Feature) -> Any:
    """Returns a ragged tensor as a dense tensor [rows, length, ...].

    Longer lists are cut, and shorter ones are filled up with `value`. Lists inside of them are
    filled up to the longest one.

    Args:
        length: Number of items of each row, a scalar.
        value: The fill value. None means the zero of the dtype.
    """
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


def _decode_values(block: Tensors, column: BlockColumn) -> Any:
    values = block[column.key("values")]
    if column.feature.dtype == "bfloat16":
        return tf.cast(values, tf.bfloat16)
    if not is_bytes(column.feature):
        return values
    offsets = block[column.key("offsets")]
    texts = tf.strings.substr(values, offsets[:-1], offsets[1:] - offsets[:-1])
    inner = column.feature.inner_shape
    return tf.reshape(texts, [-1, *inner]) if inner else texts


def _slice_lists(values: Any, splits: list[Any], begin: Any, end: Any) -> Any:
    """Returns rows [begin, end) of a column of lists.

    Args:
        values: The items of the innermost lists.
        splits: Row splits of each level, outermost first.
    """
    step_splits = []
    for offsets in splits:
        part = offsets[begin : end + 1]
        # the rows of the next level are the items of this one
        begin, end = part[0], part[-1]
        step_splits.append(part - begin)
    return tf.RaggedTensor.from_nested_row_splits(values[begin:end], step_splits, validate=False)


def _fill_default(value: Any, valid: Any, default: Any, feature: Feature) -> Any:
    is_valid = tf.reshape(valid, [-1, *[1] * len(feature.inner_shape)])
    return tf.where(
        is_valid, value, tf.cast(default, value.dtype) if value.dtype != tf.string else default
    )
