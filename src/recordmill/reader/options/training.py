"""Options that `batches`, `to_tf` and `to_torch` share.

Each option is declared once. `TrainingKeywords` has the types for editors and type checkers, and
the groups (`Order`, `Form`, ...) have the defaults and descriptions. `_SERVES` lists options that
have an effect only together with others. An option without an effect is refused. A test compares
these declarations with each other and with the signatures of the methods.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, TypeVar

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean
from recordmill.base.sizes import MAX_ROWS, size_in_bytes, to_whole_number
from recordmill.reader.options.collation import Collate
from recordmill.reader.options.images import Images, ImageSpec, ImageTarget, parse_image_targets
from recordmill.reader.sampling.sampler import ShuffleMode, parse_shuffle
from recordmill.reader.sampling.schedule import check_state
from recordmill.schemas.feature import Schema

BATCH_SIZE = 256
# 64 MiB mix hundreds of thousands of small records, and disks still read long ranges.
WINDOW_BYTES = 64 << 20
# 512 MiB suffice for the ranges and the compressed windows of four threads.
MEMORY_BYTES = 512 << 20

Shuffle = bool | Literal["window", "global"]
OnBad = Literal["error", "skip"]
Nulls = Literal["masked", "valid", "drop"]
FilledNulls = Literal["valid", "drop"]
_F = TypeVar("_F", bound=Callable[..., Any])


class TrainingKeywords(TypedDict, total=False):
    """Options of all outputs: the fields of `Order`, `Form`, `TrainingImages` and `Memory`."""

    label: str | bool
    weights: str | None
    collate: Mapping[str, Collate] | Collate | None
    matrix: Sequence[str] | None
    ids: bool
    map: Callable[[Any], Any] | None
    decode_images: ImageSpec | None
    channels: int
    antialias: bool
    shuffle: Shuffle
    seed: int
    epochs: int | None
    drop_remainder: bool
    pad_remainder: bool
    num_hosts: int | None
    host_index: int | None
    state: Mapping[str, Any] | None
    start_step: int
    window_bytes: int | str
    memory_bytes: int | str
    on_bad: OnBad


class NumpyKeywords(TrainingKeywords, total=False):
    """Options of `batches`: the options of all outputs, and the fields of `Arrays`."""

    nulls: Nulls


class TensorFlowKeywords(TrainingKeywords, total=False):
    """Options of `to_tf`: the options of all outputs, and the fields of `Graph`."""

    defaults: Mapping[str, Any] | None
    nulls: FilledNulls


class TorchKeywords(TrainingKeywords, total=False):
    """Options of `to_torch`: the options of all outputs, and the fields of `Tensors`."""

    nulls: FilledNulls


@dataclass(frozen=True)
class Order:
    """Options that determine the records of each batch.

    Args:
        shuffle: Shuffles the records, differently in each epoch. "window" or True reads pieces of
            files in random order and mixes the records of as many pieces as fit into the window.
            "global" is a random order of all records. It is not available for files that can only
            be read from the start. False keeps the order of the files.
        seed: Any integer. A seed always results in the same order.
        epochs: Number of epochs of one iteration. None never ends. A batch never mixes two epochs.
            If the data set is iterated again, it continues with the next epochs. A `state`
            continues the iteration in which it was taken, or begins the next one if it was taken at
            the end.
        drop_remainder: Leaves out the last records of an epoch that do not fill a batch. With
            several hosts this is the default for records that do not fill the batches of all hosts.
        pad_remainder: Fills up these batches with other records of the epoch. Each batch then has
            `"mask"`, with True for the rows that count.
        num_hosts: Number of hosts that train together. Each step is divided into equal parts, so
            all hosts have the same number of batches, and together they read the epoch once. None
            means one host. For `to_torch`, None uses the ranks of torch.distributed if it is
            initialised.
        host_index: Index of this host, from 0. It is required with `num_hosts`.
        state: The result of `state()` of an iterator. The new iterator continues after the last
            batch that the old one returned. The data set, `where`, `seed`, `shuffle` and
            `batch_size` must be the same. The number of hosts may differ, except between steps that
            are bucketed together.
        start_step: Number of batches to skip on this host, from the start or after `state`.
        window_bytes: Size of the window for "window": framed bytes, as a number or as text such as
            "64MiB".

    Raises:
        UsageError: A value is out of range, or two options exclude each other.
    """

    shuffle: Shuffle = True
    seed: int = 0
    epochs: int | None = 1
    drop_remainder: bool = False
    pad_remainder: bool = False
    num_hosts: int | None = None
    host_index: int | None = None
    state: Mapping[str, Any] | None = None
    start_step: int = 0
    window_bytes: int | str = WINDOW_BYTES

    def __post_init__(self) -> None:
        _set_frozen(self, "seed", to_whole_number(self.seed, "seed"))
        _set_frozen(
            self,
            "epochs",
            None if self.epochs is None else to_whole_number(self.epochs, "epochs", 1, MAX_ROWS),
        )
        _set_frozen(self, "start_step", to_whole_number(self.start_step, "start_step", 0, MAX_ROWS))
        _set_frozen(self, "window_bytes", size_in_bytes(self.window_bytes, "window_bytes"))
        for name, minimum in (("num_hosts", 1), ("host_index", 0)):
            if (value := getattr(self, name)) is not None:
                _set_frozen(self, name, to_whole_number(value, name, minimum, MAX_ROWS))
        if self.state is not None:
            check_state(self.state)
        _ = self.mode
        if (self.num_hosts is None) != (self.host_index is None):
            raise UsageError("give num_hosts and host_index, or neither")
        if self.drop_remainder and self.pad_remainder:
            raise UsageError(
                "drop_remainder leaves out what pad_remainder would fill up: give one of them"
            )

    @property
    def mode(self) -> ShuffleMode:
        """Mode of `shuffle`."""
        return parse_shuffle(self.shuffle)

    @property
    def hosts(self) -> tuple[int, int]:
        """Number of hosts, and the index of this one."""
        return (
            (1, 0)
            if self.num_hosts is None or self.host_index is None
            else (self.num_hosts, self.host_index)
        )

    @property
    def window(self) -> int:
        """`window_bytes` as a number."""
        return size_in_bytes(self.window_bytes, "window_bytes")


@dataclass(frozen=True)
class Form:
    """Options that determine the form of a batch.

    Args:
        label: The feature that is y in `(x, y)`. True uses the label of the schema. False returns
            dicts by feature name. x is an array instead of a dict if only one feature remains. A
            record without a label is an error.
        weights: The feature that is w in `(x, y, w)`. It requires `label`.
        collate: How lists become arrays, for all lists or by feature name: "ragged" (the default),
            "dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`.
            "one_hot" or `OneHot(depth)` encodes integers.
        matrix: Combines numeric features into one float32 array [rows, numbers], in this order. It
            is the only input in addition to label and weights, or `"matrix"` in a dict. Missing
            values are NaN, or the values of `defaults`.
        ids: Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in
            `ds.files`, and the number of the record in it.
        map: A function that takes a batch. Its result is returned instead of the batch. It runs in
            the threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised
            with the number of the batch.

    Raises:
        UsageError: A value has the wrong form.
    """

    label: str | bool = False
    weights: str | None = None
    collate: Mapping[str, Collate] | Collate | None = None
    matrix: Sequence[str] | None = None
    ids: bool = False
    map: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.label, str | bool):
            raise UsageError(
                f"label is a feature's name, True for the schema's label, or False, not {self.label!r}"
            )
        is_list = isinstance(self.matrix, list | tuple) and all(
            isinstance(name, str) for name in self.matrix
        )
        if self.matrix is not None and not (is_list and self.matrix):
            raise UsageError(
                f'matrix is a list of features, as in matrix=["x", "z"], not {self.matrix!r}'
            )
        if self.map is not None:
            check_map(self.map)

    def label_of(self, schema: Schema) -> str | None:
        """Returns the name of the label, or None."""
        return (schema.label if self.label is True else self.label) or None


@dataclass(frozen=True)
class TrainingImages:
    """Options for encoded images.

    Args:
        decode_images: (height, width) decodes images to uint8 [rows, height, width, channels],
            resized as `tf.image.resize` does. True keeps the size, which must be the same for all
            images. `Images(...)` has further options such as scaling and cropping. A dict specifies
            targets by feature name. None uses the option of `open`.
        channels: Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4
            for RGBA.
        antialias: Resizes with antialiasing if `decode_images` is a size or True.

    Raises:
        UsageError: A value is out of range.
    """

    decode_images: ImageSpec | None = None
    channels: int = Images.channels
    antialias: bool = Images.antialias

    @property
    def targets(self) -> ImageTarget | None:
        """Targets of the images that are decoded. None decodes none."""
        return parse_image_targets(self.decode_images, self.channels, self.antialias)


@dataclass(frozen=True)
class Memory:
    """Options for the memory of the reader and for unusable records.

    Args:
        memory_bytes: Limit of the data that is read ahead or being decoded, as a number of bytes or
            as text such as "512MiB".
        on_bad: "error" raises an error at the first unusable record, with its place. "skip" leaves
            out records that are damaged, do not fit the schema or have images that can't be
            decoded, and fills batches with the next records. A warning at the end of an epoch
            reports their number. The number of batches is then unknown in advance. Each worker of a
            PyTorch DataLoader fills its batches with records of its own steps.

    Raises:
        UsageError: A value is out of range.
    """

    memory_bytes: int | str = MEMORY_BYTES
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        _set_frozen(self, "memory_bytes", size_in_bytes(self.memory_bytes, "memory_bytes"))
        if self.on_bad not in ("error", "skip"):
            raise UsageError(f'on_bad is "error" or "skip", not {self.on_bad!r}')

    @property
    def limit_bytes(self) -> int:
        """`memory_bytes` as a number."""
        return size_in_bytes(self.memory_bytes, "memory_bytes")


@dataclass(frozen=True)
class Graph:
    """Options of `to_tf` only.

    Args:
        defaults: Values for records that lack a feature, by feature name. Without a default,
            `name/valid` marks the records that have the feature.
        nulls: "drop" leaves out the records that lack a feature that is read. "valid" keeps them.

    Raises:
        UsageError: `defaults` is not a dict, or `nulls` is unknown.
    """

    defaults: Mapping[str, Any] | None = None
    nulls: FilledNulls = "valid"

    def __post_init__(self) -> None:
        if self.defaults is not None and not isinstance(self.defaults, Mapping):
            raise UsageError(f"defaults is a value by feature name, not {self.defaults!r}")
        _check_choice("nulls", self.nulls, ("valid", "drop"))


@dataclass(frozen=True)
class Tensors:
    """Options of `to_torch` only.

    Args:
        nulls: "drop" leaves out the records that lack a feature that is read. "valid" returns zeros
            and empty text for missing values and adds `name/valid`.

    Raises:
        UsageError: The value is unknown.
    """

    nulls: FilledNulls = "valid"

    def __post_init__(self) -> None:
        _check_choice("nulls", self.nulls, ("valid", "drop"))


@dataclass(frozen=True)
class Arrays:
    """Options of `batches` only.

    Args:
        nulls: Form of features that may be missing. "masked" returns masked arrays, and None in
            arrays of text. "valid" returns zeros and empty text for missing values and adds
            `name/valid`, as `to_tf` and `to_torch` do. JAX needs this form. "drop" leaves out the
            records that lack a feature that is read.

    Raises:
        UsageError: The value is unknown.
    """

    nulls: Nulls = "masked"

    def __post_init__(self) -> None:
        _check_choice("nulls", self.nulls, ("masked", "valid", "drop"))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises UsageError if an option has another value than its choices."""
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise UsageError(f"{name} is {', '.join(others)} or {last}, not {value!r}")


TRAINING_OPTIONS = (Order, Form, TrainingImages, Memory)
NUMPY_OPTIONS = (*TRAINING_OPTIONS, Arrays)
TENSORFLOW_OPTIONS = (*TRAINING_OPTIONS, Graph)
TORCH_OPTIONS = (*TRAINING_OPTIONS, Tensors)


@dataclass(frozen=True)
class Training:
    """All options of an output.

    Attributes:
        batch_size: Number of rows of a batch of this host. None returns single records.
        order: The records of each batch.
        form: The form of a batch.
        images: Targets of encoded images.
        memory: Memory, and unusable records.
        graph: Options of `to_tf`.
        arrays: Options of `batches`.
        tensors: Options of `to_torch`.

    Raises:
        UsageError: An option has no effect with the others, or excludes one of them.
    """

    batch_size: int | None = BATCH_SIZE
    order: Order = field(default_factory=Order)
    form: Form = field(default_factory=Form)
    images: TrainingImages = field(default_factory=TrainingImages)
    memory: Memory = field(default_factory=Memory)
    graph: Graph = field(default_factory=Graph)
    arrays: Arrays = field(default_factory=Arrays)
    tensors: Tensors = field(default_factory=Tensors)

    @property
    def drops_nulls(self) -> bool:
        """True if records that lack a feature are left out."""
        return "drop" in (self.arrays.nulls, self.graph.nulls, self.tensors.nulls)

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            _set_frozen(
                self, "batch_size", to_whole_number(self.batch_size, "batch_size", 1, MAX_ROWS)
            )
        changed = dict(self._changed_options())
        for names, serves, reason in _SERVES:
            if (refused := [name for name in names if name in changed]) and not serves(self):
                raise UsageError(f"{refused[0]} has no meaning here: {reason}")

    @classmethod
    def from_options(
        cls,
        batch_size: int | None,
        options: Mapping[str, Any],
        groups: tuple[type, ...] = TRAINING_OPTIONS,
    ) -> Training:
        """Creates the options from keyword arguments.

        Args:
            batch_size: Number of rows of a batch. None returns single records.
            options: The keyword arguments.
            groups: The groups of options that the output has.

        Raises:
            TypeError: An option is unknown.
            UsageError: A value is out of range, or an option has no effect.
        """
        group_by_option = {name: group for group in groups for name in _defaults(group)}
        for name in options:
            if name not in group_by_option:
                raise TypeError(f"there is no option {name}{did_you_mean(name, group_by_option)}")
        group_values = [
            group(**{name: options[name] for name in _defaults(group) if name in options})
            for group in groups
        ]
        return cls(batch_size, **{_GROUP_FIELDS[type(group)]: group for group in group_values})

    def _changed_options(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and value of each option that differs from its default."""
        for group in (getattr(self, name) for name in _GROUP_FIELDS.values()):
            for name, default in _defaults(type(group)).items():
                if (value := getattr(group, name)) is not default and value != default:
                    yield name, value


_GROUP_FIELDS: Mapping[type, str] = {
    Order: "order",
    Form: "form",
    TrainingImages: "images",
    Memory: "memory",
    Graph: "graph",
    Arrays: "arrays",
    Tensors: "tensors",
}

# (options, whether they have an effect together with the others, message if they have none)
_SERVES: tuple[tuple[tuple[str, ...], Callable[[Training], bool], str], ...] = (
    (
        ("channels", "antialias"),
        lambda to: (
            to.images.decode_images is not None
            and not isinstance(to.images.decode_images, Images | Mapping)
        ),
        "channels and antialias go with decode_images=(height, width) or True; Images(...) has its own",
    ),
    (
        ("weights",),
        lambda to: to.form.label is not False,
        "weights go with a label: (x, y, weights)",
    ),
    (("window_bytes",), lambda to: to.order.mode == "window", 'it is of shuffle="window"'),
    (
        ("drop_remainder", "pad_remainder", "start_step"),
        lambda to: to.batch_size is not None,
        "batch_size=None gives single records",
    ),
    (
        ("num_hosts", "pad_remainder"),
        lambda to: (
            to.memory.on_bad == "error" or (to.order.hosts[0] == 1 and not to.order.pad_remainder)
        ),
        'on_bad="skip" makes batches of what is left, and hosts (or ranks of torch.distributed) that skip other '
        "records would not have equally many: it goes with neither num_hosts nor pad_remainder. ds.filter leaves "
        "records out by number, and `recordmill build` makes a data set without those that are damaged",
    ),
    (
        ("start_step",),
        lambda to: to.memory.on_bad == "error",
        'with on_bad="skip" nobody knows at which record a step begins; give a `state` instead',
    ),
)


def check_map(function: Any) -> None:
    """Raises UsageError unless `function` can be called with a batch alone."""
    if not callable(function):
        raise UsageError(f"map is a function of a batch, not {function!r}")
    try:
        signature = inspect.signature(function)
    # some functions of C have no signature
    except (ValueError, TypeError):
        return
    try:
        signature.bind(None)
    except TypeError:
        raise UsageError(
            f"map is a function of one argument, the batch, and this one takes {signature}. With a label, the batch "
            "is the pair (x, y): lambda batch: f(*batch)"
        ) from None


@suggest_keywords
def hosts(of: Any) -> dict[str, int]:
    """Returns the options `num_hosts` and `host_index` for a framework.

    Pass them to `batches`, `to_tf` or `to_torch`, for example `ds.batches(64,
    **recordmill.hosts(jax))`. This function imports no framework.

    Args:
        of: A `tf.distribute.InputContext`, the module `jax`, or the module `torch.distributed`.

    Returns:
        A dict with the two options.

    Raises:
        UsageError: The argument is something else, or torch.distributed is not initialised.

    Examples:
        >>> from types import SimpleNamespace
        >>> recordmill.hosts(SimpleNamespace(process_count=lambda: 4, process_index=lambda: 1))
        {'num_hosts': 4, 'host_index': 1}
    """
    if hasattr(of, "is_initialized") and not (of.is_available() and of.is_initialized()):
        raise UsageError("torch.distributed knows no ranks yet: call init_process_group first")
    for names in _HOST_ATTRIBUTES:
        if all(hasattr(of, name) for name in names):
            count, index = (getattr(of, name) for name in names)
            return {
                "num_hosts": int(_call_if_callable(count)),
                "host_index": int(_call_if_callable(index)),
            }
    raise UsageError(
        f"hosts are taken from a tf.distribute.InputContext, jax or torch.distributed, not from {of!r}"
    )


_HOST_ATTRIBUTES = (  # (number of hosts, index of this one)
    ("num_input_pipelines", "input_pipeline_id"),  # tf.distribute.InputContext
    ("process_count", "process_index"),  # jax
    ("get_world_size", "get_rank"),  # torch.distributed
)


def _call_if_callable(value: Any) -> Any:
    return value() if callable(value) else value


def with_options(*groups: type) -> Callable[[_F], _F]:
    """Returns a decorator that documents `**options` of a method.

    `help` and editors then show the options of these groups as keyword arguments, with their
    defaults and descriptions.

    Args:
        *groups: The groups of options.
    """

    def decorate(method: _F) -> _F:
        signature = inspect.signature(method)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind != inspect.Parameter.VAR_KEYWORD
        ]
        names = {parameter.name for parameter in parameters}
        option_parameters = [
            inspect.Parameter(
                option_field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option_field.default,
                annotation=option_field.type,
            )
            for group in groups
            for option_field in dataclasses.fields(group)
            if option_field.name not in names
        ]
        method.__signature__ = signature.replace(parameters=[*parameters, *option_parameters])  # type: ignore[attr-defined]
        # The errors of all groups are covered by the `Raises:` section of the method.
        meanings = (
            inspect.cleandoc(group.__doc__ or "").partition("Raises:")[0].rstrip()
            for group in groups
        )
        method.__doc__ = "\n\n".join([inspect.cleandoc(method.__doc__ or ""), *meanings])
        return method

    return decorate


def _defaults(group: type) -> dict[str, Any]:
    return {option_field.name: option_field.default for option_field in dataclasses.fields(group)}


def _set_frozen(group: Any, name: str, value: Any) -> None:
    object.__setattr__(group, name, value)
