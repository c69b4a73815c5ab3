"""Inspect prints files, features and ranges."""

import json
from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.runs import run_command

from recordmill.commands import inspect
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
    summary = json.loads(text)
    assert summary["records"] == summary["looked_at"] == 40
    features = {feature["name"]: feature for feature in summary["features"]}
    assert features["maybe"]["present"] == sum(
        value is not None for value in mixed_rows(40)["maybe"].to_pylist()
    )
    assert features["tokens"]["lengths"] == [0, 3]
    assert features["label"]["classes"] == ["cat", "dog", "fish"]
    # One shard has 1 record, which is less than its part of the sample.
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


def test_only_the_first_findings_are_printed() -> None:
    lines = list(inspect._finding_lines("findings:", [f"finding {n}" for n in range(1021)]))
    assert lines[0] == "findings:"
    assert lines[1:21] == [f"  finding {n}" for n in range(20)]
    assert lines[21:] == ["  ... and 1,001 more (--json lists all)"]
    assert list(inspect._finding_lines("findings:", [])) == []


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (None, ""),
        ((3, 3), "length 3"),
        ((1, 20), "length 1 to 20"),
        ((0.5, 1e20), "length 0.5 to 1e+20"),
    ],
)
def test_range_of_equal_ends_is_one_number(span: tuple[float, float] | None, text: str) -> None:
    assert inspect._range_text("length", span) == text
    assert inspect._range_text("", span) == text.removeprefix("length ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--emit", "schema", "--json"], "--emit prints text: leave out --json"),
        (["--emit", "schema", "--max-rejects", "1"], "describes files without damage: leave out"),
    ],
)
def test_options_without_effect_on_emitted_text_are_refused(
    out: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, error = run_command(capsys, "inspect", out, *words)
    assert code == 2
    assert message in error
