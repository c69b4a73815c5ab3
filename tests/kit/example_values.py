"""Features of every dtype and shape, their values, and Examples of them."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from recordmill.schemas.feature import DTYPES, INT64_LIST, Feature, Schema

TIMESTAMPS = (
    "timestamp[s]",
    "timestamp[ms]",
    "timestamp[us]",
    "timestamp[ns]",
    "timestamp[us, UTC]",
)
ALL_DTYPES = (*DTYPES, *TIMESTAMPS)
SHAPES: tuple[tuple[int | None, ...], ...] = (
    (),
    (1,),
    (3,),
    (2, 3),
    (None,),
    (None, 2),
    (None, None),
    (None, None, 2),
)


def every_feature(*, required: bool = True) -> list[Feature]:
    """Returns one feature per dtype and shape."""
    return [
        Feature(
            f"{dtype}{'x'.join('n' if size is None else str(size) for size in shape)}",
            dtype,
            shape,
            required,
        )
        for dtype in ALL_DTYPES
        for shape in SHAPES
    ]


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Draws any schema of Examples."""
    features = []
    for name in draw(st.lists(names, unique=True, max_size=6)):
        ragged = draw(st.integers(0, 3))
        shape = (None,) * ragged + tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        dtype = draw(st.sampled_from(ALL_DTYPES))
        classes = (
            tuple(draw(st.lists(names, max_size=4)))
            if dtype == "int64" and draw(st.booleans())
            else None
        )
        features.append(Feature(name, dtype, shape, draw(st.booleans()), classes))
    label = (
        draw(st.none() | st.sampled_from([feature.name for feature in features]))
        if features
        else None
    )
    try:
        return Schema(tuple(features), label)
    except ValueError:  # a name is that of another feature's entry, such as `a/ragged_flat_values`
        return Schema(tuple(features[:1]))


def numpy_dtype(feature: Feature) -> np.dtype[Any]:
    if feature.timestamp:
        return np.dtype(np.int64)
    if feature.dtype in ("string", "bytes"):
        return np.dtype(object)
    return np.dtype(ml_dtypes.bfloat16) if feature.dtype == "bfloat16" else np.dtype(feature.dtype)


def value(feature: Feature, rng: np.random.Generator) -> Any:
    """Returns a random array of the fixed shape, or nested lists of such arrays."""
    return _nested(feature, feature.ragged_rank, rng)


def _nested(feature: Feature, depth: int, rng: np.random.Generator) -> Any:
    if depth:
        return [_nested(feature, depth - 1, rng) for _ in range(rng.integers(0, 4))]
    dtype, shape = numpy_dtype(feature), feature.inner_shape
    if dtype.hasobject:
        letters = [
            f"{number:x}é\x00".encode()
            if feature.dtype == "string"
            else bytes(rng.bytes(number % 5))
            for number in rng.integers(0, 99, shape).ravel()
        ]
        array = np.empty(len(letters), object)
        array[:] = letters
        return array.reshape(shape)
    if dtype == np.float64:
        return rng.standard_normal(shape) * 1e300
    if dtype.kind not in "iub":
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(dtype)
    max_value = min(int(limits.max), np.iinfo(np.int64).max)
    return rng.integers(int(limits.min), max_value, shape, np.int64, endpoint=True).astype(dtype)


def flat(feature: Feature, nested: Any) -> np.ndarray[Any, Any]:
    """Returns all values in order, as one array."""
    if not isinstance(nested, list):
        return np.asarray(nested).ravel()
    parts = [flat(feature, item) for item in nested]
    return np.concatenate(parts) if parts else np.empty(0, numpy_dtype(feature))


def row_lengths(nested: Any, level: int) -> list[int]:
    """Returns the lengths of the lists at a level below the outermost list."""
    lists = [nested]
    for _ in range(level):
        lists = [item for items in lists for item in items]
    return [len(item) for items in lists for item in items]


def example(features: Sequence[Feature], values: dict[str, Any]) -> bytes:
    """Returns a record that protobuf builds from `Feature.storage()`.

    Args:
        values: By feature name. A feature without a value, or with None, has no entry in the
            record.
    """
    import tensorflow as tf

    entries = {}
    for feature in features:
        if values.get(feature.name) is None:
            continue
        head, *lengths = feature.storage()
        entries[head.name] = _entry(feature, flat(feature, values[feature.name]))
        for level, storage in enumerate(lengths):
            assert storage.kind == INT64_LIST
            entries[storage.name] = tf.train.Feature(
                int64_list=tf.train.Int64List(value=row_lengths(values[feature.name], level))
            )
    return tf.train.Example(features=tf.train.Features(feature=entries)).SerializeToString()


def _entry(feature: Feature, values: np.ndarray[Any, Any]) -> Any:
    import tensorflow as tf

    if feature.raw:
        return tf.train.Feature(
            bytes_list=tf.train.BytesList(
                value=[values.astype(values.dtype.newbyteorder("<")).tobytes()]
            )
        )
    if feature.kind == "bytes":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values.tolist()))
    if feature.kind == "float":
        return tf.train.Feature(
            float_list=tf.train.FloatList(value=values.astype(np.float32).tolist())
        )
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype(np.int64).tolist()))
