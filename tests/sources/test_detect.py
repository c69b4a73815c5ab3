"""The kind of data told from content, with names as hints; on real folders and on made-up hard ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import image_samples
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.sources.common.content import HEAD_BYTES, extension, sniff_kind
from recordmill.sources.common.detect import detect_kind, filter_kind
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.storage.listing import list_inputs


def masked_crc_by_google(data: bytes) -> int:
    google_crc32c = pytest.importorskip("google_crc32c")
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return (
        length
        + struct.pack("<I", masked_crc_by_google(length))
        + payload
        + struct.pack("<I", masked_crc_by_google(payload))
    )


def kind(data: bytes, name: str = "x") -> str:
    return sniff_kind(data[:HEAD_BYTES], name, len(data)).kind


def test_binary_formats_whatever_their_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    frames = record(b"abc") + record(b"")
    cases = {
        "images": [data for data, _ in image_samples.samples().values()],
        "parquet": [(tmp_path / "x").read_bytes()],
        "tfrecord": [frames, gzip.compress(frames), zlib.compress(frames), pa.compress(frames, "zstd", asbytes=True)],
    }
    for expected, files in cases.items():
        for data in files:
            assert {kind(data, name) for name in ("x", "x.csv", "x.txt", "x.jpg", "x.py", "readme")} == {expected}


@pytest.mark.parametrize("start", ["P1\tP2\tP3", "P6\tage", "P6", "P1\t5\t7"])
def test_a_table_that_begins_like_a_bitmap_is_a_table(start: str) -> None:
    table = start + "\n" + "".join(f"{at}\t{at + 1}\t{at % 2}\n" for at in range(9))
    assert sniff_kind(table.encode(), "a.tsv", len(table)).kind == "csv"
    assert sniff_kind(table.encode(), "a.txt", len(table)).kind in ("csv", "text")


@pytest.mark.parametrize("head", [b"P6\n# made\n640 480\n255\n", b"P5 3 2 255\n", b"P7\nWIDTH 3\n", b"Pf\n3 2\n-1.0\n"])
def test_bitmaps_are_images(head: bytes) -> None:
    data = head + bytes(range(200))
    for name in ("a.ppm", "a", "a.csv"):
        assert sniff_kind(data, name, len(data)).kind == "images"


def test_a_record_longer_than_its_file_is_no_tfrecord() -> None:
    header = record(bytes(100))[:20]
    assert kind(header, "x.bin") != "tfrecord"
    assert kind(record(bytes(100)), "x.bin") == "tfrecord"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a,b\n1,2\n3,4\n", "x", "csv"),
        ("a,b\n1,2\n", "x.csv", "csv"),
        ("a\n1\n2\n", "x.csv", "csv"),  # one column: the name tells
        ("a\n1\n2\n", "x.txt", "text"),
        ("a;b\n1,5;2\n3,5;4\n", "x", "csv"),
        ("a\tb\n1\t2\n3\t4\n", "x.txt", "csv"),
        ("P1\t3\t5\nP6\t4\t6\nP5\t1\t1\n", "x.tsv", "csv"),  # no Netpbm image
        ("P1 3 5\nP2 4 6\nP3 1 1\n", "x.txt", "text"),
        ("P6\t640 480\n255\t1\n", "x.tsv", "csv"),
        ('a,b\n"1\n,,,",2\n3,4\n5,6\n', "x", "csv"),  # a quoted newline
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
def test_text(text: str, name: str, expected: str) -> None:
    assert kind(text.encode(), name) == expected
    assert kind(b"\xef\xbb\xbf" + text.encode(), name) == expected
    assert kind(text.encode("utf-16"), name) == expected
    assert kind(gzip.compress(text.encode()), name + ".gz") == expected
    assert kind(pa.compress(text.encode(), "zstd", asbytes=True), name + ".zst") == expected


def test_latin_1_is_text_and_noise_is_not() -> None:
    assert kind("naïve, señor\nà, b\né, f\n".encode("latin-1"), "x") == "csv"
    assert kind(bytes(range(256)) * 4, "x") == "binary"
    assert kind(bytes(range(256)) * 4, "x.csv") == "csv"  # a hint is a hint: the CSV reader says what is wrong
    assert kind(bytes(range(1, 32)) * 9 + b"\xff", "x") == "binary"


def test_a_sample_that_ends_inside_a_character_or_a_row() -> None:
    rows = "é,ü,ö\n" * HEAD_BYTES
    for shift in range(4):
        data = ("x" * shift + rows).encode()
        assert kind(data, "t") == "csv"
    assert kind(('{"a": "' + "x" * HEAD_BYTES + '"}\n').encode() * 2, "x.jsonl") == "jsonl"
    assert kind(gzip.compress(bytes(rows, "utf-8"), 0), "t.gz") == "csv"


def test_empty_files_go_by_their_name() -> None:
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
        ("tfrecord", "tfrecord", 108),
    ],
)
def test_real_folders(shared_data: Path, folder: str, expected: str, files: int) -> None:
    listing = list_inputs([str(shared_data / folder)], data_extensions=DATA_EXTENSIONS)
    found, why = detect_kind(listing)
    assert found == expected
    assert why.startswith(expected)
    kept = filter_kind(listing, found)
    assert len(kept.files) == files
    left = {reason: count for reason, count in kept.ignored.items() if reason.startswith("of another kind")}
    assert len(kept.files) + sum(left.values()) == len(listing.files)


def write(root: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (root / name.replace("__", ".")).write_bytes(data)
    return root


def test_a_tie_is_an_error_that_says_what_to_type(tmp_path: Path) -> None:
    write(tmp_path, a__png=image_samples.encoded("PNG"), b__csv=b"a,b\n1,2\n", c__txt=b"hello")
    with pytest.raises(
        UsageError,
        match=r"images \(1 file\(s\), such as a.png\); csv .*`recordmill build images \.\.\.` or `recordmill build csv",
    ):
        detect_kind(list_inputs([str(tmp_path)]))


def test_the_majority_wins_and_the_rest_is_counted(tmp_path: Path) -> None:
    picture = image_samples.encoded("PNG")
    write(
        tmp_path,
        a__png=picture,
        b__png=picture,
        noextension=picture,
        b__csv=b"a,b\n1,2\n",
        d__xml=b"<x/>",
        e__xml=b"<x/>",
        README=b"hi",
    )
    listing = list_inputs([str(tmp_path)])
    kind, why = detect_kind(listing)
    assert kind == "images"
    assert "a.png is a PNG image; beside it: 1 without extension, 1 .csv, 2 .xml" in why
    assert [file.name for file in filter_kind(listing, "images").files] == ["a.png", "b.png", "noextension"]
    kept = filter_kind(listing, "csv")
    assert [file.name for file in kept.files] == ["b.csv"]
    assert "ignored beside the csv: 2 without extension, 2 .png, 2 .xml" in kept.notes


PLAIN = {
    "text": ("a.txt", b"one\ntwo\n", "b.text"),
    "csv": ("a.csv", b"x,y\n1,2\n3,4\n", "b.tsv"),
    "jsonl": ("a.jsonl", b'{"x": 1}\n{"x": 2}\n', "b.ndjson"),
    "images": ("a.png", image_samples.encoded("PNG"), "b.jpg"),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_logs_and_papers_are_no_data_of_any_kind_and_all_files_are_counted(tmp_path: Path, kind: str) -> None:
    name, data, other = PLAIN[kind]
    for one in (name, other):
        (tmp_path / one).write_bytes(data)
    (tmp_path / "eval.log").write_bytes(b"loss 1\nloss 2\n")
    (tmp_path / "history.log").write_bytes(b"epoch,loss\n1,2\n3,4\n")
    (tmp_path / "about.md").write_bytes(b"# x\n")
    records = {"text": 4, "csv": 4, "jsonl": 4, "images": 2}[kind]
    for given in ({}, {"kind": kind}):
        built = recordmill.build(tmp_path, tmp_path.parent / f"out-{kind}", overwrite=True, **given)
        assert built.read == records
        endings = sorted((name[2:], other[2:]))
        assert f"files of the {kind}: 1 .{endings[0]}, 1 .{endings[1]}" in built.notes
        assert f"ignored beside the {kind}: 2 .log, 1 .md" in built.notes


def test_logs_alone_or_named_are_read(tmp_path: Path) -> None:
    (tmp_path / "eval.log").write_bytes(b"loss 1\nloss 2\n")
    (tmp_path / "a.txt").write_bytes(b"one\n")
    for given in ("eval.log", "*.log"):
        built = recordmill.build(tmp_path / given, tmp_path.parent / "out-log", overwrite=True)
        assert (built.kind, built.read) == ("text", 2)
    assert (
        recordmill.build([tmp_path / "a.txt", tmp_path / "eval.log"], tmp_path.parent / "out-log", overwrite=True).read
        == 3
    )


def test_a_file_named_by_the_user_stays(tmp_path: Path) -> None:
    write(tmp_path, a__csv=b"a,b\n1,2\n", t__md=b"| a |")
    listing = list_inputs([str(tmp_path / "a.csv"), str(tmp_path / "t.md")])
    assert [file.name for file in filter_kind(listing, "csv").files] == ["a.csv", "t.md"]


def test_text_can_be_read_as_any_textual_kind(tmp_path: Path) -> None:
    write(tmp_path, a__log=b"one\ntwo\n", b__md=b"# x\n")
    listing = list_inputs([str(tmp_path)])
    assert [file.name for file in filter_kind(listing, "csv").files] == ["a.log", "b.md"]
    with pytest.raises(UsageError, match=r"no parquet among 2 file\(s\): 1 \.log, 1 \.md"):
        filter_kind(listing, "parquet")
    with pytest.raises(UsageError, match="no kind 'pictures': one of images"):
        filter_kind(listing, "pictures")


def test_nothing_known(tmp_path: Path) -> None:
    write(tmp_path, a__bin=bytes(100), b__json=b"[1]")
    with pytest.raises(
        UsageError, match=r"no data that is known here among 2 file\(s\): 1 \.bin, 1 \.json .*; kinds are"
    ):
        detect_kind(list_inputs([str(tmp_path)]))


def test_papers_alone_are_text(tmp_path: Path) -> None:
    write(tmp_path, a__md=b"# a\n", b__md=b"# b\n")
    assert detect_kind(list_inputs([str(tmp_path)])) == ("text", "text: nothing but 2 .md")


@pytest.mark.parametrize(
    ("name", "expected"), [("a.b/c", ""), ("x.tar.GZ", "tar.gz"), (".gz", ""), ("a.", ""), ("a.csv.zst", "csv.zst")]
)
def test_extension(name: str, expected: str) -> None:
    assert extension(name) == expected
