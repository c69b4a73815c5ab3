"""Files in, their `Summary` out, with damage as an error or, by `max_rejects`, as a count: what `recordmill inspect`
does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.inspect.summary import Summary, summarise
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Inputs, find
from recordmill.shards.loads.hints import load_schema
from recordmill.shards.loads.schema_of import infer_files
from recordmill.shards.rejects import RejectBudget, TooManyRejects, is_of_record, with_remedy
from recordmill.storage.files import bound_requests


def inspect(
    inputs: Inputs,
    split: str | None = None,
    *,
    schema: Schema | str | os.PathLike[str] | None = None,
    threads: int | None = None,
    infer_from: str | int | None = None,
    max_rejects: str | int = 0,
    storage_requests: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Look at every record of a data set, or of any TFRecord files.

    max_rejects: how many records may be damaged, as a number or as a share ("1%"); they are counted, told in
    `Summary.rejected`, and left out of everything else. The other options are those of `open`.

    Raises:
        UsageError: an option's value can't be served. DataError: a record is damaged, and max_rejects is 0.
        TooManyRejects: more records are damaged than max_rejects allows.
    """
    bound_requests(storage_requests)
    budget = RejectBudget.parse(max_rejects)
    if budget == RejectBudget():
        try:
            return summarise(
                open(inputs, split, schema=schema, threads=threads, infer_from=infer_from), progress=progress
            )
        except DataError as error:
            if not error.source or not is_of_record(error):
                raise
            raise with_remedy(error) from error
    if infer_from is not None:
        raise UsageError(f"{option('max_rejects')} is of all records: leave out {option('infer_from')}")
    summary = summarise(_damaged(inputs, split, load_schema(schema), threads), lenient=True, progress=progress)
    rejected = summary.rejected
    if not budget.allows(rejected.total, summary.records):
        first = "".join(f"\n  {reject}" for reject in rejected.first)
        raise TooManyRejects(
            f"of {summary.records:,} records are damaged: {rejected.described()}; "
            f"{option('max_rejects', budget.value)} allows fewer:{first}\nAllow them with "
            f"{option('max_rejects', rejected.total)}.",
            rejected.first,
            rejected.counts,
        )
    return summary


def _damaged(inputs: Inputs, split: str | None, schema: Schema | None, threads: int | None) -> Dataset:
    """The data set of files that may be damaged, with a schema of what can be read of them."""
    catalog = find(inputs, split, lenient=True)
    known = catalog.schema if schema is None else schema
    dataset = Dataset(catalog, known, None, threads or 0)
    if known is None:
        dataset.inference = infer_files(catalog.files, threads=dataset.threads, lenient=True)
    return dataset
