"""`build --append` adds a part to a data set. Old records keep their numbers and bytes."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recordmill
import recordmill.pipelines.build_job
from recordmill.__main__ import main
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.building.commit import CommitConflict
from recordmill.checks.constraints import ExpectationError
from recordmill.shards.manifest import list_generations, load_manifest

SPLITS = "train=0.8,test=0.2"


def write_csv(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def rows_of(begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "animal": ("cat", "dog", "emu")[i % 3], "size": i / 4} for i in range(begin, end)
    ]


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[str, str]:
    return (
        write_csv(tmp_path / "one.csv", rows_of(0, 200)),
        write_csv(tmp_path / "two.csv", rows_of(200, 260)),
    )


def ids_of(out: Path | str, split: str) -> list[int]:
    dataset = recordmill.open(out, split=split)
    return [int(dataset[number]["id"]) for number in range(len(dataset))]


def test_appended_records_follow_the_old_ones_in_each_split(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = recordmill.build(inputs[0], out, splits=SPLITS, label="animal")
    old = {split: ids_of(out, split) for split in ("train", "test")}
    result = recordmill.build(inputs[1], out, append=True)
    assert (result.read, result.rejected, result.appended, result.unchanged) == (60, 0, True, False)
    assert sum(result.records.values()) == 260
    new = {split: ids_of(out, split) for split in ("train", "test")}
    for split, numbers in old.items():
        assert new[split][: len(numbers)] == numbers
        assert len(new[split]) > len(numbers)
    assert sorted(new["train"] + new["test"]) == list(range(260))
    assert len(result.manifest.parts) == 2
    assert result.manifest.parts[0] == first.manifest.parts[0]
    assert result.manifest.options == first.manifest.options
    assert result.manifest.fingerprint not in ("", first.manifest.fingerprint)
    assert recordmill.verify(out) == []


def test_statistics_after_appends_are_those_of_a_build_of_all_inputs(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    third = write_csv(tmp_path / "three.csv", rows_of(260, 300))
    # With a key, the splits and the samples do not depend on the order of the inputs.
    options: dict[str, Any] = {"splits": SPLITS, "key": "id", "label": "animal"}
    recordmill.build([*inputs, third], tmp_path / "all", **options)
    for path in (*inputs, third):
        recordmill.build(path, tmp_path / "out", append=True, **options)
    for name in ("statistics.pb", "schema.pbtxt"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    complete, appended = (load_manifest(tmp_path / name) for name in ("all", "out"))
    assert appended.statistics["splits"] == complete.statistics["splits"]
    assert appended.statistics["sketch"] == complete.statistics["sketch"]
    assert list_generations(tmp_path / "out") == [2, 3]


def test_known_inputs_are_skipped_and_counted(inputs: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out)
    result = recordmill.build(list(inputs), out, append=True)
    assert result.read == 60
    assert "inputs that are part of the data set, and were skipped: 1" in result.notes
    second = recordmill.build(str(tmp_path / "*.csv"), out, append=True)
    assert (second.unchanged, second.appended, second.read) == (True, True, 0)
    assert second.records == {"train": 260}
    assert second.notes == ("inputs that are part of the data set, and were skipped: 2",)
    assert list_generations(out) == [1, 2]
    assert not list(out.glob("_run-*"))


def test_changed_input_is_appended_with_a_note(inputs: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out)
    write_csv(Path(inputs[0]), rows_of(500, 510))
    result = recordmill.build(inputs[0], out, append=True)
    assert result.records == {"train": 210}
    (note,) = (note for note in result.notes if "have changed" in note)
    assert "one.csv" in note
    # The same size and another time is a change, too.
    os.utime(inputs[0], ns=(1, 1))
    assert recordmill.build(inputs[0], out, append=True).records == {"train": 220}


def test_first_append_builds_the_data_set(inputs: tuple[str, str], tmp_path: Path) -> None:
    for path in inputs:
        result = recordmill.build(path, tmp_path / "out", append=True, splits=SPLITS)
    assert result.appended
    assert sum(result.records.values()) == 260
    first = recordmill.build(inputs[0], tmp_path / "plain", splits=SPLITS, append=True)
    assert not first.appended
    assert first.manifest.action == "build"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 3}, "seed=3"),
        ({"splits": "train=0.5,test=0.5"}, '"train": 0.8'),
        ({"label": "size"}, 'label="animal"'),
        ({"key": "animal"}, "was built without it"),
        ({"compression": "gzip"}, 'compression="none"'),
        ({"shuffle": False}, "shuffle=True"),
        ({"name": "zoo"}, 'name="out"'),
        ({"num_shards": 4}, "num_shards=4"),
        ({"shard_size": "1MiB"}, "shard_size"),
        ({"dtypes": {"id": "float64"}}, "'id' is int64"),
        ({"delimiter": ";"}, 'delimiter=";"'),
    ],
)
def test_option_that_contradicts_the_data_set_is_refused(
    options: dict[str, Any], words: str, inputs: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out, splits=SPLITS, label="animal")
    with pytest.raises(UsageError) as error:
        recordmill.build(inputs[1], out, append=True, **options)
    assert words in str(error.value)
    assert list_generations(out) == [1]


def test_equal_options_are_accepted(inputs: tuple[str, str], tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "kind": "csv",
        "splits": SPLITS,
        "label": "animal",
        "seed": 7,
        "dtypes": {"size": "float64"},
        "delimiter": ",",
        "null_tokens": ["-"],
        "num_shards": 2,
        "compression": "gzip",
        "split_by": "id",
        "columns": ["id", "animal", "size"],
    }
    for path in inputs:
        result = recordmill.build(path, tmp_path / "out", append=True, **options)
    assert sum(result.records.values()) == 260
    assert result.manifest.shard_counts == {"train": 3, "test": 3}
    # Without these options, an append takes them from the manifest.
    extra_csv = write_csv(tmp_path / "three.csv", [{"id": 9000, "animal": "cat", "size": "-"}])
    with pytest.raises(UsageError, match="'size' is missing"):
        recordmill.build(extra_csv, tmp_path / "out", append=True)
    result = recordmill.build(extra_csv, tmp_path / "out", append=True, widen=True)
    assert sum(result.records.values()) == 261
    assert recordmill.verify(tmp_path / "out") == []


@pytest.mark.parametrize("option", [{"overwrite": True}, {"if_changed": True}])
def test_append_excludes_replacing(
    option: dict[str, Any], inputs: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        recordmill.build(inputs[0], tmp_path / "out", append=True, **option)
    with pytest.raises(UsageError, match="needs append"):
        recordmill.build(inputs[0], tmp_path / "out", widen=True)


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


WIDER = {
    "a larger integer": (
        table(x=pa.array([1, 2], pa.int32())),
        table(x=pa.array([2**40], pa.int64())),
        "'x' is int64 in the new inputs and int32",
    ),
    "a missing value": (
        table(x=pa.array([1, 2])),
        table(x=pa.array([3, None])),
        "'x' is missing in some or all",
    ),
    "a missing column": (
        table(x=pa.array([1, 2]), y=pa.array([1, 2])),
        table(x=pa.array([3])),
        "'y' is missing in some or all",
    ),
    "a new feature": (
        table(x=pa.array([1, 2])),
        table(x=pa.array([3]), y=pa.array(["new"])),
        "has no feature 'y'",
    ),
    "another length": (
        table(x=pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))),
        table(x=pa.array([[5, 6, 7]], pa.list_(pa.int64(), 3))),
        r"'x' is int64 \[3\] in the new inputs and int64 \[2\]",
    ),
}


@pytest.mark.parametrize("case", WIDER)
def test_wider_records_are_refused_and_allowed_with_widen(case: str, tmp_path: Path) -> None:
    old, new, words = WIDER[case]
    out = tmp_path / "out"
    recordmill.build(old, out, shuffle=False)
    # A budget for rejects doesn't allow them, either.
    with pytest.raises(UsageError, match=f"{words}.*widen=True"):
        recordmill.build(new, out, append=True, max_rejects="100%")
    assert list_generations(out) == [1]
    result = recordmill.build(new, out, append=True, widen=True)
    assert result.read == new.num_rows
    assert recordmill.verify(out) == []
    names = result.schema.names
    expected = [
        *({**dict.fromkeys(names), **row} for row in old.to_pylist()),
        *({**dict.fromkeys(names), **row} for row in new.to_pylist()),
    ]
    assert recordmill.open(out).to_table().to_pylist() == expected
    statistics = recordmill.open(out).statistics["train"]
    for name in names:
        present = sum(row[name] is not None for row in expected)
        assert (statistics[name].present, statistics[name].missing) == (
            present,
            len(expected) - present,
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (table(x=pa.array([1])), table(x=pa.array([1.5]))),
        (table(x=pa.array([1.5], pa.float32())), table(x=pa.array([1e300]))),
        (table(x=pa.array([1], pa.uint8())), table(x=pa.array([[1]]))),
    ],
)
def test_types_that_change_the_records_are_refused_even_with_widen(
    old: pa.Table, new: pa.Table, tmp_path: Path
) -> None:
    recordmill.build(old, tmp_path / "out")
    with pytest.raises(RecordmillError, match="x"):
        recordmill.build(new, tmp_path / "out", append=True, widen=True)
    assert list_generations(tmp_path / "out") == [1]


def test_floats_of_python_are_read_as_the_float32_of_the_data_set(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(write_csv(tmp_path / "a.csv", [{"x": 0.5}, {"x": 1.25}]), out)
    rows = [{"x": 0.1}, {"x": 1e39}, {"x": 3.0}]
    result = recordmill.build(rows, out, append=True, max_rejects=1)
    assert result.schema["x"].dtype == "float32"
    assert (result.read, result.rejected) == (3, 1)
    values = recordmill.open(out).to_table()["x"].to_pylist()
    assert sorted(values) == [float(np.float32(0.1)), 0.5, 1.25, 3.0]


def test_integers_that_became_floats_are_read_as_integers_on_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(write_csv(tmp_path / "a.csv", [{"x": 1}, {"x": 2}]), out)
    floats = write_csv(tmp_path / "b.csv", [{"x": "3.0"}, {"x": "4.0"}])
    with pytest.raises(UsageError, match=r"x.*float32.*int64.*build all inputs.*x.*int64"):
        recordmill.build(floats, out, append=True)
    recordmill.build(floats, out, append=True, dtypes={"x": "int64"})
    assert sorted(recordmill.open(out).to_table()["x"].to_pylist()) == [1, 2, 3, 4]
    halves = write_csv(tmp_path / "c.csv", [{"x": "5.5"}, {"x": "6"}])
    result = recordmill.build(halves, out, append=True, dtypes={"x": "int64"}, max_rejects=1)
    assert (result.read, result.rejected) == (2, 1)


def test_new_classes_are_refused_and_get_the_next_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    old = write_csv(tmp_path / "a.csv", [{"x": 1, "y": "dog"}, {"x": 2, "y": "cat"}])
    new = write_csv(tmp_path / "b.csv", [{"x": 3, "y": "ant"}, {"x": 4, "y": "dog"}])
    recordmill.build(old, out, label="y", shuffle=False)
    with pytest.raises(UsageError, match=r"'y' has the class 'ant'.*new_classes=True"):
        recordmill.build(new, out, append=True, max_rejects="100%")
    result = recordmill.build(new, out, append=True, new_classes=True)
    assert result.schema["y"].classes == ("cat", "dog", "ant")
    assert recordmill.open(out).schema["y"].classes == ("cat", "dog", "ant")
    assert [int(record["y"]) for record in recordmill.open(out)] == [1, 0, 2, 1]
    # An append may have fewer classes than the data set.
    last = write_csv(tmp_path / "c.csv", [{"x": 5, "y": "ant"}])
    assert recordmill.build(last, out, append=True).schema["y"].classes == ("cat", "dog", "ant")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_records_without_any_label_are_appended_with_widen(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"1.{kind}", tmp_path / f"2.{kind}"
    is_csv = kind == "csv"
    first.write_text("a,b\n1,x\n2,y\n" if is_csv else '{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n')
    second.write_text("a,b\n3,\n" if is_csv else '{"a":3,"b":null}\n')
    out = tmp_path / "out"
    recordmill.build(first, out, label="b")
    with pytest.raises(UsageError, match="'b' is missing in some or all of the new records"):
        recordmill.build(second, out, append=True)
    recordmill.build(second, out, append=True, widen=True)
    table = recordmill.open(out, class_names=True).to_table()
    rows = sorted(zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True))
    assert rows == [(1, "x"), (2, "y"), (3, None)]
    assert recordmill.open(out).schema["b"].classes == ("x", "y")


def test_rejects_of_all_parts_are_listed_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good_csv = write_csv(tmp_path / "a.csv", [{"x": 1}, {"x": 2}])
    bad_csv = write_csv(tmp_path / "b.csv", [{"x": "no"}, {"x": 3}])
    worse_csv = write_csv(tmp_path / "c.csv", [{"x": "no"}, {"x": "nor"}, {"x": 4}])
    recordmill.build(good_csv, out)
    for path in (bad_csv, worse_csv):
        result = recordmill.build(path, out, append=True, max_rejects=2)
    assert (result.read, result.rejected, len(result.rejects)) == (3, 2, 1)
    assert sum(result.reject_reasons.values()) == 2
    assert result.to_json()["reject_reasons"] == result.reject_reasons
    assert result.manifest.rejects["count"] == 3
    assert sum(result.manifest.rejects["reasons"].values()) == 3
    assert len(result.manifest.rejects["files"]) == 2
    assert recordmill.verify(out) == []


def test_append_overtaken_by_two_others_conflicts_and_can_be_repeated(
    inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out)
    paths = [
        write_csv(tmp_path / f"{number}.csv", rows_of(number, number + 1)) for number in (7, 8)
    ]
    run_job = recordmill.pipelines.build_job.run_job

    def append_meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        for path in paths:
            recordmill.build(path, out, append=True)
        run_job(*args, **options)

    monkeypatch.setattr("recordmill.pipelines.build_job.run_job", append_meanwhile)
    # The second append removed the sketch that this append would merge with its own.
    with pytest.raises(CommitConflict, match=r"generation 3.*repeat the command"):
        recordmill.build(inputs[1], out, append=True)
    assert recordmill.build(inputs[1], out, append=True).records == {"train": 262}
    assert recordmill.open(out).statistics.records == {"train": 262}


def test_rules_are_checked_against_the_new_records(inputs: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out)
    with pytest.raises(ExpectationError):
        recordmill.build(inputs[1], out, append=True, expect={"features": {"id": {"max": 230}}})
    assert list_generations(out) == [1]
    recordmill.build(inputs[1], out, append=True, expect={"features": {"id": {"min": 200}}})


def test_file_with_the_name_size_and_time_of_a_known_file_is_read(tmp_path: Path) -> None:
    out, folders = tmp_path / "out", [tmp_path / day for day in ("monday", "tuesday", "friday")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_csv(folder / "a.csv", [{"x": number}])
        os.utime(folder / "a.csv", (1e9, 1e9))
    for count in (1, 2, 3, 3):
        result = recordmill.build([str(folder) for folder in folders[:count]], out, append=True)
        assert result.records == {"train": count}
    assert result.unchanged
    assert sorted(recordmill.open(out).to_table()["x"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("option", ["append", "if_changed"])
def test_repeated_command_writes_the_files_that_a_killed_run_has_not_written(
    option: str, inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"append": True} if option == "append" else {"if_changed": True}
    recordmill.build(inputs[0], out)
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.building.commit.finish_output", lambda *args: None)
        recordmill.build(inputs[1], out, **options)
    assert recordmill.verify(out) != []
    assert recordmill.build(inputs[1], out, **options).unchanged
    assert recordmill.verify(out) == []


def test_second_of_two_appends_conflicts_and_can_be_repeated(
    inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out)
    extra_csv = write_csv(tmp_path / "c.csv", rows_of(7, 8))
    run_job = recordmill.pipelines.build_job.run_job

    def append_meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        recordmill.build(extra_csv, out, append=True)
        run_job(*args, **options)

    monkeypatch.setattr("recordmill.pipelines.build_job.run_job", append_meanwhile)
    with pytest.raises(CommitConflict, match=r"generation 2.*repeat the command"):
        recordmill.build(inputs[1], out, append=True)
    assert recordmill.open(out).statistics.records == {"train": 201}
    recordmill.build(inputs[1], out, append=True)
    assert recordmill.open(out).statistics.records == {"train": 261}
    assert recordmill.verify(out) == []


def test_dry_run_shows_the_planned_append(
    inputs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    recordmill.build(inputs[0], out, splits=SPLITS, label="animal")
    assert main(["build", *inputs, "--out", out, "--append", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "1 file" in printed
    assert "60 records" in printed
    assert "train, test" in printed
    assert "were skipped: 1" in printed
    assert main(["build", inputs[0], "--out", out, "--append", "--dry-run"]) == 0
    assert "0 files" in capsys.readouterr().out
    assert list_generations(out) == [1]


def test_command_prints_that_nothing_is_new(
    inputs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    for _ in range(2):
        assert main(["build", inputs[0], "--out", out, "--append"]) == 0
    assert "nothing to append" in capsys.readouterr().err
    assert main(["build", *inputs, "--out", out, "--append", "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["appended"], summary["read"], summary["records"]) == (
        True,
        60,
        {"train": 260},
    )


def test_append_notes_that_the_data_set_has_no_statistics(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    recordmill.build(inputs[0], out, stats=False)
    result = recordmill.build(inputs[1], out, append=True)
    assert any(note.startswith("no statistics") for note in result.notes)
    assert "file" not in result.manifest.statistics
    assert recordmill.verify(out) == []
