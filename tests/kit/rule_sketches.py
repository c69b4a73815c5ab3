"""Statistics for the tests of rules."""

from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

SCHEMA = Schema(
    (
        Feature("fare", "float64"),
        Feature("carrier", "int64", required=True, classes=("UA", "B6", "EV")),
        Feature("city", "string", required=True),
        Feature("photo", "bytes", required=True),
        Feature("tags", "string", (None,), required=True),
    ),
    label="carrier",
)


def statistics(splits: dict[str, dict[str, Any]]) -> DatasetStatistics:
    sketch = DatasetSketch(SCHEMA, list(splits))
    for number, columns in enumerate(splits.values()):
        count = len(columns["fare"])
        arrays = {
            "fare": pa.array(columns["fare"], pa.float64()),
            "carrier": pa.array(columns["carrier"], pa.int64()),
            "city": pa.array(columns["city"], pa.large_string()),
            "photo": pa.array([b"x"] * count, pa.large_binary()),
            "tags": pa.array([["a"]] * count, pa.large_list(pa.large_string())),
        }
        batch = pa.RecordBatch.from_pydict(arrays)
        sketch.add(batch, np.arange(count).astype("u8"), np.full(count, number))
    return DatasetStatistics.from_sketch(sketch)


TRAIN = {
    "fare": [None, None, 1.0, 2.0, 0.0, float("nan"), 7.0, float("inf")],
    "carrier": [0, 0, 0, 0, 0, 1, 1, 0],
    "city": ["Rom", "Rom", "Bonn", "Bonn", "Bonn", "Oslo", "Rom", "Rom"],
}
