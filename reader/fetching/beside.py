"""`Beside`: what a batch has beside the features of its records, as columns like theirs: which rows count, and which
record of which file each row is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.reader.fetching.fetcher import Rows
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.feature import Feature, Schema

MASK = "mask"  # [rows] bool: which rows count, where batches are filled up
SHARD, INDEX = "record/shard", "record/index"  # [rows] int64: which of the data set's files, and which record of it


@dataclass(frozen=True)
class Beside:
    """mask: whether batches are filled up. ids: whether the places of the records are wanted."""

    mask: bool = False
    ids: bool = False

    @property
    def features(self) -> tuple[Feature, ...]:
        """What the columns are."""
        ids = (Feature(SHARD, "int64", (), True), Feature(INDEX, "int64", (), True)) if self.ids else ()
        return (*ids, Feature(MASK, "bool", (), True)) if self.mask else ids

    def schema(self, schema: Schema) -> Schema:
        """The schema with them."""
        return replace(schema, features=(*schema, *self.features))

    def check(self, schema: Schema) -> None:
        """Raises:
        UsageError: a feature of the records is called as one of them, or there is nothing to give.
        """
        if not schema.names and not self.features:
            raise UsageError("batches would have nothing in them, since no feature is read: select some")
        for name, option in ((MASK, "pad_remainder"), (SHARD, "ids"), (INDEX, "ids")):
            if name in schema and any(feature.name == name for feature in self.features):
                raise UsageError(f"{option} gives {name!r} beside the features, and one is called so: leave it out")

    def added(self, rows: Rows, ends: Int64s) -> Rows:
        """The rows with these columns behind their own. ends: the number of records up to and with each file."""
        if not self.features:
            return rows
        columns = list(rows.batch.columns)
        if self.ids:
            files = np.searchsorted(ends, rows.numbers, "right")
            columns += [pa.array(files), pa.array(rows.numbers - np.concatenate([[0], ends])[files])]
        if self.mask:
            columns.append(pa.array(rows.mask))
        names = [*rows.batch.schema.names, *(feature.name for feature in self.features)]
        return replace(rows, batch=pa.RecordBatch.from_arrays(columns, names=names))
