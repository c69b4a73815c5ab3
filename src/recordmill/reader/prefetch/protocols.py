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
    """Records of which the first ones can be inspected."""

    @property
    def schema(self) -> Schema:
        """The features to read."""

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the decoding of payloads into these features, under their stored names."""

    def head(self, records: int) -> pa.Table:
        """Returns the first records."""


class Fetchable(Sampled, Protocol):
    """Records that threads can read by number: those of a data set, a mixture or a zip."""

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
        """The data sets of a mixture, and their records in a cycle. Otherwise None.

        The files of the data sets are numbered consecutively.
        """

    @property
    def fingerprint(self) -> str:
        """Identity of the records."""

    @property
    def images(self) -> Mapping[str, Any]:
        """Targets of the encoded images that are decoded on reading, by feature.

        These features are tensors in `schema`.
        """

    @property
    def record_subset(self) -> RecordSubset | None:
        """The subset of the stored records in use. None means all."""

    def __len__(self) -> int:
        """Returns the number of records of an epoch."""

    def may_lack(self, name: str) -> bool:
        """Returns whether a record may lack a feature. Reads no records."""

    def select(self, columns: Sequence[str]) -> Fetchable:
        """Returns the same records with only these features."""

    def drop_missing(self, names: Sequence[str]) -> Fetchable:
        """Returns the records that have all of these features.

        Raises:
            UsageError: Several data sets are mixed or zipped.
        """

    @property
    def encoded_view(self) -> Fetchable:
        """The same records with images as stored bytes, and with the same fingerprint."""

    @property
    def lenient_view(self) -> Fetchable:
        """The same records, where reading does not stop at damaged ones."""

    def read(self, numbers: Int64s, schema: Schema) -> pa.RecordBatch:
        """Reads records by their numbers among all stored records, in this order.

        Args:
            numbers: int64 [rows], also repeated.
            schema: The features to read.

        Returns:
            The columns of `schema`, under their stored names.

        Raises:
            DataError: A record is damaged or does not fit the schema. The error names its file,
                record and offset.
        """

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records [start, stop) in stored order."""
