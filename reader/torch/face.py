"""`InTorch`: what a data set can do for PyTorch. Keywords in, datasets for its loaders out; PyTorch is imported when
they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.sizes import bytes_of, whole
from recordmill.reader.fetching.amounts import MEMORY_BYTES, WINDOW_BYTES

if TYPE_CHECKING:
    from recordmill.reader.collating.ways import Collate
    from recordmill.reader.faces.found import OnBad
    from recordmill.reader.fetching.readable import Fetchable
    from recordmill.reader.images.options import Spec
    from recordmill.reader.torch.by_number import TorchRecords
    from recordmill.reader.torch.iterable import TorchBatches


class InTorch:
    """Batches of tensors in the order of `batches`. To be mixed into what is `Fetchable`."""

    def to_torch(
        self: Fetchable,
        batch_size: int,
        *,
        shuffle: bool | Literal["window", "global"] = False,
        seed: int = 0,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        num_hosts: int | None = None,
        host_index: int | None = None,
        state: Mapping[str, Any] | None = None,
        start_step: int = 0,
        window_bytes: int | str = WINDOW_BYTES,
        memory_bytes: int | str = MEMORY_BYTES,
        label: str | None = None,
        weights: str | None = None,
        collate: Mapping[str, Collate] | None = None,
        decode_images: Spec | None = None,
        channels: int = 3,
        antialias: bool = False,
        on_bad: OnBad = "error",
        ids: bool = False,
    ) -> TorchBatches:
        """An IterableDataset of batches of tensors, in the order and with the values of `batches`; what becomes of each
        feature: `recordmill.reader.torch.tensors`.

        Give it to `DataLoader(batches, batch_size=None, num_workers=...)`: the workers share the steps, and the order
        stays that of the seed. Iterated again it goes on with the next epochs; `set_epoch` says another one. Of batches
        that are bucketed or packed each worker reads the records of all, and makes its own.

        Args:
            epochs: of one iteration; None: without end.
            num_hosts: as in `batches`; by default that of torch.distributed, where it is initialised.
            host_index: likewise; by default the rank.
            start_step: so many batches of this host have been had, or had behind a `state`: the first iteration goes on
                there. See also `state_dict` and `state_after` of what is returned.
            on_bad: "skip" leaves records out that can't be used; each worker fills its batches up with the next ones of
                its own steps, and has a shorter one at an epoch's end.

        The other arguments are those of `batches`.

        Raises:
            MissingExtraError: PyTorch is not installed. UsageError: options that do not fit, or a state of something
                else.
        """
        from recordmill.reader.collating.course import make_course
        from recordmill.reader.collating.form import Form
        from recordmill.reader.faces.found import order_of
        from recordmill.reader.fetching.beside import Beside
        from recordmill.reader.fetching.order import Order
        from recordmill.reader.images.features import with_images

        iterable = _imported("iterable")
        if epochs is not None:
            epochs = whole(epochs, "epochs", 1)
        start_step = whole(start_step, "start_step", 0)
        if (num_hosts is None) != (host_index is None):
            raise UsageError("give num_hosts and host_index, or neither")
        ranks = None
        if num_hosts is None or host_index is None:
            num_hosts, host_index = iterable.ranks()
            ranks = num_hosts
        window = bytes_of(window_bytes, "window_bytes")
        order = Order(
            shuffle, seed, window, None, drop_remainder, pad_remainder, num_hosts, host_index, state
        )  # fmt: skip
        dataset, images = with_images(self, decode_images, channels, antialias)
        form = Form(collate or {}, label, weights)
        memory = bytes_of(memory_bytes, "memory_bytes")
        given = _imported("given").Given.of(dataset, form, images, Beside(pad_remainder, ids), seed, memory, on_bad)
        if on_bad == "skip" and start_step:
            raise UsageError(
                'on_bad="skip": nobody knows at which record step start_step begins; give a `state` instead'
            )
        course = make_course(dataset, batch_size, order_of(order, on_bad, given.ways), given.ways)
        begin = course.begun_after(start_step) if start_step else course
        batches: TorchBatches = iterable.TorchBatches(given, begin, epochs, ranks, drop_remainder)
        return batches

    def to_torch_map(
        self: Fetchable,
        *,
        label: str | None = None,
        weights: str | None = None,
        collate: Mapping[str, Collate] | None = None,
        decode_images: Spec | None = None,
        channels: int = 3,
        antialias: bool = False,
        ids: bool = False,
    ) -> TorchRecords:
        """A map-style Dataset, whose records a loader's own sampler chooses by number: `DataLoader(records, batch_size,
        shuffle=True)`. Records with lists need `collate={name: Padded(length)}`, or a `collate_fn` of one's own.

        Raises:
            MissingExtraError: PyTorch is not installed. UsageError: options that do not fit.
        """
        from recordmill.reader.collating.form import Form
        from recordmill.reader.collating.ways import refuse_gathered
        from recordmill.reader.fetching.beside import Beside
        from recordmill.reader.images.features import with_images

        dataset, images = with_images(self, decode_images, channels, antialias)
        form = Form(collate or {}, label, weights)
        given = _imported("given").Given.of(dataset, form, images, Beside(ids=ids), 0, MEMORY_BYTES)
        refuse_gathered(given.ways)
        records: TorchRecords = _imported("by_number").TorchRecords(given)
        return records


def _imported(module: str) -> Any:
    """A module of this room that needs PyTorch.

    Raises:
        MissingExtraError: it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(f"recordmill.reader.torch.{module}")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise MissingExtraError("to_torch", "torch", "torch") from None
