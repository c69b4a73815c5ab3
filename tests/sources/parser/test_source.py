"""Users build files of their own formats with a function that parses one file: in parallel, with
the same bytes for any number of processes, and without parsing a file twice after a kill.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import wave
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit import ROOT
from kit.files import tree
from kit.runs import run_python
from kit.web_files import web_files

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.shards.rejects import TooManyRejects

PARSER = """
import os, signal, sys, time

def log(path):
    with open(os.environ["PARSER_LOG"], "a") as file:
        file.write(os.path.basename(path) + "\\n")

def parse(path):
    log(path)
    print("this goes to standard error")
    for number, line in enumerate(open(path)):
        yield {"file": os.path.basename(path), "number": number, "values": [float(word) for word in line.split()]}

def parse_or_fail(path):
    for row in parse(path):
        yield row
        if row["file"] == "2.dat":
            raise ValueError("bad header")

def parse_or_die(path):
    if path.endswith("2.dat"):
        os.kill(os.getpid(), signal.SIGKILL)
    return list(parse(path))

def parse_slowly(path):
    yield from parse(path)
    time.sleep(float(os.environ.get("PARSER_SLEEP", "0")))

def parse_for_ever(path):
    while True:
        pass

def parse_types(path):
    yield {"x": "text" if path.endswith("2.dat") else 1}

def nothing(path):
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `in/`, which has 6 files of 4 lines, and the parsers in `my.py`."""
    (tmp_path / "in").mkdir()
    for number in range(6):
        lines = "".join(f"{number} {line} 0.5\n" for line in range(4))
        (tmp_path / "in" / f"{number}.dat").write_text(lines)
    (tmp_path / "my.py").write_text(PARSER)
    monkeypatch.setenv("PARSER_LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed_files(folder: Path) -> list[str]:
    """The files that parsers have begun, in order."""
    return (folder / "log").read_text().split() if (folder / "log").exists() else []


def records(out: Any) -> list[dict[str, Any]]:
    rows = recordmill.open(out).to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["file"], row["number"]))


def shards(out: Path) -> dict[str, bytes]:
    files = tree(out).items()
    return {Path(name).name: data for name, data in files if name.endswith("tfrecord")}


def parse_rows(path: str) -> Iterator[dict[str, Any]]:
    with open(path) as file:
        for number, line in enumerate(file):
            values = [float(word) for word in line.split()]
            yield {"file": os.path.basename(path), "number": number, "values": values}


def test_records_of_all_files_are_built_by_the_command(folder: Path) -> None:
    done = run_python(
        "-m", "recordmill", "build", "in", "--parser", "my.py:parse", "--out", "out", cwd=folder
    )
    assert "24 records read" in done.stdout + done.stderr
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]
    assert sorted(parsed_files(folder)) == [f"{n}.dat" for n in range(6)]


@pytest.mark.parametrize("parser", ["file", "module", "function", "closure"])
def test_function_may_be_in_a_file_or_module_or_defined_anywhere(
    folder: Path, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    names = {"name": "file"}

    def closure(path: str) -> Iterator[dict[str, Any]]:
        for row in parse_rows(path):
            yield {names["name"]: row.pop("file"), **row}

    value = {"file": "my.py:parse", "module": "my:parse", "function": parse_rows}.get(
        parser, closure
    )
    recordmill.build("in", "out", parser=value)
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]


def test_parser_may_return_one_dict_or_tables(folder: Path) -> None:
    def one(path: str) -> dict[str, Any]:
        return {"file": os.path.basename(path), "number": 0, "size": os.path.getsize(path)}

    def table(path: str) -> pa.Table:
        return pa.Table.from_pylist(list(parse_rows(path)))

    recordmill.build("in", "one", parser=one)
    assert [row["size"] for row in records("one")] == [32] * 6
    recordmill.build("in", "table", parser=table)
    assert len(records("table")) == 24


def test_bytes_are_the_same_for_any_number_of_processes(folder: Path) -> None:
    for threads in (1, 3):
        recordmill.build(
            "in", f"out{threads}", parser="my.py:parse", name="n", threads=threads, num_shards=2,
            splits="train=0.7,test=0.3",
        )  # fmt: skip
    assert shards(folder / "out1") == shards(folder / "out3")


def test_error_of_the_parser_is_a_reject_of_the_file(folder: Path) -> None:
    result = recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert result.rejected == 1
    assert {row["file"] for row in records("out")} == {f"{n}.dat" for n in (0, 1, 3, 4, 5)}
    (reject,) = (line for path in result.rejects for line in Path(path).read_text().splitlines())
    assert "2.dat" in reject
    assert "my.py, line 18, in parse_or_fail: `raise ValueError" in reject
    with pytest.raises(TooManyRejects, match="ValueError: bad header"):
        recordmill.build("in", "out2", parser="my.py:parse_or_fail")


def test_worker_that_dies_is_a_reject_of_its_file(folder: Path) -> None:
    result = recordmill.build("in", "out", parser="my.py:parse_or_die", max_rejects=1)
    assert {row["file"] for row in records("out")} == {f"{n}.dat" for n in (0, 1, 3, 4, 5)}
    assert "its process was killed by SIGKILL" in Path(result.rejects[0]).read_text()


def start_build(folder: Path, out: str, parser: str, **variables: str) -> subprocess.Popen[str]:
    code = f"import recordmill; recordmill.build('in', {out!r}, parser={parser!r}, name='n')"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        text=True,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def wait_until_parsed(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("out/_run-*/spool/parsed/*.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_build_goes_on_without_parsing_files_again(folder: Path, number: int) -> None:
    recordmill.build("in", "undisturbed", parser="my.py:parse_slowly", name="n")
    (folder / "log").unlink()
    process = start_build(folder, "out", "my.py:parse_slowly", PARSER_SLEEP="0.5")
    wait_until_parsed(folder, 2)
    process.send_signal(number)
    process.communicate(timeout=60)
    begun = len(parsed_files(folder))
    complete = len(list(folder.glob("out/_run-*/spool/parsed/*.json")))
    assert 2 <= complete <= begun
    recordmill.build("in", "out", parser="my.py:parse_slowly", name="n")
    assert len(parsed_files(folder)) == begun + 6 - complete
    assert shards(folder / "out") == shards(folder / "undisturbed")
    assert not list(folder.glob("out/_run-*"))


@pytest.mark.sweep
def test_build_that_is_killed_50_times_parses_only_files_in_work_again(folder: Path) -> None:
    recordmill.build("in", "undisturbed", parser="my.py:parse_slowly", name="n", threads=2)
    random = np.random.default_rng(1)
    kills, round_number = 0, 0
    while kills < 50:
        round_number += 1
        out, begun = folder / f"out{round_number}", 0
        (folder / "log").unlink(missing_ok=True)
        while True:
            process = start_build(folder, out.name, "my.py:parse_slowly", PARSER_SLEEP="0.4")
            # the second half of the range is after the parsing, while shards are written
            try:
                process.communicate(timeout=float(random.uniform(1.5, 8)))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                begun += 1
        kills += begun
        assert shards(out) == shards(folder / "undisturbed")
        assert 6 <= len(parsed_files(folder)) <= 6 + 2 * begun
        # A build that was killed after its commit is complete, and repeating it is refused.
        assert process.returncode == 0 or begun
        assert process.returncode or not list(out.glob("_run-*"))


def test_changed_file_or_changed_parser_is_parsed_again(folder: Path) -> None:
    process = start_build(folder, "out", "my.py:parse_slowly", PARSER_SLEEP="30")
    wait_until_parsed(folder, 0)
    deadline = time.monotonic() + 60
    while not parsed_files(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    # the five good files were kept
    (folder / "log").unlink()
    with (folder / "in" / "4.dat").open("a") as file:
        file.write("4 9 9\n")
    recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert sorted(parsed_files(folder)) == ["2.dat", "4.dat"]
    assert len(records("out")) == 21


def test_full_disk_ends_the_build_and_is_no_reject(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the limit of file sizes is inherited by the workers, and stands for a full disk
    def parse(path: str) -> dict[str, Any]:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return {"number": 1, "data": bytes(1 << 20)}

    with pytest.raises(recordmill.RecordmillError, match="File too large"):
        recordmill.build("in", "out", parser=parse, max_rejects=9)
    assert not (folder / "out" / "manifest.json").exists()


def test_captured_value_is_part_of_the_function(folder: Path) -> None:
    def parser_of(factor: int) -> Callable[[str], Any]:
        return lambda path: {"value": factor}

    recordmill.build("in", "out", parser=parser_of(1))
    assert recordmill.build("in", "out", parser=parser_of(1), if_changed=True).unchanged
    assert not recordmill.build("in", "out", parser=parser_of(2), if_changed=True).unchanged
    assert recordmill.open("out").to_table().column("value").to_pylist() == [2] * 6


def test_clean_removes_parsed_files(folder: Path) -> None:
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    assert list(folder.glob("out/_run-*/spool/parsed/*.json"))
    recordmill.clean("out", remove=True)
    assert not list(folder.glob("out/_run-*"))


def test_parser_that_never_returns_is_interrupted(folder: Path) -> None:
    process = start_build(folder, "out", "my.py:parse_for_ever")
    deadline = time.monotonic() + 60
    while not list(folder.glob("out/_run-*/spool/parsed")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    workers = run_python(
        "-c",
        "import subprocess; print(subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout)",
    )
    assert "sources.parser.worker" not in workers.stdout


def test_unchanged_files_are_not_parsed_for_if_changed(folder: Path) -> None:
    options: dict[str, Any] = {"parser": "my.py:parse", "if_changed": True}
    recordmill.build("in", "out", **options)
    (folder / "log").unlink()
    assert recordmill.build("in", "out", **options).unchanged
    assert not parsed_files(folder)
    (folder / "my.py").write_text(PARSER + "# another version")
    assert not recordmill.build("in", "out", **options).unchanged


def test_dry_run_parses_the_first_files_only(folder: Path) -> None:
    preview = recordmill.preview("in", parser="my.py:parse")
    assert sorted(parsed_files(folder)) == ["0.dat", "1.dat", "2.dat", "3.dat"]
    assert preview.records is None
    assert "only the first 4 of 6 files were parsed" in preview.notes


def test_member_of_an_archive_gets_a_local_copy(folder: Path) -> None:
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for path in sorted((folder / "in").iterdir()):
            archive.write(path, path.name)
    recordmill.build("all.zip", "out", parser=parse_rows)
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]


def test_object_of_a_store_gets_a_local_copy_that_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    with web_files(folder / "in") as web:
        recordmill.build([f"{web.url}/{n}.dat" for n in range(6)], "out", parser=parse_rows)
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]
    assert not list((folder / "tmp").glob("recordmill-parser-*"))


def test_types_that_do_not_fit_name_the_file_and_its_records(folder: Path) -> None:
    with pytest.raises(DataError, match=r"2\.dat, records 0 to 0"):
        recordmill.build("in", "out", parser="my.py:parse_types")


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        ("my.py", "give FILE.py:FUNCTION or package.module:FUNCTION"),
        ("none.py:parse", "none.py: no such file"),
        ("no_such_module:parse", "no such module"),
        ("my.py:pars", "has no function pars; there are log, parse, "),
        (5, "give a function of a path"),
    ],
)
def test_wrong_parser_is_refused(folder: Path, parser: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build("in", "out", parser=parser)


def test_parser_that_returns_nothing_says_what_to_return(folder: Path) -> None:
    with pytest.raises(DataError, match="returns NoneType, not dicts of feature names"):
        recordmill.build("in", "out", parser="my.py:nothing", max_rejects=9)


def test_parser_excludes_a_kind(folder: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        recordmill.build("in", "out", parser="my.py:parse", kind="csv")


def test_option_of_a_kind_is_refused_with_a_parser(folder: Path) -> None:
    with pytest.raises(UsageError, match="delimiter is for files that recordmill parses itself"):
        recordmill.build("in", "out", parser="my.py:parse", delimiter=";")


def test_splits_come_from_folders_and_labels_become_classes(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / "data" / split).mkdir(parents=True)
        for number in range(2):
            (folder / "data" / split / f"{number}.dat").write_text("1\n2\n")

    def parse(path: str) -> Iterator[dict[str, Any]]:
        yield {"pet": "cat" if path.endswith("0.dat") else "dog", "size": 1}

    result = recordmill.build("data", "out", parser=parse, label="pet")
    assert result.records == {"train": 2, "test": 2}
    assert result.schema["pet"].classes == ("cat", "dog")


def test_label_of_text_needs_no_records_of_a_file_that_failed(folder: Path) -> None:
    result = recordmill.build(
        "in", "out", parser="my.py:parse_or_fail", label="file", max_rejects=1
    )
    assert result.schema["file"].classes == ("0.dat", "1.dat", "3.dat", "4.dat", "5.dat")


def test_module_is_found_in_the_working_directory_by_the_installed_command(folder: Path) -> None:
    # with -I, Python itself does not look there, as for the program `recordmill`
    words = ("build", "in", "--parser", "my:parse", "--out", "out")
    run_python("-I", "-m", "recordmill", *words, cwd=folder)
    assert len(records("out")) == 24


def recipes() -> dict[str, str]:
    """The functions of docs/bring-your-data.md, by their first import."""
    page = ROOT / "docs" / "bring-your-data.md"
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text(encoding="utf-8"))
    return {block.split()[1].split(".")[0]: block for block in blocks}


def write_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["images"] = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
        file["labels"] = [3, 4]


def write_wav(path: Path) -> None:
    with wave.open(str(path), "w") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(8000)
        audio.writeframes(np.array([0, 16384, -32768], np.int16).tobytes())


def write_netcdf(path: Path) -> None:
    from scipy.io import netcdf_file

    with netcdf_file(path, "w") as file:
        file.createDimension("time", 2)
        file.createDimension("x", 3)
        file.createVariable("time", "f8", ("time",))[:] = [1, 2]
        file.createVariable("temperature", "f4", ("time", "x"))[:] = [[1, 2, 3], [4, 5, 6]]


def write_protos(path: Path) -> None:
    import tensorflow as tf
    from google.protobuf.timestamp_pb2 import Timestamp

    with tf.io.TFRecordWriter(str(path)) as writer:
        for seconds in (5, 7):
            writer.write(Timestamp(seconds=seconds, nanos=1).SerializeToString())


@pytest.mark.parametrize(
    ("package", "write", "feature", "expected"),
    [
        ("h5py", write_hdf5, "label", [3, 4]),
        ("wave", write_wav, "audio", [[0.0, 0.5, -1.0]]),
        ("scipy", write_netcdf, "temperature", [[1, 2, 3], [4, 5, 6]]),
        ("tensorflow", write_protos, "seconds", [5, 7]),
    ],
)
def test_recipe_of_the_page_builds_its_format(
    folder: Path, package: str, write: Callable[[Path], None], feature: str, expected: list[Any]
) -> None:
    pytest.importorskip(package)
    code = recipes()[package]
    assert len(code.splitlines()) <= 12
    (folder / "recipe.py").write_text(code)
    (folder / "files").mkdir()
    write(folder / "files" / "a.bin")
    recordmill.build("files", "out", parser="recipe.py:parse", shuffle=False)
    assert recordmill.open("out").to_table().column(feature).to_pylist() == expected
