"""An opened data set returns the same records in every form, for every compression.

The forms are tables, single records, slices, batches and arrays.
"""

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.batches import plain
from kit.data_sets import FOLDER, MIXED, flip_record, mixed_rows, plain_columns, write_data_set
from kit.runs import run_python

from recordmill.base.errors import DataError, UsageError
from recordmill.reader import take
from recordmill.reader.dataset import Dataset, open
from recordmill.records.columns.ragged import Ragged
from recordmill.records.protobuf.message import example_class
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.codecs import SHARD_SUFFIXES

TRAIN, TEST = mixed_rows(300), mixed_rows(20, 300)
# A single record with these features is parsed without the columnar decoder.
PLAIN = [
    "id",
    "name",
    "maybe",
    "tokens",
]


@pytest.fixture(scope="module", params=list(SHARD_SUFFIXES))
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("ds") / "out",
        {"train": TRAIN, "test": TEST},
        shards=3,
        compression=request.param,
    )


def test_relative_path_works_after_a_change_of_folder(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    ds = open(out.name, "train")
    saved = pickle.dumps(ds)
    monkeypatch.chdir(tmp_path)
    for dataset in (ds, pickle.loads(saved)):
        assert dataset.to_table().equals(TRAIN)


def test_large_records_are_not_passed_to_protobuf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema((Feature("id", "int64", (), True), Feature("name", "string", (), True)))
    table = pa.table({"id": [1, 2], "name": ["a", "b" * (1 << 20)]})
    out = write_data_set(tmp_path / "out", {"train": table}, schema)
    ds, calls = open(out), list[int]()
    monkeypatch.setattr(take, "example_class", lambda: calls.append(1) or example_class())
    assert [ds[0], ds[1]] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b" * (1 << 20)}]
    assert len(calls) == 1


def test_in_operator_looks_for_features_only(out: Path) -> None:
    ds = open(out, columns=["name", "id"])
    assert ds.columns == ["name", "id"]
    assert "id" in ds
    assert "maybe" not in ds
    with pytest.raises(TypeError, match="`name in ds` looks for a feature"):
        _ = 7 in ds


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames_hold_all_records(out: Path, package: str) -> None:
    pytest.importorskip(package)
    frame = getattr(open(out, "train", columns=["id", "maybe", "name"]), f"to_{package}")()
    assert type(frame).__module__.split(".")[0] == package
    assert list(frame.columns) == ["id", "maybe", "name"]
    assert frame["id"].to_list() == TRAIN["id"].to_pylist()
    assert frame["name"].to_list() == TRAIN["name"].to_pylist()
    assert (
        getattr(open(out, "train"), f"to_{package}")()["label"].to_list()
        == TRAIN["label"].to_pylist()
    )
    names_frame = getattr(open(out, "train", class_names=True), f"to_{package}")()
    assert names_frame["label"].to_list() == [
        ("cat", "dog", "fish")[i] for i in TRAIN["label"].to_pylist()
    ]


def test_tables_equal_the_written_rows(out: Path) -> None:
    assert open(out, "train").to_table().equals(TRAIN)
    assert open(out, "train", threads=1).to_table(7, 250).equals(TRAIN.slice(7, 243))
    dataset = open(out)
    assert dataset.splits == ("train", "test")
    assert len(dataset) == 320
    assert dataset.to_table(0, 20).equals(TRAIN.slice(0, 20))
    assert dataset.schema == MIXED


@pytest.mark.parametrize("where", [None, "id >= 0"])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (-5, None), (-7, -2), (3, -290), (-1000, 4), (10, 4), (400, None)]
)
def test_start_and_stop_behave_like_slices(
    out: Path, start: int, stop: int | None, where: str | None
) -> None:
    ds, rows = open(out, "train", PLAIN, where=where), range(300)[start:stop]
    assert ds.to_table(start, stop).equals(TRAIN.select(PLAIN).slice(rows.start, len(rows)))
    assert [i for batch in ds.record_batches(start, stop) for i in batch["id"].to_pylist()] == list(
        rows
    )


def test_sample_is_the_same_for_the_same_seed(out: Path) -> None:
    ds = open(out, "train", PLAIN)
    sample = ds.sample(40, seed=1)
    assert sample.equals(ds.sample(40, seed=1))
    assert sample["id"].to_pylist() not in (
        sorted(sample["id"].to_pylist()),
        ds.sample(40, seed=2)["id"].to_pylist(),
    )
    assert len(set(sample["id"].to_pylist())) == 40
    assert sorted(ds.sample(1000)["id"].to_pylist()) == list(range(300))
    assert (ds.sample().num_rows, ds.filter("id < 0").sample(3).num_rows) == (5, 0)
    with pytest.raises(UsageError, match="records must be at least 0, not -1"):
        ds.sample(-1)


def test_arrow_and_duckdb_read_the_data_set_as_a_table(out: Path) -> None:
    view = (
        open(out, "train")
        .rename({"id": "number"})
        .filter("number >= 290")
        .select(["number", "name", "tokens"])
    )
    assert pa.table(view).equals(view.to_table())
    assert pa.schema(view) == view.to_table().schema
    duckdb = pytest.importorskip("duckdb")
    for _ in range(2):  # the view can be read again
        assert duckdb.sql("select sum(number), count(*) from view").fetchall() == [
            (sum(range(290, 300)), 10)
        ]


def test_any_records_are_taken_in_any_order(out: Path) -> None:
    numbers = [5, 299, -1, 0, 5, 150]
    table = open(out, "train")[numbers]
    assert table["id"].to_pylist() == [5, 299, 299, 0, 5, 150]
    assert open(out, "train")[::100]["id"].to_pylist() == [0, 100, 200]
    assert open(out, "train")[np.array([], np.int64)].num_rows == 0
    with pytest.raises(IndexError, match="300 of 300"):
        open(out, "train")[[0, 300]]
    with pytest.raises(TypeError, match=r"ds\.filter\(mask\)"):
        open(out, "train")[[True, False]]
    with pytest.raises(UsageError, match="no feature '5' is selected"):
        open(out, "train")[["5"]]
    with pytest.raises(TypeError, match="addressed"):
        open(out, "train")[["id", 5]]


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(numbers=st.lists(st.integers(-320, 319), max_size=60), threads=st.integers(1, 3))
def test_scattered_records_equal_those_of_the_table(
    out: Path, numbers: list[int], threads: int
) -> None:
    ds = open(out, threads=threads)
    assert ds.take(numbers).equals(
        ds.to_table().take(pa.array([number % 320 for number in numbers], pa.int64()))
    )


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(record_set=st.sets(st.integers(0, 319)), long_run=st.integers(1, 6))
def test_short_and_long_ranges_of_records_equal_those_of_the_table(
    out: Path, record_set: set[int], long_run: int
) -> None:
    ds, numbers = open(out), sorted(record_set)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(take, "_LONG_RUN_RECORDS", long_run)
        assert ds.take(numbers).equals(ds.to_table().take(pa.array(numbers, pa.int64())))


def test_short_ranges_of_records_share_one_read_per_file(out: Path) -> None:
    """Separate reads would decompress the same member several times."""
    files = open(out, "train").files
    pairs = np.flatnonzero(np.arange(300) % 3)
    assert len(list(take._iter_reads_by_number(files, pairs))) == len(files) == 3


def test_record_is_a_dict(out: Path) -> None:
    ds = open(out, "train")
    expected = plain_columns(TRAIN)
    for number in (0, 17, 99, 100, 299, -1, -300):
        record = ds[number]
        assert list(record) == list(MIXED.names)
        assert {name: plain(value) for name, value in record.items()} == {
            n: rows[number] for n, rows in expected.items()
        }
        assert record["small"].dtype == np.uint8
    for number in (300, -301):
        with pytest.raises(IndexError, match="of 300"):
            ds[number]
    assert [row["id"] for row in open(out, "test")] == list(range(300, 320))


def test_columns_are_selected_in_order(out: Path) -> None:
    ds = open(out, "train", columns=["label", "id"])
    assert ds.to_table().equals(
        TRAIN.select(["label", "id"]).replace_schema_metadata(ds.to_table().schema.metadata)
    )
    assert ds[3] == {"label": 0, "id": 3}
    assert ds.schema.label == "label"
    with pytest.raises(UsageError, match="no feature 'nope'; there are id, matrix"):
        open(out, columns=["nope"])


def test_getitems_returns_several_dicts(out: Path) -> None:
    ds = open(out, "train", PLAIN)
    for number, record in zip([7, -1, 7], ds.__getitems__([7, -1, 7]), strict=True):
        assert {name: str(value) for name, value in record.items()} == {
            n: str(v) for n, v in ds[number].items()
        }
    assert ds.__getitems__([]) == []


@pytest.mark.parametrize("rows", [1, 64, 300, 1000])
def test_record_batches_have_the_requested_size(out: Path, rows: int) -> None:
    batches = list(open(out, "train").to_batches(rows))
    assert [batch.num_rows for batch in batches] == [
        min(rows, 300 - begin) for begin in range(0, 300, rows)
    ]
    assert pa.Table.from_batches(batches).combine_chunks().equals(TRAIN.combine_chunks())


def test_to_numpy_returns_arrays_in_memory_or_mapped(out: Path, tmp_path: Path) -> None:
    arrays = open(out, "train").to_numpy()
    mapped = open(out, "train").to_numpy(tmp_path / "mapped")
    assert isinstance(mapped["matrix"], np.memmap)
    for columns in (arrays, mapped):
        assert {
            name: [plain(row) for row in column] for name, column in columns.items()
        } == plain_columns(TRAIN)
    assert isinstance(arrays["nested"], Ragged)
    with pytest.raises(UsageError, match="holds columns already"):
        open(out, "train").to_numpy(tmp_path / "mapped")


@pytest.mark.parametrize(
    "use",
    [
        lambda ds: ds[0],
        lambda ds: ds[[3, -1]],
        lambda ds: ds.to_table(5, 9),
        lambda ds: next(iter(ds.batches(8, shuffle=True))),
        lambda ds: (len(ds), ds.records.record_subset, repr(ds)),
    ],
    ids=["one", "several", "slice", "batches", "counted"],
)
@pytest.mark.parametrize(
    "where", [None, "id >= 100", pc.field("id") >= 100], ids=["all", "sql", "arrow"]
)
def test_data_set_can_be_pickled_after_any_use(
    out: Path, use: Callable[[Dataset], object], where: Any
) -> None:
    ds = open(out, "train", PLAIN, where=where)
    use(ds)
    copy: Dataset = pickle.loads(pickle.dumps(ds))
    assert copy.to_table().equals(ds.to_table())
    assert copy[-1]["id"] == ds[-1]["id"] == 299


def test_data_set_works_in_a_spawned_process(out: Path) -> None:
    ds = open(out, "train", PLAIN)
    assert ds[0]["id"] == 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(ds.take, [299, 7]).result()["id"].to_pylist() == [299, 7]


def test_repr_shows_name_splits_and_features(out: Path) -> None:
    text = repr(open(out, "train"))
    assert text.startswith("<Dataset made: 300 records, train\n")
    assert "  maybe: float32 or missing\n" in text
    assert "  label: int64 (label)" in text
    shards = repr(open(out, "train").files)
    assert shards.startswith(f"[<{FOLDER}/train-00000-of-00003.tfrecord")
    assert shards.endswith(" records, train>]")


def test_empty_split_is_opened(tmp_path: Path) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(0)}, shards=1))
    assert len(ds) == 0
    assert ds.to_table().num_rows == 0
    assert ds.to_table().schema.names == list(MIXED.names)
    assert (
        list(ds.batches(4, shuffle=False)) == list(ds.batches(4, shuffle=False, epochs=None)) == []
    )
    assert ds.to_numpy()["matrix"].shape == (0, 2, 3)
    with pytest.raises(IndexError):
        ds[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "no split 'dev'; there are"),
        ({"inputs": "nothing"}, "no such file"),
        ({"columns": "id,name,id"}, "feature 'id' is named twice"),
        ({"columns": [1]}, "no feature 1; there are"),
        ({"split": 1}, "no split 1; there are"),
        ({"threads": -1}, "threads=-1: must be 0 .one per core. or more"),
        ({"cache_bytes": "1GiB"}, "cache_bytes= needs cache="),
    ],
)
def test_missing_split_input_or_column_is_refused_by_name(
    out: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open(**{"inputs": out, **options})
    with pytest.raises(UsageError, match="itself a data set"):
        open([out, tmp_path])


@pytest.mark.parametrize("compression", SHARD_SUFFIXES)
class TestDamage:
    """Every way to read a changed shard is an error that names it."""

    def write_set(self, tmp_path: Path, compression: str) -> tuple[Path, Path]:
        out = write_data_set(tmp_path / "out", {"train": TRAIN}, shards=2, compression=compression)
        return out, sorted((out / FOLDER).glob("train-00001*"))[0]

    @pytest.mark.parametrize("lost_bytes", [1, 10, 1000])
    def test_shortened_or_missing_shard_is_found_by_open(
        self, tmp_path: Path, compression: str, lost_bytes: int
    ) -> None:
        out, shard = self.write_set(tmp_path, compression)
        shard.write_bytes(shard.read_bytes()[:-lost_bytes])
        with pytest.raises(DataError, match=rf"{shard}: has \d+ bytes where the manifest says"):
            open(out)
        shard.unlink()
        with pytest.raises(DataError, match=f"{shard}: is missing"):
            open(out)

    def test_damaged_record_is_an_error_only_if_it_is_read(
        self, tmp_path: Path, compression: str
    ) -> None:
        if compression != "none":
            pytest.skip("a member is the smallest part of a compressed shard that can be damaged")
        out, _ = self.write_set(tmp_path, compression)
        _, offset = flip_record(out, 7)
        ds = open(out)
        assert ds[156]["id"] == 156
        for use in (lambda: ds[157], lambda: ds.take([3, 157, 200]), lambda: ds.take([157, 299])):
            with pytest.raises(DataError, match=rf"record 7, byte {offset}: CRC of the data"):
                use()
        assert ds.take([3, 156, 158])["id"].to_pylist() == [3, 156, 158]

    def test_index_of_another_shard_is_refused(self, tmp_path: Path, compression: str) -> None:
        out, _ = self.write_set(tmp_path, compression)
        index = out / FOLDER / "index" / "train-00001.npy"
        np.save(index, np.load(index)[:-1])
        with pytest.raises(DataError, match="lists 149 records"):
            open(out).take([5, 299])
        index.write_bytes(b"nonsense")
        with pytest.raises(DataError, match="is not an index"):
            open(out)[299]


CHECK = """
import sys
{code}
loaded = [name for name in ("apache_beam", "tensorflow", "google.protobuf.internal.none") if name in sys.modules]
assert not loaded, (loaded, {code!r})
"""
STEPS = (
    "from recordmill.reader import Dataset, Ragged, Strings, open, open_columns",
    "import recordmill.reader.dataset, recordmill.reader.training, recordmill.reader.mixture",
    "import recordmill.reader.inspect.summary, recordmill.reader.batches.source",
    "import recordmill; ds = recordmill.open({out!r}); ds.to_table(); ds.to_numpy(); "
    "list(ds.batches(8, shuffle=True)); ds[3]",
    "recordmill.read({out!r}, {to!r}, to='npy'); recordmill.verify({out!r})",
    "from recordmill.__main__ import main; assert main(['head', {out!r}]) == 0; assert main(['inspect', {out!r}]) == 0",
    "assert main(['verify', {out!r}]) == 0; assert main(['read', {out!r}, '--out', {to!r} + '-table']) == 0",
)


def test_base_install_is_enough_to_open_and_read(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20)})
    codes = [step.format(out=str(out), to=str(tmp_path / "to")) for step in STEPS]
    source = "".join(CHECK.format(code=code) for code in codes)
    process = run_python("-c", source, check=False, timeout=120)
    assert process.returncode == 0, process.stderr
