"""Users build files in a custom format with a function that parses one file.

Files are parsed in parallel, with the same bytes for any number of processes. After a kill, no file
is parsed twice.
"""

import re
import tempfile
import wave
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT
from kit.parsing import parse_rows, parsed_files, records
from kit.runs import rejects_of, run_python
from kit.web_files import web_files

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.shards.rejects import TooManyRejects


def test_records_of_all_files_are_built_by_the_command(folder: Path) -> None:
    done = run_python(
        "-m", "recordmill", "build", "in", "--parser", "my.py:parse", "--out", "out", cwd=folder
    )
    assert "24 records read" in done.stdout + done.stderr
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]
    assert sorted(parsed_files(folder)) == [f"{n}.dat" for n in range(6)]


def test_clean_removes_parsed_files(folder: Path) -> None:
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    assert list(folder.glob("out/_run-*/spool/parsed/*.json"))
    recordmill.clean("out", remove=True)
    assert not list(folder.glob("out/_run-*"))


def test_unchanged_files_are_not_parsed_for_if_changed(folder: Path) -> None:
    options: dict[str, Any] = {"parser": "my.py:parse", "if_changed": True}
    recordmill.build("in", "out", **options)
    (folder / "log").unlink()
    assert recordmill.build("in", "out", **options).unchanged
    assert not parsed_files(folder)
    with (folder / "my.py").open("a") as file:
        file.write("# another version")
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


def test_rejected_record_of_a_small_file_is_named_with_its_row(folder: Path) -> None:
    def parse(path: str) -> Iterator[dict[str, Any]]:
        for row in parse_rows(path):
            is_bad = row["file"] == "3.dat" and row["number"] == 2
            yield {"value": "x" if is_bad else "7"}

    result = recordmill.build("in", "out", parser=parse, dtypes={"value": "int64"}, max_rejects=1)
    (reject,) = rejects_of(result)
    assert (reject["source"], reject["place"]) == ("3.dat", "row 2")
    assert result.read == 24


def test_module_is_found_in_the_working_directory_by_the_installed_command(folder: Path) -> None:
    # With -I, Python does not search the working directory, and neither does the program
    # `recordmill`.
    words = ("build", "in", "--parser", "my:parse", "--out", "out")
    run_python("-I", "-m", "recordmill", *words, cwd=folder)
    assert len(records("out")) == 24


def recipes() -> dict[str, str]:
    """Returns the functions of docs/bring-your-data.md by their first import."""
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
