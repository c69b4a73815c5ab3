"""A transform that is declared, as YAML or a dict, to a `Declaration` that fits a schema: which output is made by which
steps of which raw feature; and the steps: what each takes, its argument, and what it makes of a value.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, did_you_mean, option
from recordmill.preprocessing.tensors import unfit
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.yaml_file import check_nesting, read_yaml

NUMBER_VALUE, TEXT_VALUE, BYTES_VALUE = "numbers", "text", "bytes"  # what a step can take
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_FLOAT32_MAX, _FLOAT64_MAX = (2 - 2**-23) * 2.0**127, sys.float_info.max
# results of an analysis: how many values it left out
NOT_FINITE = "nonfinite"
UNLISTED = "unlisted"
NO_BUCKET = -1  # of bucketize: where NaN lies
MOST_CLASSES = 1 << 16  # of one_hot: a row of more floats is an embedding's work
# of bucketize: the manifest has a boundary of each, and the sketch several values
_MOST_BUCKETS = 1 << 16


@dataclass(frozen=True)
class StepValue:
    """Type of a value between two steps.

    Attributes:
        dtype: int64, float32, string or bytes.
        shape: as in `Feature`.
        required: never missing.
        size: its int64 values lie in [0, size), or in [-1, size) for words that no vocabulary has; None: unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    required: bool = True
    size: int | None = None

    @classmethod
    def of(cls, feature: Feature) -> StepValue:
        """Returns what the steps get of a raw feature."""
        dtype = {"string": "string", "bytes": "bytes"}.get(feature.dtype)
        if dtype is None:
            dtype = "float32" if feature.kind == "float" or feature.dtype == "float64" else "int64"
        size = len(feature.classes) if feature.classes is not None else None
        return cls(dtype, feature.shape, feature.required or bool(feature.ragged_rank), size)

    @property
    def kind(self) -> str:
        return {"string": TEXT_VALUE, "bytes": BYTES_VALUE}.get(self.dtype, NUMBER_VALUE)

    def describe(self) -> str:
        missing = "" if self.required else " that may be missing"
        return Feature("x", self.dtype, self.shape).describe() + missing


@dataclass(frozen=True)
class TransformStep:
    """A step as declared; its argument is plain, and complete: what was left out stands there with its default."""

    name: str
    argument: Any = None


@dataclass(frozen=True)
class _Kind:
    """Kind of step.

    Attributes:
        takes: kinds of value.
        check: the argument as given to the complete one, or ValueError.
        make: the value after it, or ValueError.
        wants: how the argument is written, for messages.
    """

    takes: tuple[str, ...]
    check: Callable[[Any], Any]
    make: Callable[[StepValue, Any], StepValue]
    wants: str


def check_step(value: StepValue, name: str, argument: Any) -> tuple[TransformStep, StepValue]:
    """Returns the complete step and what it makes of the value; ValueError says what there is where it can't be."""
    if name not in _KINDS:
        raise ValueError(f"there is no such step; {available_names(name, [*_KINDS, *PLACES])}")
    kind = _KINDS[name]
    if value.kind not in kind.takes:
        fitting = [other for other, known in _KINDS.items() if value.kind in known.takes]
        raise ValueError(
            f"it takes {' or '.join(kind.takes)}, not {value.describe()}; that takes {', '.join(fitting)}"
        )
    try:
        complete = kind.check(argument)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error}; write {kind.wants}") from None
    made = kind.make(value, complete)
    if name == "one_hot":  # whose number of classes the value may have told
        complete = made.shape[0]
    return TransformStep(name, complete), made


# What says where a feature goes, beside the steps: `declaration` reads them.
PLACES = ("keep", "drop", "rename", "from")


def _nothing(argument: Any) -> None:
    if argument not in (None, True):
        raise ValueError(f"{argument!r}: it takes no argument")


def _count(argument: Any, least: int = 1, most: int = _INT64_MAX) -> int:
    if isinstance(argument, bool) or not isinstance(argument, int) or argument < least:
        raise ValueError(f"{argument!r} is not a number of at least {least}")
    if argument > most:
        raise ValueError(f"{argument:,} is above {most:,}")
    return argument


def _number(argument: Any) -> int | float:
    if (
        isinstance(argument, bool)
        or not isinstance(argument, int | float)
        or not abs(argument) <= _FLOAT64_MAX
    ):
        raise ValueError(f"{argument!r:.40} is no number of float64")
    return argument


def _options(argument: Any, **known: Callable[[Any], Any]) -> dict[str, Any]:
    """The mapping's items, each checked; None for what is not there."""
    given = {} if argument in (None, True) else argument
    if not isinstance(given, Mapping):
        raise ValueError(f"{argument!r} is no mapping")
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"{unknown[0]!r} is none of {', '.join(known)}{did_you_mean(str(unknown[0]), known)}"
        )
    return {
        name: None if given.get(name) is None else check(given[name])
        for name, check in known.items()
    }


def _vocabulary(argument: Any) -> dict[str, Any]:
    options = _options(argument, top_k=_count, min_count=_count, oov_buckets=lambda n: _count(n, 0))
    return {
        **options,
        "oov_buckets": 1 if options["oov_buckets"] is None else options["oov_buckets"],
    }


def _bounds(argument: Any) -> list[int | float | None]:
    if (
        not isinstance(argument, list | tuple)
        or len(argument) != 2
        or tuple(argument) == (None, None)
    ):
        raise ValueError(f"{argument!r} is no pair")
    low, high = (None if bound is None else _number(bound) for bound in argument)
    if low is not None and high is not None and low > high:
        raise ValueError(f"{low} is above {high}")
    return [low, high]


def _image(argument: Any) -> dict[str, Any]:
    options = _options(argument, resize=list, scale=_number, channels=_count)
    size = options["resize"]
    if size is None or len(size) != 2:
        raise ValueError(
            "resize is missing, without which images have no common shape"
            if size is None
            else f"{size}"
        )
    channels = 3 if options["channels"] is None else options["channels"]
    if channels not in (1, 3, 4):
        raise ValueError(f"channels: {channels} is none of 1, 3, 4")
    return {
        "resize": [_count(side) for side in size],
        "scale": 1.0 if options["scale"] is None else options["scale"],
        "channels": channels,
    }


def _tokens(argument: Any) -> dict[str, Any]:
    options = _options(argument, separator=_text, lower=_flag)
    return {"separator": options["separator"], "lower": bool(options["lower"])}


def _text(argument: Any) -> str:
    if not isinstance(argument, str) or not argument:
        raise ValueError(f"{argument!r} is no text")
    return argument


def _flag(argument: Any) -> bool:
    if not isinstance(argument, bool):
        raise ValueError(f"{argument!r} is neither true nor false")
    return argument


def _filling(argument: Any) -> Any:
    return argument if isinstance(argument, str) else _number(argument)


def _depth(argument: Any) -> int | None:
    return None if argument in (None, True) else _count(argument, 2)


def is_whole_number(number: Any) -> bool:
    """Returns whether a number, an int or a float, is whole."""
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _within(number: int | float, dtype: str) -> None:
    """Raises ValueError for a number that int64 or float32 can't hold."""
    beyond = math.isfinite(number) and abs(number) > _FLOAT32_MAX
    if beyond if dtype == "float32" else not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError(f"{number} is beyond {dtype}")


def whole_bounds(
    low: int | float | None, high: int | float | None
) -> tuple[int | None, int | None]:
    """The whole numbers between the bounds, as the least and the greatest one; None where int64 is the bound."""
    least = None if low is None else math.ceil(low)
    most = None if high is None else math.floor(high)
    least = None if least is not None and least <= _INT64_MIN else least
    return least, None if most is not None and most >= _INT64_MAX else most


def _clipped(value: StepValue, bounds: list[int | float | None]) -> StepValue:
    low, high = bounds
    if value.dtype == "float32":
        for bound in (bound for bound in bounds if bound is not None):
            _within(bound, "float32")
        return value
    low, high = whole_bounds(low, high)
    for bound in (bound for bound in (low, high) if bound is not None):
        _within(bound, "int64")
    if low is not None and high is not None and low > high:
        raise ValueError(f"no whole number lies between {bounds[0]} and {bounds[1]}")
    fits = (
        value.size is not None and (low is None or low < value.size) and (high is None or high >= 0)
    )
    return replace(value, size=value.size if fits else None)


def _as_float(value: StepValue, _: Any) -> StepValue:
    return replace(value, dtype="float32", size=None)


def _as_index(value: StepValue, size: int | None) -> StepValue:
    return replace(value, dtype="int64", size=size)


def _imputed(value: StepValue, filling: Any) -> StepValue:
    if value.shape:
        raise ValueError(f"it takes single values, not {value.describe()}")
    is_text = isinstance(filling, str) and not (filling == "mean" and value.kind == NUMBER_VALUE)
    if is_text != (value.kind != NUMBER_VALUE):
        raise ValueError(f"{filling!r} does not fit {value.describe()}")
    if value.dtype == "int64" and not is_whole_number(filling):
        value = _as_float(value, None)
    if not isinstance(filling, str):
        _within(filling, value.dtype)
    fits = value.size is not None and isinstance(filling, int) and 0 <= filling < value.size
    return replace(value, required=True, size=value.size if fits else None)


def _made_tokens(value: StepValue, _: Any) -> StepValue:
    if value.shape:
        raise ValueError(f"it takes single texts, not {value.describe()}")
    return StepValue("string", (None,))


def _made_one_hot(value: StepValue, depth: int | None) -> StepValue:
    size = value.size if depth is None else depth
    if value.dtype != "int64" or value.shape or not value.required:
        raise ValueError(
            f"it takes single whole numbers that are never missing, not {value.describe()}; impute first"
        )
    if size is None:
        raise ValueError(
            "how many classes there are is not known before the data is read; write one_hot: N, or top_k"
        )
    if size > MOST_CLASSES:
        raise ValueError(f"{size} classes are more than {MOST_CLASSES}")
    return StepValue("float32", (size,))


def _made_image(value: StepValue, argument: Any) -> StepValue:
    if value.shape or not value.required:
        raise ValueError(f"it takes single images that are never missing, not {value.describe()}")
    return StepValue("float32", (*argument["resize"], argument["channels"]))


def _made_words(value: StepValue, argument: Any) -> StepValue:
    top = argument["top_k"]
    return _made_hash(value, None if top is None else top + argument["oov_buckets"])


def _made_hash(value: StepValue, count: int | None) -> StepValue:
    if value.dtype == "float32":
        raise ValueError("it takes text or whole numbers, not float32; bucketize makes those of it")
    return _as_index(value, count)


_KINDS: dict[str, _Kind] = {
    "zscore": _Kind((NUMBER_VALUE,), _nothing, _as_float, "zscore"),
    "minmax": _Kind((NUMBER_VALUE,), _nothing, _as_float, "minmax"),
    "bucketize": _Kind(
        (NUMBER_VALUE,),
        lambda n: _count(n, 2, _MOST_BUCKETS),
        _as_index,
        "bucketize: 10, the number of buckets",
    ),
    "vocabulary": _Kind(
        (TEXT_VALUE, BYTES_VALUE, NUMBER_VALUE),
        _vocabulary,
        _made_words,
        "vocabulary: {top_k: 1000, min_count: 2, oov_buckets: 1}",
    ),
    "hash": _Kind(
        (TEXT_VALUE, BYTES_VALUE, NUMBER_VALUE),
        _count,
        _made_hash,
        "hash: 100, the number of buckets",
    ),
    "log1p": _Kind((NUMBER_VALUE,), _nothing, _as_float, "log1p"),
    "clip": _Kind((NUMBER_VALUE,), _bounds, _clipped, "clip: [0, 100], null for no bound"),
    "one_hot": _Kind(
        (NUMBER_VALUE,), _depth, _made_one_hot, "one_hot, or one_hot: 10, the number of classes"
    ),
    "tokenize": _Kind(
        (TEXT_VALUE,), _tokens, _made_tokens, "tokenize, or tokenize: {separator: ',', lower: true}"
    ),
    "impute": _Kind(
        (NUMBER_VALUE, TEXT_VALUE, BYTES_VALUE),
        _filling,
        _imputed,
        "impute: 0, impute: mean, or impute: a word",
    ),
    "image": _Kind(
        (BYTES_VALUE,), _image, _made_image, "image: {resize: [64, 64], scale: 0.00392}"
    ),
}
TRANSFORM_STEPS = tuple(_KINDS)


@dataclass(frozen=True)
class DeclaredColumn:
    """One output that is made: its name, the raw feature, and what comes out."""

    name: str
    source: str
    steps: tuple[TransformStep, ...]
    value: StepValue


@dataclass(frozen=True)
class Declaration:
    """Declared transform: the features that it makes, and (output name, raw name) of those that stay as they are."""

    columns: tuple[DeclaredColumn, ...]
    copied: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw features that steps are taken on, each once."""
        return tuple(dict.fromkeys(column.source for column in self.columns))


def read_declaration(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Reads the declaration of a YAML file; UsageError where it can't be read, or holds no mapping."""
    return read_yaml(
        os.fspath(path),
        option("transform", os.fspath(path)),
        "features to steps, as in `age: zscore`",
    )


def declare_transform(declared: Mapping[str, Any], schema: Schema) -> Declaration:
    """Returns the declaration for records of this schema; UsageError names feature, step and choices where one doesn't
    fit.
    """
    try:
        check_nesting(declared)
    except ValueError as error:
        raise UsageError(f"transform: {error}; write features and their steps") from None
    columns: list[DeclaredColumn] = []
    copied: list[tuple[str, str]] = []
    for name, spec in declared.items():
        if not isinstance(name, str):
            raise UsageError(f"transform: {name!r} is no feature's name; quote it")
        made = _declare_one(name, list(_steps(name, spec)), schema)
        if isinstance(made, DeclaredColumn):
            columns.append(made)
        elif made is not None:
            copied.append(made)
    copied = [
        (feature.name, feature.name) for feature in schema if feature.name not in declared
    ] + copied
    names = [name for name, _ in copied] + [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"transform: two outputs are called {twice[0]!r}; rename or drop one")
    if not columns:
        raise UsageError(
            f"transform: no feature has a step; there are {', '.join(TRANSFORM_STEPS)}"
        )
    order = {feature.name: place for place, feature in enumerate(schema)}
    return Declaration(tuple(columns), tuple(sorted(copied, key=lambda pair: order[pair[1]])))


def _steps(name: str, spec: Any) -> Iterator[tuple[str, Any]]:
    """Yields (word, argument) in order."""
    if isinstance(spec, str):
        yield spec, None
    elif isinstance(spec, Mapping):
        yield from spec.items()
    elif isinstance(spec, list | tuple):
        for item in spec:
            yield from _steps(name, item)
    else:
        raise UsageError(
            f"transform: feature {name!r}: {spec!r} is no step; write one, as in `zscore`, or a list of them: "
            f"{', '.join(TRANSFORM_STEPS)}"
        )


def _declare_one(
    name: str, words: list[tuple[str, Any]], schema: Schema
) -> DeclaredColumn | tuple[str, str] | None:
    """The output that one entry declares: made, kept as (name, source), or none."""
    source, output = name, name
    steps: list[tuple[str, Any]] = []
    exclusive = []
    for word, argument in words:
        if word in ("from", "rename"):
            if not isinstance(argument, str) or not argument:
                raise UsageError(
                    f"transform: feature {name!r}, step {word!r}: {argument!r} is no name"
                )
            source, output = (argument, output) if word == "from" else (source, argument)
        elif word in ("drop", "keep"):
            exclusive.append(word)
        else:
            steps.append((word, argument))
    if source not in schema:
        raise UsageError(
            f"transform: there is no feature {source!r}; {available_names(source, schema.names)}"
            + ("" if "from" in dict(words) else "; `from: FEATURE` makes a new one of one of these")
        )
    if exclusive and (steps or len(exclusive) > 1):
        raise UsageError(f"transform: feature {name!r}: {exclusive[0]!r} goes with no other step")
    if "drop" in exclusive:
        return None
    return _column(output, schema[source], steps) if steps else (output, source)


def _column(name: str, feature: Feature, words: list[tuple[str, Any]]) -> DeclaredColumn:
    if (reason := unfit(feature)) is not None:
        raise UsageError(f"transform: feature {feature.name!r}: {reason}; keep or drop it")
    value = StepValue.of(feature)
    steps = []
    for word, argument in words:
        try:
            step, value = check_step(value, word, argument)
        except ValueError as error:
            raise UsageError(
                f"transform: feature {feature.name!r}, step {word!r}: {error}"
            ) from None
        steps.append(step)
    return DeclaredColumn(name, feature.name, tuple(steps), value)
