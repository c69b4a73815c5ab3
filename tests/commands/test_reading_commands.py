"""`recordmill head`, `inspect`, `verify` and `read` print the expected text.

They exit with the right code.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.data_sets import write_data_set
from kit.files import flip
from kit.image_samples import encode_image, picture
from kit.runs import run_command

from recordmill.__main__ import main
from recordmill.schemas.feature import Feature, Schema


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
    png = encode_image("PNG", picture(size=(30, 20)))
    rows = {"image": [png], "text": ["a\n" * 500], "xs": [[0.1] * 100]}
    _, text, _ = run_command(
        capsys, "head", write_data_set(tmp_path / "out", {"train": rows}, schema, shards=1)
    )
    assert f"  image  PNG 20 x 30 RGB ({len(png):,} bytes)\n" in text
    assert "... (1,000 characters)\n" in text
    assert "  xs     float32 [100] [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, ... 100 in all]\n" in text
    assert max(map(len, text.splitlines())) < 160


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
    process = subprocess.run(
        ["prlimit", "--fsize=1000", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (process.returncode, process.stderr) == (
        1,
        f"recordmill: error: {target}: File too large\n",
    )
    assert not list(target.parent.iterdir())


def test_error_with_json_is_printed_as_an_object(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next(out.rglob("train-*.tfrecord"))
    flip(shard, 40)
    code, text, stderr = run_command(capsys, "stats", out, "--recount", "--json")
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (1, 1)
    assert shard.name in error["file"]
    assert error["place"].startswith("record ")
    assert stderr.strip().endswith(f"recordmill: error: {error['message']}")
    code, text, _ = run_command(capsys, "stats", out / "nowhere", "--json")
    assert (code, json.loads(text)["error"]["code"]) == (2, 2)
    assert run_command(capsys, "stats", out / "nowhere")[1] == ""
