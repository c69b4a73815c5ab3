"""`Trainable`: what a `Dataset` can do for training. The keywords of its faces in, the faces out, which are imported
when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.sizes import bytes_of
from recordmill.reader.fetching.amounts import MEMORY_BYTES, WINDOW_BYTES

if TYPE_CHECKING:
    import tensorflow as tf

    from recordmill.reader.collating.ways import Collate
    from recordmill.reader.faces.batches import Batches
    from recordmill.reader.faces.found import OnBad
    from recordmill.reader.fetching.readable import Fetchable
    from recordmill.reader.images.options import Spec


class Trainable:
    """Batches in an exact order, which is the same by every face. To be mixed into what is `Fetchable`."""

    def batches(
        self: Fetchable,
        batch_size: int,
        *,
        shuffle: bool | Literal["window", "global"] = False,
        seed: int = 0,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        num_hosts: int = 1,
        host_index: int = 0,
        state: Mapping[str, Any] | None = None,
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
    ) -> Batches:
        """An iterator of NumPy dicts for training without TensorFlow: column name to array of batch_size rows.

        Args:
            batch_size: rows of a batch, of this host.
            shuffle: another order in each epoch, the same for the same seed. "window" (or True): pieces of shards in
                random order, and records mixed among as many pieces as fit the window; "global": every record anywhere,
                which files that are only streamed can't give.
            seed: any integer.
            epochs: how often all records are given; None: without end. A batch never mixes two epochs.
            drop_remainder: leave out an epoch's last records if they do not fill the batches of all hosts.
            pad_remainder: fill these batches up instead, with other records of the epoch; each batch has `"mask"`, a
                bool per row that says which rows count.
            num_hosts: each step's records are cut into so many equal parts: all hosts have equally many batches, and
                together the epoch.
            host_index: which part this host gets, from 0.
            state: what `state()` of an iterator gave: go on with the batch that it would have given next. The number of
                hosts may be another one (but in the middle of steps that are bucketed together); the data set, `where`,
                seed, shuffle and batch_size may not.
            window_bytes: framed bytes among which "window" mixes records; a number, or a size as "64MiB".
            memory_bytes: what may be under way, read ahead or being decoded; likewise.
            label: a feature that is given beside the rest, as `(x, y)`; x is the column itself where it is the only one
                left. A record without a label is an error.
            weights: likewise, as `(x, y, weights)`.
            collate: feature to "ragged" (lists as they are, the default), "dense", "padded" or `Padded(...)`,
                "bucketed" or `Bucketed(...)`, `Packed(length)`; of whole numbers "one_hot" or `OneHot(depth)`.
            decode_images: (height, width): encoded images become uint8 [rows, height, width, channels], resized as
                `tf.image.resize` does; antialias: with antialiasing. `Images(...)` says more: scale, mean and standard
                deviation, orientation, crop; a dict of them by feature which ones are images. None: as `open` was
                told.
            on_bad: "skip" leaves records out that are damaged, do not fit the schema or hold images that can't be
                decoded, and fills batches up with the next ones; a warning at an epoch's end says how many, and the
                iterator has no length. "error" ends at the first one, and names it.
            ids: each batch has `"record/shard"` and `"record/index"` beside its columns: which of `ds.files` a row's
                record is in, and its number there.

        Raises:
            UsageError: options that do not fit, or a state of something else.
        """
        from recordmill.reader.collating.form import Form
        from recordmill.reader.faces.batches import Batches
        from recordmill.reader.fetching.order import Order
        from recordmill.reader.images.features import with_images

        window = bytes_of(window_bytes, "window_bytes")
        order = Order(shuffle, seed, window, epochs, drop_remainder, pad_remainder, num_hosts, host_index, state)
        dataset, images = with_images(self, decode_images, channels, antialias)
        return Batches(
            dataset, batch_size, order, memory_bytes, Form(collate or {}, label, weights), images, on_bad, ids
        )

    def to_tf(
        self: Fetchable,
        batch_size: int | None = 256,
        *,
        shuffle: bool | Literal["window", "global"] = True,
        seed: int = 7,
        label: str | Literal[False] | None = None,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        decode_images: Spec | None = None,
        channels: int = 3,
        antialias: bool = False,
        on_bad: OnBad = "error",
        ids: bool = False,
        defaults: Mapping[str, Any] | None = None,
        weights: str | None = None,
        collate: Mapping[str, Collate] | None = None,
        num_hosts: int = 1,
        host_index: int = 0,
        state: Mapping[str, Any] | None = None,
        start_step: int = 0,
        window_bytes: int | str = WINDOW_BYTES,
        memory_bytes: int | str = MEMORY_BYTES,
        portable: bool = False,
        shuffle_records: int = 10_000,
    ) -> tf.data.Dataset:
        """A tf.data.Dataset of batches, in the order and with the values of `batches`; see
        `recordmill.reader.faces.tf.Options`.

        Iterated again, as Keras does for each epoch, it goes on with the next epochs. start_step: so many steps of the
        run are done, or begin at a `state` of `batches`: the first iteration goes on there. portable: a graph of
        TensorFlow's own operations, for tf.data service and export, shuffled through a buffer of shuffle_records.
        """
        from recordmill.reader.faces import tf as in_tf
        from recordmill.reader.fetching.order import Order
        from recordmill.reader.images.features import with_images

        window = bytes_of(window_bytes, "window_bytes")
        order = Order(shuffle, seed, window, epochs, drop_remainder, pad_remainder, num_hosts, host_index, state)
        dataset, images = with_images(self, decode_images, channels, antialias)
        options = in_tf.Options(
            batch_size,
            order,
            label,
            images,
            on_bad,
            defaults or {},
            collate or {},
            weights,
            start_step,
            bytes_of(memory_bytes, "memory_bytes"),
            portable,
            shuffle_records,
            ids,
        )
        return in_tf.to_tf(dataset, options)
