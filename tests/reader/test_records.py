"""Views with renamed or selected features and records are the same for every consumer."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.data_sets import FOLDER, MIXED, mixed_rows, window_options, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.records import Records
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.records.columns.predicate import Predicate
from recordmill.records.example.encode import encode

ROWS = 900
TABLE = mixed_rows(ROWS)


@given(st.data(), st.integers(1, 2000))
def test_record_subset_equals_the_mask_that_made_it(data: st.DataObject, total: int) -> None:
    share = data.draw(st.sampled_from([0.0, 0.001, 0.1, 0.9, 1.0]))
    mask = np.random.default_rng(total).random(total) < share
    numbers = np.flatnonzero(mask)
    start = data.draw(st.integers(0, total))
    for subset in (RecordSubset(numbers, total), RecordSubset.from_numbers(numbers[::-1], total)):
        assert len(subset) == len(numbers)
        assert subset.record_numbers(np.arange(len(numbers))).tolist() == numbers.tolist()
        assert (
            subset.count_below(np.arange(total + 1)).tolist()
            == np.concatenate([[0], np.cumsum(mask)]).tolist()
        )
        assert subset.mask(start, total).tolist() == mask[start:].tolist()
        assert subset.digest() == RecordSubset(numbers, total).digest()


@pytest.fixture(scope="module", params=["ours", "streamed"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("views")
    out = write_data_set(folder / "out", {"train": TABLE}, shards=3)
    if request.param == "ours":
        return open(out, threads=2)
    for index, shard in enumerate(sorted((out / FOLDER).glob("train-*"))):
        (folder / f"{index}.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
    return open(str(folder / "*.tfrecord.gz"), schema=open(out).full_schema, threads=2)


NUMBERS = np.sort(np.random.default_rng(1).permutation(ROWS)[:200])


def make_views(ds: Dataset) -> dict[str, tuple[Dataset, list[int]]]:
    """Returns views of the records with their expected record numbers, by name."""
    mask = np.zeros(ROWS, np.bool_)
    mask[NUMBERS] = True
    odd = [i for i in range(ROWS) if i % 2]
    return {
        "mask": (ds.filter(mask), NUMBERS.tolist()),
        "numbers": (ds.filter(NUMBERS[::-1].tolist()), NUMBERS.tolist()),
        "from the end": (ds.filter([-1, 0]), [0, ROWS - 1]),
        "sql": (ds.filter("id % 2 = 1"), odd),
        "arrow": (ds.filter(pc.field("id") >= 890), list(range(890, ROWS))),
        "both": (
            ds.filter("id % 2 = 1").filter(pc.field("label") == 0),
            [i for i in odd if i % 3 == 0],
        ),
        "numbers of those": (ds.filter("id % 2 = 1").filter([3, 0, -1]), [1, 7, ROWS - 1]),
        "those of numbers": (
            ds.filter(mask).filter("id % 2 = 1"),
            [i for i in NUMBERS.tolist() if i % 2],
        ),
        "far apart": (ds.filter([0, 899]), [0, 899]),
        "none": (ds.filter([]), []),
        "where": (
            Dataset(
                Records.from_files(ds.records.open_files, where=Predicate("maybe > 220 OR id < 2"))
            ),
            [0, 1, *(i for i in range(881, ROWS) if i % 3)],
        ),
    }


VIEW_NAMES = [
    "mask",
    "numbers",
    "from the end",
    "sql",
    "arrow",
    "both",
    "numbers of those",
    "those of numbers",
    "far apart",
    "none",
    "where",
]


def test_list_of_names_selects_a_view(ds: Dataset) -> None:
    view = ds[["label", "id"]]
    assert (view.columns, list(view.features)) == (["label", "id"], ["label", "id"])
    assert view.to_table().equals(ds.select(["label", "id"]).to_table())
    assert ds.features["label"].classes == ("cat", "dog", "fish")
    assert ("id" in ds[["id"]], "label" in ds[["id"]], len(view)) == (True, False, ROWS)
    with pytest.raises(UsageError, match="no feature 'nope' is selected"):
        ds[["id", "nope"]]
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    assert duckdb.sql("select count(*), sum(id) from view").fetchall() == [
        (ROWS, ROWS * (ROWS - 1) // 2)
    ]
    assert pandas.DataFrame.from_arrow(view)["id"].tolist() == list(range(ROWS))


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_every_output_has_the_filtered_records(ds: Dataset, tmp_path: Path, name: str) -> None:
    view, ids = make_views(ds)[name]
    expected = TABLE.take(pa.array(ids, pa.int64()))
    copy: Dataset = pickle.loads(pickle.dumps(view))
    assert view.to_table().equals(expected)
    assert view.head(5).equals(expected.slice(0, 5))
    assert [row["id"] for row in view] == ids
    assert len(view) == len(copy) == len(ids)
    assert copy.to_table(1, 4).equals(expected.slice(1, 3))
    assert view[1:4].equals(expected.slice(1, 3))
    assert [view[i]["id"] for i in range(0, len(ids), 37)] == ids[::37]
    assert view[::-3]["id"].to_pylist() == ids[::-3]
    assert view["id"].tolist() == view.to_numpy(tmp_path / "columns")["id"].tolist() == ids
    assert view.select(["name"]).drop([])["name"].tolist() == expected["name"].to_pylist()
    for mode in (False, "window"):
        batch_ids = [
            i
            for batch in view.batches(16, shuffle=mode, seed=1, **window_options(mode, 9000))
            for i in batch["id"].tolist()
        ]
        assert sorted(batch_ids) == ids
        assert len(ids) < 5 or (batch_ids == ids) == (mode is False)
    state = view.batches(16, shuffle=False).state()
    assert not ids or view.batches(16, shuffle=False, state=state).state() == state
    with pytest.raises(UsageError, match="another data set"):
        ds.batches(16, state=state)


def test_renamed_features_are_the_same_for_every_output(ds: Dataset, tmp_path: Path) -> None:
    view = ds.rename({"id": "number", "label": "y", "nested": "deep", "name": "id"})
    expected = TABLE.rename_columns(
        [
            {"id": "number", "label": "y", "nested": "deep", "name": "id"}.get(name, name)
            for name in TABLE.column_names
        ]
    )
    assert view.schema.label == "y"
    for variant in (view, pickle.loads(pickle.dumps(view))):
        assert variant.to_table().equals(expected)
        assert variant.take([5, 3]).equals(expected.take([5, 3]))
        assert list(variant[7]) == expected.column_names
        assert variant[7]["number"] == 7
        assert variant["deep"][3].to_list()[2].tolist() == [3, 3]
        assert next(variant.batches(4, shuffle="window"))["y"].shape == (4,)
    assert (
        view.rename({"number": "id", "id": "name", "y": "label", "deep": "nested"})
        .to_table()
        .equals(TABLE)
    )
    assert view.select(["y", "number"]).schema.names == ("y", "number")
    assert view.drop(["number"]).schema.names == tuple(
        name for name in expected.column_names if name != "number"
    )
    filtered = (
        view.filter("number >= 800 and y = 1").rename({"y": "z"}).filter("z = 1 and number < 810")
    )
    assert filtered["number"].tolist() == [i for i in range(800, 810) if i % 3 == 1]
    assert filtered.select(["z"])["z"].tolist() == [1] * len(filtered)
    with pytest.raises(UsageError, match="label"):
        view.filter("label = 1")
    # The new name of `id` hides the feature `name`, which is not read.
    shadowing = ds.select(["id"]).rename({"id": "name"})
    assert shadowing.filter("name >= 890 and label = 1")["name"].tolist() == [
        i for i in range(890, 900) if i % 3 == 1
    ]
    saved = view.select(["number", "words"]).to_numpy(tmp_path / "saved")
    assert sorted(saved) == ["number", "words"]


def test_to_tf_of_a_view_equals_its_records(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    ds = open(write_data_set(tmp_path / "out", {"train": TABLE}, shards=2))
    view = (
        ds.rename({"id": "number", "maybe": "perhaps", "label": "y"})
        .filter(NUMBERS)
        .filter("number > 40")
    )
    view = view.select(["number", "perhaps", "words", "y"])
    ids = [i for i in NUMBERS.tolist() if i > 40]
    assert int(view.to_tf(64).cardinality()) == -(-len(ids) // 64)
    for defaults in ({}, {"perhaps": -1.0}):
        batches = list(view.to_tf(64, shuffle=False, label=True, defaults=defaults))
        x = {name: [batch[0][name] for batch in batches] for name in batches[0][0]}
        assert tf.concat(x["number"], 0).numpy().tolist() == ids
        assert tf.concat([y for _, y in batches], 0).numpy().tolist() == [i % 3 for i in ids]
        is_present = [i % 3 != 0 for i in ids]
        if defaults:
            assert (tf.concat(x["perhaps"], 0).numpy() == -1.0).tolist() == [
                not value for value in is_present
            ]
        else:
            assert tf.concat(x["perhaps/valid"], 0).numpy().tolist() == is_present


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda ds: ds.filter([1, 1]), "named twice; ds.take"),
        (lambda ds: ds.filter(np.ones(3, bool)), "a mask has one bool for each of 900 records"),
        (lambda ds: ds.filter(lambda row: True), "filter takes a condition"),
        (lambda ds: ds.filter("nope = 1"), "nope"),
        (
            lambda ds: ds.select([3, 1]),
            "3 is not the name of a feature: for record numbers use ds.filter",
        ),
        (lambda ds: ds.select(["nam"]), "did you mean name"),
        (lambda ds: ds.drop("name"), r"features must be a list, not one string: use \['name'\]"),
        (
            lambda ds: ds.select("name, id"),
            r"features must be a list, not one string: use \['name', 'id'\]",
        ),
        (lambda ds: ds.select(["id", "name", "id"]), "feature 'id' is named twice"),
        (lambda ds: ds.rename({"nam": "x"}), "did you mean name"),
        (lambda ds: ds.rename({"name": "id"}), "two features would be called 'id'"),
        (lambda ds: ds.rename({"name": 1}), r"rename takes \{name: new name\}, not \{'name': 1\}"),
        (lambda ds: ds.rename(["name"]), "rename takes {name: new name}, not"),
        (lambda ds: ds["nope"], "no feature 'nope' is selected"),
        (lambda ds: ds.head(1.5), "records is a whole number, not 1.5"),
        (lambda ds: ds.head(-1), "records must be at least 0, not -1"),
    ],
)
def test_impossible_view_is_refused(ds: Dataset, use: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        use(ds)


def test_filter_by_missing_numbers_is_an_error(ds: Dataset) -> None:
    for numbers in ([ROWS], [-ROWS - 1]):
        with pytest.raises(IndexError):
            ds.filter(numbers)
    with pytest.raises(TypeError):
        ds.filter([0.5])
    with pytest.raises(TypeError, match=r"ds\.filter\(mask\)"):
        ds[np.ones(ROWS, np.bool_)]


def test_repr_of_a_view_shows_its_condition(ds: Dataset) -> None:
    view = ds.filter("id % 2 = 1")
    assert len(view) == 450
    assert "450 of 900 records those where id % 2 = 1" in repr(view)
    assert "3 of 900 records those where they were chosen by number" in repr(ds.filter([1, 2, 3]))


def test_view_is_written_to_parquet_and_columns(ds: Dataset, tmp_path: Path) -> None:
    view = ds.select(["id", "name", "tokens"]).rename({"id": "number"}).filter("number % 7 = 3")
    expected = view.to_table()
    path = view.to_parquet(tmp_path / "view.parquet", compression="snappy")
    table = pq.read_table(path)
    assert table.column_names == ["number", "name", "tokens"]
    assert table.to_pylist() == expected.to_pylist()
    assert len(table) == len(expected) > 100
    columns = view.to_npy(tmp_path / "columns")
    assert columns["number"].tolist() == expected["number"].to_pylist()
    with pytest.raises(UsageError, match="overwrite=True"):
        ds.to_parquet(path)
    assert pq.read_table(path) == table
    ds.select(["id"]).to_parquet(path, overwrite=True)
    assert pq.read_table(path).column_names == ["id"]
    with pytest.raises(UsageError, match='compression="bogus": must be one of zstd'):
        ds.to_parquet(tmp_path / "other.parquet", compression="bogus")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["columns", "view.parquet"]


def test_failed_to_parquet_leaves_no_file(
    ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.parquet").write_bytes(b"old")

    def fail_after_first_batch(*args: object) -> Any:
        yield from batches[:1]
        raise OSError(28, "No space left on device")

    batches = list(ds.record_batches())
    monkeypatch.setattr(Records, "record_batches", fail_after_first_batch)
    with pytest.raises(OSError, match="No space"):
        ds.to_parquet(tmp_path / "old.parquet", overwrite=True)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("old.parquet", b"old")
    ]


def test_conditions_filter_foreign_and_streamed_files(tmp_path: Path) -> None:
    batch = mixed_rows(300).combine_chunks().to_batches()[0]
    (tmp_path / "a.tfrecord").write_bytes(encode(batch.slice(0, 100), MIXED).data.tobytes())
    (tmp_path / "b.tfrecord.gz").write_bytes(
        gzip.compress(encode(batch.slice(100), MIXED).data.tobytes())
    )
    ds = open(tmp_path, columns=["name"], where="id % 3 = 0 AND id > 90", threads=2)
    ids = [i for i in range(91, 300) if i % 3 == 0]
    assert ds.head(5)["name"].to_pylist() == [f"row {i} ü" for i in ids[:5]]
    assert ds.records.filter.known_matching is None, "reading in order needs no pass before"
    assert ds.to_table()["name"].to_pylist() == [f"row {i} ü" for i in ids]
    assert [ds[i]["name"] for i in (0, 3, -1)] == [f"row {i} ü" for i in (93, 102, 297)]
    assert sorted(
        name for batch in ds.batches(50, shuffle=True) for name in batch["name"].tolist()
    ) == sorted(f"row {i} ü" for i in ids)
    with pytest.raises(UsageError, match="idd = 1"):
        len(open(tmp_path, where="idd = 1"))


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("nope = 1", UsageError, 'where="nope = 1"'),
        ("random() < 0.5", UsageError, r"random\(\)"),
        ("[id]", UsageError, r'where="\[id\]": .*BOOLEAN'),
        ("CAST(name AS INTEGER) = 1", DataError, r"train-.*CAST\(name AS INTEGER\)"),
    ],
)
def test_wrong_condition_is_refused(
    tmp_path: Path, where: str, error: type[Exception], message: str
) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(9)})
    with pytest.raises(error, match=message):
        len(open(out, where=where))
