"""Files, columns and values that look like options are printed as they are.

This holds for the command line and for Python. Only options are written as flags.
"""

import json
from pathlib import Path

import pytest
from kit.runs import run_command

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.shards.rejects import TooManyRejects

NAMES = ["seed=3", "label=", "shuffle=False", 'key="a"', "{x}", "{label}", "--to npy"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """CSV file in the current folder with a name that looks like an option.

    A column has the same name. One row is bad.
    """
    monkeypatch.chdir(tmp_path)
    quoted = '"' + name.replace('"', '""') + '"'
    rows = [f"{number},{quoted}" for number in range(30)]
    (tmp_path / f"{name}.csv").write_text("\n".join([f"id,{quoted}", *rows, "1,2,3", ""]))
    return f"./{name}.csv"


def test_missing_file_that_looks_like_an_option_keeps_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "build", f"./{name}", "--out", "o", "--json")
    assert code == 2
    assert f"{name}: no such file or folder" in err
    assert name in json.loads(out)["error"]["message"]
    with pytest.raises(UsageError, match="no such file or folder") as error:
        recordmill.build(f"./{name}", "o")
    assert name in str(error.value)


def test_rejects_keep_file_names_and_values_that_look_like_options(
    name: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(capsys, "build", "csv", file, "--out", "o", "--header", "--json")
    assert code == 1
    assert f"{name}.csv: line 32" in err
    assert "--max-rejects 1" in err
    error = json.loads(out)["error"]
    assert error["message"] in err
    assert "max_rejects" in error["options"]
    assert "seed" not in error["options"]
    with pytest.raises(TooManyRejects) as exception:
        recordmill.build(file, "o", kind="csv", header=True)
    assert f"{name}.csv: line 32" in str(exception.value)
    assert "max_rejects=1" in str(exception.value)
    result = recordmill.build(file, "o", kind="csv", header=True, max_rejects=1)
    (line,) = Path(result.rejects[0]).read_text().splitlines()
    assert json.loads(line)["source"] == f"{name}.csv"
    assert "delimiter=" in json.loads(line)["message"]  # a file has Python's spelling


def test_columns_that_look_like_options_keep_their_names_in_every_command(
    name: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = recordmill.build(file, "o", kind="csv", header=True, max_rejects=1, label=name)
    assert result.schema.label == name
    code, _, err = run_command(
        capsys, "build", "csv", file, "--out", "p", "--header", "--label", "no"
    )
    assert code == 2
    assert f"there are id, {name}" in err
    assert "--label no: " in err
    code, _, err = run_command(capsys, "read", "o", "--out", "p", "--columns", f"{name}!")
    assert code == 2
    assert f"id, {name}" in err
    code, out, _ = run_command(capsys, "inspect", "o", "--json")
    assert code == 0
    assert name in json.dumps(json.loads(out), ensure_ascii=False).replace("\\", "")
    code, out, _ = run_command(capsys, "head", "o")
    assert code == 0
    assert name in out
    assert run_command(capsys, "report", "o", "--out", "r.html", "--quiet")[0] == 0


def test_damaged_file_that_looks_like_an_option_keeps_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.tfrecord").write_bytes(b"no record at all, and no header")
    code, _, err = run_command(capsys, "inspect", f"./{name}.tfrecord")
    assert code == 1
    assert f"{name}.tfrecord" in err
    with pytest.raises(DataError) as error:
        recordmill.inspect(f"./{name}.tfrecord")
    assert f"{name}.tfrecord" in str(error.value)


def test_advice_of_bench_names_only_flags_of_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recordmill.build({"x": list(range(500))}, tmp_path / "o")
    code, out, _ = run_command(
        capsys, "bench", str(tmp_path / "o"), "--seconds", "0.1", "--shuffle", "global", "--json"
    )
    assert code == 0
    assert "--no-shuffle" not in json.loads(out)["advice"]


def test_errors_name_keywords_in_python_and_flags_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    code, _, err = run_command(
        capsys, "build", str(tmp_path / "a.csv"), "--out", str(tmp_path / "o"), "--delimiter", "ab"
    )
    assert code == 2
    assert "--delimiter is 'ab'" in err
    with pytest.raises(UsageError, match=r"^delimiter= is 'ab'"):
        recordmill.build(tmp_path / "a.csv", tmp_path / "o", delimiter="ab")
