"""CSV files have times of the years 1 to 9999, and refuse others."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recordmill.base.errors import DataError
from recordmill.records.writers.csv import CsvWriter
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

SCHEMA = Schema((Feature("n", "int64"), Feature("t", "timestamp[s]", required=False)))
FIRST, LAST = (
    int(np.datetime64(text, "s").astype(int))
    for text in ("0001-01-01T00:00:00", "9999-12-31T23:59:59")
)


def test_csv_writes_times_of_years_1_to_9999_and_refuses_others(tmp_path: Path) -> None:
    for name, bad_time in (("before", FIRST - 1), ("after", LAST + 1)):
        writer = CsvWriter(tmp_path / f"{name}.csv", SCHEMA)
        for times in ([FIRST, None, LAST], [0, bad_time]):
            batch = pa.record_batch(
                [list(range(len(times))), pa.array(times, pa.timestamp("s"))], to_arrow(SCHEMA)
            )
            if bad_time not in times:
                writer.write(batch)
                continue
            with pytest.raises(
                DataError, match=r"feature 't': the time of row 4 is outside of the years 1 to 9999"
            ):
                writer.write(batch)
        writer.close()
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        assert lines == ['"n","t"', "0,0001-01-01 00:00:00", "1,", "2,9999-12-31 23:59:59"]
