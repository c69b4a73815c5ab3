"""Times that an output can't hold end a read, and those at the bounds come back from it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pytest

from recordmill.base.errors import DataError
from recordmill.records.writers.outputs import OUTPUTS, WriterSettings
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

BOUNDS = {
    "csv": ("0001-01-01T00:00:00", "9999-12-31T23:59:59"),
    "jsonl": ("0001-01-01T00:00:00", "9999-12-31T23:59:59"),
    "orc": ("1678-01-01T00:00:00", "2261-12-31T23:59:59"),
}


def write(folder: Path, output: str, times: list[int], shape: tuple[int | None, ...] = ()) -> Path:
    """A file of these times, in seconds since 1970, with a missing one among them."""
    schema = Schema((Feature("t", "timestamp[s]", shape, required=False),))
    rows = [*times, None] if not shape else [times, None, []]
    column = pa.array(rows, to_arrow(schema).field(0).type)
    one = next(one for one in OUTPUTS if one.name == output)
    path = folder / one.file_name("times")
    writer = one.new_writer(path, schema, WriterSettings())
    try:
        writer.write(pa.record_batch([column], schema=to_arrow(schema)))
    except DataError:
        writer.abort()
        raise
    writer.close()
    return path


@pytest.mark.parametrize("output", BOUNDS)
def test_times_at_the_bounds_come_back(tmp_path: Path, output: str) -> None:
    ends = [int(np.datetime64(text, "s").astype(int)) for text in BOUNDS[output]]
    path = write(tmp_path, output, ends)
    read = {"csv": pyarrow.csv.read_csv, "jsonl": pyarrow.json.read_json, "orc": pyarrow.orc.read_table}[output]
    column = read(path)["t"].cast(pa.timestamp("s")).cast(pa.int64()).to_pylist()
    assert [time for time in column if time is not None] == ends


@pytest.mark.parametrize("output", BOUNDS)
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("shape", [(), (None,)], ids=str)
def test_a_time_beyond_is_refused_with_its_feature(
    tmp_path: Path, output: str, end: int, shape: tuple[int | None, ...]
) -> None:
    if output == "csv" and shape:
        return
    beyond = int(np.datetime64(BOUNDS[output][end], "s").astype(int)) + (1 if end else -1)
    shown = re.escape(str(np.datetime64(beyond, "s")))
    with pytest.raises(DataError, match=rf"feature 't': the time {shown} is outside of the years .*to=\"parquet\""):
        write(tmp_path, output, [0, beyond], shape)


def test_outputs_of_numbers_hold_all_times(tmp_path: Path) -> None:
    for output in ("parquet", "arrow", "npy"):
        assert write(tmp_path, output, [0, 2**50]).exists()
