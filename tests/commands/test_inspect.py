"""Inspect prints files, features and ranges."""

import json
from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.runs import run_command

from recordmill.schemas.feature import Feature, Schema


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


def test_inspect_prints_the_range_of_times_of_all_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema((Feature("when", "timestamp[s]", required=True),))
    ticks = [-(2**62), 0, 9 * 10**15, 10**16]
    out = write_data_set(tmp_path / "set", {"train": {"when": ticks}}, schema, shards=4)
    code, printed, _ = run_command(capsys, "inspect", out, "--json")
    (feature,) = json.loads(printed)["features"]
    assert (code, feature["values"]) == (0, [f"{-(2**62)} s since 1970", f"{10**16} s since 1970"])
