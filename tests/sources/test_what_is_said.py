"""What the plan of a build says of data that is not what it seems: one value that makes text of a column, a split in
one file's name, files that are left out, files that are no text.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import image_samples
import pytest
from source_reading import input_files, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import in_flags
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.detect import detect_kind
from recordmill.sources.common.layout import read_layout
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.jsonl.source import JsonlOptions, plan_jsonl
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage.listing import list_inputs


def zipped() -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("a.txt", "text")
    return into.getvalue()


BINARIES = {
    "a PDF document": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n" * 20,
    "a ZIP archive": zipped(),
    "an SQLite database": b"SQLite format 3\0" + bytes(100),
    "a program (ELF)": b"\x7fELF\x02\x01\x01" + bytes(100),
    "a PNG image": image_samples.encoded("PNG"),
    "a JPEG image": image_samples.encoded("JPEG"),
    "a NumPy array": b"\x93NUMPY\x01\0v\0" + bytes(100),
    "a tar archive": b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + bytes(300),
}


@pytest.mark.parametrize(("what", "data"), BINARIES.items(), ids=list(BINARIES))
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_what_is_binary_is_no_text(tmp_path: Path, what: str, data: bytes, encoding: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(data)
    common = PlanOptions()
    message = rf"in\.txt: this is no (text|CSV) but {what.replace('(', '.').replace(')', '.')}"
    with pytest.raises(DataError, match=message):
        plan_text(list_inputs([str(path)]), TextOptions(encoding=encoding), common)
    with pytest.raises(DataError, match=message):
        plan_jsonl(input_files(path), JsonlOptions(encoding=encoding), common)
    with pytest.raises(DataError, match=message):
        plan_csv(input_files(path), CsvOptions(encoding=encoding), common)
    documents = plan_text(list_inputs([str(path)]), TextOptions(mode="documents", encoding=encoding), common)
    (reject,) = read_all(documents)[1]
    assert (reject.reason, what in reject.message) == ("binary", True)


def test_the_kind_of_a_binary_is_said(tmp_path: Path) -> None:
    (tmp_path / "paper.pdf").write_bytes(BINARIES["a PDF document"])
    with pytest.raises(UsageError, match=r"paper\.pdf is a PDF document"):
        detect_kind(list_inputs([str(tmp_path)]))


@pytest.mark.parametrize(
    "text", ["BMW is a car\n", "ORC stands for a format\n", "ID3 tags\n", "BZh is not ëverything\n"]
)
def test_text_that_begins_like_a_binary_is_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(text.encode("latin-1"))
    assert len(read_all(plan_text(list_inputs([str(path)]), TextOptions(encoding="latin-1"), PlanOptions()))[0]) == 1


def test_the_value_that_makes_text_of_a_column_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{row},word{row},2024-01-{row % 28 + 1:02}\n" for row in range(400)]
    lines[300] = "x,y,never\n"
    content = ("a,b,c\n" + "".join(lines)).encode()
    (tmp_path / "in.csv").write_bytes(content)
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(content))
    for name in ("in.csv", "in.csv.gz"):
        (path,) = input_files(tmp_path / name)
        for range_bytes in (1 << 20, 1000):
            planned = csv_source._plan((path,), CsvOptions(), PlanOptions(threads=2), range_bytes)
            assert (
                f"column 'a' is text because of 'x' ({name}, line 302); without it int64: "
                "--null '' --null NA --null x reads it as a null, in every column; "
                "--dtype a=int64 --max-rejects 1 rejects it"
            ) in (notes := [*map(in_flags, planned.notes)])
            assert any("because of 'never'" in note and "'c=timestamp[s]'" in note for note in notes)
            assert not any("column 'b'" in note for note in planned.notes)
        kept = csv_source.plan_csv([path], CsvOptions(), PlanOptions(dtypes={"a": "int64"}))
        assert len(read_all(kept)[1]) == 1


@pytest.mark.parametrize("share", [2, 10])
@pytest.mark.parametrize("range_bytes", [1 << 20, 1000])
def test_a_word_for_no_value_is_said_with_what_loses_nothing(tmp_path: Path, share: int, range_bytes: int) -> None:
    """However often it stands there; the values behind the first are counted too."""
    number = ["N/A" if row % share == 7 % share else str(row) for row in range(900)]
    lines = [f"{number[row]},word{row},{'a' if row % 9 else row}\n" for row in range(900)]
    (tmp_path / "in.csv").write_text("n,b,mixed\n" + "".join(lines))
    (path,) = input_files(tmp_path / "in.csv")

    def planned(options: CsvOptions) -> Any:
        return csv_source._plan((path,), options, PlanOptions(threads=2), range_bytes)

    notes = [in_flags(note) for note in planned(CsvOptions()).notes]
    first = 2 + 7 % share
    (said,) = [note for note in notes if "is text because" in note]
    assert said == (
        f"column 'n' is text because of 'N/A' and {900 // share - 1} more of it (in.csv, line {first}); without them "
        "int64: --null '' --null NA --null N/A reads it as a null, in every column"
    )
    told = re.findall(r"--null (\S+)", said)
    source = planned(CsvOptions(null_tokens=tuple(token.strip("'") for token in told)))
    rows, rejects = read_all(source)
    assert (source.schema["n"].dtype, len(rows), rejects) == ("int64", 900, [])
    assert [row["n"] for row in values(rows)] == [None if row % share == 7 % share else row for row in range(900)]


@pytest.mark.parametrize("range_bytes", [1 << 20, 1000])
def test_several_words_for_no_value_are_said_too(tmp_path: Path, range_bytes: int) -> None:
    """Few different ones, whichever comes first: what rejects records is not all that is offered."""

    def planned(column: list[str], **options: Any) -> Any:
        (tmp_path / "in.csv").write_text("n,b\n" + "".join(f"{value},word{row}\n" for row, value in enumerate(column)))
        files = input_files(tmp_path / "in.csv")
        return csv_source._plan(files, CsvOptions(**options), PlanOptions(threads=2), range_bytes)

    words = {7: "N/A", **dict.fromkeys(range(9, 900, 9), "-"), 450: "?"}
    column = [words.get(row, str(row)) for row in range(900)]
    (said,) = [note for note in map(in_flags, planned(column).notes) if "is text because" in note]
    assert said == (
        "column 'n' is text because of 'N/A', '-', '?', 100 values (in.csv, line 9); without them int64: "
        "--null '' --null NA --null N/A --null - --null '?' reads them as a null, in every column"
    )
    rows, rejects = read_all(planned(column, null_tokens=("", "NA", "N/A", "-", "?")))
    assert (len(rows), rejects) == (900, [])
    assert sum(row["n"] is None for row in values(rows)) == 100
    words = {row: f"w{row}" for row in (5, 500, 800)}  # typos, perhaps
    column = [words.get(row, str(row)) for row in range(900)]
    (said,) = [note for note in map(in_flags, planned(column).notes) if "is text because" in note]
    assert "'w5', 'w500', 'w800', 3 values" in said
    assert said.endswith("--dtype n=int64 --max-rejects 3 rejects them")
    many = [f"w{row % 5}" if row % 8 == 0 else str(row) for row in range(900)]
    assert not any("is text because" in note for note in planned(many).notes)


def layout_of(*names: str, **options: Any) -> Any:
    files = [file for name in names for file in [_file(name)]]
    found = read_layout(files, [], **options)
    return SimpleNamespace(splits=tuple(found.splits.to_pylist()), notes=found.notes)


def _file(name: str) -> Any:
    from recordmill.storage.file_table import InputFile
    from recordmill.storage.files import Stat

    return InputFile(0, name, "/" + name, Stat(1, 1))


def test_one_word_in_one_name_is_no_split() -> None:
    alone = layout_of("x_test_100.csv")
    assert alone.splits == (None,)
    assert "all file names hold a word for 'test'" in alone.notes[0]
    assert "--split-from names" in in_flags(alone.notes[0])
    assert layout_of("x_test_100.csv", split_from="names").splits == ("test",)
    assert layout_of("test.csv").splits == ("test",)
    assert layout_of("x_test_1.csv", "x_test_2.csv").splits == (None, None)
    assert layout_of("x_test_1.csv", "x_train_2.csv").splits == ("test", "train")
    assert layout_of("my_test_data/1.csv").splits == (None,)
    assert layout_of("test/1.csv").splits == ("test",)
    assert layout_of("my_test_data/1.csv", "my_train_data/1.csv").splits == ("test", "train")


def test_files_that_look_temporary_are_counted_by_all_kinds(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "b.txt~", ".hidden"):
        (tmp_path / name).write_text("a text\n")
    notes = plan_text(list_inputs([str(tmp_path)]), TextOptions(), PlanOptions()).notes
    assert "ignored 1 temporary: b.txt~" in notes
    assert "ignored 1 hidden: .hidden" in notes
