"""Mixin of a data set for training: `batches`, `to_tf`, `to_keras`, `to_torch`. Keywords in, outputs out; TensorFlow
and PyTorch are imported when they are asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.reader.options.training import (
    BATCH_SIZE,
    NUMPY_OPTIONS,
    TENSORFLOW_OPTIONS,
    TRAINING_OPTIONS,
    Training,
    with_options,
)

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from recordmill.reader.batches.source import Batches
    from recordmill.reader.options.training import (
        NumpyKeywords,
        TensorFlowKeywords,
        TrainingKeywords,
    )
    from recordmill.reader.prefetch.protocols import Fetchable
    from recordmill.reader.torch.datasets import TorchBatches


class Trainable:
    """Batches in an exact order, which is the same by every output. To be mixed into what is `Fetchable`."""

    @with_options(*NUMPY_OPTIONS)
    def batches(
        self: Fetchable, batch_size: int = BATCH_SIZE, **options: Unpack[NumpyKeywords]
    ) -> Batches:
        """An iterator of NumPy dicts for training without TensorFlow: column name to array of batch_size rows.

        Args:
            batch_size: rows of a batch, of this host.

        Raises:
            UsageError: options that do not fit, or a state of something else.
        """
        from recordmill.reader.batches.source import Batches

        return Batches(self, Training.from_options(batch_size, options, NUMPY_OPTIONS))

    @with_options(*TENSORFLOW_OPTIONS)
    def to_tf(
        self: Fetchable, batch_size: int | None = BATCH_SIZE, **options: Unpack[TensorFlowKeywords]
    ) -> tf.data.Dataset:
        """A tf.data.Dataset of batches, in the order and with the values of `batches`; which tensors a feature
        becomes: `recordmill.reader.tensorflow.program`.

        Args:
            batch_size: rows of a batch; None: single records. Iterated again, as Keras does for each epoch, it goes
                on with the next epochs.

        Raises:
            MissingExtraError: TensorFlow is not installed. UsageError: an option does not fit the data.
        """
        dataset: tf.data.Dataset = _import_extra(
            "to_tf", "tensorflow", "tensorflow.dataset"
        ).tf_dataset(self, Training.from_options(batch_size, options, TENSORFLOW_OPTIONS))
        return dataset

    @with_options(*TENSORFLOW_OPTIONS)
    def to_keras(
        self: Fetchable, batch_size: int = BATCH_SIZE, *, label: str | bool = True, **options: Any
    ) -> tf.data.Dataset:
        """Returns what `to_tf` gives, with the schema's label, for Keras 3 with any backend.

        Its warning that `fit(shuffle=True)`, the default there, has no effect on such data is not shown any more.

        Args:
            batch_size: rows of a batch.

        Raises:
            MissingExtraError: TensorFlow is not installed. UsageError: an option does not fit the data.
        """
        warnings.filterwarnings(
            "ignore", "`shuffle=True` was passed, but will be ignored since the data `x` was prov"
        )
        return Trainable.to_tf(self, batch_size, label=label, **options)

    @with_options(*TRAINING_OPTIONS)
    def to_torch(
        self: Fetchable, batch_size: int = BATCH_SIZE, **options: Unpack[TrainingKeywords]
    ) -> TorchBatches:
        """An IterableDataset of batches of tensors, in the order and with the values of `batches`; what becomes of
        each feature: `recordmill.reader.torch.tensors`.

        Give it to `DataLoader(batches, batch_size=None, num_workers=...)`: the workers share the steps, and the order
        stays that of the seed. Iterated again it goes on with the next epochs; `set_epoch` says another one. Of
        batches that are bucketed or packed each worker reads the records of all, and makes its own. See also
        `state_dict` and `state_after` of what is returned.

        Args:
            batch_size: rows of a batch, of this host.

        Raises:
            MissingExtraError: PyTorch is not installed. UsageError: options that do not fit, or a state of something
                else.
        """
        from recordmill.reader.batches.source import BatchSource

        datasets = _import_extra("to_torch", "torch", "torch.datasets")
        training = Training.from_options(batch_size, options)
        num_ranks = None
        if training.order.num_hosts is None:
            num_ranks, rank = datasets.ranks()
            training = replace(
                training, order=replace(training.order, num_hosts=num_ranks, host_index=rank)
            )
        source = BatchSource.of(self, training)
        batches: TorchBatches = datasets.TorchBatches(
            source, source.plan(batch_size).at_open_step(), num_ranks
        )
        return batches

    def map(self, function: Callable[[Any], Any]) -> MappedBatches:
        """Returns the batches that `function` makes of those of this data set, as the option `map` of `batches`."""
        return MappedBatches(self, (function,))


@dataclass(frozen=True)
class MappedBatches:
    """Batches that a function makes of those of a data set; of records, tables and arrays it knows nothing.

    Attributes:
        dataset: a data set, a mixture, or what is zipped.
        functions: each takes what the one before it returns, the first one a batch, as `batches` gives it (with a
            label: `(x, y)`).
    """

    dataset: Any
    functions: tuple[Callable[[Any], Any], ...]

    def __post_init__(self) -> None:
        if invalid := [function for function in self.functions if not callable(function)]:
            raise UsageError(f"map takes a function of a batch, not {invalid[0]!r:.99}")

    def map(self, function: Callable[[Any], Any]) -> MappedBatches:
        """Returns the batches that `function` makes of these."""
        return MappedBatches(self.dataset, (*self.functions, function))

    @with_options(*NUMPY_OPTIONS)
    def batches(self, batch_size: int = BATCH_SIZE, **options: Any) -> Batches:
        """Returns `batches` of the data set, mapped."""
        batches: Batches = self.dataset.batches(batch_size, **self._with_map(options))
        return batches

    @with_options(*TENSORFLOW_OPTIONS)
    def to_tf(self, batch_size: int | None = BATCH_SIZE, **options: Any) -> tf.data.Dataset:
        """Returns `to_tf` of the data set, mapped; the functions become graphs of TensorFlow."""
        return self.dataset.to_tf(batch_size, **self._with_map(options))

    @with_options(*TENSORFLOW_OPTIONS)
    def to_keras(self, batch_size: int = BATCH_SIZE, **options: Any) -> tf.data.Dataset:
        """Returns `to_keras` of the data set, mapped, likewise."""
        return self.dataset.to_keras(batch_size, **self._with_map(options))

    @with_options(*TRAINING_OPTIONS)
    def to_torch(self, batch_size: int = BATCH_SIZE, **options: Any) -> TorchBatches:
        """Returns `to_torch` of the data set, mapped."""
        batches: TorchBatches = self.dataset.to_torch(batch_size, **self._with_map(options))
        return batches

    def _with_map(self, options: dict[str, Any]) -> dict[str, Any]:
        function = options.get("map")
        return options | {
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
    """Imports a module of `reader` that needs this package; MissingExtraError where that is not installed."""
    try:
        import_module(package)
        return import_module(f"recordmill.reader.{module}")
    except ImportError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise MissingExtraError(
            method, {"tensorflow": "tf"}.get(package, package), package
        ) from None
