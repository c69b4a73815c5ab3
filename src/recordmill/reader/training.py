"""Methods that return batches for training, to be mixed into a data set.

TensorFlow and PyTorch are imported by the methods that need them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import MissingExtraError
from recordmill.options.calls import with_keywords
from recordmill.reader.options.training import BATCH_SIZE, Training, parse_map

if TYPE_CHECKING:
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


@suggest_fields
class Trainable:
    """Mixin that adds batches for training to a class that has records.

    The order of the batches is exact and the same for every output.

    Attributes:
        records: The records of the batches.
    """

    records: Fetchable

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
            batch_size: Number of rows of a batch of this host. None returns single records.

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

        This is `to_tf` with the label of the schema. It also hides a warning of Keras: that
        `fit(shuffle=True)`, its default, has no effect on such data.

        Args:
            batch_size: Number of rows of a batch of this host.
            label: The feature that is y in `(x, y)`. True uses the label of the schema.
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

    It has no records, tables or arrays.

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
            f"a data set after map has no {name!r}: its function takes batches, which batches, to_tf, to_keras and "
            "to_torch give; what is of records and tables comes before map"
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
