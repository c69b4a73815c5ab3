"""Mixtures of data sets, which are read like one data set: `mixture`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from recordmill.base.arguments import suggest_fields, suggest_keywords
from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset
from recordmill.reader.records import Records
from recordmill.reader.sampling.sampler import Proportions, RecordSubset
from recordmill.reader.selection import make_not_dropped_error
from recordmill.reader.take import read_columns
from recordmill.reader.training import Trainable
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.record_files import RecordFiles

_MAX_FEATURE_CHARACTERS = 200  # an error message cuts the description of a feature to this length


@suggest_keywords
def mixture(
    datasets: Sequence[tuple[Dataset, float]], *, stop: Literal["first", "all"] = "first"
) -> Mixture:
    """Mixes data sets in exact proportions.

    The result has the methods `batches`, `to_tf` and `to_torch`, with the same options as a
    `Dataset`. One state covers all of its data sets.

    Args:
        datasets: Pairs of a data set and its weight, for example `[(a, 3), (b, 1)]` or `[(a, 0.75),
            (b, 0.25)]`. Weights are above 0. All data sets must have the same features, so use
            `select` to drop others. A feature that may be missing in one of them may be missing in
            the mixture.
        stop: Length of an epoch, always in complete cycles of the weights. "first" ends before a
            data set would repeat any of its records. "all" ends when every data set has returned
            all of its records. The next epoch continues each data set after its last record.

    Returns:
        The mixture.

    Raises:
        UsageError: There is no data set, a weight is not above 0, the features differ, or a data
            set occurs twice.

    Examples:
        >>> train = recordmill.open("shards", "train")
        >>> test = recordmill.open("shards", "test")
        >>> mixed = recordmill.mixture([(train, 4), (test, 1)], stop="all")
        >>> len(mixed), next(mixed.batches(5))["id"].shape
        (15, (5,))
    """
    if not isinstance(datasets, list | tuple):
        raise UsageError(
            f"a mixture takes a list of pairs, as in [(data set, weight), ...], not {datasets!r:.99}"
        )
    for pair in datasets:
        is_pair = isinstance(pair, Sequence) and len(pair) == 2
        if not is_pair or not isinstance(pair[0], Dataset):
            raise UsageError(
                "a mixture takes [(data set, weight), ...], each as open() returns "
                f"it, not {pair!r:.99}"
            )
    proportions = Proportions.from_weights([weight for _, weight in datasets])
    records = MixedRecords(tuple(dataset.records for dataset, _ in datasets), proportions, stop)
    # Reports data sets that do not fit together here. Damage is reported by the code that reads
    # the records, or skipped by on_bad="skip".
    with contextlib.suppress(DataError):
        _ = records.images, records.schema, len(records)
    return Mixture(records)


@suggest_fields
class Mixture(Trainable["MixedRecords"]):
    """A mixture of data sets. Use `mixture` to create one.

    Attributes:
        records: The records of the data sets.
    """

    def select(self, columns: Sequence[str]) -> Mixture:
        """Returns the mixture with some of the features.

        Args:
            columns: Names of features.

        Raises:
            UsageError: A feature is unknown.
        """
        return Mixture(self.records.select(columns))

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records of each data set, as one table.

        Args:
            records: Number of records in total, rounded up to the same number for each data set.
        """
        return self.records.head(records)

    def __repr__(self) -> str:
        datasets, proportions = self.records.mixed
        counts = " : ".join(map(str, proportions.counts))
        return f"<Mixture of {len(datasets)} data sets, {counts}: {len(self):,} records per epoch>"


@dataclass(frozen=True, eq=False)
class MixedRecords:
    """Immutable view of the records of a mixture. It implements `Fetchable`.

    Attributes:
        datasets: The records of each data set.
        proportions: The weights, as whole numbers.
        stop: Length of an epoch, as in `mixture`.
    """

    datasets: tuple[Records, ...]
    proportions: Proportions
    stop: str

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return max(dataset.threads for dataset in self.datasets)

    @cached_property
    def _joined_files(self) -> RecordFiles:
        return RecordFiles.join([dataset.files for dataset in self.datasets])

    @property
    def files(self) -> RecordFiles:
        """The open files of all data sets, in their order, for reading."""
        for dataset in self.datasets:
            _ = dataset.files  # applies the settings of the data set for reads from stores
        return self._joined_files

    @property
    def parts(self) -> tuple[MixedRecords]:
        """Only this object, because only a zip has several parts."""
        return (self,)

    @property
    def mixed(self) -> tuple[Sequence[Records], Proportions]:
        """The data sets and their proportions."""
        return self.datasets, self.proportions

    @cached_property
    def num_records(self) -> int:
        """Number of records of an epoch.

        The first access counts the records of each data set.

        Raises:
            UsageError: A data set is in the mixture twice, or too small for its weight.
        """
        prints = [dataset.fingerprint for dataset in self.datasets]
        if len(set(prints)) < len(prints):
            raise UsageError(
                "a data set is in the mixture twice: give it once, with the sum of its weights"
            )
        return _epoch_records(self.datasets, self.proportions, self.stop)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the mixture: a hash of its data sets, proportions and length."""
        prints = [dataset.fingerprint for dataset in self.datasets]
        words = [*prints, self.proportions.counts, len(self)]
        return hashlib.blake2b("\n".join(map(str, words)).encode(), digest_size=16).hexdigest()

    @property
    def generations(self) -> tuple[tuple[str, int], ...]:
        """(folder, generation) of each data set that has generations."""
        return tuple(pair for dataset in self.datasets for pair in dataset.generations)

    @cached_property
    def schema(self) -> Schema:
        """The features, which all data sets have."""
        schema = _common_schema([dataset.schema for dataset in self.datasets])
        # the payloads of all data sets are decoded with the conversion of the first one
        if len({dataset.make_decoding(schema) for dataset in self.datasets}) > 1:
            raise UsageError(
                "features of a mixture must have the same names in the records, before they are renamed, and be "
                "decoded alike"
            )
        return schema

    @cached_property
    def images(self) -> Mapping[str, Any]:
        """Targets of the images that are decoded, by feature name."""
        images = self.datasets[0].images
        if any(dataset.images != images for dataset in self.datasets):
            raise UsageError("the data sets of a mixture are opened with different decode_images")
        return images

    @cached_property
    def record_subset(self) -> RecordSubset | None:
        """Numbers of the matching records among the stored ones. None means all."""
        if all(dataset.record_subset is None for dataset in self.datasets):
            return None
        parts, first = [], 0
        for dataset in self.datasets:
            parts.append(first + dataset.to_stored_numbers(np.arange(len(dataset))))
            first += dataset.open_files.num_records
        return RecordSubset.from_numbers(np.concatenate(parts), first)

    def __len__(self) -> int:
        """Returns the number of records of an epoch."""
        return self.num_records

    def may_lack(self, name: str) -> bool:
        """Returns whether a record may lack a feature. Reads no records."""
        return any(dataset.may_lack(name) for dataset in self.datasets)

    def select(self, columns: Sequence[str]) -> MixedRecords:
        """Returns the same records with some of the features."""
        return self._map(lambda dataset: dataset.select(columns))

    def drop_missing(self, names: Sequence[str]) -> MixedRecords:
        """Raises UsageError, because a condition belongs to one data set."""
        raise make_not_dropped_error(names[0])

    @cached_property
    def encoded_view(self) -> MixedRecords:
        """This mixture, with images as stored bytes. Its fingerprint is the same."""
        return self._map(lambda dataset: dataset.encoded_view)

    @cached_property
    def lenient_view(self) -> MixedRecords:
        """This mixture, without errors for damaged places in files without a manifest."""
        return self._map(lambda dataset: dataset.lenient_view)

    def _map(self, change: Callable[[Records], Records]) -> MixedRecords:
        return replace(self, datasets=tuple(map(change, self.datasets)))

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the conversion of payloads to these features.

        The conversion is the same for all data sets.
        """
        return self.datasets[0].make_decoding(schema)

    def read(self, numbers: Int64s, schema: Schema, *, use_mapping: bool = True) -> pa.RecordBatch:
        """Reads records of all data sets by number.

        Args:
            numbers: Numbers among the stored records of all files. They may repeat.
            schema: The features to read.
            use_mapping: See `RecordFiles.frames`.
        """
        decoding = self.make_decoding(schema)
        return read_columns(self.files, numbers, decoding, use_mapping=use_mapping)

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields all records of one data set after another.

        Raises:
            UsageError: A range was requested. Records of a mixture have no numbers.
        """
        if (start, stop) != (0, None):
            raise UsageError("the records of a mixture can't be read by number")
        arrow = to_arrow(self.schema)
        for dataset in self.datasets:
            yield from (batch.select(arrow.names).cast(arrow) for batch in dataset.record_batches())

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records of each data set, as one table."""
        share = -(-records // len(self.datasets))
        tables = [dataset.head(share) for dataset in self.datasets]
        return pa.concat_tables([table.cast(tables[0].schema) for table in tables])


def _common_schema(schemas: Sequence[Schema]) -> Schema:
    """Returns the common features of data sets.

    A feature is required if it is required in each of them.

    Raises:
        UsageError: The features differ.
    """
    first = schemas[0]
    for other in schemas[1:]:
        if set(first.names) != set(other.names) or first.message != other.message:
            differences = sorted({*first.names} ^ {*other.names}) or [first.message, other.message]
            raise UsageError(
                "the data sets of a mixture do not all have the same features: "
                f"{', '.join(differences)}"
            )
        for feature in first:
            # `required` may differ: the mixture requires a feature only if all data sets do
            expected = replace(feature, required=True)
            actual = replace(other[feature.name], required=True)
            if expected != actual:
                raise UsageError(
                    f"the data sets of a mixture differ in a feature: {str(expected)[:_MAX_FEATURE_CHARACTERS]}, {str(actual)[:_MAX_FEATURE_CHARACTERS]}"
                )
    features = (
        replace(f, required=all(schema[f.name].required for schema in schemas)) for f in first
    )
    label = first.label if all(schema.label == first.label for schema in schemas) else None
    return replace(first, features=tuple(features), label=label)


def _epoch_records(datasets: Sequence[Records], proportions: Proportions, stop: str) -> int:
    if stop not in ("first", "all"):
        raise UsageError(f'stop is "first" or "all", not {stop!r}')
    sizes = [len(dataset) for dataset in datasets]
    if not all(sizes):
        raise UsageError(f"data set {sizes.index(0)} of the mixture has no records")
    # For each data set: the complete cycles that its records are enough for, and the cycles until
    # all of its records are used.
    cycles = [
        (size // count, -(-size // count))
        for size, count in zip(sizes, proportions.counts, strict=True)
    ]
    num_cycles = (
        min(complete for complete, _ in cycles)
        if stop == "first"
        else max(started for _, started in cycles)
    )
    if not num_cycles:
        raise UsageError(
            f"the weights repeat after {proportions.cycle_records:,} records, for "
            f"which the data sets of {sizes} records are too small: use rounder "
            'weights, or stop="all"'
        )
    return num_cycles * proportions.cycle_records
