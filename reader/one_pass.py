"""The records of files that nobody described, read once: by the schema that the first of them tell, so long as the
others confirm it.
"""

from __future__ import annotations

import pyarrow as pa

from recordmill.records.columns.decoding import Decoding
from recordmill.records.inference.confirm import Guess
from recordmill.shards.catalog import Catalog
from recordmill.shards.loads.batches import Load
from recordmill.shards.loads.guess import confirm_load, guess_schema, selected


def guess_of(catalog: Catalog, threads: int) -> Guess | None:
    """The schema that the first records of the catalog's files tell; None where they can't."""
    return guess_schema(catalog.files, threads=threads)


def confirm_batches(load: Load, guess: Guess, decoding: Decoding) -> list[pa.RecordBatch]:
    """The records of a load as `decoding` makes columns of them.

    Raises:
        Unconfirmed: a record is not what was guessed. DataError: one is damaged, or can't be converted.
    """
    batches = (selected(batch, decoding.stored) for batch in confirm_load(load, guess))
    return [decoding.converted(batch, load.file.path, "record {}".format) for batch in batches]
