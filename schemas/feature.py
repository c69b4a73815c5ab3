"""Schemas of records: the features of a data set and their storage in Examples.

A `Feature` has the dtype and shape of the user's data, such as `uint8 [28, 28]`. A
`tf.train.Example` has only three kinds of lists. `Feature.storage` returns the entries of an
Example that contain the feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.base.utf8 import BAD_NAME_MESSAGE, is_feature_name

# the lists of a tf.train.Feature: int64_list, float_list, bytes_list
INT64_LIST, FLOAT_LIST, BYTES_LIST = ("int64", "float", "bytes")

_INT_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOAT_DTYPES = ("float16", "bfloat16", "float32")
_BYTES_DTYPES = ("string", "bytes")
_TIMESTAMP_PATTERN = re.compile(r"timestamp\[(s|ms|us|ns)(?:, (UTC))?\]")
DTYPES = (*_INT_DTYPES, *_FLOAT_DTYPES, "float64", *_BYTES_DTYPES)
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}

# With more features than 65,536, the names are data themselves.
MAX_FEATURES = 1 << 16
# 1,024 features, which take 20 MiB, are allowed with any memory: no table made by hand has more.
_MIN_FEATURE_LIMIT = 1 << 10
# 20 KiB for a feature of Parquet with statistics. CSV and JSON Lines take 14 KiB, Examples 11 KiB.
_BYTES_PER_FEATURE = 20 << 10

# kinds of records: a protobuf message, or bytes that are not parsed
EXAMPLE, SEQUENCE_EXAMPLE, OPAQUE_BYTES = ("Example", "SequenceExample", "bytes")


def max_feature_count(memory_bytes: int) -> int:
    """Returns the largest number of features that this memory allows."""
    return min(MAX_FEATURES, max(memory_bytes // _BYTES_PER_FEATURE, _MIN_FEATURE_LIMIT))


def check_feature_count(features: int, memory_bytes: int, source: str = "") -> None:
    """Raises DataError if the records have more features than the memory allows.

    Args:
        features: The number of features so far.
        memory_bytes: The memory of the build or read.
        source: The input, for the error message.
    """
    if features <= (max_features := max_feature_count(memory_bytes)):
        return
    remedy = "names that are data can't be features; make them values"
    if max_features < MAX_FEATURES:
        current_option, sufficient_option = (
            option("memory", f"{size >> 20}MiB")
            for size in (memory_bytes, MAX_FEATURES * _BYTES_PER_FEATURE)
        )
        remedy = f"{current_option} allows no more, and {sufficient_option} {MAX_FEATURES:,}; names that are data can't be features"
    raise DataError(
        f"it has {features:,} features or more, and the most is {max_features:,}: {remedy}",
        source=source,
    )


@dataclass(frozen=True)
class Storage:
    """An entry of the feature map of an Example.

    Attributes:
        name: The key of the entry.
        kind: The list that contains the values: `int64`, `float` or `bytes`.
        length: The number of values in each record, or None if it varies.
        raw: The entry is one bytes value, the little-endian memory of a tensor, as
            `tf.io.decode_raw` reads it.
    """

    name: str
    kind: str
    length: int | None
    raw: bool = False


@dataclass(frozen=True)
class Feature:
    """A named column of a data set.

    Attributes:
        name: The key in the Example: UTF-8 text without NUL.
        dtype: One of `DTYPES`, or `timestamp[UNIT]` or `timestamp[UNIT, UTC]`. UNIT is s, ms, us or
            ns, and the value is an int64 since 1970.
        shape: `()` is a scalar, `(28, 28)` a fixed tensor in row-major order and `(None,)` a list
            of variable length. `(None, None)` is a list of lists and `(None, 4)` a list of vectors.
            Variable dimensions come first.
        required: Every record has the feature. Otherwise a record without it has a null, which is
            neither empty nor a default value.
        classes: The name of class 0, 1 and so on, for an int64 scalar or list.
        per_step: The feature is in the feature_lists of a SequenceExample. The first dimension of
            its shape is then the step, and None. If its name ends in `/sequence`, the list has the
            name without this suffix (`step_feature_name`).
        found: The (name, value) pairs that the fit of a transform has computed: mean, variance,
            min, max, and vocabulary, which is the size of the vocabulary.

    Raises:
        DataError: The name is not valid.
        ValueError: Another attribute is not valid.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    required: bool = False
    classes: tuple[str, ...] | None = None
    per_step: bool = False
    found: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if not is_feature_name(self.name):
            raise DataError(f"feature {self.name!r:.99}: {BAD_NAME_MESSAGE}; rename it")
        if self.dtype not in DTYPES and not _TIMESTAMP_PATTERN.fullmatch(self.dtype):
            raise ValueError(
                f"feature {self.name!r}: unknown dtype {self.dtype!r}; one of {', '.join(DTYPES)}, "
                "timestamp[us], timestamp[us, UTC]"
            )
        # `type` instead of `isinstance`, which would accept True and False.
        if (
            not all(size is None or type(size) is int for size in self.shape)
            or len(self.shape) > 64
        ):
            raise ValueError(
                f"feature {self.name!r}: shape {self.shape!r:.99}: whole numbers and None, at most 64 of them"
            )
        if None in self.shape[self.ragged_rank :]:
            raise ValueError(
                f"feature {self.name!r}: shape {self.shape}: variable dimensions (None) must come first"
            )
        if any(size is not None and size < 0 for size in self.shape):
            raise ValueError(f"feature {self.name!r}: shape {self.shape} has a negative dimension")
        if self.inner_size >= 2**31:
            raise ValueError(
                f"feature {self.name!r}: shape {self.shape!r:.99} is more than a record can hold"
            )
        if self.classes is not None and not all(isinstance(name, str) for name in self.classes):
            raise ValueError(
                f"feature {self.name!r}: class names are text, not {self.classes!r:.99}"
            )
        if self.classes is not None and self.dtype != "int64":
            raise ValueError(
                f"feature {self.name!r}: class names belong to int64, not {self.dtype}"
            )
        if self.per_step and not self.ragged_rank:
            raise ValueError(
                f"feature {self.name!r}: shape {self.shape}: a feature list's first dimension is the step: None"
            )

    @property
    def ragged_rank(self) -> int:
        """Number of leading dimensions that vary from record to record."""
        rank = 0
        while rank < len(self.shape) and self.shape[rank] is None:
            rank += 1
        return rank

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """The fixed dimensions after the variable ones."""
        return tuple(size for size in self.shape[self.ragged_rank :] if size is not None)

    @property
    def inner_size(self) -> int:
        """Number of values in one item of the innermost variable dimension.

        Without a variable dimension, this is the number of all values.
        """
        size = 1
        for dimension in self.inner_shape:
            size *= dimension
        return size

    @property
    def timestamp(self) -> tuple[str, str | None] | None:
        """(unit, time zone or None) of a timestamp, or None for other dtypes."""
        match = _TIMESTAMP_PATTERN.fullmatch(self.dtype)
        return (match[1], match[2]) if match else None

    @property
    def kind(self) -> str:
        """The list of tf.train.Feature that contains the values: `int64`, `float` or `bytes`."""
        if self.raw or self.dtype in _BYTES_DTYPES:
            return BYTES_LIST
        return FLOAT_LIST if self.dtype in _FLOAT_DTYPES else INT64_LIST

    @property
    def raw(self) -> bool:
        """True if the values are stored as little-endian bytes.

        These are float64, and fixed tensors of uint8 and uint64. The number lists of an Example are
        int64 and float32.
        """
        return self.dtype == "float64" or (
            self.dtype in ("uint8", "uint64") and bool(self.shape) and not self.ragged_rank
        )

    def storage(self) -> tuple[Storage, ...]:
        """Returns the entries of an Example that contain this feature, in reading order.

        Nested lists use the names of TensorFlow Datasets (example_serializer._add_ragged_fields).

        >>> print(*(s.name for s in Feature("x", "int64", (None, None)).storage()))
        x/ragged_flat_values x/ragged_row_lengths_0
        """
        if self.per_step:
            return (Storage(self.name.removesuffix(_STEPS_SUFFIX), self.kind, None, self.raw),)
        if self.ragged_rank < 2:
            length = 1 if self.raw else None if self.ragged_rank else self.inner_size
            return (Storage(self.name, self.kind, length, self.raw),)
        values = Storage(
            f"{self.name}/ragged_flat_values", self.kind, 1 if self.raw else None, self.raw
        )
        lengths = (
            Storage(f"{self.name}/ragged_row_lengths_{i}", INT64_LIST, None)
            for i in range(self.ragged_rank - 1)
        )
        return (values, *lengths)

    def describe(self) -> str:
        """Returns the dtype and shape as text, such as `uint8 [28, 28]` or `int64 [?]`."""
        if not self.shape:
            return self.dtype
        return (
            f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )


_STEPS_SUFFIX = "/sequence"


def step_feature_name(entry: str, is_taken: bool) -> str:
    """Returns the name of the feature for a feature list of a SequenceExample.

    The name gets the suffix `/sequence` if a feature of the context has it already, or if it ends
    in that suffix.

    Args:
        entry: The name of the feature list.
        is_taken: A feature of the context has this name.

    >>> step_feature_name("frames", False), step_feature_name("frames", True)
    ('frames', 'frames/sequence')
    >>> step_feature_name("a/sequence", False)
    'a/sequence/sequence'
    """
    return f"{entry}{_STEPS_SUFFIX}" if is_taken or entry.endswith(_STEPS_SUFFIX) else entry


@dataclass(frozen=True)
class Schema:
    """The features of a data set and its label.

    A schema is a collection of its features: it can be iterated, and `schema["name"]` is one of
    them.

    Attributes:
        features: The features, in the order of the columns.
        label: The name of the label, or None.
        message: `Example` or `SequenceExample`. Records of another kind have `bytes`, and one
            feature named `record`.

    Raises:
        ValueError: Two features have one name or need one entry of the Example, or the label or
            message is unknown.
    """

    features: tuple[Feature, ...]
    label: str | None = None
    message: str = EXAMPLE
    _by_name: Mapping[str, Feature] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {feature.name: feature for feature in self.features}
        if len(by_name) != len(self.features):
            names = [feature.name for feature in self.features]
            raise ValueError(
                f"feature named twice: {sorted({n for n in names if names.count(n) > 1})}"
            )
        if self.label is not None and self.label not in by_name:
            raise ValueError(f"label {self.label!r} is no feature; there are {', '.join(by_name)}")
        if self.message not in (EXAMPLE, SEQUENCE_EXAMPLE, OPAQUE_BYTES):
            raise ValueError(f"message {self.message!r} is none of Example, SequenceExample, bytes")
        object.__setattr__(self, "_by_name", by_name)  # the class is frozen
        # An entry of the context and a feature list may have the same name.
        entries: dict[tuple[str, bool], str] = {}
        for feature in self.features:
            for storage in feature.storage():
                if (
                    owner := entries.setdefault((storage.name, feature.per_step), feature.name)
                ) != feature.name:
                    raise ValueError(
                        f"features {owner!r} and {feature.name!r} both need the Example entry {storage.name!r}"
                    )

    def __reduce__(self) -> tuple[object, ...]:
        # without derived attributes, such as the cached Arrow schema
        return Schema, (self.features, self.label, self.message)

    def __iter__(self) -> Iterator[Feature]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"no feature {name!r}; there are {', '.join(self.names)}") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def select(self, names: Iterable[str]) -> Schema:
        """Returns a schema of only these features, in this order.

        The label is kept if it is one of them.

        Raises:
            KeyError: A name is not a feature.
        """
        features = tuple(self[name] for name in names)
        return replace(
            self,
            features=features,
            label=self.label if any(f.name == self.label for f in features) else None,
        )
