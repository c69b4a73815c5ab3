"""`Trainable`: the methods of data sets that return batches for training.

TensorFlow and PyTorch are imported by the methods that need them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import MissingExtraError
from recordmill.options.calls import with_keywords
from recordmill.options.shared import BATCH_SIZE
from recordmill.reader.options.training import Training, parse_map

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf
    from typing_extensions import Unpack

    from recordmill.reader.batches.source import Batches
    from recordmill.reader.options.keywords import (
        BatchesKeywords,
        ToKerasKeywords,
        ToTfKeywords,
        ToTorchKeywords,
    )
    from recordmill.reader.prefetch.protocols import Fetchable
    from recordmill.reader.torch.datasets import TorchBatches
    from recordmill.schemas.feature import Schema
    from recordmill.shards.record_files import RecordFiles

_Records = TypeVar("_Records", bound="Fetchable")


@suggest_fields
class Trainable(Generic[_Records]):
    """Base class of data sets, mixtures and zips, with the methods that return batches.

    The options determine the order of the batches exactly. It is the same for every output.

    Attributes:
        records: The records.
    """

    def __init__(self, records: _Records) -> None:
        self.records = records

    @property
    def schema(self) -> Schema:
        """The features that are read."""
        return self.records.schema

    @property
    def files(self) -> RecordFiles:
        """The open files. For a zip, these are the files of its first data set."""
        return self.records.files

    @property
    def fingerprint(self) -> str:
        """Identity of the records, independent of their location.

        It covers the names, sizes and contents of the files, the selection of records, and the
        conversions. The content of a shard is the digest in the manifest. The content of any other
        file is a digest of the lengths and CRCs of its records, which are read for it.
        """
        return self.records.fingerprint

    def __len__(self) -> int:
        """Returns the number of records of an epoch."""
        return len(self.records)

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records in order, decoded on threads.

        A batch holds the records of about 8 MiB of a file. If the view selects records, a batch
        holds only the matching ones. If images are decoded, a batch has at most 64 MiB of pixels,
        or one record. If records were selected by number, parts of files without selected records
        are not read. Nothing is read until the iterator is consumed.

        Args:
            start: Number of the first record. Negative numbers count from the end, as in a slice.
            stop: Number after the last record. None means the end.

        Yields:
            Record batches with the columns of `schema`.

        Raises:
            DataError: A record is damaged or does not fit the schema.
            UsageError: A range of a mixture is requested. Its records have no numbers.
        """
        return self.records.record_batches(start, stop)

    @with_keywords("batches")
    def batches(self, batch_size: int = BATCH_SIZE, **options: Unpack[BatchesKeywords]) -> Batches:
        """Returns an iterator of batches as dicts of NumPy arrays.

        The arrays are under the feature names and have `batch_size` rows. No framework is needed.

        Args:
            batch_size: Number of rows of a batch of this host.

        Returns:
            An iterator. Its method `state` returns the position as a dict that the option `state`
            accepts.

        Raises:
            UsageError: An option does not fit the data or the other options, or the state belongs
                to another order.

        Examples:
            >>> batch = next(recordmill.open("shards").batches(4, seed=1))
            >>> sorted(batch), batch["size"].shape
            (['animal', 'id', 'size', 'tokens'], (4,))
        """
        from recordmill.reader.batches.source import Batches

        return Batches(self.records, Training.from_keywords("batches", batch_size, options))

    @with_keywords("to_tf")
    def to_tf(
        self, batch_size: int | None = BATCH_SIZE, **options: Unpack[ToTfKeywords]
    ) -> tf.data.Dataset:
        """Returns a `tf.data.Dataset` of batches.

        `batches` returns the same records and values in the same order.
        `recordmill.reader.tensorflow.program` describes the tensor of each type of feature. If the
        data set is iterated again, as Keras does in each epoch, it continues with the next epochs.

        Args:
            batch_size: Number of rows of a batch of this host. If None, single records are
                returned.

        Returns:
            A `tf.data.Dataset` of dicts, or of tuples if the option `label` is set.

        Raises:
            MissingExtraError: TensorFlow is not installed.
            UsageError: An option does not fit the data or the other options.
        """
        tensorflow = _import_extra("to_tf", "tensorflow", "tensorflow.dataset")
        dataset: tf.data.Dataset = tensorflow.tf_dataset(
            self.records, Training.from_keywords("to_tf", batch_size, options)
        )
        return dataset

    @with_keywords("to_keras")
    def to_keras(
        self,
        batch_size: int = BATCH_SIZE,
        *,
        label: str | bool = True,
        **options: Unpack[ToKerasKeywords],
    ) -> tf.data.Dataset:
        """Returns a `tf.data.Dataset` for `fit` of Keras 3, with any backend.

        This is `to_tf` with the label of the schema. Keras warns that `fit(shuffle=True)`, its
        default, has no effect on such data. This method hides the warning.

        Args:
            batch_size: Number of rows of a batch of this host.
            label: The feature that is y in `(x, y)`. True means the label of the schema.
            **options: Other options of `to_tf`.

        Returns:
            A `tf.data.Dataset` of tuples.

        Raises:
            MissingExtraError: TensorFlow is not installed.
            UsageError: An option does not fit the data or the other options.
        """
        warnings.filterwarnings(
            "ignore", "`shuffle=True` was passed, but will be ignored since the data `x` was prov"
        )
        return self.to_tf(batch_size, label=label, **options)

    @with_keywords("to_torch")
    def to_torch(
        self, batch_size: int = BATCH_SIZE, **options: Unpack[ToTorchKeywords]
    ) -> TorchBatches:
        """Returns a PyTorch `IterableDataset` of batches of tensors.

        `batches` returns the same records and values in the same order.
        `recordmill.reader.torch.tensors` describes the tensor of each type of feature.

        Pass it to `DataLoader(batches, batch_size=None, num_workers=...)`. The workers divide the
        steps among them, and the seed still determines the order. If the data set is iterated
        again, it continues with the next epochs. `set_epoch` selects another epoch, and
        `state_dict` and `state_after` return positions to resume from. If batches are bucketed or
        packed, each worker reads the records of all workers and makes only its own batches.

        Args:
            batch_size: Number of rows of a batch of this host.

        Returns:
            An `IterableDataset`.

        Raises:
            MissingExtraError: PyTorch is not installed.
            UsageError: An option does not fit the data or the other options, or the state belongs
                to another order.
        """
        from recordmill.reader.batches.source import BatchSource

        datasets = _import_extra("to_torch", "torch", "torch.datasets")
        training = Training.from_keywords("to_torch", batch_size, options)
        num_ranks = None
        # without `num_hosts`, the ranks of torch.distributed are the hosts if it is initialised
        if training.order.num_hosts is None:
            num_ranks, rank = datasets.get_ranks()
            training = replace(
                training, order=replace(training.order, num_hosts=num_ranks, host_index=rank)
            )
        source = BatchSource.from_options(self.records, training)
        batches: TorchBatches = datasets.TorchBatches(
            source, source.plan(batch_size).skip_finished_epoch(), num_ranks
        )
        return batches

    def map(self, function: Callable[[Any], Any]) -> MappedBatches:
        """Returns the batches of this data set, changed by a function.

        Args:
            function: Takes a batch as `batches` returns it and returns another one, like the option
                `map` of `batches`.

        Returns:
            An object with the methods `map`, `batches`, `to_tf`, `to_keras` and `to_torch`.

        Examples:
            >>> doubled = recordmill.open("shards").map(lambda batch: batch["size"] * 2)
            >>> next(doubled.batches(3, shuffle=False)).tolist()
            [7.0, 0.0, 3.0]
        """
        return MappedBatches(self, (function,))


@suggest_fields
@dataclass(frozen=True)
class MappedBatches:
    """Batches of a data set after functions are applied to them.

    Such an object has no records, tables or arrays.

    Attributes:
        dataset: A data set, a mixture or a zip.
        functions: Each function takes the result of the one before it. The first one takes a batch
            as `batches` returns it, which is `(x, y)` if there is a label.

    Raises:
        UsageError: A function is not callable, or does not take one argument.
    """

    dataset: Any
    functions: tuple[Callable[[Any], Any], ...]

    def __post_init__(self) -> None:
        for function in self.functions:
            parse_map(function, "map")

    def map(self, function: Callable[[Any], Any]) -> MappedBatches:
        """Returns these batches, changed by another function."""
        return MappedBatches(self.dataset, (*self.functions, function))

    @with_keywords("batches")
    def batches(self, batch_size: int = BATCH_SIZE, **options: Unpack[BatchesKeywords]) -> Batches:
        """Returns `batches` of the data set, with the functions applied."""
        batches: Batches = self.dataset.batches(batch_size, **self._with_map(options))
        return batches

    @with_keywords("to_tf")
    def to_tf(
        self, batch_size: int | None = BATCH_SIZE, **options: Unpack[ToTfKeywords]
    ) -> tf.data.Dataset:
        """Returns `to_tf` of the data set, with the functions applied as TensorFlow graphs."""
        return self.dataset.to_tf(batch_size, **self._with_map(options))

    @with_keywords("to_keras")
    def to_keras(
        self,
        batch_size: int = BATCH_SIZE,
        *,
        label: str | bool = True,
        **options: Unpack[ToKerasKeywords],
    ) -> tf.data.Dataset:
        """Returns `to_keras` of the data set, with the functions applied as TensorFlow graphs."""
        return self.dataset.to_keras(batch_size, label=label, **self._with_map(options))

    @with_keywords("to_torch")
    def to_torch(
        self, batch_size: int = BATCH_SIZE, **options: Unpack[ToTorchKeywords]
    ) -> TorchBatches:
        """Returns `to_torch` of the data set, with the functions applied."""
        batches: TorchBatches = self.dataset.to_torch(batch_size, **self._with_map(options))
        return batches

    def _with_map(self, options: Mapping[str, Any]) -> dict[str, Any]:
        function = options.get("map")
        return dict(options) | {
            "map": partial(
                _apply_in_order, (self if function is None else self.map(function)).functions
            )
        }

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a data set after map has no {name!r}, because the function takes "
            "batches, and only batches, to_tf, to_keras and to_torch return them; "
            f"use {name!r} before map"
        )


def _apply_in_order(functions: tuple[Callable[[Any], Any], ...], batch: Any) -> Any:
    for function in functions:
        batch = function(batch)
    return batch


def _import_extra(method: str, package: str, module: str) -> Any:
    """Imports a module of `reader` that needs an optional package.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        import_module(package)
        return import_module(f"recordmill.reader.{module}")
    except ImportError as error:
        # another package is missing, so installing the extra would not help
        if (error.name or "").split(".")[0] != package:
            raise
        raise MissingExtraError(
            method, {"tensorflow": "tf"}.get(package, package), package
        ) from None
