"""Interface between data sets and the outputs of training.

NumPy batches, tf.data and PyTorch use a data set or a mixture through `Fetchable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.reader.sampling.sampler import Proportions, RecordSubset
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.feature import Schema
from recordmill.shards.record_files import RecordFiles


class Fetchable(Protocol):
    """Records that threads can read by number: a data set or a mixture.

    Attributes:
        threads: The number of threads that read and decode.
        files: [files] the open files. The first access in a process applies the settings for
            stores, as `apply_store_settings` does.
        mixture_parts: The parts of a mixture; None: this is one data set.
        zip_parts: The data sets that contain the features if several are zipped; (): this is one
            data set.
        ends: int64 [files] the number of records up to and including each file.
        fingerprint: Identity of the data set.
        schema: The features to read.
        file_records: The number of records of each file, including those outside the subset.
        record_subset: The subset of records in use; None: all.
    """

    threads: int

    @property
    def files(self) -> RecordFiles: ...

    def apply_store_settings(self) -> None: ...

    @property
    def mixture_parts(self) -> MixtureParts | None: ...

    @property
    def zip_parts(self) -> Sequence[Fetchable]: ...

    @property
    def ends(self) -> Int64s: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def file_records(self) -> list[int]: ...

    @property
    def record_subset(self) -> RecordSubset | None: ...

    def __len__(self) -> int: ...

    def select(self, columns: Sequence[str]) -> Fetchable:
        """Returns the same records with only these features."""

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the decoding of payloads into these features, under their stored names."""

    @property
    def images(self) -> Mapping[str, Any]:
        """Options of the encoded images that are decoded on reading, by feature.

        These features are tensors in `schema`.
        """

    @property
    def encoded_view(self) -> Fetchable:
        """The data set with its images as they are stored."""

    @property
    def lenient_view(self) -> Fetchable:
        """View of the data set that does not stop at damaged records.

        They are reported as unreadable.
        """

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records."""

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records [start, stop) in stored order."""


@dataclass(frozen=True)
class MixtureParts:
    """Parts of a mixture.

    Attributes:
        datasets: Data sets. Their files are numbered consecutively.
        proportions: The records of each data set in a cycle.
        records: The number of records of an epoch of the mixture.
    """

    datasets: tuple[Fetchable, ...]
    proportions: Proportions
    records: int
