"""In the graph, the steps of a block: `tf_blocks`' flat arrays in, tensors by feature name out.

The tensors are those of `tf_parse`, in which the table of types stands; what is collated is as `collating.form` gives
it.
"""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from recordmill.reader.collating.form import LENGTH, POSITION, SEGMENT
from recordmill.reader.collating.ways import OneHot, Packed
from recordmill.reader.faces.tf_blocks import SIZE, Sent
from recordmill.reader.faces.tf_parse import VALID, Tensors, as_it_is
from recordmill.records.columns.parts import is_bytes
from recordmill.schemas.feature import Feature

if TYPE_CHECKING:
    import tensorflow as tf

_NUMBER = "\x00number"  # of a step in its block
_AHEAD = 2  # blocks: one is prepared while the steps of the other are taken


def prepared_steps(
    blocks: tf.data.Dataset,
    sent: list[Sent],
    defaults: Mapping[str, Any],
    batch_size: int | None,
    given: Callable[[Tensors], Any],
) -> tf.data.Dataset:
    """A data set of blocks to one of their steps.

    What takes time is done for a whole block, ahead and in threads of its own; a step is views of that.

    batch_size: rows of every step, where all have as many; None: where the last may be shorter. given: a step's tensors
    by feature name to what is given.
    """
    import tensorflow as tf

    apart = [one for one in sent if one.by_step]

    @as_it_is
    def prepare(block: Tensors) -> Any:
        sliced: Tensors = {}
        for one in sent:
            sliced |= _sliced(block, one, defaults)
        for name, value in sliced.items():
            sliced[name] = tf.reshape(value, tf.concat([block[SIZE], tf.shape(value, tf.int64)[1:]], 0))
            sliced[name].set_shape([None, batch_size, *value.shape[1:]])
        return given(sliced) if not apart else (sliced, _whole(block, apart, defaults), _about(block, apart))

    @as_it_is
    def cut(sliced: Tensors, whole: dict[str, Tensors], about: Tensors) -> Any:
        steps, rows = about[SIZE][0], about[SIZE][1]

        @as_it_is
        def step(found: Tensors) -> Any:
            number = found.pop(_NUMBER)
            for one in apart:
                found |= _cut_out(about, one, whole[str(one.at)], number, rows, batch_size)
            return given(found)

        return tf.data.Dataset.from_tensor_slices({**sliced, _NUMBER: tf.range(steps)}).map(step)

    prepared = blocks.map(prepare, num_parallel_calls=_AHEAD, deterministic=True).prefetch(_AHEAD)
    slices = as_it_is(lambda *block: tf.data.Dataset.from_tensor_slices(_one(block)))
    return prepared.flat_map(cut if apart else slices)


@functools.cache
def free_iterators_at_exit() -> None:
    """See to it that iterators which are left when the process ends are freed while Python still runs.

    TensorFlow frees them as modules are taken down, and waits then for its threads, which wait for the interpreter, in
    which no other thread runs any more: the process would never end.
    """
    atexit.register(_free_iterators)


def _free_iterators() -> None:
    import tensorflow as tf

    for one in gc.get_objects():
        if issubclass(type(one), tf.data.Iterator):
            vars(one).clear()


def _one(block: tuple[Any, ...]) -> Any:
    """What `prepare` gave: `flat_map` gives the parts of a tuple by themselves."""
    return block if len(block) > 1 else block[0]


def _whole(block: Tensors, apart: list[Sent], defaults: Mapping[str, Any]) -> dict[str, Tensors]:
    """The values of a whole block that are cut out step by step, by the feature's number."""
    return {
        str(one.at): _or_valid(
            one.feature.name, _values(block, one), block.get(one.key("valid")), one.feature, defaults
        )
        for one in apart
    }


def _about(block: Tensors, apart: list[Sent]) -> Tensors:
    """Where each step's part begins and ends."""
    keys = [one.key(what) for one in apart for what in ("starts", "steps", *(f"splits{i}" for i in range(one.lists)))]
    return {key: block[key] for key in [SIZE, *keys] if key in block}


def _sliced(block: Tensors, one: Sent, defaults: Mapping[str, Any]) -> Tensors:
    """[rows, ...] what of a feature has the same shape in every step."""
    import tensorflow as tf

    name = one.feature.name
    told = {name + LENGTH: block[one.key("length")]} if one.key("length") in block else {}
    if one.by_step:
        return told
    value = _values(block, one)
    if isinstance(one.way, Packed):
        return {name: value, name + SEGMENT: block[one.key("segment")], name + POSITION: block[one.key("position")]}
    if isinstance(one.way, OneHot):
        default = tf.cast(defaults.get(name, -1), tf.int64)
        return {name: tf.one_hot(tf.where(value < 0, default, value), one.way.depth)}
    return told | _or_valid(name, value, block.get(one.key("valid")), one.feature, defaults)


def _or_valid(name: str, value: Any, valid: Any, feature: Feature, defaults: Mapping[str, Any]) -> Tensors:
    """The value, filled where it may be missing, or with what says which rows have it."""
    if valid is None:
        return {name: value}
    if name in defaults:
        return {name: _filled(value, valid, defaults[name], feature)}
    return {name: value, name + VALID: valid}


def _cut_out(block: Tensors, one: Sent, whole: Tensors, number: Any, rows: Any, batch_size: int | None) -> Tensors:
    """A feature's tensors in one step."""
    import tensorflow as tf

    if one.padded:
        starts, length = block[one.key("starts")], block[one.key("steps")][number]
        ((name, flat),) = whole.items()
        found = tf.reshape(flat[starts[number] : starts[number + 1]], [rows, length, *one.feature.inner_shape])
        found.set_shape([batch_size, None, *one.feature.inner_shape])
        return {name: found}
    splits = [block[one.key(f"splits{level}")] for level in range(one.lists)]
    begin = number * rows
    cut = {name: _lists(values, splits, begin, begin + rows) for name, values in whole.items()}
    if one.way is None or one.binned:
        return cut
    return {
        name: padded_tensor(ragged, block[one.key("steps")][number], getattr(one.way, "value", None), one.feature)
        for name, ragged in cut.items()
    }


def padded_tensor(ragged: Any, length: Any, value: Any, feature: Feature) -> Any:
    """[rows, length, ...] of lists: longer ones cut, shorter ones filled up; nested ones to their longest."""
    import tensorflow as tf

    flat = ragged.flat_values
    inner = [-1] * (feature.ragged_rank - 1) + list(feature.inner_shape)
    shape = tf.concat([[-1], [tf.cast(length, tf.int64)], tf.constant(inner, tf.int64)], 0)
    fill = None if value is None else tf.cast(tf.constant(value), flat.dtype) if flat.dtype != tf.string else value
    return ragged.to_tensor(fill, shape=shape)


def _values(block: Tensors, one: Sent) -> Any:
    import tensorflow as tf

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
    import tensorflow as tf

    own = []
    for offsets in splits:
        part = offsets[begin : end + 1]
        begin, end = part[0], part[-1]
        own.append(part - begin)
    return tf.RaggedTensor.from_nested_row_splits(values[begin:end], own, validate=False)


def _filled(value: Any, valid: Any, default: Any, feature: Feature) -> Any:
    import tensorflow as tf

    there = tf.reshape(valid, [-1, *[1] * len(feature.inner_shape)])
    return tf.where(there, value, tf.cast(default, value.dtype) if value.dtype != tf.string else default)
