"""`build --dry-run` shows the schema, splits and first records of a build, and writes nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import image_samples
from kit.files import write_rows

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.commands.main import run


def csv(folder: Path) -> None:
    write_rows(folder / "a.csv", {"x": range(50), "y": ["ab"[n % 2] for n in range(50)]})


def jsonl(folder: Path) -> None:
    write_rows(folder / "a.jsonl", {"x": range(9), "v": [[n] * (n % 3) for n in range(9)]})


def text(folder: Path) -> None:
    (folder / "a.txt").write_text("one\ntwo\nthree\nfour\n")


def images(folder: Path) -> None:
    for split, name in (("train", "a"), ("train", "b"), ("test", "c")):
        (folder / split).mkdir(exist_ok=True)
        (folder / split / f"{name}.png").write_bytes(image_samples.encode_image("PNG"))


def parquet(folder: Path) -> None:
    write_rows(folder / "a.parquet", {"x": range(20), "s": ["é"] * 20})


def tfrecord(folder: Path) -> None:
    recordmill.build(
        {"x": list(range(7)), "s": ["a", None] * 3 + ["b"]}, folder / "set", shuffle=False
    )


@pytest.mark.parametrize("make", [csv, jsonl, text, images, parquet, tfrecord])
@pytest.mark.parametrize("options", [{}, {"split_from": "none", "splits": "a=0.5,b=0.5"}], ids=str)
def test_dry_run_shows_the_result_of_the_build(
    make: Callable[[Path], None], options: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    preview = recordmill.preview(tmp_path / "in", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    result = recordmill.build(tmp_path / "in", tmp_path / "out", shuffle=False, **options)
    assert (preview.kind, preview.schema) == (result.kind, result.schema)
    assert {*preview.notes} <= {*result.notes}  # reading all records may add notes
    assert preview.records in (None, result.read)
    assert {*result.records} <= {*preview.splits}
    assert 0 < preview.seconds < 1000
    # A split of the three images may be empty.
    assert preview.shards == len(result.shards) or make is images
    if not options and make is not images:  # otherwise, the build orders records by split
        assert (
            preview.first.to_pylist()
            == recordmill.open(tmp_path / "out").to_table(0, 3).to_pylist()
        )


def test_dry_run_command_prints_text_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv(tmp_path)
    out = str(tmp_path / "out")
    assert (
        run(
            [
                "build",
                str(tmp_path / "a.csv"),
                "--out",
                out,
                "--label",
                "y",
                "--memory",
                "1GiB",
                "--dry-run",
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert re.search(
        r"^about \d+\.\d s after the start, within 1\.0 GiB of memory$", output, re.MULTILINE
    )
    for line in (
        "csv: 1 file, 348 B, 50 records",
        "about 1 shard in train; rejects so far: 0",
        "  y  int64 (label)",
        "record 2\n  x  2\n  y  0 ('a')",
        "nothing was written",
    ):
        assert line in output
    assert run(["build", str(tmp_path / "a.csv"), "--num-shards", "3", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_dry_run_refuses_the_same_mistakes_as_a_build(tmp_path: Path) -> None:
    csv(tmp_path)
    (tmp_path / "b.csv").write_text("x,y\n1,2,3\n")
    with pytest.raises(RecordmillError, match="no such column"):
        recordmill.preview(tmp_path / "a.csv", key="z")
    recordmill.build(tmp_path / "a.csv", tmp_path / "out")
    command = ["build", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out"), "--dry-run"]
    assert run(command) == 2
    assert run([*command, "--overwrite"]) == 0
    assert run([*command, "--if-changed"]) == 0
    assert run(["build", str(tmp_path / "none.csv"), "--dry-run"]) == 2
