"""Rows of steps keep their numbers, and are read once, within the memory limit."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.reader.dataset import Dataset, open
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.sampling.schedule import StepRange


@pytest.fixture(scope="module", params=["none", "gzip"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows = {"train": mixed_rows(200)}
    folder = tmp_path_factory.mktemp("set")
    return open(write_data_set(folder / "out", rows, shards=3, compression=request.param))


@pytest.mark.parametrize("memory_bytes", [1, 30_000, 1 << 30])
@pytest.mark.parametrize("shuffle", [False, "global"])
def test_ranges_of_any_memory_have_the_same_batches(
    ds: Dataset, shuffle: Any, memory_bytes: int
) -> None:
    expected = [batch["id"].tolist() for batch in ds.batches(16, shuffle=shuffle, seed=5)]
    batches = [
        batch["id"].tolist()
        for batch in ds.batches(16, shuffle=shuffle, seed=5, memory_bytes=memory_bytes)
    ]
    assert batches == expected
    assert sorted(number for batch in batches for number in batch) == list(range(200))


def test_selected_rows_keep_their_numbers_and_masks() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [10, 11, 12, 13]})
    step_range: StepRange = None  # type: ignore[assignment]
    rows = StepRows(
        step_range,
        batch,
        edges=np.array([0, 2, 4]),
        numbers=np.array([7, 5, 3, 1]),
        mask=np.array([True, True, True, False]),
    )
    part = rows.select_rows(slice(1, 3), np.array([0, 2]))
    assert part.batch.column(0).to_pylist() == [11, 12]
    assert part.numbers.tolist() == [5, 3]
    assert part.mask is not None
    assert part.mask.tolist() == [True, True]
    reordered = rows.select_rows(np.array([3, 0]), np.array([0, 1, 2]))
    assert reordered.batch.column(0).to_pylist() == [13, 10]
    assert reordered.numbers.tolist() == [1, 7]
    assert reordered.edges.tolist() == [0, 1, 2]
    assert reordered.positions is None


def test_row_of_a_batch_is_read_from_its_record(ds: Dataset) -> None:
    names = ds.to_numpy()["name"]
    for batch in ds.batches(32, shuffle="global", seed=3):
        for number, name in zip(batch["id"], batch["name"], strict=True):
            assert name == names[int(number)]
