"""A `Dataset` as a graph of TensorFlow's own operations: TFRecordDatasets over the shards, for tf.data service and for
graphs that are saved. Images are decoded record by record, on all threads; everything else is parsed by the batch.

TensorFlow reads and checks the frames itself, in its own threads. It takes a file that is cut off inside a header for a
clean end, so each shard's record count is asserted too: a shard that is short raises tf.errors.FailedPreconditionError,
and `Dataset` has looked at its size before.
"""

from __future__ import annotations

import functools
import io
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.batches.collate import LENGTH_FEATURE, VALID
from recordmill.reader.batches.source import BatchSource
from recordmill.reader.images.columns import black_image, decode_part
from recordmill.reader.images.decode import SHRINKS
from recordmill.reader.options.collation import Bucketed, Collation, OneHot, Packed, Padded
from recordmill.reader.options.images import Floats, Images, RandomCrop
from recordmill.reader.options.training import Order
from recordmill.reader.prefetch.protocols import Fetchable, Readable
from recordmill.reader.tensorflow.blocks import Tensors, padded_tensor
from recordmill.reader.tensorflow.program import TURN_RECORDS, parse_records, read_records, unconverted
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import DecodeRaw, Reshape, output_schema
from recordmill.records.images.header import BadImage
from recordmill.schemas.feature import ITEM_BYTES, PAYLOAD, SEQUENCE_EXAMPLE, Feature, Schema
from recordmill.schemas.parse_spec import FixedLen, Parse, parse_spec, tensor_arguments
from recordmill.storage.files import is_remote

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG"
# The heads of the PNGs, which end with bit depth and colour type, as regular expressions, and the components of the
# JPEGs that TensorFlow decodes to so many channels as Pillow does; tried on the files of Pillow's own tests.
_PNG_KINDS = {1: r"\C{25}[\x00\x04]", 3: r"\C{26}", 4: r"\C{24}\x08[\x02\x06]"}
_PNG_HEAD = 26  # bytes
_COMPONENTS = {1: (1,), 3: (1, 3), 4: ()}
_MAY_BE_TURNED = r"\C*(Exif\x00\x00|eXIf)\C*"  # \C is any byte


def image_decoder(wanted: Images) -> Callable[[Any, Any], Any]:
    """A function of (an encoded image, whether it is there or None: it is) to [height, width, channels].

    Raises:
        UsageError: a random crop, which needs the records' numbers.
    """
    if isinstance(wanted.crop, RandomCrop):
        raise UsageError(
            "portable=True knows no record numbers, which decide a random crop: leave portable out, or crop in the "
            "model (keras.layers.RandomCrop)"
        )
    missing = black_image(wanted)

    def decode(data: Any) -> Any:
        return tf.ensure_shape(_resized(_part(data, wanted), wanted), wanted.shape)

    def decode_if_there(data: Any, valid: Any) -> Any:
        return decode(data) if valid is None else tf.cond(valid, lambda: decode(data), lambda: tf.constant(missing))

    return decode_if_there


def _part(data: Any, wanted: Images) -> Any:
    """Returns uint8 [height, width, channels]: as much of an image as is kept.

    A condition takes some tens of microseconds, so JPEGs, which are most, pass a single one.
    """
    channels = wanted.channels

    def others() -> Any:
        return tf.cond(
            _is_native_png(data, wanted),
            lambda: _cut(tf.io.decode_png(data, channels), wanted),
            lambda: tf.numpy_function(lambda encoded: _own_part(encoded, wanted), [data], np.uint8),
        )

    if not _COMPONENTS[channels]:
        return others()
    decode = _shrunk if wanted.shrink else lambda data, wanted: _cut(_jpeg(data, channels), wanted)
    return tf.cond(_is_native_jpeg(data, wanted), lambda: decode(data, wanted), others)


def _starts(data: Any, magic: bytes) -> Any:
    return tf.strings.substr(data, 0, len(magic)) == magic


def _is_native_jpeg(data: Any, wanted: Images) -> Any:
    """Returns whether TensorFlow decodes it to the pixels that are wanted."""
    jpeg = _starts(data, _JPEG)
    components = tf.io.extract_jpeg_shape(tf.where(jpeg, data, _any_jpeg()))[2]
    known = functools.reduce(operator.or_, [components == count for count in _COMPONENTS[wanted.channels]])
    return _as_stored(data, jpeg & known, wanted)


def _is_native_png(data: Any, wanted: Images) -> Any:
    kind = tf.strings.regex_full_match(tf.strings.substr(data, 0, _PNG_HEAD), _PNG_KINDS[wanted.channels])
    return _as_stored(data, _starts(data, _PNG) & kind, wanted)


def _as_stored(data: Any, native: Any, wanted: Images) -> Any:
    """Returns whether it is native, and nothing says that it is to be turned."""
    return native & ~tf.strings.regex_full_match(data, _MAY_BE_TURNED) if wanted.orientation else native


def _resized(image: Any, wanted: Images) -> Any:
    """Resizes an image as `reader.images.decode` does."""
    image.set_shape([None, None, wanted.channels])
    image = tf.image.resize(image, [wanted.height, wanted.width], antialias=wanted.antialias)
    if wanted.numpy_dtype == np.uint8:
        return tf.cast(tf.round(image), tf.uint8)  # what is between pixels is from 0 to 255
    factor, offset = (_one_if_equal(one) for one in wanted.arithmetic())
    scaled = image * factor
    return tf.cast(scaled - offset if np.any(offset) else scaled, wanted.numpy_dtype)


def _one_if_equal(per_channel: Floats) -> Floats:
    """Returns [] where all channels have the same: TensorFlow is several times slower with one for each."""
    return per_channel[0] if (per_channel == per_channel[0]).all() else per_channel


def _jpeg(data: Any, channels: int, ratio: int = 1) -> Any:
    return tf.io.decode_jpeg(data, channels, ratio=ratio, dct_method="INTEGER_ACCURATE")


def _cut(image: Any, wanted: Images) -> Any:
    if wanted.crop is None:
        return image
    shape = tf.shape(image)
    top, left, height, width = _center(shape[0], shape[1], wanted)
    return image[top : top + height, left : left + width]


def _shrunk(data: Any, wanted: Images) -> Any:
    """A JPEG decoded smaller, or its part."""
    shape = tf.io.extract_jpeg_shape(data)
    box = (0, 0, shape[0], shape[1]) if wanted.crop is None else _center(shape[0], shape[1], wanted)
    fits = [(box[2] // by >= wanted.height) & (box[3] // by >= wanted.width) for by in SHRINKS]
    first = tf.argmax(tf.cast([*fits, True], tf.int32), output_type=tf.int32)
    collations = [lambda by=by: _jpeg(data, wanted.channels, by) for by in (*SHRINKS, 1)]
    image, by = tf.switch_case(first, collations), tf.constant([*SHRINKS, 1])[first]
    top, left, height, width = box[0] // by, box[1] // by, -(-box[2] // by), -(-box[3] // by)
    return image[top : top + height, left : left + width]


def _center(height: Any, width: Any, wanted: Images) -> tuple[Any, Any, Any, Any]:
    """Returns (top, left, height, width) of the centred crop, as `reader.images.decode` has it."""
    ratio = wanted.width / wanted.height
    own_height = tf.minimum(tf.maximum(tf.cast(tf.cast(width, tf.float64) / ratio, tf.int32), 1), height)
    own_width = tf.minimum(tf.maximum(tf.cast(tf.cast(height, tf.float64) * ratio, tf.int32), 1), width)
    return (height - own_height) // 2, (width - own_width) // 2, own_height, own_width


def _own_part(encoded: bytes, wanted: Images) -> npt.NDArray[np.uint8]:
    try:
        return decode_part(np.frombuffer(encoded, np.uint8), wanted)
    except BadImage as error:
        raise DataError(error.message) from None


@functools.cache
def _any_jpeg() -> bytes:
    """A whole one, for what looks at JPEGs and is given something else."""
    Image.new("L", (1, 1)).save(data := io.BytesIO(), "JPEG")
    return data.getvalue()


_Step = Callable[[Any, Any], Any]


def graph_steps(decoding: Decoding) -> Callable[[Tensors, Mapping[str, Any]], Tensors]:
    """Returns a function of the parsed tensors of a batch, and of the values that stand for missing features, to the
    tensors after the steps.

    Raises:
        UsageError: a step has no such operation.
    """
    schema, done = decoding.stored, []
    for step in decoding.steps:
        feature = schema[step.feature]
        schema = output_schema([step], schema)
        done.append((step.feature, _in_graph(step, feature, schema[step.feature])))

    def finish(tensors: Tensors, defaults: Mapping[str, Any]) -> Tensors:
        found = dict(tensors)
        missing = {name: found.pop(name + VALID, None) for name, _ in done}
        for name, convert in done:
            found[name] = convert(found[name], missing[name])
        for name, valid in missing.items():
            if valid is None or isinstance(found[name], tf.RaggedTensor):
                continue
            value = found[name]
            if name in defaults:
                there = tf.reshape(valid, [-1, *[1] * (len(value.shape) - 1)])
                found[name] = tf.where(there, value, tf.cast(defaults[name], value.dtype))
            else:
                found[name + VALID] = valid
        return found

    return finish


def _in_graph(step: object, feature: Feature, out: Feature) -> _Step:
    if isinstance(step, DecodeRaw):
        return lambda value, valid: _raw(value, valid, step, out)
    if isinstance(step, Reshape) and not feature.ragged_rank:
        return lambda value, _: _shaped(value, out)
    raise UsageError(
        f"portable=True can't bring the lists of {feature.name!r} to another shape: leave reshape or portable out"
    )


def _shaped(value: Any, out: Feature) -> Any:
    return tf.reshape(value, [tf.shape(value)[0], *out.shape])


def _raw(value: Any, valid: Any, step: DecodeRaw, out: Feature) -> Any:
    """Decodes `value`, [batch] bytes; `valid` is [batch] whether a record has them; None: all have."""
    unit = ITEM_BYTES[step.dtype] * out.inner_size
    if valid is not None:
        value = tf.where(valid, value, tf.constant(b"" if out.ragged_rank else bytes(unit)))
    lengths = tf.strings.length(value)
    if out.ragged_rank:
        whole = tf.debugging.Assert(tf.reduce_all(lengths % unit == 0), [step.feature, "bytes:", lengths, "of", unit])
        with tf.control_dependencies([whole]):
            flat = _numbers(tf.strings.reduce_join(value), step)
        return tf.RaggedTensor.from_row_lengths(
            tf.reshape(flat, [-1, *out.inner_shape]), tf.cast(lengths // unit, tf.int64), validate=False
        )
    right = tf.debugging.Assert(tf.reduce_all(lengths == unit), [step.feature, "bytes:", lengths, "not", unit])
    with tf.control_dependencies([right]):
        numbers = _numbers(value, step)
    return tf.reshape(numbers, [tf.shape(value)[0], *out.shape])


def _numbers(value: Any, step: DecodeRaw) -> Any:
    through = {"uint32": tf.int32, "uint64": tf.int64, "bool": tf.uint8}  # what decode_raw does not know, or not so
    numbers = tf.io.decode_raw(value, through.get(step.dtype, tf.as_dtype(step.dtype)), not step.big_endian)
    if step.dtype == "bool":
        return numbers != 0
    return tf.bitcast(numbers, step.dtype) if step.dtype in through else numbers


def serialized_records(dataset: Readable, order: Order, shuffle_records: int) -> tf.data.Dataset:
    """Serialized records, one by one, their number asserted per shard and in all.

    Raises:
        UsageError: TensorFlow can't read a file. DataError: one has changed.
    """
    files = dataset.catalog.files
    if odd := [file for file in files if file.codec.tensorflow is None]:
        raise UsageError(
            f"{odd[0].name} is compressed with {odd[0].compression}, which TensorFlow can't read; leave portable out"
        )
    if remote := [file for file in files if is_remote(file.path)]:
        raise UsageError(
            f"{remote[0].path}: portable=True has TensorFlow open the files, which may know nothing of the store; "
            "leave it out"
        )
    for file in files:
        file.check_as_listed()
    counts = dataset.file_records
    named = [(file.path, file.codec.tensorflow or "", count) for file, count in zip(files, counts, strict=True)]
    chosen = None if dataset.matching is None else dataset.matching.mask(0, sum(counts))
    return read_records(named, shuffle_records if order.shuffle else 0, order.seed, dataset.threads, chosen)


def parser(schema: Schema, defaults: Mapping[str, Any]) -> Callable[[Any], Tensors]:
    """A function for `tf.data.Dataset.map`: [batch] serialized records to tensors by name.

    Args:
        defaults: feature name to the value that fills records that lack it; such a feature has no `name/valid`.

    Raises:
        UsageError: a default for what takes none.
    """
    if schema.message == PAYLOAD:
        return lambda records: parse_records(records, None, None, {name: {} for name in schema.names})
    try:
        spec = parse_spec(
            schema, {name: _in_storage(schema[name], value) for name, value in defaults.items() if name in schema}
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    wanted = {name: _tf_feature(how) for name, how in spec.items()}
    lengths = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    wanted |= {entry: lengths for how in spec.values() for entry in how.finish.row_lengths}
    per_step = {feature.name for feature in schema if feature.per_step}
    features = {name: how for name, how in wanted.items() if name not in per_step}
    lists = {name: wanted[name] for name in per_step} if schema.message == SEQUENCE_EXAMPLE else None
    tensors = {feature.name: tensor_arguments(feature) for feature in schema}
    return lambda records: parse_records(records, features, lists, tensors)


def _in_storage(feature: Feature, default: Any) -> Any:
    """A default as the feature's storage holds it."""
    if feature.raw:
        return np.full(feature.inner_shape, default, np.dtype(feature.dtype).newbyteorder("<")).tobytes()
    if feature.dtype == "bool":
        return int(default)
    if not feature.inner_shape:
        return default
    return np.full(feature.inner_shape, default).tolist()


def _tf_feature(how: Parse) -> Any:
    if isinstance(how, FixedLen):
        return tf.io.FixedLenFeature(how.shape, how.dtype, how.default)
    kinds = tf.io.RaggedFeature
    partitions = [
        kinds.UniformRowLength(part) if isinstance(part, int) else kinds.RowLengths(part) for part in how.partitions
    ]
    return kinds(tf.as_dtype(how.dtype), how.value_key, partitions, row_splits_dtype=tf.int64)


def view_parser(dataset: Fetchable, schema: Schema, defaults: Mapping[str, Any]) -> Callable[[Any], Tensors]:
    """Returns `tf_parse.parser` for features that may have other names than in the records."""
    decoding = dataset.stored(schema)
    stored = decoding.stored
    shown = dict(zip(stored.names, schema.names, strict=True))
    steps = graph_steps(decoding)
    own = {name: defaults[new] for name, new in shown.items() if new in defaults}
    converted = {step.feature for step in decoding.steps}
    parse = parser(stored, {name: value for name, value in own.items() if name not in converted})
    both = {**shown, **{name + VALID: new + VALID for name, new in shown.items()}}
    return lambda records: {both[name]: tensor for name, tensor in steps(parse(records), own).items()}


def graph_collater(schema: Schema, collations: Mapping[str, Collation]) -> Callable[[Tensors], Tensors]:
    """A function of a parsed batch to the same, collated.

    Raises:
        UsageError: a way needs more than one batch.
    """
    if others := [name for name, collation in collations.items() if isinstance(collation, Bucketed | Packed)]:
        raise UsageError(
            f"portable=True takes its batches as they come: {others[0]!r} can't be {collations[others[0]]} there"
        )

    def collate(tensors: Tensors) -> Tensors:
        for name, collation in collations.items():
            if isinstance(collation, OneHot):
                tensors[name] = _one_hot(tensors[name], tensors.pop(name + VALID, None), collation)
            elif collation == "dense":
                tensors[name] = _dense(name, tensors[name], schema)
            elif isinstance(collation, Padded):
                tensors |= _padded(name, tensors[name], collation, schema)
        return tensors

    return collate


def _one_hot(numbers: Any, valid: Any, collation: OneHot) -> Any:
    there = numbers if valid is None else tf.boolean_mask(numbers, valid)
    inside = tf.debugging.Assert(tf.reduce_all((there >= 0) & (there < collation.depth)), ["no class", there])
    with tf.control_dependencies([inside]):
        return tf.one_hot(
            numbers if valid is None else tf.where(valid, numbers, -tf.ones_like(numbers)), collation.depth
        )


def _dense(name: str, ragged: Any, schema: Schema) -> Any:
    lengths = ragged.row_lengths()
    same = tf.debugging.Assert(tf.reduce_all(lengths == lengths[0]), [name, "is not dense", lengths])
    with tf.control_dependencies([same]):
        return padded_tensor(ragged, lengths[0], None, schema[name])


def _padded(name: str, ragged: Any, collation: Padded, schema: Schema) -> Tensors:
    lengths = ragged.row_lengths()
    longest = tf.reduce_max(lengths) if collation.length is None else collation.length
    length = -(-longest // collation.multiple) * collation.multiple
    return {name: padded_tensor(ragged, length, collation.value, schema[name]), name + LENGTH_FEATURE: lengths}


@dataclass(frozen=True)
class RecordGraph:
    """Graph of the records of a data set.

    Attributes:
        images: a serialized record to its decoded images, by feature; None: there are none.
        finish: a batch of serialized records and of these to x, (x, y) or (x, y, w).
    """

    images: Callable[[Any], Tensors] | None
    finish: Callable[[Any, Tensors], Any]

    @classmethod
    def of(cls, source: BatchSource, schema: Schema, defaults: Mapping[str, Any]) -> RecordGraph:
        """schema: in it a record without the label is an error.

        Raises:
            UsageError: what has no meaning in such a graph.
        """
        images, collator = source.images, source.collator
        others = tuple(feature for feature in schema if feature.name not in images)
        parse = view_parser(source.dataset, replace(schema, features=others, label=None), defaults) if others else None
        collate = graph_collater(schema, collator.collations)

        def finish(records: Any, decoded: Tensors) -> Any:
            return collator.assemble(collate({**(parse(records) if parse is not None else {}), **decoded}))

        return cls(_decoder(source.dataset, schema, images, defaults) if images else None, finish)

    def batches(self, records: tf.data.Dataset, rows: int, drop_remainder: bool) -> tf.data.Dataset:
        """Returns batches of so many rows, in the order of the records."""
        decode = self.images
        if decode is None:
            return records.batch(rows, drop_remainder=drop_remainder).map(
                unconverted(lambda batch: self.finish(batch, {})),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
        decoded = records.map(
            unconverted(lambda record: (record, decode(record))),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        batches = decoded.batch(
            rows, drop_remainder=drop_remainder, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return batches.map(unconverted(self.finish), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def usable(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """Converts each record that can be used; TensorFlow's log names the others. What is wrong with the files
        stays an error.
        """

        @unconverted
        def one(record: Any) -> Any:
            alone = self.batches(tf.data.Dataset.from_tensors(record), 1, False)
            return alone.ignore_errors(log_warning=True).unbatch()

        return records.interleave(one, TURN_RECORDS, 1, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _decoder(
    dataset: Fetchable, schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]
) -> Callable[[Any], Tensors]:
    features = tuple(feature for feature in schema if feature.name in images)
    own = {name: value for name, value in defaults.items() if name in images}
    parse = view_parser(dataset, replace(schema, features=features, label=None), own)
    decoders = {name: image_decoder(wanted) for name, wanted in images.items()}

    def decode(record: Any) -> Tensors:
        found = {name: tensor[0] for name, tensor in parse(record[tf.newaxis]).items()}
        for name, one in decoders.items():
            found[name] = one(found[name], found.get(name + VALID))
        return found

    return decode
