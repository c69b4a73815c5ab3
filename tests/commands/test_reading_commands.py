"""`recordmill head`, `inspect`, `verify` and `read` print what users expect and exit with the
right code.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set
from kit.files import flip
from kit.image_samples import encoded, picture
from kit.runs import run_command

import recordmill
from recordmill.__main__ import main
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.run import RunFolder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", {"train": mixed_rows(40), "test": mixed_rows(3, 40)})


def test_head_prints_records(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run_command(capsys, "head", out, "-n", 2, "--split", "train")
    assert code == 0
    assert text.startswith(
        "record 0\n  id       0\n  matrix   float32 [2, 3] [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]\n  name     "
        "'row 0 ü'\n  payload  missing\n"
    )
    assert "  label    1 ('dog')\n" in text
    assert text.count("record ") == 2
    code, text, _ = run_command(
        capsys, "head", out, "--at", 17, "--split", "train", "--columns", "id,name"
    )
    assert text == "record 17\n  id    17\n  name  'row 17 ü'\n"
    assert (
        run_command(capsys, "head", out, "--at", -1, "--split", "test", "--columns", "id")[1]
        == "record 2\n  id  42\n"
    )
    assert run_command(capsys, "head", out, "--at", 43) == (
        2,
        "",
        "recordmill: error: --at 43: there are 43 records, numbered from 0\n",
    )
    assert run_command(capsys, "head", out / "nothing")[0] == 2


def test_head_shortens_images_and_long_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema(
        (
            Feature("image", "bytes", (), True),
            Feature("text", "string", (), True),
            Feature("xs", "float32", (100,), True),
        )
    )
    png = encoded("PNG", picture(size=(30, 20)))
    rows = {"image": [png], "text": ["a\n" * 500], "xs": [[0.1] * 100]}
    _, text, _ = run_command(
        capsys, "head", write_data_set(tmp_path / "out", {"train": rows}, schema, shards=1)
    )
    assert f"  image  PNG 20 x 30 RGB ({len(png):,} bytes)\n" in text
    assert "... (1,000 characters)\n" in text
    assert "  xs     float32 [100] [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, ... 100 in all]\n" in text
    assert max(map(len, text.splitlines())) < 160


def test_inspect_prints_files_features_and_ranges(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run_command(capsys, "inspect", out, "--quiet")
    assert code == 0
    assert "made: 43 records in 4 files" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "0 to 42" in lines["id"]
    assert "length 0 to 3" in lines["tokens"]
    assert "float32 [2, 3]" in lines["matrix"]
    assert "bytes, raw" in lines["exact"]
    assert "65.12 %" in lines["maybe"]
    assert "label: label, 3 classes: cat, dog, fish" in text
    assert "TensorFlow Datasets does not read:" in text
    code, text, _ = run_command(capsys, "inspect", out, "--json", "--quiet", "--split", "train")
    about = json.loads(text)
    assert about["records"] == about["looked_at"] == 40
    features = {feature["name"]: feature for feature in about["features"]}
    assert features["maybe"]["present"] == sum(
        value is not None for value in mixed_rows(40)["maybe"].to_pylist()
    )
    assert features["tokens"]["lengths"] == [0, 3]
    assert features["label"]["classes"] == ["cat", "dog", "fish"]
    # one shard has 1 record, fewer than its part of the sample
    _, text, _ = run_command(capsys, "inspect", out, "--quiet", "--infer-from", 10)
    assert (
        "this is based on 9 records only (--infer-from): the first records of each of 4 files"
        in text
    )


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


def test_read_prints_its_summary_and_rejects(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["read", out, "--out", tmp_path / "to", "--columns", "id,label", "--split", "train"]
    code, text, said = run_command(capsys, *words)
    assert (code, text) == (0, "")
    assert said.startswith(f"40 records to parquet in {tmp_path / 'to'} (train 40) in ")
    assert pq.read_table(tmp_path / "to" / "train-00000-of-00001.parquet").column_names == [
        "id",
        "label",
    ]
    code, text, _ = run_command(
        capsys, "read", out, "--out", tmp_path / "arrays", "--to", "npy", "--json"
    )
    assert json.loads(text)["records"] == {"train": 40, "test": 3}
    code, text, error = run_command(capsys, "read", out, "--out", tmp_path / "to")
    assert (code, text) == (2, "")
    assert "--overwrite replaces it" in error
    assert run_command(capsys, "read", out, "--out", tmp_path / "x", "--frobnicate=1")[0] == 2
    shard = out / FOLDER / "train-00000-of-00002.tfrecord"
    flip(shard, 40)
    code, _, error = run_command(capsys, "read", out, "--out", tmp_path / "x")
    assert code == 1
    assert error.startswith(f"recordmill: error: {shard}: record 0, byte 0: CRC of the data")
    code, _, said = run_command(capsys, "read", out, "--out", tmp_path / "x", "--max-rejects", "5%")
    assert code == 0
    assert "1 rejected (reason: wrong checksum), listed in " in said


@pytest.mark.parametrize("command", ["head", "inspect", "verify", "read"])
def test_help_of_a_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"recordmill {command} " in capsys.readouterr().out.split("examples:")[1]


@pytest.mark.parametrize("command", ["head", "inspect"])
def test_times_outside_the_calendar_are_printed_as_numbers(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema((Feature("when", "timestamp[us]"),))
    out = write_data_set(tmp_path / "set", {"train": {"when": [0, 2**62]}}, schema)
    assert main([command, str(out)]) == 0
    assert f"{2**62} us since 1970" in capsys.readouterr().out


def test_inspect_prints_the_range_of_times_of_all_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema((Feature("when", "timestamp[s]", required=True),))
    ticks = [-(2**62), 0, 9 * 10**15, 10**16]
    out = write_data_set(tmp_path / "set", {"train": {"when": ticks}}, schema, shards=4)
    code, printed, _ = run_command(capsys, "inspect", out, "--json")
    (feature,) = json.loads(printed)["features"]
    assert (code, feature["values"]) == (0, [f"{-(2**62)} s since 1970", f"{10**16} s since 1970"])


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_remains_of_a_killed_build_are_listed_by_status_and_removed_by_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    built = recordmill.build({"a": [1, 2, 3]}, out)
    live = RunFolder.create(out)
    if (child := os.fork()) == 0:
        (RunFolder.create(out).data / "shard").write_bytes(b"half")
        os._exit(0)
    os.waitpid(child, 0)
    dead = next(path for path in out.glob("_run-*") if path != live.path)
    before = sorted(path for path in out.rglob("*") if dead not in path.parents and path != dead)
    assert main(["clean", str(out)]) == 0
    heard = capsys.readouterr()
    assert heard.out.splitlines() == [str(dead / "data" / "shard"), str(dead / "lock")]
    assert heard.err == "1 killed run, 2 files: left there; --remove removes them\n"
    assert main(["clean", str(out), "--remove", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["left"][str(out)]) == [dead.name]
    assert sorted(out.rglob("*")) == before
    assert recordmill.clean(out) == {}
    assert len(recordmill.open(built.out)) == 3
    live.close()
    assert main(["clean", str(tmp_path / "nothing")]) == 2


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit, of util-linux")
@pytest.mark.parametrize("words", [("stats", "--recount", "--out"), ("report", "-o")])
def test_full_disk_is_reported_with_the_path(
    out: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    target = tmp_path / "target" / "file"
    target.parent.mkdir()
    command = [
        sys.executable,
        "-m",
        "recordmill",
        words[0],
        str(out),
        *words[1:],
        str(target),
        "--quiet",
    ]
    done = subprocess.run(
        ["prlimit", "--fsize=1000", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (1, f"recordmill: error: {target}: File too large\n")
    assert not list(target.parent.iterdir())


def test_error_with_json_is_printed_as_an_object(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next(out.rglob("train-*.tfrecord"))
    flip(shard, 40)
    code, text, said = run_command(capsys, "stats", out, "--recount", "--json")
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (1, 1)
    assert shard.name in error["file"]
    assert error["place"].startswith("record ")
    assert said.strip().endswith(f"recordmill: error: {error['message']}")
    code, text, _ = run_command(capsys, "stats", out / "nowhere", "--json")
    assert (code, json.loads(text)["error"]["code"]) == (2, 2)
    assert run_command(capsys, "stats", out / "nowhere")[1] == ""
