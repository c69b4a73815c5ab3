"""Schema of records: the features of a data set and their storage in Examples.

A `Feature` has the dtype and shape that users see, such as `uint8 [28, 28]`. A `tf.train.Example`
can only store lists of int64, float32 or bytes. `Feature.storage` maps a feature to these lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.utf8 import BAD_NAME_MESSAGE, is_feature_name

# Kinds of entries of an Example: int64_list, float_list and bytes_list.
INT64_LIST, FLOAT_LIST, BYTES_LIST = ("int64", "float", "bytes")

_INT_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOAT_DTYPES = ("float16", "bfloat16", "float32")
_BYTES_DTYPES = ("string", "bytes")
_TIMESTAMP_PATTERN = re.compile(r"timestamp\[(s|ms|us|ns)(?:, (UTC))?\]")
DTYPES = (*_INT_DTYPES, *_FLOAT_DTYPES, "float64", *_BYTES_DTYPES)
# Size in bytes of a value in memory, for all dtypes of fixed size.
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

# With more than 65,536 features, names are certainly data, such as ids.
MAX_FEATURES = 1 << 16
# 1,024 features are allowed with any memory limit. These take 20 MiB, and few tables have more
# features.
_MIN_FEATURE_LIMIT = 1 << 10
# Memory of a feature in a build from Parquet with statistics. Other inputs need less: CSV and JSON
# Lines 14 KiB, Examples 11 KiB.
_BYTES_PER_FEATURE = 20 << 10
_MAX_SHOWN_CLASSES = 20  # in a message

# Kinds of records: two protobuf messages, and bytes that are not parsed.
EXAMPLE, SEQUENCE_EXAMPLE, OPAQUE_BYTES = ("Example", "SequenceExample", "bytes")


def max_feature_count(memory_bytes: int) -> int:
    """Returns the largest number of features that a memory limit allows.

    >>> max_feature_count(256 << 20), max_feature_count(64 << 30)
    (13107, 65536)
    """
    return min(MAX_FEATURES, max(memory_bytes // _BYTES_PER_FEATURE, _MIN_FEATURE_LIMIT))


def check_feature_count(features: int, memory_bytes: int, source: str = "") -> None:
    """Raises DataError if records have too many features for the memory limit.

    Args:
        features: The number of features that were found so far.
        memory_bytes: The memory limit of the build or read.
        source: Path of the input, for the message.
    """
    if features <= (max_features := max_feature_count(memory_bytes)):
        return
    remedy: str = "if the names are data, make them values of a feature"
    if max_features < MAX_FEATURES:
        current_option, sufficient_option = (
            option("memory", f"{size >> 20}MiB")
            for size in (memory_bytes, MAX_FEATURES * _BYTES_PER_FEATURE)
        )
        remedy = Message(
            "{current_option} allows no more, and {sufficient_option} would allow "
            "{max_features}; if the names are data, make them values of a feature",
            current_option=current_option,
            sufficient_option=sufficient_option,
            max_features=f"{MAX_FEATURES:,}",
        )
    raise DataError(
        "it has {features} features or more, and at most {max_features} are allowed: {remedy}",
        features=f"{features:,}",
        max_features=f"{max_features:,}",
        remedy=remedy,
        source=source,
    )


@dataclass(frozen=True)
class Storage:
    """One entry of the feature map of an Example.

    A feature is stored in one or more entries, see `Feature.storage`.

    Attributes:
        name: The key of the entry.
        kind: The list that contains the values: `int64`, `float` or `bytes`.
        length: The number of values in each record. None if it varies.
        raw: True if the entry is a single bytes value with all numbers of a tensor, little-endian,
            as `tf.io.decode_raw` reads them.
    """

    name: str
    kind: str
    length: int | None
    raw: bool = False


@suggest_fields
@dataclass(frozen=True)
class Feature:
    """A named column of a data set.

    Attributes:
        name: The name, which is also the key in the Example. UTF-8 text without NUL characters.
        dtype: One of `DTYPES`, or `timestamp[UNIT]` or `timestamp[UNIT, UTC]`. UNIT is s, ms, us or
            ns. A timestamp is stored as an int64, the number of units since 1970.
        shape: The shape of the values of one record. `()` is a single value, `(28, 28)` a fixed
            tensor in row-major order, and `(None,)` a list of any length. `(None, None)` is a list
            of lists, and `(None, 4)` a list of vectors. Variable dimensions (None) come first.
        required: True if every record has the feature. False allows nulls: records without the
            feature, which differ from records with an empty list.
        classes: Names of the classes, if the values are class numbers: `classes[0]` is the name of
            class 0. Only for int64.
        per_step: True if the feature is in the feature_lists of a SequenceExample. The first
            dimension of its shape is then None, and counts the steps. The feature list may have a
            shorter name, see `step_feature_name`.
        found: Constants that the fit of a transform has computed for this feature, as (name,
            value). The names are mean, variance, min, max, and vocabulary, which is the vocabulary
            size.

    Raises:
        DataError: The name is not valid.
        UsageError: Another attribute is not valid.
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
            raise UsageError(
                f"feature {self.name!r}: unknown dtype {self.dtype!r}; one of {', '.join(DTYPES)}, "
                "timestamp[us], timestamp[us, UTC]"
            )
        # `isinstance` would accept True and False as sizes.
        if (
            not all(size is None or type(size) is int for size in self.shape)
            or len(self.shape) > 64
        ):
            raise UsageError(
                f"feature {self.name!r}: shape {self.shape!r:.99}: whole numbers and None, at most 64 of them"
            )
        if None in self.shape[self.ragged_rank :]:
            raise UsageError(
                f"feature {self.name!r}: shape {self.shape}: variable dimensions (None) must come first"
            )
        if any(size is not None and size < 0 for size in self.shape):
            raise UsageError(f"feature {self.name!r}: shape {self.shape} has a negative dimension")
        if self.inner_size >= 2**31:
            raise UsageError(
                f"feature {self.name!r}: shape {self.shape!r:.99} is more than a record can hold"
            )
        if self.classes is not None and (
            isinstance(self.classes, str) or not all(isinstance(name, str) for name in self.classes)
        ):
            raise UsageError(
                f"feature {self.name!r}: class names are a list of texts, not {self.classes!r:.99}"
            )
        if self.classes is not None and self.dtype != "int64":
            raise UsageError(
                f"feature {self.name!r}: class names belong to int64, not {self.dtype}"
            )
        if self.per_step and not self.ragged_rank:
            raise UsageError(
                f"feature {self.name!r}: shape {self.shape}: a feature list's first dimension is the step: None"
            )

    @property
    def ragged_rank(self) -> int:
        """Number of variable dimensions, which are the first ones.

        For example, it is 2 for the shape (None, None, 4).
        """
        rank = 0
        while rank < len(self.shape) and self.shape[rank] is None:
            rank += 1
        return rank

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """The fixed dimensions, which come after the variable ones.

        For example, it is (4,) for the shape (None, None, 4).
        """
        return tuple(size for size in self.shape[self.ragged_rank :] if size is not None)

    @property
    def inner_size(self) -> int:
        """Product of the fixed dimensions. It is 1 if there are none.

        For the shape (None, 4), it is the number of values of each list item. For a shape without
        variable dimensions, it is the number of values of a record.
        """
        size = 1
        for dimension in self.inner_shape:
            size *= dimension
        return size

    @property
    def timestamp(self) -> tuple[str, str | None] | None:
        """Unit and time zone of a timestamp, such as ("us", "UTC") or ("s", None).

        None for other dtypes.
        """
        match = _TIMESTAMP_PATTERN.fullmatch(self.dtype)
        return (match[1], match[2]) if match else None

    @property
    def kind(self) -> str:
        """The list of an Example that contains the values: `int64`, `float` or `bytes`."""
        if self.raw or self.dtype in _BYTES_DTYPES:
            return BYTES_LIST
        return FLOAT_LIST if self.dtype in _FLOAT_DTYPES else INT64_LIST

    @property
    def raw(self) -> bool:
        """True if the values are stored as little-endian bytes.

        Such values are float64, and fixed tensors of uint8 and uint64, because an Example only has
        lists of int64 and float32 numbers.
        """
        return self.dtype == "float64" or (
            self.dtype in ("uint8", "uint64") and bool(self.shape) and not self.ragged_rank
        )

    def storage(self) -> tuple[Storage, ...]:
        """Returns the entries of an Example that contain this feature.

        A nested list has several entries: its values, and then the lengths of its lists, from the
        outermost to the innermost. They are named as in TensorFlow Datasets
        (example_serializer._add_ragged_fields).

        >>> print(*(entry.name for entry in Feature("x", "int64", (None, None)).storage()))
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
        """Returns dtype and shape for messages, such as `uint8 [28, 28]` or `int64 [?]`."""
        if not self.shape:
            return self.dtype
        return (
            f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )


_STEPS_SUFFIX = "/sequence"


def format_classes(classes: Sequence[str]) -> str:
    """Returns the first classes, for a message.

    >>> format_classes(["cat", "dog"])
    "'cat', 'dog'"
    """
    return ", ".join(map(repr, classes[:_MAX_SHOWN_CLASSES])) + (
        ", ..." if len(classes) > _MAX_SHOWN_CLASSES else ""
    )


def step_feature_name(entry: str, is_taken: bool) -> str:
    """Returns the feature name for a feature list of a SequenceExample.

    A SequenceExample may use one name in its context and in its feature lists, but the names of
    features must differ. In this case, the feature list gets the suffix `/sequence`. A feature list
    with a name that already ends in `/sequence` gets it, too. So the name without the last suffix
    is always the name of the feature list.

    Args:
        entry: The name of the feature list.
        is_taken: True if a feature of the context has this name.

    >>> step_feature_name("frames", False), step_feature_name("frames", True)
    ('frames', 'frames/sequence')
    >>> step_feature_name("a/sequence", False)
    'a/sequence/sequence'
    """
    return f"{entry}{_STEPS_SUFFIX}" if is_taken or entry.endswith(_STEPS_SUFFIX) else entry


@suggest_fields
@dataclass(frozen=True)
class Schema:
    """The features of the records of a data set, and the label.

    A schema is a collection of features: `for feature in schema`, `"name" in schema` and
    `schema["name"]` work.

    Attributes:
        features: The features, in the order of the columns.
        label: Name of the feature that a model should predict. None if it is not known.
        message: The kind of the records: `Example`, `SequenceExample`, or `bytes` for records that
            are not parsed. In the last case, the only feature is named `record`.

    Raises:
        UsageError: Two features have one name, or need the same entry of an Example. Or the label
            or message is not valid.
    """

    features: tuple[Feature, ...]
    label: str | None = None
    message: str = EXAMPLE
    _by_name: Mapping[str, Feature] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {feature.name: feature for feature in self.features}
        if len(by_name) != len(self.features):
            names = [feature.name for feature in self.features]
            raise UsageError(
                f"feature named twice: {sorted({n for n in names if names.count(n) > 1})}"
            )
        if self.label is not None and self.label not in by_name:
            raise UsageError(
                f"label {self.label!r} is not a feature; there are {', '.join(by_name)}"
            )
        if self.message not in (EXAMPLE, SEQUENCE_EXAMPLE, OPAQUE_BYTES):
            raise UsageError(f"message is Example, SequenceExample or bytes, not {self.message!r}")
        object.__setattr__(self, "_by_name", by_name)  # the class is frozen
        # The context and the feature lists of a SequenceExample are two maps, so a name may occur
        # in both.
        entries: dict[tuple[str, bool], str] = {}
        for feature in self.features:
            for storage in feature.storage():
                if (
                    owner := entries.setdefault((storage.name, feature.per_step), feature.name)
                ) != feature.name:
                    raise UsageError(
                        f"features {owner!r} and {feature.name!r} both need the Example entry {storage.name!r}"
                    )

    def __reduce__(self) -> tuple[object, ...]:
        # Derived attributes, such as the cached Arrow schema, are not pickled.
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
        """Returns a schema of some features, in the given order.

        The label is kept only if it is one of these features.

        Raises:
            KeyError: A name is not a feature.
        """
        features = tuple(self[name] for name in names)
        return replace(
            self,
            features=features,
            label=self.label if any(f.name == self.label for f in features) else None,
        )
