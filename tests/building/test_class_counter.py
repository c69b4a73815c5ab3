"""`--stratify` divides each class by the fractions, exact to one record."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.files import shard_bytes, tfrecord_bytes, write_rows
from kit.image_samples import encode_image
from kit.runs import build_in_each_way
from kit.wire_writer import BYTES, INT64, feature_list, field, serialize_row
from kit.worker_steps import Steps

import recordmill
from recordmill.base.errors import UsageError
from recordmill.building import class_counter
from recordmill.building.stratified_splits import compute_targets
from recordmill.commands.main import run
from recordmill.shards.manifest import load_manifest

ROWS, SPLITS = 400, "train=0.7,validation=0.2,test=0.1"
WAY: dict[str, Any] = {"splits": SPLITS, "stratify": "label", "name": "same"}


def rows() -> dict[str, list[Any]]:
    random = np.random.default_rng(3)
    return {
        "id": list(range(ROWS)),
        "label": random.choice(["ant", "bee", "cat", None], ROWS).tolist(),
    }


def write_csv(folder: Path) -> None:
    table = rows()
    for part in range(3):
        pairs = zip(table["id"][part::3], table["label"][part::3], strict=True)
        (folder / f"{part}.csv").write_text(
            "id,label\n" + "".join(f"{i},{label or ''}\n" for i, label in pairs)
        )


def write_arrays(folder: Path) -> None:
    table = rows()
    np.savez(
        folder / "a.npz", id=table["id"], label=np.array([label or "" for label in table["label"]])
    )


def write_texts(folder: Path) -> None:
    for number, label in zip(*list(rows().values())[:2], strict=True):
        (folder / str(label)).mkdir(exist_ok=True)
        (folder / str(label) / f"{number}.txt").write_text(f"text {number}")


def write_images(folder: Path) -> None:
    data = encode_image("PNG")
    for number, label in zip(*list(rows().values())[:2], strict=True):
        (folder / str(label)).mkdir(exist_ok=True)
        (folder / str(label) / f"{number}.png").write_bytes(data)


def write_tfrecords(folder: Path) -> None:
    recordmill.build(rows(), folder / "set", label="label")


KINDS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda folder: write_rows(folder / "a.jsonl", rows()),
    "parquet": lambda folder: write_rows(folder / "a.parquet", rows()),
    "csv": write_csv,
    "text": write_texts,
    "images": write_images,
    "tfrecord": write_tfrecords,
    "numpy": write_arrays,
}


def counts(result: Any, column: str = "label") -> dict[str, Counter[Any]]:
    return {
        split: Counter(
            row[column] for row in recordmill.open(result.out, split).to_table().to_pylist()
        )
        for split in result.records
    }


def check_exact(result: Any) -> None:
    counts_by_split = counts(result)
    for label in set().union(*counts_by_split.values()):
        shares = [counts_by_split[split][label] for split in ("train", "validation", "test")]
        assert shares == compute_targets([sum(shares)], [0.7, 0.2, 0.1])[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_each_class_of_every_kind_of_input_is_divided_to_one_record(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    KINDS[kind](tmp_path / "in")
    label = {} if kind in ("text", "images", "tfrecord") else {"label": "label"}
    inputs = (
        str(next((tmp_path / "in").rglob("*.tfrecord"))) if kind == "tfrecord" else tmp_path / "in"
    )
    options = (
        {"schema": tmp_path / "in" / "set" / "schema.pbtxt", "split_from": "none"}
        if kind == "tfrecord"
        else label
    )
    result = recordmill.build(inputs, tmp_path / "out", kind=kind, **WAY, **options)
    assert sum(result.records.values()) == ROWS
    check_exact(result)
    assert sorted(sum(counts(result).values(), Counter()).values()) == sorted(
        Counter(rows()["label"]).values()
    )
    assert recordmill.verify(result.out) == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return recordmill.build(rows(), tmp_path_factory.mktemp("memory") / "out", label="label", **WAY)


def test_stratified_splits_do_not_depend_on_how_the_build_runs(built: Any, tmp_path: Path) -> None:
    for result in build_in_each_way(rows(), tmp_path, label="label", **WAY):
        check_exact(result)
        assert shard_bytes(result.out) == shard_bytes(built.out)
    reseeded = recordmill.build(rows(), tmp_path / "other", label="label", split_seed=1, **WAY)
    check_exact(reseeded)
    assert reseeded.records == built.records
    assert shard_bytes(reseeded.out) != shard_bytes(built.out)


def test_stratified_build_by_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_csv(tmp_path / "in")
    expected = recordmill.build(tmp_path / "in", tmp_path / "one", label="label", **WAY)
    out = tmp_path / "many"
    manifest = Steps.begin(
        tmp_path / "in", str(out), tmp_path / "private", label="label", **WAY
    ).run_all()
    assert shard_bytes(out) == shard_bytes(expected.out)
    assert manifest.statistics["notes"] == expected.manifest.statistics["notes"]
    assert manifest.fingerprint == expected.manifest.fingerprint


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2, 2], "int8"),
        ([2**40, 1, 1], "uint64"),
        ([True, False, False], "bool"),
        (["ä", "", ""], "string"),
    ],
    ids=str,
)
def test_stratify_accepts_columns_of_numbers_booleans_and_texts(
    values: list[Any], dtype: str, tmp_path: Path
) -> None:
    table = pa.table({"x": pa.array(values * 100, dtype)})
    result = recordmill.build(table, tmp_path / "out", splits="a=0.9,b=0.1", stratify="x")
    assert counts(result, "x") == {
        "a": {values[0]: 90, values[1]: 180},
        "b": {values[0]: 10, values[1]: 20},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stratify": "y"}, "stratify=.* no such column; there are"),
        (
            {"stratify": "f"},
            r"stratify=\"f\": the column holds float64, .*dtypes={\"f\": \"int64\"}",
        ),
        (
            {"stratify": "t"},
            r"stratify=\"t\": the column holds timestamp.*name a column of texts, whole numbers",
        ),
        (
            {"stratify": "l"},
            r"stratify=\"l\": the column holds int64 \[.*name a column of single values",
        ),
        ({"stratify": "x", "splits": None}, "stratify=.* needs splits="),
    ],
    ids=str,
)
def test_column_that_cannot_be_stratified_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = pa.table(
        {"x": [1, 2], "f": [0.5, 1.0], "t": pa.array([1, 2], "timestamp[s]"), "l": [[1], [2]]}
    )
    with pytest.raises(UsageError, match=message):
        recordmill.build(data, tmp_path / "out", **{"splits": "a=0.5,b=0.5", **options})
    assert not list(tmp_path.glob("out/*"))


def test_stratify_by_too_many_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_counter, "MAX_STRATIFIED_CLASSES", 100)
    with pytest.raises(
        UsageError, match=r"stratify=\"id\": the column has more than 100 different values"
    ):
        recordmill.build(
            {"id": list(range(101))}, tmp_path / "out", splits="a=0.5,b=0.5", stratify="id"
        )
    recordmill.build(
        {"id": list(range(100))}, tmp_path / "out", splits="a=0.5,b=0.5", stratify="id"
    )


@pytest.mark.parametrize("way", ["split_by", "key"])
def test_stratified_groups_stay_together(way: str, tmp_path: Path) -> None:
    users = np.arange(3000) % 600
    data = {"user": users, "label": [f"c{user % 3}" for user in users]}
    result = recordmill.build(
        data, tmp_path / "out", splits="a=0.8,b=0.2", stratify="label", **{way: "user"}
    )
    counts_by_split = counts(result)
    assert counts_by_split == {
        "a": dict.fromkeys(["c0", "c1", "c2"], 800),
        "b": dict.fromkeys(["c0", "c1", "c2"], 200),
    }
    users_by_split = [
        set(recordmill.open(result.out, split).to_table()["user"].to_pylist())
        for split in ("a", "b")
    ]
    assert not users_by_split[0] & users_by_split[1]


def test_groups_of_several_classes_are_refused_with_their_number(tmp_path: Path) -> None:
    data = {
        "user": [i % 10 for i in range(100)],
        "label": [["x", "y"][i % 10 == 3 and i > 50] for i in range(100)],
    }
    with pytest.raises(
        UsageError, match=r"conflict: 1 of 10 groups hold records of several classes"
    ) as error:
        recordmill.build(
            data, tmp_path / "out", splits="a=0.8,b=0.2", stratify="label", split_by="user"
        )
    assert 'stratify="label" and split_by="user"' in str(error.value)
    assert not list(tmp_path.glob("out/*"))


def test_groups_too_large_for_a_split_are_refused_with_the_figures(tmp_path: Path) -> None:
    data = {"user": [i // 50 for i in range(200)], "label": ["x"] * 100 + ["y"] * 100}
    message = r"split 'a' would have (50|100) of the 100 records of x. Its share is 80, and may differ by a tenth"
    with pytest.raises(UsageError, match=message):
        recordmill.build(
            data, tmp_path / "out", splits="a=0.8,b=0.2", stratify="label", split_by="user"
        )


def test_command_and_manifest_report_the_class_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text("x,label\n" + "1,a\n" * 10 + "2,b\n" * 5 + "3,\n")
    flags = ["--label", "label", "--splits", "train=0.8,test=0.2", "--stratify", "label"]
    assert run(["build", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out"), *flags]) == 0
    note = "label: records of each class in train / test: a 8 / 2, b 4 / 1, (missing) 1 / 0"
    assert f"note: --stratify {note}\n" in capsys.readouterr().err
    manifest = load_manifest(tmp_path / "out")
    assert note.replace("label", 'stratify="label"') in manifest.statistics["notes"]
    assert (
        "split 'test' has no record of (missing): too few for its share"
        in manifest.statistics["notes"]
    )
    assert manifest.options["stratify"] == "label"


@pytest.mark.parametrize("message", ["Example", "SequenceExample"])
@pytest.mark.parametrize("by", ["word", "number"])
def test_split_groups_of_tfrecords_equal_those_of_a_table(
    tmp_path: Path, message: str, by: str
) -> None:
    rows = {
        "word": [f"g{n % 37}" for n in range(300)],
        "number": [n % 11 for n in range(300)],
        "id": list(range(300)),
    }
    records = [
        serialize_row(
            {
                "word": (BYTES, [word.encode()]),
                "number": (INT64, [number]),
                "id": (INT64, [record_id]),
            }
        )
        + (
            field(2, feature_list("steps", INT64, [[record_id, 1]]))
            if message == "SequenceExample"
            else b""
        )
        for word, number, record_id in zip(*rows.values(), strict=True)
    ]
    (tmp_path / "a.tfrecord").write_bytes(tfrecord_bytes(records))
    ids = []
    for source, out in ((tmp_path / "a.tfrecord", "a"), (pa.table(rows), "b")):
        recordmill.build(source, tmp_path / out, splits="train=0.8,test=0.2", split_by=by)
        ids.append(sorted(recordmill.open(tmp_path / out, "test").to_table()["id"].to_pylist()))
    assert ids[0] == ids[1] != []
    schema = recordmill.open(tmp_path / "a").schema
    assert schema.message == message
