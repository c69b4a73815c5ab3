"""PyTorch's loaders return the batches of `batches()`.

This is true for every type, for any number of workers and ranks, and from any step on.
"""

import json
import pickle
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.batches import ids
from kit.data_sets import MIXED, flip_record, mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.reader.dataset import Dataset, open

torch = pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="needs torchdata: `.ci/torch` runs it"
)
from torch.utils.data import DataLoader  # noqa: E402

from recordmill.reader.torch.datasets import IterationCounter  # noqa: E402
from recordmill.reader.torch.tensors import RaggedRows  # noqa: E402

ROWS, BATCH = 300, 32
TABLE = mixed_rows(ROWS)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": TABLE}, shards=3)


@pytest.fixture(scope="module")
def ds(out: Path) -> Dataset:
    return open(out, columns=["id", "matrix"], threads=2)


def loader(batches: Any, workers: int = 0, **options: Any) -> Any:
    return DataLoader(batches, batch_size=None, num_workers=workers, **options)


def triple_ids(batch: dict[str, Any]) -> Any:
    if 17 in batch["id"]:
        raise KeyError("seventeen")
    return batch["id"] * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_map_function_of_torch_batches_names_the_failing_batch(ds: Dataset, workers: int) -> None:
    run = loader(ds.filter(np.arange(18, ROWS)).to_torch(BATCH, seed=2, map=triple_ids), workers)
    plain = ids(ds.filter(np.arange(18, ROWS)).batches(BATCH, seed=2))
    assert [batch.tolist() for batch in run] == [[3 * i for i in batch] for batch in plain]
    index = next(index for index, batch in enumerate(ids(ds.batches(BATCH, seed=2))) if 17 in batch)
    iterator = iter(loader(ds.to_torch(BATCH, seed=2, map=triple_ids), workers))
    assert len(list(islice(iterator, index))) == index
    with pytest.raises(
        RecordmillError, match=f"map: batch {index} of this iteration: KeyError: 'seventeen'"
    ):
        next(iterator)


def _drain(batches: Any, count: int | None = None) -> tuple[list[list[int]], list[int]]:
    """Returns the ids of the next batches, and the numbers of the failed batches."""
    batch_ids, failures = list[list[int]](), list[int]()
    while count is None or len(batch_ids) + len(failures) < count:
        try:
            batch_ids.append((next(batches) // 3).tolist())
        except StopIteration:
            break
        except RecordmillError as error:
            failures += map(
                int, re.findall(r"map: batch (\d+) of this iteration: KeyE", str(error))
            )
    return batch_ids, failures


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [DataLoader, stateful.StatefulDataLoader])
def test_batch_whose_map_fails_is_skipped_and_others_follow(
    ds: Dataset, kind: Any, workers: int
) -> None:
    plain = ids(ds.batches(BATCH, seed=2))
    index = next(index for index, batch in enumerate(plain) if 17 in batch)
    batches = ds.to_torch(BATCH, seed=2, map=triple_ids)
    run = iter(kind(batches, batch_size=None, num_workers=workers))
    assert _drain(run) == (plain[:index] + plain[index + 1 :], [index])
    # The next iteration is the next epoch.
    next_epoch = ids(ds.batches(BATCH, seed=2, epochs=2))[len(plain) :]
    index = next(index for index, batch in enumerate(next_epoch) if 17 in batch)
    run = iter(kind(batches, batch_size=None, num_workers=workers))
    assert _drain(run) == (next_epoch[:index] + next_epoch[index + 1 :], [index])


@pytest.mark.parametrize("workers", [0, 2])
def test_saved_state_resumes_after_a_batch_whose_map_failed(ds: Dataset, workers: int) -> None:
    plain = ids(ds.batches(BATCH, seed=2))
    index = next(index for index, batch in enumerate(plain) if 17 in batch)

    def loader_from(state: Any = None) -> Any:
        batches = ds.to_torch(BATCH, seed=2, map=triple_ids)
        stateful_loader = stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)
        if state is not None:
            stateful_loader.load_state_dict(state)
        return stateful_loader

    for count in range(1, len(plain)):
        # torchdata keeps the state of a worker with the batch that it yields, and a failed batch is
        # not yielded. So the state is that of the batch before.
        if workers and index < count <= index + workers:
            continue
        run = loader_from()
        batch_ids, failures = _drain(iter(run), count)
        later_ids, later_failures = _drain(iter(loader_from(run.state_dict())))
        assert (batch_ids + later_ids, failures + later_failures) == (
            plain[:index] + plain[index + 1 :],
            [index],
        )


def test_iterations_of_256_workers_and_of_threads_are_counted(ds: Dataset) -> None:
    counter = IterationCounter()
    for iteration in range(70):
        key = f"loader {1 << 62}/{iteration}"
        assert {counter.begin_iteration(key, worker) for worker in range(256)} == {iteration}
    batches = ds.to_torch(BATCH, seed=2)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ids(list(iter(batches))), range(8)))
    plain = ids(ds.batches(BATCH, seed=2, epochs=8))
    epochs = [
        plain[begin : begin + len(plain) // 8] for begin in range(0, len(plain), len(plain) // 8)
    ]
    assert sorted(results) == sorted(epochs)


def test_map_style_arrays_are_writable_and_cause_no_warning(out: Path) -> None:
    ds = open(out, columns=["id", "matrix"])
    assert all(row["matrix"].flags.writeable for row in (ds[0], *ds.__getitems__([1, 2])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(DataLoader(ds, 8)))


def test_map_style_scalars_keep_their_dtype(tmp_path: Path) -> None:
    dtypes = ["float16", "float32", "float64", *(f"int{bits}" for bits in (8, 16, 32, 64)), "uint8"]
    columns = {dtype: np.arange(8).astype(dtype) for dtype in dtypes}
    floats = np.arange(8, dtype=np.float32)
    recordmill.build(
        columns | {"bfloat16": floats}, tmp_path / "out", dtypes={"bfloat16": "bfloat16"}
    )
    ds = open(tmp_path / "out")
    expected = {dtype: getattr(torch, dtype) for dtype in dtypes} | {"bfloat16": torch.float32}
    for source in (ds, torch.utils.data.Subset(ds, range(8)), WrappedDataset(ds)):
        (batch,) = DataLoader(source, 8)
        assert {name: values.dtype for name, values in batch.items()} == expected
        assert all(sorted(values.tolist()) == list(range(8)) for values in batch.values())
    assert [ds[3], *ds.__getitems__([3])] == [list(ds)[3], list(ds)[3]]


class WrappedDataset(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """A user's data set that wraps ours."""

    def __init__(self, ds: Dataset) -> None:
        self.ds = ds

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.ds[number]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.5, None, 2.5, None], r"2 of the 4 records of this batch lack it.*x/valid"),
        ([[1], [1, 2], [], [3]], r'lists of this batch have 0 to 2 items.*collate="padded"'),
        (np.arange(4).astype("datetime64[s]"), r"no dtype for times.*returns int64"),
        ([["a", "b"], ["c"], ["d"], []], r"no tensors of text.*returns lists"),
    ],
)
def test_map_style_value_that_cannot_be_collated_names_the_feature(
    values: Any, message: str, workers: int, tmp_path: Path
) -> None:
    recordmill.build({"id": np.arange(4), "x": values}, tmp_path / "out")
    ds = open(tmp_path / "out")
    with pytest.raises(UsageError, match=rf"(?s)feature 'x': .*{message}.*collate_fn="):
        next(iter(DataLoader(ds, 4, num_workers=workers)))
    rows = next(iter(DataLoader(ds, 4, num_workers=workers, collate_fn=list)))
    assert [row["id"] for row in rows] == ds["id"].tolist()
    assert all(isinstance(row, dict) for row in rows)


def test_to_torch_returns_every_feature_with_its_dtype_and_values(out: Path) -> None:
    batches = list(loader(open(out).to_torch(BATCH, shuffle=False), 1))
    for feature in MIXED:
        values = [batch[feature.name] for batch in batches]
        expected = TABLE[feature.name].to_pylist()
        if feature.ragged_rank:
            assert all(isinstance(value, RaggedRows) for value in values)
            assert [row for value in values for row in _rows(value)] == [
                row or [] for row in expected
            ]
            continue
        if not feature.required:
            valid = [
                is_valid
                for batch in batches
                for is_valid in batch[f"{feature.name}/valid"].tolist()
            ]
            assert valid == [value is not None for value in expected]
        if feature.timestamp:
            expected = TABLE[feature.name].cast("int64").to_pylist()
        if feature.dtype not in ("string", "bytes"):
            dtype = torch.int64 if feature.timestamp else getattr(torch, feature.dtype)
            assert {value.dtype for value in values} == {dtype}
            assert values[0].shape == (BATCH, *feature.shape)
        rows = [
            row
            for value in values
            for row in (
                value
                if isinstance(value, list)
                else value.flatten(1).tolist()
                if value.dim() > 1
                else value.tolist()
            )
        ]
        empty = "" if feature.dtype == "string" else b"" if feature.dtype == "bytes" else 0
        assert rows == [empty if row is None else row for row in expected], feature


def _rows(value: Any) -> list[Any]:
    inner = _rows(value.values) if isinstance(value.values, RaggedRows) else value.values
    inner = inner.tolist() if isinstance(inner, torch.Tensor) else inner
    splits = value.row_splits.tolist()
    return [inner[begin:end] for begin, end in pairwise(splits)]


def test_to_torch_batches_have_the_requested_form(out: Path) -> None:
    from recordmill.reader.options.collation import Padded

    ds = open(out, columns=["maybe", "exact", "label"])
    x, y, weights = next(iter(ds.to_torch(8, shuffle=False, label="label", weights="exact")))
    assert sorted(x) == ["maybe", "maybe/valid"]
    assert y.tolist() == [i % 3 for i in range(8)]
    assert weights.dtype == torch.float64
    x, y = next(
        iter(open(out, columns=["matrix", "label"]).to_torch(8, shuffle=False, label="label"))
    )
    assert x.shape == (8, 2, 3)
    collation = Padded(5, value=-1, lengths=True)
    padded = next(iter(open(out, columns=["tokens"]).to_torch(8, shuffle=False, collate=collation)))
    assert padded["tokens"].shape == (8, 5)
    assert padded["tokens/length"].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    x, y = next(iter(open(out).to_torch(8, shuffle=False, label=True, matrix=["maybe", "small"])))
    assert x[:, 0].nan_to_num(-1).tolist() == [-1 if i % 3 == 0 else i / 4 for i in range(8)]
    assert (x.dtype, x.shape, y.tolist()) == (torch.float32, (8, 5), [i % 3 for i in range(8)])
    nested = next(iter(open(out, columns=["tokens"]).to_torch(8, shuffle=False)))[
        "tokens"
    ].to_nested()
    assert [len(row) for row in nested.unbind()] == [0, 1, 2, 0, 0, 1, 2, 3]
    x.add_(1)  # a consumer may write into its batch


def test_changes_of_a_torch_batch_stay_in_the_batch(out: Path) -> None:
    from recordmill.reader.options.collation import Padded

    options: dict[str, Any] = {"shuffle": True, "epochs": 2, "collate": {"tokens": Padded()}}
    expected = [_display(batch) for batch in list(open(out).to_torch(BATCH, **options))]
    for batch, text in zip(open(out).to_torch(BATCH, **options), expected, strict=True):
        assert _display(batch) == text
        for name, column in batch.items():
            values = column.values if isinstance(column, RaggedRows) else column
            if isinstance(values, torch.Tensor):
                other_columns = _display(
                    {other_name: value for other_name, value in batch.items() if other_name != name}
                )
                values.fill_(1)
                assert (
                    _display(
                        {
                            other_name: value
                            for other_name, value in batch.items()
                            if other_name != name
                        }
                    )
                    == other_columns
                )


def _display(batch: Any) -> str:
    return str(
        {
            name: _rows(value) if isinstance(value, RaggedRows) else value
            for name, value in batch.items()
        }
    )


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_each_iteration_is_the_next_epoch_after_an_abandoned_one(
    ds: Dataset, options: dict[str, Any]
) -> None:
    expected = ids(ds.batches(BATCH, shuffle=True, epochs=4))
    per_epoch = len(expected) // 4
    batches = ds.to_torch(BATCH, shuffle=True)
    batch_loader = loader(batches, 2, **options)
    assert ids(batch_loader) == expected[:per_epoch]
    assert ids(islice(batch_loader, 1)) == expected[per_epoch : per_epoch + 1]
    assert ids(batch_loader) == expected[2 * per_epoch : 3 * per_epoch]
    batches.set_epoch(3)
    assert ids(batch_loader) == expected[3 * per_epoch :]
    batches.set_epoch(0)
    assert ids(batch_loader) == expected[:per_epoch]


def test_spawned_workers_agree_on_the_epoch(ds: Dataset) -> None:
    expected = ids(ds.batches(BATCH, shuffle=True, epochs=2))
    batch_loader = loader(ds.to_torch(BATCH, shuffle=True), 2, multiprocessing_context="spawn")
    assert ids(batch_loader) + ids(batch_loader) == expected


def test_seeds_of_the_program_do_not_repeat_an_epoch(ds: Dataset) -> None:
    expected = ids(ds.batches(BATCH, shuffle=True, epochs=3))
    batch_loader = loader(ds.to_torch(BATCH, shuffle=True), 2)
    results = []
    for _ in range(3):
        torch.manual_seed(1)
        results += ids(batch_loader)
    assert results == expected


def test_concurrent_iterations_are_different_epochs(ds: Dataset) -> None:
    expected = ids(ds.batches(BATCH, shuffle=True, epochs=2))
    batch_loader = loader(ds.to_torch(BATCH, shuffle=True), 2)
    pairs = [
        (first["id"].tolist(), second["id"].tolist())
        for first, second in zip(batch_loader, batch_loader, strict=True)
    ]
    orders = sorted([[first for first, _ in pairs], [second for _, second in pairs]])
    assert orders == sorted([expected[: len(pairs)], expected[len(pairs) :]])


def test_endless_torch_batches_have_no_length(ds: Dataset) -> None:
    batch_loader = loader(ds.to_torch(BATCH, shuffle=True, epochs=None), 2)
    assert ids(islice(batch_loader, 25)) == ids(
        islice(ds.batches(BATCH, shuffle=True, epochs=None), 25)
    )
    with pytest.raises(TypeError):
        len(batch_loader)


def test_hosts_with_explicit_numbers_share_an_epoch(ds: Dataset) -> None:
    record_ids = []
    for host in range(3):
        batches = ds.to_torch(
            BATCH, shuffle="global", pad_remainder=True, num_hosts=3, host_index=host
        )
        for batch in loader(batches, 2):
            record_ids += batch["id"][batch["mask"]].tolist()
    assert sorted(record_ids) == list(range(ROWS))
    with pytest.raises(UsageError, match="num_hosts= needs host_index="):
        ds.to_torch(BATCH, num_hosts=3)


RANK = """
import sys, torch, recordmill
from torch.utils.data import DataLoader
out, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if __name__ == "__main__":
    early = recordmill.open(out, columns=["id"]).to_torch(16, shuffle=True, drop_remainder=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ds = recordmill.open(out, columns=["id"]).to_torch(16, shuffle=True, drop_remainder=True)
    print(*[i for batch in DataLoader(ds, batch_size=None, num_workers=2) for i in batch["id"].tolist()])
    try:
        iter(early)
    except recordmill.UsageError as error:
        print(error)
"""


def test_distributed_ranks_share_an_epoch(out: Path, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(out), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    hosts = [[int(i) for i in lines[0].split()] for lines in outputs]
    for host, numbers in enumerate(hosts):
        expected = open(out, columns=["id"]).batches(
            16, shuffle=True, drop_remainder=True, num_hosts=2, host_index=host
        )
        assert numbers == [i for batch in ids(expected) for i in batch]
    assert len(hosts[0]) == len(hosts[1]) == 144
    assert all("has 2 ranks, and had 1" in lines[1] for lines in outputs)


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_loader_resumes_across_epochs(ds: Dataset, workers: int) -> None:
    def make_loader() -> Any:
        batches = ds.to_torch(50, shuffle="global", seed=2)
        return stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    expected = ids(ds.batches(50, shuffle="global", seed=2, epochs=3))
    first_loader = make_loader()
    assert ids(first_loader) == expected[:6]
    state = first_loader.state_dict()
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert ids(resumed) == expected[6:12]
    assert ids(islice(resumed, 2)) == expected[12:14]


def test_counted_steps_resume_with_other_workers_and_hosts(ds: Dataset) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "drop_remainder": True}
    expected = ids(ds.batches(30, **options, epochs=3))
    batches = ds.to_torch(30, **options)
    assert ids(islice(loader(batches, 2), 4)) == expected[:4]
    resumed = ds.to_torch(30, **options, start_step=4)
    assert len(resumed) == 6
    batch_loader = loader(resumed, 3)
    assert ids(batch_loader) + ids(batch_loader) == expected[4:20]
    state = json.loads(json.dumps(batches.state_after(14)))
    hosts = [
        ds.to_torch(30, **options, state=state, num_hosts=2, host_index=host) for host in range(2)
    ]
    parts = [ids(loader(host, 2)) for host in hosts]
    assert [first + second for first, second in zip(*parts, strict=True)] == [
        expected[step] + expected[step + 1] for step in range(14, 20, 2)
    ]


def test_wrong_state_of_torch_batches_is_refused(ds: Dataset) -> None:
    batches = ds.to_torch(BATCH, shuffle=True, seed=1)
    state = batches.state_dict()
    with pytest.raises(UsageError, match="another seed"):
        ds.to_torch(BATCH, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(UsageError, match="of worker 1 of 2, and this is 0 of 1"):
        batches.load_state_dict({**state, "worker": 1, "workers": 2})
    with pytest.raises(UsageError, match="epochs must be at least 1"):
        ds.to_torch(BATCH, epochs=0)
    with pytest.raises(UsageError, match="no iteration begins with epoch 3"):
        ds.to_torch(BATCH, epochs=2).set_epoch(3)
    next(iter(loader(batches, 1)))
    with pytest.raises(UsageError, match="the workers of a DataLoader have the position"):
        batches.state_dict()


def test_torch_batches_can_be_pickled_at_any_time(ds: Dataset) -> None:
    batches = ds.to_torch(BATCH, shuffle=True, seed=1)
    iterator = iter(batches)
    next(iterator)
    copy = pickle.loads(pickle.dumps(batches))
    assert ids(copy) == ids(ds.batches(BATCH, shuffle=True, seed=1, epochs=2))[10:]


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_record_is_an_error_with_its_place_in_a_loader(
    tmp_path: Path, workers: int
) -> None:
    out = write_data_set(tmp_path / "out", {"train": TABLE}, shards=2)
    flip_record(out, 7)
    with pytest.raises(DataError, match=r"record 7, byte \d+: CRC of the data"):
        list(loader(open(out).to_torch(BATCH), workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_sampler_of_a_loader_chooses_the_records(tmp_path: Path, workers: int) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(100)}, shards=3), threads=2)
    selection = ds.filter("id % 2 = 0")[["id", "name", "matrix"]]
    record_ids = []
    for batch in DataLoader(selection, batch_size=16, shuffle=True, num_workers=workers):
        numbers = batch["id"].tolist()
        assert batch["name"] == [f"row {i} ü" for i in numbers]
        assert batch["matrix"].tolist() == [ds[i]["matrix"].tolist() for i in numbers]
        record_ids += numbers
    assert sorted(record_ids) == list(range(0, 100, 2)) != record_ids
