"""Interface between data sets and the outputs of training.

NumPy batches, tf.data and PyTorch read a data set, a mixture or a zip through `Fetchable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.reader.sampling.sampler import Proportions, RecordSubset
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.feature import Schema
from recordmill.shards.record_files import RecordFiles


class Sampled(Protocol):
    """Records that can be inspected: a schema, and the first records."""

    @property
    def schema(self) -> Schema:
        """The features to read."""

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the conversion of payloads to columns of these features.

        The columns have the stored names.
        """

    def head(self, records: int) -> pa.Table:
        """Returns the first records."""


class Fetchable(Sampled, Protocol):
    """Records that threads can read by number.

    Data sets, mixtures and zips implement it.
    """

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""

    @property
    def files(self) -> RecordFiles:
        """The open files.

        The first access in a process applies the settings for stores.
        """

    @property
    def parts(self) -> Sequence[Fetchable]:
        """The data sets of a zip, which are read side by side. Otherwise only this object."""

    @property
    def mixed(self) -> tuple[Sequence[Fetchable], Proportions] | None:
        """The data sets of a mixture, and their records per cycle. None if it is not a mixture.

        The files of the data sets are numbered consecutively.
        """

    @property
    def fingerprint(self) -> str:
        """Identity of the records."""

    @property
    def generations(self) -> tuple[tuple[str, int], ...]:
        """(folder, generation) of each data set. Files without a manifest have none."""

    @property
    def images(self) -> Mapping[str, Any]:
        """Targets of the encoded images that are decoded on reading, by feature.

        In `schema`, these features are tensors.
        """

    @property
    def record_subset(self) -> RecordSubset | None:
        """The subset of the stored records in use. None means all."""

    def __len__(self) -> int:
        """Returns the number of records of an epoch."""

    def may_lack(self, name: str) -> bool:
        """Returns whether a record may lack a feature. Reads no records."""

    def select(self, columns: Sequence[str]) -> Fetchable:
        """Returns a view with only these features."""

    def drop_missing(self, names: Sequence[str]) -> Fetchable:
        """Returns a view of the records that have all of these features.

        Raises:
            UsageError: Several data sets are mixed or zipped.
        """

    @property
    def encoded_view(self) -> Fetchable:
        """A view with images as stored bytes. Its fingerprint is the same."""

    @property
    def lenient_view(self) -> Fetchable:
        """A view that reads past damaged places instead of raising an error."""

    def read(self, numbers: Int64s, schema: Schema, *, use_mapping: bool = True) -> pa.RecordBatch:
        """Reads records by number, in the given order.

        Args:
            numbers: int64 [rows]. Numbers among all stored records. They may repeat.
            schema: The features to read.
            use_mapping: See `RecordFiles.frames`.

        Returns:
            The columns of `schema`, under their stored names.

        Raises:
            DataError: A record is damaged or does not fit the schema. The error names its file,
                record and offset.
        """

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records [start, stop) in stored order."""
