"""Options that `batches`, `to_tf` and `to_torch` share.

Each option is declared once, as a field of a class of options. Keywords, types, defaults, checks
and the documentation of the methods follow from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import UsageError
from recordmill.base.sizes import MAX_ROWS, size_in_bytes, to_whole_number
from recordmill.options.calls import Values
from recordmill.options.declare import Options, declare, redeclare
from recordmill.options.parsers import ShuffleMode, parse_whole
from recordmill.options.shared import BATCH_SIZE, Shared
from recordmill.reader.options.collation import Collate
from recordmill.reader.options.images import Images, ImageSpec, ImageTarget, parse_image_targets
from recordmill.reader.sampling.schedule import parse_state
from recordmill.schemas.feature import Schema


def parse_epochs(value: int | None, name: str) -> int | None:
    """Checks the option `epochs`, a number that is at least 1. None means without end.

    Raises:
        UsageError: The value is not a whole number, or below 1.
    """
    return None if value is None else to_whole_number(value, name, 1)


def parse_not_negative(value: int, name: str) -> int:
    """Checks an option that is a whole number from 0 on.

    Raises:
        UsageError: The value is not a whole number, or below 0.
    """
    return to_whole_number(value, name, 0)


def parse_num_hosts(value: int, name: str) -> int:
    """Checks the option `num_hosts`, which is at least 1.

    Raises:
        UsageError: The value is not a whole number, or out of range.
    """
    return to_whole_number(value, name, 1, MAX_ROWS)


def parse_host_index(value: int, name: str) -> int:
    """Checks the option `host_index`, which counts from 0.

    Raises:
        UsageError: The value is not a whole number, or out of range.
    """
    return to_whole_number(value, name, 0, MAX_ROWS)


def parse_label(value: str | bool, name: str) -> str | bool:
    """Checks the option `label`: the name of a feature, or a bool.

    True means the label of the schema.

    Raises:
        UsageError: The value is neither a text nor a bool.
    """
    if not isinstance(value, str | bool):
        raise UsageError(
            f"label is a feature's name, True for the schema's label, or False, not {value!r}"
        )
    return value


def parse_matrix(value: Sequence[str], name: str) -> Sequence[str]:
    """Checks the option `matrix`: a list of names of features.

    Raises:
        UsageError: The value is not a list of texts, or empty.
    """
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if not is_list or not value:
        raise UsageError(f'matrix is a list of features, as in matrix=["x", "z"], not {value!r}')
    return value


def parse_defaults(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Checks the option `defaults`: values by feature name.

    Raises:
        UsageError: The value is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"defaults is a value by feature name, not {value!r}")
    return value


def parse_map(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Checks the option `map`: a function of a batch.

    Raises:
        UsageError: The value is not callable with a batch as the only argument.
    """
    if not callable(function):
        raise UsageError(f"map is a function of a batch, not {function!r}")
    try:
        signature = inspect.signature(function)
    # some functions that are written in C have no signature
    except (ValueError, TypeError):
        return function
    try:
        signature.bind(None)
    except TypeError:
        raise UsageError(
            f"map is a function of one argument, the batch, and this one takes {signature}. With a label, the batch "
            "is the pair (x, y): lambda batch: f(*batch)"
        ) from None
    return function


class Order(Options):
    """Options that determine the records of each batch."""

    shuffle: ShuffleMode = redeclare(Shared)
    seed: int = declare(
        "Any integer. A seed always results in the same order.", default=0, parse=parse_whole
    )
    epochs: int | None = declare(
        "Number of epochs of one iteration. None never ends. A batch never mixes two epochs. If the "
        "data set is iterated again, it continues with the next epochs. A `state` continues the "
        "iteration in which it was taken, or begins the next one if it was taken at the end.",
        default=1,
        parse=parse_epochs,
    )
    drop_remainder: bool = declare(
        "Leaves out the last records of an epoch that do not fill a batch. With several hosts this is "
        "the default for records that do not fill the batches of all hosts.",
        default=False,
    )
    pad_remainder: bool = declare(
        'Fills up these batches with other records of the epoch. Each batch then has `"mask"`, with '
        "True for the rows that count.",
        default=False,
        excludes=(("drop_remainder", True), ("on_bad", "skip")),
    )
    num_hosts: int | None = declare(
        "Number of hosts that train together. Each step is divided into equal parts, so all hosts have "
        "the same number of batches, and together they read the epoch once. None means one host. For "
        "`to_torch`, None uses the ranks of torch.distributed if it is initialised.",
        default=None,
        parse=parse_num_hosts,
        needs=(("host_index", None),),
    )
    host_index: int | None = declare(
        "Index of this host, from 0. It is required with `num_hosts`.",
        default=None,
        parse=parse_host_index,
        needs=(("num_hosts", None),),
    )
    state: Mapping[str, Any] | None = declare(
        "The result of `state()` of an iterator. The new iterator continues after the last batch that "
        "the old one returned. The data set, `where`, `seed`, `shuffle` and `batch_size` must be the "
        "same. The number of hosts may differ, except between steps that are bucketed together.",
        default=None,
        parse=parse_state,
    )
    start_step: int = declare(
        "Number of batches to skip on this host, from the start or after `state`.",
        default=0,
        parse=parse_not_negative,
    )
    window_bytes: int = declare(
        'Size of the window for "window": framed bytes, as a number or as text such as "64MiB".',
        # This window mixes hundreds of thousands of small records, and disks still read long
        # ranges.
        default="64MiB",
        parse=size_in_bytes,
        excludes=(("shuffle", False), ("shuffle", "global")),
    )

    @property
    def hosts(self) -> tuple[int, int]:
        """Number of hosts, and the index of this one."""
        return (
            (1, 0)
            if self.num_hosts is None or self.host_index is None
            else (self.num_hosts, self.host_index)
        )


class Form(Options):
    """Options that determine the form of a batch."""

    label: str | bool = declare(
        "The feature that is y in `(x, y)`. True uses the label of the schema. False returns dicts by "
        "feature name. x is an array instead of a dict if only one feature remains. A record without "
        "a label is an error.",
        default=False,
        parse=parse_label,
    )
    weights: str | None = declare(
        "The feature that is w in `(x, y, w)`. It requires `label`.",
        default=None,
        needs=(("label", None),),
    )
    collate: Mapping[str, Collate] | Collate | None = declare(
        'How lists become arrays, for all lists or by feature name: "ragged" (the default), '
        '"dense", "padded" or `Padded(...)`, "bucketed" or `Bucketed(...)`, or `Packed(length)`. '
        '"one_hot" or `OneHot(depth)` encodes integers.',
        default=None,
    )
    matrix: Sequence[str] | None = declare(
        "Combines numeric features into one float32 array [rows, numbers], in this order. It is the "
        'only input in addition to label and weights, or `"matrix"` in a dict. Missing values are '
        "NaN, or the values of `defaults`.",
        default=None,
        parse=parse_matrix,
    )
    ids: bool = declare(
        'Adds `"record/shard"` and `"record/index"` to each batch: the index of the file in '
        "`ds.files`, and the number of the record in it.",
        default=False,
    )
    map: Callable[[Any], Any] | None = declare(
        "A function that takes a batch. Its result is returned instead of the batch. It runs in the "
        "threads of the reader, or as a TensorFlow graph in `to_tf`. Its errors are raised with the "
        "number of the batch.",
        default=None,
        parse=parse_map,
    )

    def label_of(self, schema: Schema) -> str | None:
        """Returns the name of the label. None if batches have no label."""
        return (schema.label if self.label is True else self.label) or None


class TrainingImages(Options):
    """Options for encoded images."""

    decode_images: ImageSpec | None = declare(
        "(height, width) decodes images to uint8 [rows, height, width, channels], resized as "
        "`tf.image.resize` does. True keeps the size, which must be the same for all images. Lists of "
        "images become lists of arrays. "
        "`Images(...)` has further options such as scaling and cropping. A dict specifies targets by "
        "feature name. None uses the option of `open`.",
        default=None,
    )
    channels: int = declare(
        "Number of channels if `decode_images` is a size or True: 1 for grey, 3 for RGB, 4 for RGBA.",
        default=Images.channels,
    )
    antialias: bool = declare(
        "Resizes with antialiasing if `decode_images` is a size or True.",
        default=Images.antialias,
    )

    def __post_init__(self) -> None:
        is_size = self.decode_images is not None and not isinstance(
            self.decode_images, Images | Mapping
        )
        if not is_size and (self.channels, self.antialias) != (Images.channels, Images.antialias):
            raise UsageError(
                "channels and antialias go with decode_images=(height, width) or True; Images(...) has its own"
            )

    @property
    def targets(self) -> ImageTarget | None:
        """Targets of the images that are decoded. None if none are decoded."""
        return parse_image_targets(self.decode_images, self.channels, self.antialias)


class Memory(Options):
    """Options for the memory of the reader and for unusable records."""

    memory_bytes: int = redeclare(Shared)
    on_bad: Literal["error", "skip"] = declare(
        '"error" raises an error at the first unusable record, with its place. "skip" leaves out '
        "records that are damaged, do not fit the schema or have images that can't be decoded, and "
        "fills batches with the next records. A warning at the end of an epoch reports their number. "
        "The number of batches is then unknown in advance. Each worker of a PyTorch DataLoader fills "
        "its batches with records of its own steps.",
        default="error",
    )


class Graph(Options):
    """Options of `to_tf` only."""

    defaults: Mapping[str, Any] | None = declare(
        "Values for records that lack a feature, by feature name. Without a default, `name/valid` "
        "marks the records that have the feature.",
        default=None,
        parse=parse_defaults,
    )
    nulls: Literal["valid", "drop"] = declare(
        '"drop" leaves out the records that lack a feature that is read. "valid" keeps them.',
        default="valid",
    )


class Tensors(Options):
    """Options of `to_torch` only."""

    nulls: Literal["valid", "drop"] = declare(
        '"drop" leaves out the records that lack a feature that is read. "valid" returns zeros and '
        "empty text for missing values and adds `name/valid`.",
        default="valid",
    )


class Arrays(Options):
    """Options of `batches` only."""

    nulls: Literal["masked", "valid", "drop"] = declare(
        'Form of features that may be missing. "masked" returns masked arrays, and None in arrays of '
        'text. "valid" returns zeros and empty text for missing values and adds `name/valid`, as '
        '`to_tf` and `to_torch` do. JAX needs this form. "drop" leaves out the records that lack a '
        "feature that is read.",
        default="masked",
    )


@dataclass(frozen=True)
class Training:
    """All options of an output.

    Attributes:
        batch_size: Number of rows of a batch of this host. None means single records.
        order: The records of each batch.
        form: The form of a batch.
        images: Targets of encoded images.
        memory: Memory, and unusable records.
        graph: Options of `to_tf`.
        arrays: Options of `batches`.
        tensors: Options of `to_torch`.

    Raises:
        UsageError: An option has no effect with the others.
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
        if self.memory.on_bad == "skip" and self.order.start_step:
            raise UsageError(
                'start_step has no effect here: with on_bad="skip" the first record '
                "of a step is unknown; pass a `state` instead"
            )
        if self.memory.on_bad == "skip" and self.order.hosts[0] > 1:
            raise UsageError(
                'on_bad="skip" makes batches of what is left, and hosts (or ranks of torch.distributed) that skip '
                "other records would not have equally many: it goes without num_hosts. ds.filter leaves records out "
                "by number, and `recordmill build` makes a data set without those that are damaged"
            )

    @classmethod
    def from_keywords(
        cls, call: str, batch_size: int | None, keywords: Mapping[str, Any]
    ) -> Training:
        """Creates the options from the keywords of a call.

        Args:
            call: `batches`, `to_tf` or `to_torch`.
            batch_size: Number of rows of a batch. None means single records.
            keywords: The options that the caller has set.

        Raises:
            TypeError: An option is unknown.
            UsageError: A value is out of range, or an option has no effect.
        """
        values = Values(call, keywords)
        if batch_size is not None:
            batch_size = to_whole_number(batch_size, "batch_size", 1, MAX_ROWS)
        else:
            for name in ("drop_remainder", "pad_remainder", "start_step"):
                if getattr(values[Order], name):
                    raise UsageError(
                        f"{name} has no effect here: batch_size=None returns single records"
                    )
        # The type of a field is the name of its class of options.
        names = {str(field.type): field.name for field in fields(cls)}
        groups: dict[str, Any] = {
            names[group.__name__]: values[group] for group in values.call.classes
        }
        return cls(batch_size, **groups)


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
        raise UsageError("torch.distributed is not initialized: call init_process_group first")
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
