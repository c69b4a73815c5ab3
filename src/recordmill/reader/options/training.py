"""The options of training that `batches`, `to_tf` and `to_torch` of a data set, or of a mixture, share: each declared
once, with its type, its default, its checks and what it serves.

`TrainingKeywords` says the types for editors and type checkers, the frozen groups say the defaults and the meaning, and
`_SERVES` where an option has an effect: where it has none it is refused by name. A test holds all three, and the
signatures of the methods, to each other.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, TypeVar

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean
from recordmill.base.sizes import MAX_ROWS, size_in_bytes, to_whole_number
from recordmill.reader.options.collation import Collate
from recordmill.reader.options.images import Images, ImageSpec, ImageTarget, parse_image_targets
from recordmill.reader.sampling.sampler import Mode, mode_of
from recordmill.reader.sampling.schedule import check_state
from recordmill.schemas.feature import Schema

BATCH_SIZE = 256
WINDOW_BYTES = (
    64 << 20
)  # 64 MiB: hundreds of thousands of small records are mixed, and a disk still reads stretches
MEMORY_BYTES = (
    512 << 20
)  # 512 MiB under way: what four threads have, at most, of stretches and compressed windows

Shuffle = bool | Literal["window", "global"]
OnBad = Literal["error", "skip"]
Nulls = Literal["masked", "valid"]
_F = TypeVar("_F", bound=Callable[..., Any])


class TrainingKeywords(TypedDict, total=False):
    """The options that all outputs have: `Order`, `Form`, `TrainingImages` and `Memory`."""

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
    """Keywords of `batches`: also `Arrays`."""

    nulls: Nulls


class TensorFlowKeywords(TrainingKeywords, total=False):
    """Keywords of `to_tf`: also `Graph`."""

    defaults: Mapping[str, Any] | None


@dataclass(frozen=True)
class Order:
    """Choice of the records of each batch.

    Args:
        shuffle: another order in each epoch, the same for the same seed. "window" (or True): pieces of shards in random
            order, and records mixed among as many pieces as fit the window; "global": every record anywhere, which
            files that are only streamed can't give; False: the order of the files.
        seed: any integer.
        epochs: how many epochs one iteration has; None: without end. A batch never mixes two epochs. What is iterated
            again goes on with the next so many; a `state` goes on in the iteration that it stands in, and one of its
            end with the next one.
        drop_remainder: leave out an epoch's last records if they do not fill a batch; several hosts always do if they
            don't fill the batches of all hosts, unless pad_remainder is given.
        pad_remainder: fill these batches up instead, with other records of the epoch; each batch has `"mask"`, a bool
            per row that says which rows count.
        num_hosts: each step's records are cut into so many equal parts: all hosts have equally many batches, and
            together the epoch. None: one host; for `to_torch` the ranks of torch.distributed, where it is initialised.
        host_index: which part this host gets, from 0; given with num_hosts.
        state: what `state()` of an iterator gave: go on with the batch that it would have given next. The number of
            hosts may be another one (but in the middle of steps that are bucketed together); the data set, `where`,
            seed, shuffle and batch_size may not.
        start_step: so many batches of this host were had, from the begin, or from `state` on: go on after them.
        window_bytes: framed bytes among which "window" mixes records; a number, or a size as "64MiB".

    Raises:
        UsageError: a value that is none of the option's.
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
            None if self.epochs is None else to_whole_number(self.epochs, "epochs", 1),
        )
        _set_frozen(self, "start_step", to_whole_number(self.start_step, "start_step", 0))
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
    def mode(self) -> Mode:
        """Returns the mode of `shuffle`."""
        return mode_of(self.shuffle)

    @property
    def hosts(self) -> tuple[int, int]:
        """(how many there are, which of them this is)."""
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
    """Form of a batch.

    Args:
        label: the feature that is y in `(x, y)`; True: the schema's label; False: none, a batch is a dict by feature
            name. x is the column itself where it is the only one left. A record without a label is an error.
        weights: the feature that is w in `(x, y, w)`, likewise.
        collate: of all lists, or by feature: "ragged" (lists as they are, the default), "dense", "padded" or
            `Padded(...)`, "bucketed" or `Bucketed(...)`, `Packed(length)`; of whole numbers "one_hot" or
            `OneHot(depth)`.
        matrix: these features, numbers and tensors of them, as one float32 [rows, numbers], in this order: the only
            input beside label and weights, `"matrix"` in a dict. What is missing is NaN, or as `defaults` says.
        ids: each batch has `"record/shard"` and `"record/index"` beside its columns: which of `ds.files` a row's record
            is in, and its number there.
        map: a function of a batch, as it would be given, whose result is given instead; it runs in the reader's
            threads, in `to_tf` as a graph of TensorFlow. What it raises is told with the batch's number.

    Raises:
        UsageError: a value that is none of the option's.
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
        if self.matrix is not None and (isinstance(self.matrix, str) or not len(self.matrix)):
            raise UsageError(f"matrix is a list of features, not {self.matrix!r}")
        if self.map is not None and not callable(self.map):
            raise UsageError(f"map is a function of a batch, not {self.map!r}")

    def label_of(self, schema: Schema) -> str | None:
        """Returns the name of the label."""
        return (schema.label if self.label is True else self.label) or None


@dataclass(frozen=True)
class TrainingImages:
    """Targets of encoded images.

    Args:
        decode_images: (height, width): encoded images become uint8 [rows, height, width, channels], resized as
            `tf.image.resize` does; True: of the size that all have. `Images(...)` says more: scale, mean and standard
            deviation, orientation, crop; a dict of them by feature which ones are images. None: as `open` was told.
        channels: of decode_images=(height, width): 1 gray, 3 RGB, 4 RGBA.
        antialias: likewise: resize with antialiasing.

    Raises:
        UsageError: a value that is none of an image.
    """

    decode_images: ImageSpec | None = None
    channels: int = Images.channels
    antialias: bool = Images.antialias

    @property
    def targets(self) -> ImageTarget | None:
        """Returns the images that are to be decoded; None: none are."""
        return parse_image_targets(self.decode_images, self.channels, self.antialias)


@dataclass(frozen=True)
class Memory:
    """Memory of the reader, and its treatment of records that can't be used.

    Args:
        memory_bytes: what may be read ahead or being decoded; a number, or a size as "512MiB".
        on_bad: "skip" leaves records out that are damaged, do not fit the schema or hold images that can't be decoded,
            and fills batches up with the next ones; a warning at an epoch's end says how many, and nobody knows the
            number of batches before. (A worker of PyTorch's loader fills its batches up with the next ones of its own
            steps.) "error" ends at the first one, and names it.

    Raises:
        UsageError: a value that is none of the option's.
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
    """Options that only `to_tf` has.

    Args:
        defaults: feature name to what fills records that lack it; without one, `name/valid` says which have it.

    Raises:
        UsageError: a value that is none of the option's.
    """

    defaults: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.defaults is not None and not isinstance(self.defaults, Mapping):
            raise UsageError(f"defaults is a value by feature name, not {self.defaults!r}")


@dataclass(frozen=True)
class Arrays:
    """Options that only `batches` has.

    Args:
        nulls: of features that may be missing: "masked" arrays, and None in arrays of text; "valid": arrays without
            gaps, as JAX takes them, of zeros and empty text there, with `name/valid`, as `to_tf` and `to_torch` give.

    Raises:
        UsageError: a value that is none of the option's.
    """

    nulls: Nulls = "masked"

    def __post_init__(self) -> None:
        if self.nulls not in ("masked", "valid"):
            raise UsageError(f'nulls is "masked" or "valid", not {self.nulls!r}')


TRAINING_OPTIONS = (Order, Form, TrainingImages, Memory)
NUMPY_OPTIONS = (*TRAINING_OPTIONS, Arrays)
TENSORFLOW_OPTIONS = (*TRAINING_OPTIONS, Graph)


@dataclass(frozen=True)
class Training:
    """All options of an output.

    Attributes:
        batch_size: rows of a batch, of this host; None: single records.

    Raises:
        UsageError: an option has no effect beside the others, or excludes one.
    """

    batch_size: int | None = BATCH_SIZE
    order: Order = field(default_factory=Order)
    form: Form = field(default_factory=Form)
    images: TrainingImages = field(default_factory=TrainingImages)
    memory: Memory = field(default_factory=Memory)
    graph: Graph = field(default_factory=Graph)
    arrays: Arrays = field(default_factory=Arrays)

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
        """The options as keywords say them.

        Raises:
            TypeError: there is no such option. UsageError: a value is none, or has no effect.
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
        """Yields (name, value) of the options that aren't as they are by default."""
        for group in (self.order, self.form, self.images, self.memory, self.graph, self.arrays):
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
}

# (options, whether they have an effect beside the others, what to do where they have none)
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


def hosts(of: Any) -> dict[str, int]:
    """Returns `num_hosts` and `host_index` for `batches`, `to_tf` and `to_torch`: `ds.batches(64,
    **recordmill.hosts(jax))`. No framework is imported: what is asked is what the caller gives.

    Args:
        of: a tf.distribute.InputContext, the module jax, or the module torch.distributed.

    Raises:
        UsageError: it is none of them, or torch.distributed before init_process_group.
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


_HOST_ATTRIBUTES = (  # (how many there are, which of them this is)
    ("num_input_pipelines", "input_pipeline_id"),  # tf.distribute.InputContext
    ("process_count", "process_index"),  # jax
    ("get_world_size", "get_rank"),  # torch.distributed
)


def _call_if_callable(value: Any) -> Any:
    return value() if callable(value) else value


def with_options(*groups: type) -> Callable[[_F], _F]:
    """A decorator: a method's `**options` are shown by `help` and editors as the options of these groups, with their
    defaults and what they mean.
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
