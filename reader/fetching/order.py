"""`Order`: what a user says about the order of batches. With a data set it makes a `Schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.sizes import whole
from recordmill.reader.fetching.amounts import WINDOW_BYTES
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.sampling.layout import Extent, Layout
from recordmill.reader.sampling.mixture import MixtureSampler
from recordmill.reader.sampling.sampler import Mode, Sampler, mode_of
from recordmill.reader.sampling.schedule import Schedule
from recordmill.reader.sampling.steps import End, Steps
from recordmill.shards.pieces import PIECE_BYTES

_PIECES = 16  # a window holds at least this many pieces, so that records of that many places meet in it


@dataclass(frozen=True)
class Order:
    """shuffle: False, True or "window", "global" (see `sampling.sampler`). seed: any integer. window_bytes: framed
    bytes among which "window" mixes. epochs: how often, counted from the very first; None: without end.
    drop_remainder, pad_remainder: what becomes of the records at an epoch's end that do not fill a step.
    num_hosts, host_index: in how many equal parts each step is cut, and which of them is wanted.
    state: where to go on.

    Raises:
        UsageError: seed or epochs are no whole numbers.
    """

    shuffle: bool | str = False
    seed: int = 0
    window_bytes: int = WINDOW_BYTES
    epochs: int | None = 1
    drop_remainder: bool = False
    pad_remainder: bool = False
    num_hosts: int = 1
    host_index: int = 0
    state: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole(self.seed, "seed"))
        if self.epochs is not None:
            object.__setattr__(self, "epochs", whole(self.epochs, "epochs"))


def make_schedule(dataset: Fetchable, batch_size: int, order: Order) -> Schedule:
    """The steps of this host.

    Raises:
        UsageError: an option does not fit, with another or with the data.
    """
    if order.drop_remainder and order.pad_remainder:
        raise UsageError("drop_remainder leaves out what pad_remainder would fill up: give one of them")
    if order.window_bytes < 1:
        raise UsageError(f"window_bytes must be at least 1, not {order.window_bytes}")
    if order.state is not None and "bucketed" in order.state:
        raise UsageError("state is in the middle of steps that were bucketed together: go on bucketed, as it was")
    mode = mode_of(order.shuffle)
    Steps(0, batch_size, "drop", order.num_hosts, order.host_index)  # refused before a file is counted
    if mode == "global" and (streamed := [file.file for file in dataset.files if not file.seekable]):
        raise UsageError(
            f'shuffle="global" needs any record at any time, and {streamed[0].name} can only be read from the front '
            f'({streamed[0].compression}): shuffle="window" mixes its records as they come, `recordmill build` '
            "makes shards of it that can be read from anywhere"
        )
    records = len(dataset)
    end: End = "drop" if order.drop_remainder else "pad" if order.pad_remainder else "short"
    steps = Steps(records, batch_size, end, order.num_hosts, order.host_index)
    sampler = make_sampler(dataset, mode, order)
    schedule = Schedule(sampler, steps, order.epochs)
    return schedule if order.state is None else schedule.at(order.state)


def make_sampler(dataset: Fetchable, mode: Mode, order: Order) -> Sampler | MixtureSampler:
    """The order of a data set's epochs, or of a mixture's."""
    if (mixed := dataset.mixed) is not None:
        samplers = (_one_sampler(one, mode, order) for one in mixed.datasets)
        return MixtureSampler(tuple(samplers), mixed.proportions, mixed.records, dataset.fingerprint)
    return _one_sampler(dataset, mode, order)


def _one_sampler(dataset: Fetchable, mode: Mode, order: Order) -> Sampler:
    piece_bytes = max(min(order.window_bytes // _PIECES, PIECE_BYTES), 1)
    extents = (Extent(file.records, file.framed_bytes, file.seekable) for file in dataset.files)
    layout = Layout.of(extents if mode == "window" else (), piece_bytes, dataset.matching)
    return Sampler(mode, len(dataset), layout, order.seed, dataset.fingerprint, order.window_bytes)
