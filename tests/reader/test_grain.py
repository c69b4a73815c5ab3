"""Grain reads a Dataset as its `RandomAccessDataSource`, in threads and in worker processes.

The tests are skipped without Grain.
"""

import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.reader.dataset import Dataset, open

grain = pytest.importorskip("grain", reason="needs grain, which is no dependency")
flags = pytest.importorskip("absl.flags")
ROWS = 40


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = write_data_set(
        tmp_path_factory.mktemp("grain") / "out", {"train": mixed_rows(ROWS)}, shards=2
    )
    return open(out, columns=["id", "matrix"])


def test_grain_resumes_a_shuffled_data_set_from_its_state(ds: Dataset) -> None:
    batches = iter(grain.MapDataset.source(ds).shuffle(seed=3).batch(8).to_iter_dataset())
    first = next(batches)
    assert first["matrix"].shape == (8, 2, 3)
    assert first["matrix"][:, 0, 0].tolist() == first["id"].tolist()
    state = batches.get_state()
    second = next(batches)["id"].tolist()
    batches.set_state(state)
    rest = [batch["id"].tolist() for batch in batches]
    assert rest[0] == second
    assert sorted(first["id"].tolist() + [i for batch in rest for i in batch]) == list(range(ROWS))


@pytest.mark.parametrize("workers", [0, 1])
def test_grain_data_loader_reads_every_record(ds: Dataset, workers: int) -> None:
    # Grain's worker processes need parsed flags. In a program, absl.app.run parses them.
    flags.FLAGS.mark_as_parsed()
    sampler = grain.samplers.IndexSampler(num_records=len(ds), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(
        data_source=ds,
        sampler=sampler,
        operations=[grain.transforms.Batch(10)],
        worker_count=workers,
    )
    assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(ROWS))
