"""One Python value to a Feature's values as `tf.train.Example` holds them, checked: what would be damaged is refused by
name.

Arrays are tensors of their dtype and shape; lists are variable-length, nested ones ragged. For one record at a time; a
column of millions goes through `records.example.flat_arrays`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.schemas.feature import BYTES, FLOAT, Feature

_INT64_MAX = 2**63 - 1
_SCALARS = (
    (bool, "bool"),
    (int, "int64"),
    (float, "float32"),
    (str, "string"),
    ((bytes, bytearray, memoryview), "bytes"),
)
_INTS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32")


def feature_of(name: str, value: object) -> Feature:
    """Returns the feature that a value is where no schema says it: `3` int64, `0.5` float32, `[1, 2]` int64 [?], an
    array its dtype and shape. DataError: an empty list, which has no kind. TypeError: Example has no place for it.
    """
    value = unwrap(value)
    if isinstance(value, (list, tuple)):
        depth, dtypes = 0, set(_leaf_dtypes(name, value))
        inner: Any = value
        while isinstance(inner, (list, tuple)):
            depth, inner = depth + 1, next((item for item in map(unwrap, inner) if not _is_empty(item)), None)
        inner_shape = inner.shape if isinstance(inner, np.ndarray) else ()
        if not dtypes:
            raise _refuse(
                name, "an empty list has no kind: give a schema, or an empty array of the dtype that is meant"
            )
        return Feature(name, _common(name, dtypes), (None,) * (depth + len(inner_shape)))
    if isinstance(value, np.ndarray):
        return Feature(name, _array_dtype(name, value), value.shape)
    return Feature(name, _scalar_dtype(name, value))


def _is_empty(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_empty, value))


def unwrap(value: object) -> Any:
    """Arrays of other libraries (tensors) as NumPy arrays, NumPy's numbers of no dimension as scalars."""
    if isinstance(value, (str, bytes, int, float, list, tuple)) or value is None:
        return value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value) and value.ndim:
            raise TypeError("masked items of an array can't be held; fill them, or leave them out")
        value = None if np.ma.is_masked(value) else value.data
    if (
        isinstance(value, np.ndarray)
        and value.ndim == 0
        and value.dtype.kind in "OSUV"
        and value.dtype.name != "bfloat16"
    ):
        return value.item()
    return value


def _leaf_dtypes(name: str, value: object) -> Iterable[str]:
    value = unwrap(value)
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaf_dtypes(name, item)
    elif isinstance(value, np.ndarray):
        yield _array_dtype(name, value)
    else:
        yield _scalar_dtype(name, value)


def _common(name: str, dtypes: set[str]) -> str:
    if len(dtypes) == 1:
        return dtypes.pop()
    if dtypes <= {*_INTS, *_FLOATS}:
        return "int64" if dtypes <= set(_INTS) else "float32"
    raise TypeError(f"feature {name!r}: one list holds {', '.join(sorted(dtypes))}; a feature has one kind")


def _scalar_dtype(name: str, value: object) -> str:
    if isinstance(value, np.generic):
        return _array_dtype(name, np.asarray(value))
    for kind, dtype in _SCALARS:
        if isinstance(value, kind):
            return dtype
    what = "null inside a list" if value is None else f"a {type(value).__name__}"
    raise TypeError(
        f"feature {name!r}: {what} can't be held; give int, float, bool, str, bytes, lists of them, or arrays"
    )


def _array_dtype(name: str, array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "M" and (unit := np.datetime_data(array.dtype)[0]) in ("s", "ms", "us", "ns"):
        return f"timestamp[{unit}]"
    if array.dtype.kind == "O" and array.size:
        return _common(name, {_scalar_dtype(name, item) for item in array.flat})
    dtype = {"S": "bytes", "U": "string", "O": "bytes"}.get(array.dtype.kind, array.dtype.name)
    try:
        return Feature(name, dtype).dtype
    except ValueError:
        raise TypeError(f"feature {name!r}: an array of dtype {array.dtype} can't be held; cast it first") from None


def flatten_nested(feature: Feature, value: object) -> tuple[list[Any], list[list[int]]]:
    """Returns (scalars and arrays in order, the lengths of each variable dimension's lists, outermost first); DataError
    for a fixed dimension of another size, TypeError for less or deeper nested than the shape.
    """
    leaves: list[Any] = []
    lengths: list[list[int]] = [[] for _ in range(feature.ragged_rank)]
    _walk(feature, unwrap(value), 0, leaves, lengths)
    return leaves, lengths


def _walk(feature: Feature, value: Any, level: int, leaves: list[Any], lengths: list[list[int]]) -> None:
    left = feature.shape[level:]
    if isinstance(value, np.ndarray) and level >= feature.ragged_rank - 1 and value.ndim == len(left):
        if left and left[0] is None:
            lengths[level].append(len(value))
            left = (len(value), *left[1:])
        if value.shape != left:
            raise _refuse(
                feature.name, f"an array of shape {list(value.shape)}, where the schema says {feature.describe()}"
            )
        leaves.append(value)
    elif not left:
        if isinstance(value, (list, tuple, np.ndarray)):
            raise TypeError(f"feature {feature.name!r} is {feature.describe()} and the value is nested deeper")
        leaves.append(value)
    else:
        if not isinstance(value, (list, tuple, np.ndarray)):
            raise TypeError(f"feature {feature.name!r} is {feature.describe()}, which a {type(value).__name__} is not")
        if left[0] is None:
            lengths[level].append(len(value))
        elif len(value) != left[0]:
            raise _refuse(feature.name, f"{len(value)} items where the schema says {feature.describe()}")
        for item in value:
            _walk(feature, unwrap(item), level + 1, leaves, lengths)


def _items(leaf: Any) -> list[Any]:
    """The scalars of a leaf: Python's own, but for moments, whose unit only NumPy keeps."""
    if not isinstance(leaf, np.ndarray):
        return [leaf]
    return list(leaf.reshape(-1)) if leaf.dtype.kind == "M" else leaf.reshape(-1).tolist()


def integers(feature: Feature, leaves: Sequence[Any]) -> list[int]:
    """Returns the leaves as int64, each within the feature's dtype or a class by name or number (DataError); TypeError
    for no integer.
    """
    low, high = _limits(feature)
    values: list[int] = []
    for leaf in leaves:
        for item in _items(leaf):
            values.append(_ticks(feature, item) if feature.timestamp else _integer(feature, item))
            if not low <= values[-1] <= high:
                bounded = (
                    f"{feature.dtype} as an Example holds it"
                    if feature.classes is None
                    else "the numbers of its classes"
                )
                raise _refuse(feature.name, f"{_text(values[-1])} is outside {bounded} ({low} to {high})")
    return values


def _class_number(feature: Feature, name: str) -> int:
    """The number of the class of that name; a truth value is the name true or false."""
    assert feature.classes is not None
    if name not in feature.classes:
        raise _refuse(feature.name, f"{name[:60]!r} is none of its {len(feature.classes):,} classes")
    return feature.classes.index(name)


def _limits(feature: Feature) -> tuple[int, int]:
    if feature.dtype == "bool":
        return 0, 1
    if feature.classes is not None:
        return 0, len(feature.classes) - 1
    if feature.timestamp:
        return -(2**63), _INT64_MAX
    about = np.iinfo(feature.dtype)
    return int(about.min), int(about.max) if feature.raw else min(int(about.max), _INT64_MAX)


def _integer(feature: Feature, value: Any) -> int:
    if isinstance(value, np.generic):
        value = value.item()
    if feature.classes is not None and isinstance(value, bool | str):
        return _class_number(feature, str(value).lower() if isinstance(value, bool) else value)
    if not isinstance(value, int):
        raise TypeError(f"feature {feature.name!r} is {feature.describe()}, which {_short(value)} is not")
    return int(value)


def _ticks(feature: Feature, value: Any) -> int:
    assert feature.timestamp is not None
    if isinstance(value, datetime.datetime):
        value = np.datetime64(value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value)
    if not isinstance(value, np.datetime64):
        return _integer(feature, value)
    ticks = value.astype(f"datetime64[{feature.timestamp[0]}]")
    # compared in its own unit: the other way NumPy would wrap around
    if np.isnat(value) or ticks.astype(value.dtype) != value:
        raise _refuse(feature.name, f"{value} can't be held as {feature.dtype} without loss")
    return int(ticks.astype(np.int64))


def floats(feature: Feature, leaves: Sequence[Any]) -> npt.NDArray[np.float32 | np.float64]:
    """Returns the leaves as float32, or float64 where the dtype is that; decimals are rounded, as everywhere, and
    nothing else is lost (DataError). TypeError: no number.
    """
    wanted = np.dtype(
        np.float64 if feature.dtype == "float64" else np.float16 if feature.dtype == "float16" else np.float32
    )
    parts = []
    for leaf in leaves:
        array = np.asarray(leaf)
        if array.dtype.name == "bfloat16":
            array = array.astype(np.float32)
        if array.dtype.kind == "O" and array.size and all(isinstance(item, (int, float)) for item in array.flat):
            array = np.array([_exact(feature, item, wanted) for item in array.flat])
        elif array.dtype.kind not in "biuf" and array.size:
            raise TypeError(f"feature {feature.name!r} is {feature.describe()}, which {_short(leaf)} is not")
        with np.errstate(over="ignore"):
            cast = array.reshape(-1).astype(wanted)
        _check_floats(feature, array.reshape(-1), cast)
        parts.append(cast)
    joined = np.concatenate(parts) if parts else np.empty(0, wanted)
    return joined if wanted == np.float64 else joined.astype(np.float32)


def _exact(feature: Feature, value: Any, wanted: np.dtype[Any]) -> float:
    try:
        result = float(value)
        exact = isinstance(value, float) or int(wanted.type(result)) == value
    except OverflowError:
        exact = False
    if not exact:
        raise _refuse(feature.name, f"{_short(value)} can't be held as {feature.dtype} without loss")
    return result


def _check_floats(feature: Feature, given: npt.NDArray[Any], cast: npt.NDArray[Any]) -> None:
    if given.dtype.kind == "f":
        bad = np.isinf(cast) & ~np.isinf(given)
    else:
        with np.errstate(invalid="ignore"):
            bad = np.array([not np.isfinite(c) or int(c) != int(g) for g, c in zip(given, cast, strict=True)], bool)
    if bad.any():
        raise _refuse(feature.name, f"{given[bad][0]} can't be held as {feature.dtype} without loss")


def strings(feature: Feature, leaves: Sequence[Any]) -> list[bytes]:
    """Returns the leaves as bytes: text as UTF-8, and bytes in a text feature only if they are that (DataError)."""
    values: list[bytes] = []
    for leaf in leaves:
        for item in _items(leaf):
            try:
                values.append(_string(feature, item))
            except UnicodeError as error:
                raise _refuse(feature.name, f"{_short(item)} is no UTF-8 text ({error.reason})") from None  # type: ignore[attr-defined]
    return values


def _string(feature: Feature, value: Any) -> bytes:
    if isinstance(value, str) and feature.dtype == "string":
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return data.decode().encode() if feature.dtype == "string" else data
    raise TypeError(f"feature {feature.name!r} is {feature.describe()}, which {_short(value)} is not")


def raw_bytes(feature: Feature, leaves: Sequence[Any]) -> bytes:
    """The leaves' little-endian memory."""
    if feature.dtype == "float64":
        return floats(feature, leaves).astype("<f8").tobytes()
    return np.array(integers(feature, leaves), np.dtype(feature.dtype).newbyteorder("<")).tobytes()


def stored(feature: Feature, value: object) -> list[list[int] | npt.NDArray[Any] | list[bytes]]:
    """The values of each of `feature.storage()`, of their kind."""
    leaves, lengths = flatten_nested(feature, value)
    if feature.raw:
        return [[raw_bytes(feature, leaves)], *lengths[1:]]
    if feature.kind == FLOAT:
        return [floats(feature, leaves), *lengths[1:]]
    return [strings(feature, leaves) if feature.kind == BYTES else integers(feature, leaves), *lengths[1:]]


def _short(value: object) -> str:
    return f"the {type(value).__name__} {_text(value)}"


def _text(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # CPython writes no whole number of more than 4,300 digits
        return "that is too long to be shown"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(name: str, reason: str) -> DataError:
    return DataError(reason, place=f"feature {name[:60]!r}")
