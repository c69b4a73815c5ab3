"""Verify, status and clean print their findings, and exit with 1 after a problem."""

import json
import os
from pathlib import Path

import pytest
from kit.data_sets import FOLDER
from kit.runs import run_command

import recordmill
from recordmill.__main__ import main
from recordmill.shards.run import RunFolder


def test_verify_prints_problems_and_exits_with_1(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run_command(capsys, "verify", out)
    assert (code, text, error.splitlines()[-1]) == (0, "", "43 records checked: nothing is wrong")
    shard = out / FOLDER / "train-00000-of-00002.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    code, text, _ = run_command(capsys, "verify", out)
    assert code == 1
    assert f"{shard}: byte" in text
    code, text, _ = run_command(capsys, "verify", out, "--json")
    assert code == 1
    assert {finding["file"] for finding in json.loads(text)["findings"]} == {str(shard)}
    (out / "manifest.json").unlink()
    assert "(mended)" in run_command(capsys, "verify", out, "--mend")[1]


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_remains_of_a_killed_build_are_listed_by_status_and_removed_by_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    built = recordmill.build({"a": [1, 2, 3]}, out)
    live_run = RunFolder.create(out)
    if (child := os.fork()) == 0:
        (RunFolder.create(out).data / "shard").write_bytes(b"half")
        os._exit(0)
    os.waitpid(child, 0)
    dead_path = next(path for path in out.glob("_run-*") if path != live_run.path)
    before = sorted(
        path for path in out.rglob("*") if dead_path not in path.parents and path != dead_path
    )
    assert main(["clean", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(dead_path / "data" / "shard"), str(dead_path / "lock")]
    assert printed.err == "1 killed run, 2 files: left there; --remove removes them\n"
    assert main(["clean", str(out), "--remove", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["left"][str(out)]) == [dead_path.name]
    assert sorted(out.rglob("*")) == before
    assert recordmill.clean(out) == {}
    assert len(recordmill.open(built.out)) == 3
    live_run.close()
    assert main(["clean", str(tmp_path / "nothing")]) == 2


def test_status_counts_the_records_of_each_split(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    code, text, _ = run_command(capsys, "status", out, tmp_path / "empty")
    assert code == 0
    assert text == f"{out}: train 40, test 3 records\n{tmp_path / 'empty'}: no data set\n"
    code, text, _ = run_command(capsys, "status", out, "--json")
    (report,) = json.loads(text)
    assert (report["records"], report["runs"]) == ({"train": 40, "test": 3}, [])


def test_clean_of_a_folder_without_remains_removes_nothing(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run_command(capsys, "clean", out)
    assert (code, text, error) == (0, "", "0 killed runs, 0 files: nothing to remove\n")
