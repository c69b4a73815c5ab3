"""Transforms that are declared as YAML or a dict.

A `Declaration` lists the outputs. Each output is computed from one raw feature by a sequence of
steps. A raw feature is a feature of the records before the transform.

This module also defines the steps: the values that they accept, their arguments, and the type of
their result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

from recordmill.base.documents import (
    MAX_COUNT,
    Check,
    Count,
    Number,
    PositiveCount,
    between,
    convert,
)
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, option
from recordmill.preprocessing.tensors import explain_unfit
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.yaml_file import check_nesting, read_yaml

# The kinds of values that steps take.
NUMBER_VALUE, TEXT_VALUE, BYTES_VALUE = "numbers", "text", "bytes"
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
# Names of results of an analysis. They count the values that the analysis left out.
NONFINITE_RESULT = "nonfinite"
UNLISTED_RESULT = "unlisted"
# The bucket of NaN after bucketize.
NAN_BUCKET = -1
# 65,536 classes of one_hot: for more of them, an embedding is the right tool.
MAX_ONE_HOT_CLASSES = 1 << 16
# 65,536 buckets of bucketize: the manifest has a boundary for each, and the sketch several values.
_MAX_BUCKETS = 1 << 16


@dataclass(frozen=True)
class StepValue:
    """Type of a value before, between or after steps.

    Attributes:
        dtype: int64, float32, string or bytes.
        shape: The shape, as in `Feature`. None is a variable size.
        required: Whether every record has the value.
        size: The int64 values are in [0, size), or in [-1, size) if -1 represents words that a
            vocabulary does not contain. None if the range is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    required: bool = True
    size: int | None = None

    @classmethod
    def from_feature(cls, feature: Feature) -> StepValue:
        """Returns the type of a raw feature's values for the first step."""
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
    """A step of one output, after the check of its argument.

    Attributes:
        name: Name of the step, such as `bucketize`.
        argument: The argument as plain JSON values. Parts that the user has left out have their
            defaults.
    """

    name: str
    argument: Any = None


@dataclass(frozen=True)
class _StepKind:
    """The rules of one kind of step.

    Attributes:
        value_kinds: The kinds of values that the step accepts, such as NUMBER_VALUE.
        check_argument: Takes the declared argument, and returns it with its defaults or raises
            ValueError.
        make_value: Takes the type of the input and the checked argument, and returns the type of
            the result or raises ValueError.
        usage: An example of the step, for messages.
    """

    value_kinds: tuple[str, ...]
    check_argument: Callable[[Any], Any]
    make_value: Callable[[StepValue, Any], StepValue]
    usage: str


def check_step(value: StepValue, name: str, argument: Any) -> tuple[TransformStep, StepValue]:
    """Checks a declared step, and determines the type of its result.

    Args:
        value: Type of the value that the step receives.
        name: Name of the step.
        argument: Its declared argument. None if there is none.

    Returns:
        (checked step, type of its result).

    Raises:
        ValueError: The step is unknown, or does not accept the value or the argument. The message
            lists the choices.
    """
    if name not in _STEP_KINDS:
        raise ValueError(
            f"there is no such step; {available_names(name, [*_STEP_KINDS, *PLACEMENT_WORDS])}"
        )
    kind = _STEP_KINDS[name]
    if value.kind not in kind.value_kinds:
        fitting_steps = [
            step_name
            for step_name, step_kind in _STEP_KINDS.items()
            if value.kind in step_kind.value_kinds
        ]
        raise ValueError(
            f"it takes {' or '.join(kind.value_kinds)}, not {value.describe()}; steps "
            f"for this type are {', '.join(fitting_steps)}"
        )
    try:
        checked_argument = kind.check_argument(argument)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error}; write {kind.usage}") from None
    output_value = kind.make_value(value, checked_argument)
    # The type of the value may have determined the number of classes.
    if name == "one_hot":
        checked_argument = output_value.shape[0]
    return TransformStep(name, checked_argument), output_value


# Words that determine which feature becomes which output. They are not steps.
PLACEMENT_WORDS = ("keep", "drop", "rename", "from")


@dataclass(frozen=True)
class _VocabularyArgument:
    top_k: PositiveCount | None = None
    min_count: PositiveCount | None = None
    oov_buckets: Count | None = None


@dataclass(frozen=True)
class _ImageArgument:
    resize: tuple[PositiveCount, PositiveCount]
    scale: Number | None = None
    channels: Annotated[int, Check((1, 3, 4).__contains__, "1, 3 or 4")] | None = None


@dataclass(frozen=True)
class _TokenizeArgument:
    separator: Annotated[str, Check(bool, "a text with a character")] | None = None
    lower: bool | None = None


def _is_left_out(argument: Any) -> bool:
    # Not `in (None, True)`, because 1 equals True.
    return argument is None or argument is True


def _check_no_argument(argument: Any) -> None:
    if not _is_left_out(argument):
        raise ValueError(f"{argument!r}: it takes no argument")


def _check_fields(kind: type[Any], argument: Any, **defaults: Any) -> dict[str, Any]:
    """Returns the fields of a mapping, with defaults in place of None.

    Args:
        kind: The dataclass of the argument.
        argument: The declared argument. None and True count as a mapping without fields.
        defaults: The default of each field that is not None by default.

    Raises:
        ValueError: The argument is not a mapping, or has an unknown field or an invalid value.
    """
    items = {} if _is_left_out(argument) else argument
    values = asdict(convert(kind, items, is_closed=True))
    return {name: defaults.get(name) if value is None else value for name, value in values.items()}


def _check_image(argument: Any) -> dict[str, Any]:
    checked = _check_fields(_ImageArgument, argument, scale=1.0, channels=3)
    return {**checked, "resize": list(checked["resize"])}


def _check_bounds(argument: Any) -> list[int | float | None]:
    low, high = convert(tuple[Number | None, Number | None], argument)
    if low is None and high is None:
        raise ValueError("both bounds are null")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{low} is above {high}")
    return [low, high]


def _check_filling(argument: Any) -> Any:
    return argument if isinstance(argument, str) else convert(Number, argument)


def _check_depth(argument: Any) -> int | None:
    return (
        None if _is_left_out(argument) else convert(Annotated[int, between(2, MAX_COUNT)], argument)
    )


def is_whole_number(number: Any) -> bool:
    """Returns whether an int or a float is a whole number.

    >>> is_whole_number(2.0), is_whole_number(2.5)
    (True, False)
    """
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _check_range(number: int | float, dtype: str) -> None:
    """Raises ValueError if a number is out of the range of int64 or float32."""
    is_too_large = math.isfinite(number) and abs(number) > _FLOAT32_MAX
    if is_too_large if dtype == "float32" else not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError(f"{number} is beyond {dtype}")


def round_bounds(
    low: int | float | None, high: int | float | None
) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest integer between two bounds.

    None means no bound. A result is also None if it excludes no int64.

    >>> round_bounds(0.5, None)
    (1, None)
    """
    rounded_low = None if low is None else math.ceil(low)
    rounded_high = None if high is None else math.floor(high)
    rounded_low = None if rounded_low is not None and rounded_low <= _INT64_MIN else rounded_low
    return (
        rounded_low,
        None if rounded_high is not None and rounded_high >= _INT64_MAX else rounded_high,
    )


def _clip_value(value: StepValue, bounds: list[int | float | None]) -> StepValue:
    low, high = bounds
    if value.dtype == "float32":
        for bound in (bound for bound in bounds if bound is not None):
            _check_range(bound, "float32")
        return value
    low, high = round_bounds(low, high)
    for bound in (bound for bound in (low, high) if bound is not None):
        _check_range(bound, "int64")
    if low is not None and high is not None and low > high:
        raise ValueError(f"no whole number lies between {bounds[0]} and {bounds[1]}")
    fits = (
        value.size is not None and (low is None or low < value.size) and (high is None or high >= 0)
    )
    return replace(value, size=value.size if fits else None)


def _to_float(value: StepValue, _: Any) -> StepValue:
    return replace(value, dtype="float32", size=None)


def _to_index(value: StepValue, size: int | None) -> StepValue:
    return replace(value, dtype="int64", size=size)


def _impute_value(value: StepValue, filling: Any) -> StepValue:
    if value.shape:
        raise ValueError(f"it takes single values, not {value.describe()}")
    is_text = isinstance(filling, str) and not (filling == "mean" and value.kind == NUMBER_VALUE)
    if is_text != (value.kind != NUMBER_VALUE):
        raise ValueError(f"{filling!r} does not fit {value.describe()}")
    if value.dtype == "int64" and not is_whole_number(filling):
        value = _to_float(value, None)
    if not isinstance(filling, str):
        _check_range(filling, value.dtype)
    fits = value.size is not None and isinstance(filling, int) and 0 <= filling < value.size
    return replace(value, required=True, size=value.size if fits else None)


def _tokenize_value(value: StepValue, _: Any) -> StepValue:
    if value.shape:
        raise ValueError(f"it takes single texts, not {value.describe()}")
    return StepValue("string", (None,))


def _one_hot_value(value: StepValue, depth: int | None) -> StepValue:
    size = value.size if depth is None else depth
    if value.dtype != "int64" or value.shape or not value.required:
        raise ValueError(
            f"it takes single whole numbers that are never missing, not {value.describe()}; impute first"
        )
    if size is None:
        raise ValueError(
            "the number of classes is not known before the data is read; write one_hot: N, or top_k"
        )
    if size > MAX_ONE_HOT_CLASSES:
        raise ValueError(f"{size} classes are more than {MAX_ONE_HOT_CLASSES}")
    return StepValue("float32", (size,))


def _image_value(value: StepValue, argument: Any) -> StepValue:
    if value.shape or not value.required:
        raise ValueError(f"it takes single images that are never missing, not {value.describe()}")
    return StepValue("float32", (*argument["resize"], argument["channels"]))


def _vocabulary_value(value: StepValue, argument: Any) -> StepValue:
    top = argument["top_k"]
    return _hash_value(value, None if top is None else top + argument["oov_buckets"])


def _hash_value(value: StepValue, count: int | None) -> StepValue:
    if value.dtype == "float32":
        raise ValueError("it takes text or whole numbers, not float32; bucketize first")
    return _to_index(value, count)


_STEP_KINDS: dict[str, _StepKind] = {
    "zscore": _StepKind((NUMBER_VALUE,), _check_no_argument, _to_float, "zscore"),
    "minmax": _StepKind((NUMBER_VALUE,), _check_no_argument, _to_float, "minmax"),
    "bucketize": _StepKind(
        (NUMBER_VALUE,),
        partial(convert, Annotated[int, between(2, _MAX_BUCKETS)]),
        _to_index,
        "bucketize: 10, the number of buckets",
    ),
    "vocabulary": _StepKind(
        (TEXT_VALUE, BYTES_VALUE, NUMBER_VALUE),
        partial(_check_fields, _VocabularyArgument, oov_buckets=1),
        _vocabulary_value,
        "vocabulary: {top_k: 1000, min_count: 2, oov_buckets: 1}",
    ),
    "hash": _StepKind(
        (TEXT_VALUE, BYTES_VALUE, NUMBER_VALUE),
        partial(convert, PositiveCount),
        _hash_value,
        "hash: 100, the number of buckets",
    ),
    "log1p": _StepKind((NUMBER_VALUE,), _check_no_argument, _to_float, "log1p"),
    "clip": _StepKind(
        (NUMBER_VALUE,), _check_bounds, _clip_value, "clip: [0, 100], null for no bound"
    ),
    "one_hot": _StepKind(
        (NUMBER_VALUE,),
        _check_depth,
        _one_hot_value,
        "one_hot, or one_hot: 10, the number of classes",
    ),
    "tokenize": _StepKind(
        (TEXT_VALUE,),
        partial(_check_fields, _TokenizeArgument, lower=False),
        _tokenize_value,
        "tokenize, or tokenize: {separator: ',', lower: true}",
    ),
    "impute": _StepKind(
        (NUMBER_VALUE, TEXT_VALUE, BYTES_VALUE),
        _check_filling,
        _impute_value,
        "impute: 0, impute: mean, or impute: a word",
    ),
    "image": _StepKind(
        (BYTES_VALUE,), _check_image, _image_value, "image: {resize: [64, 64], scale: 0.00392}"
    ),
}
TRANSFORM_STEPS = tuple(_STEP_KINDS)


@dataclass(frozen=True)
class DeclaredColumn:
    """An output of a declared transform that is computed from a raw feature.

    Attributes:
        name: Name of the output.
        source: Name of the raw feature.
        steps: The steps of the computation, in the order in which they are applied.
        value: Type of the result.
    """

    name: str
    source: str
    steps: tuple[TransformStep, ...]
    value: StepValue


@dataclass(frozen=True)
class Declaration:
    """A declared transform, after its check against a schema.

    Attributes:
        columns: The outputs that steps compute.
        copied: (output name, raw name) of each feature that is copied unchanged.
    """

    columns: tuple[DeclaredColumn, ...]
    copied: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw features that the steps need, without duplicates."""
        return tuple(dict.fromkeys(column.source for column in self.columns))


def read_declaration(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Reads a declaration from a YAML file.

    Raises:
        UsageError: The file can't be read, or does not contain a mapping.
    """
    return read_yaml(
        os.fspath(path),
        option("transform", os.fspath(path)),
        "features to steps, as in `age: zscore`",
    )


def declare_transform(declaration: Mapping[str, Any], schema: Schema) -> Declaration:
    """Checks a declaration against the schema of the records.

    Args:
        declaration: Maps the name of a feature to a step, a list of steps, or a mapping of steps to
            arguments. For example `{"age": "zscore", "city": {"hash": 100}}`. Features that are not
            in the declaration are copied.
        schema: The schema of the raw records.

    Raises:
        UsageError: A part of the declaration is invalid. The message names the feature, the step
            and the choices.
    """
    try:
        check_nesting(declaration)
    except ValueError as error:
        raise UsageError(
            "transform: {error}; write features and their steps", error=error
        ) from None
    columns: list[DeclaredColumn] = []
    copied: list[tuple[str, str]] = []
    for name, steps in declaration.items():
        if not isinstance(name, str):
            raise UsageError(f"transform: {name!r} is not a text; quote the name")
        output = _declare_output(name, list(_iter_steps(name, steps)), schema)
        if isinstance(output, DeclaredColumn):
            columns.append(output)
        elif output is not None:
            copied.append(output)
    copied = [
        # Features that the declaration does not mention stay as they are.
        (feature.name, feature.name)
        for feature in schema
        if feature.name not in declaration
    ] + copied
    names = [name for name, _ in copied] + [column.name for column in columns]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"transform: two outputs are called {duplicates[0]!r}; rename or drop one")
    if not columns:
        raise UsageError(
            f"transform: no feature has a step; there are {', '.join(TRANSFORM_STEPS)}"
        )
    order = {feature.name: index for index, feature in enumerate(schema)}
    return Declaration(tuple(columns), tuple(sorted(copied, key=lambda pair: order[pair[1]])))


def _iter_steps(name: str, steps: Any) -> Iterator[tuple[str, Any]]:
    """Yields (step name, argument) of each step of an entry, in order.

    Args:
        name: Name of the entry, for messages.
        steps: A step, or a list or mapping of steps. The argument of a step without one is None.

    Raises:
        UsageError: `steps` has another type.
    """
    if isinstance(steps, str):
        yield steps, None
    elif isinstance(steps, Mapping):
        yield from steps.items()
    elif isinstance(steps, list | tuple):
        for item in steps:
            yield from _iter_steps(name, item)
    else:
        raise UsageError(
            f"transform: feature {name!r}: {steps!r} is not a step; write one, as in "
            f"`zscore`, or a list of them: {', '.join(TRANSFORM_STEPS)}"
        )


def _declare_output(
    name: str, step_items: list[tuple[str, Any]], schema: Schema
) -> DeclaredColumn | tuple[str, str] | None:
    """Returns the output that one entry of a declaration describes.

    For example, `{"age": "zscore"}` computes age, `{"age": {"rename": "years"}}` copies age under
    another name, and `{"age": "drop"}` removes it.

    Args:
        name: Key of the entry.
        step_items: (step name, argument) of each of its steps, including the PLACEMENT_WORDS.
        schema: The schema of the raw records.

    Returns:
        A DeclaredColumn for an output that steps compute. (output name, raw name) for a feature
        that is copied. None for a feature that is dropped.

    Raises:
        UsageError: There is no such feature, or a step can't be applied to its type.
    """
    source, output = name, name
    steps: list[tuple[str, Any]] = []
    exclusive = []
    for step_name, argument in step_items:
        if step_name in ("from", "rename"):
            if not isinstance(argument, str) or not argument:
                raise UsageError(
                    f"transform: feature {name!r}, step {step_name!r}: {argument!r} is not a name"
                )
            source, output = (argument, output) if step_name == "from" else (source, argument)
        elif step_name in ("drop", "keep"):
            exclusive.append(step_name)
        else:
            steps.append((step_name, argument))
    if source not in schema:
        raise UsageError(
            f"transform: there is no feature {source!r}; {available_names(source, schema.names)}"
            + (
                ""
                if "from" in dict(step_items)
                else "; `from: FEATURE` makes a new one of one of these"
            )
        )
    if exclusive and (steps or len(exclusive) > 1):
        raise UsageError(
            f"transform: feature {name!r}: {exclusive[0]!r} can't be combined with other steps"
        )
    if "drop" in exclusive:
        return None
    return _declare_column(output, schema[source], steps) if steps else (output, source)


def _declare_column(
    name: str, feature: Feature, step_items: list[tuple[str, Any]]
) -> DeclaredColumn:
    if (reason := explain_unfit(feature)) is not None:
        raise UsageError(f"transform: feature {feature.name!r}: {reason}; keep or drop it")
    value = StepValue.from_feature(feature)
    steps = []
    for step_name, argument in step_items:
        try:
            step, value = check_step(value, step_name, argument)
        except ValueError as error:
            raise UsageError(
                "transform: feature {feature}, step {step_name}: {error}",
                feature=repr(feature.name),
                step_name=repr(step_name),
                error=error,
            ) from None
        steps.append(step)
    return DeclaredColumn(name=name, source=feature.name, steps=tuple(steps), value=value)
