"""A data set for the tests of filters."""

from pathlib import Path

import pyarrow.parquet as pq

from kit.data_sets import mixed_rows, write_data_set
from recordmill.pipelines.read import ReadResult

ROWS = mixed_rows(300)


def make_filtered_set(folder: Path) -> Path:
    """Writes a data set of ROWS."""
    return write_data_set(folder / "out", {"train": ROWS}, shards=3)


def ids(result: ReadResult) -> list[int]:
    return [value for path in result.paths for value in pq.read_table(path)["id"].to_pylist()]
