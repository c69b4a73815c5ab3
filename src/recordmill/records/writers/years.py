"""The years that an output can hold: text has those of ISO 8601, 1 to 9999, and readers of ORC those of nanoseconds in
64 bits. Feature values are counts of a unit, so they may lie beyond.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError
from recordmill.base.option_names import option

TEXT_YEARS = 1, 9999
NANOSECOND_YEARS = 1678, 2261  # all of them; of 1677 and 2262 a part


def check_years(batch: pa.RecordBatch, output: str, years: tuple[int, int]) -> None:
    """Whether all times of the batch lie in these years, the last one included.

    Raises:
        DataError: one doesn't; it names the feature and the time.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        while pa.types.is_nested(column.type):
            column = column.flatten()
        if not pa.types.is_timestamp(column.type) or column.type.unit == "ns":  # nanoseconds are in 1677 to 2262
            continue
        found = pc.min_max(column.cast(pa.int64())).as_py()
        first, behind = (
            np.datetime64(f"{year:04d}", column.type.unit).astype(int) for year in (years[0], years[1] + 1)
        )
        for time in (found["min"], found["max"]):
            if time is not None and not first <= time < behind:
                shown = np.datetime_as_string(np.datetime64(time, column.type.unit))
                raise DataError(
                    f"feature {name!r}: the time {shown} is outside of the years {years[0]} to {years[1]}, which "
                    f"{option('to', output)} can hold; use {option('to', 'parquet')}, or choose records with "
                    f"{option('where')}"
                )
