"""Text becomes the lines or documents that plain Python reads.

Text that cannot be decoded is a reject.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.runs import in_flags
from kit.source_reading import input_files, read_all, values

import recordmill
from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common import lines
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.lines import plan_line_ranges
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import TextSource, plan_text
from recordmill.storage.files import Bytes, read_range
from recordmill.storage.listing import list_inputs


def plan(*paths: Path, options: TextOptions | None = None, **common: Any) -> TextSource:
    return plan_text(
        list_inputs([str(path) for path in paths], data_extensions=DATA_EXTENSIONS),
        options or TextOptions(),
        PlanOptions(**common),
    )


def plain_lines(content: bytes) -> list[str]:
    """Returns the lines of a text as the module documents them."""
    pieces = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    remainder = pieces.pop()
    return [piece.removesuffix(b"\r").decode() for piece in pieces] + (
        [remainder.decode()] if remainder else []
    )


def test_lines_equal_those_of_plain_python(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n two\u2028\x0b\x85\rthree \n\t\nlast".encode())
    source = plan(path)
    assert source.mode == "lines"
    assert source.schema == Schema((Feature("text", "string", required=True),))
    rows, _ = read_all(source)
    assert [row[2]["text"] for row in rows] == [
        "one",
        "",
        " two\u2028\x0b\x85\rthree ",
        "\t",
        "last",
    ]
    rows, _ = read_all(plan(path, options=TextOptions(blank_lines=False)))
    assert [(row[1], row[2]["text"]) for row in rows] == [
        (0, "one"),
        (2, " two\u2028\x0b\x85\rthree "),
        (4, "last"),
    ]


def test_text_that_is_not_utf8_is_a_reject(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xe4d\nalso good\n\xed\xa0\x80\n\xc3")
    rows, rejects = read_all(plan(path))
    assert [row[1] for row in rows] == [0, 2]
    assert [(reject.place, reject.reason) for reject in rejects] == [
        ("line 2", "encoding"),
        ("line 4", "encoding"),
        ("line 5", "encoding"),
    ]
    assert in_flags(rejects[0].message) == (
        "is not UTF-8: byte 0xE4 at byte 1 of the line; declare the file's --encoding: cp932, cp1252 and latin-1 "
        "decode all of it"
    )
    assert [
        row["text"]
        for row in values(read_all(plan(path, options=TextOptions(encoding="latin-1")))[0])
    ][1] == "bäd"


def test_documents_in_class_folders_have_labels(tmp_path: Path) -> None:
    for name, content in {
        "neg/1.txt": b"bad\n",
        "neg/2.txt": b"\xff",
        "pos/1.txt": b"",
        "pos/2.txt": b"\xef\xbb\xbfgood",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    source = plan(tmp_path, options=TextOptions(mode="documents"))
    assert [(f.name, f.describe(), f.required, f.classes) for f in source.schema] == [
        ("text", "string", True, None),
        ("source", "string", True, None),
        ("label", "int64", True, ("neg", "pos")),
        ("class_name", "string", True, None),
    ]
    assert source.schema.label == "label"
    rows, rejects = read_all(source)
    assert values(rows) == [
        {"text": "bad\n", "source": "neg/1.txt", "label": 0, "class_name": "neg"},
        {"text": "", "source": "pos/1.txt", "label": 1, "class_name": "pos"},
        {"text": "good", "source": "pos/2.txt", "label": 1, "class_name": "pos"},
    ]
    assert [(reject.source, reject.place, reject.reason) for reject in rejects] == [
        ("neg/2.txt", "line 1, byte 0", "encoding")
    ]
    line_source = plan(tmp_path, options=TextOptions(mode="lines"))
    assert values(read_all(line_source)[0])[0] == {"text": "bad", "label": 0, "class_name": "neg"}


def test_mode_of_text_is_chosen_and_noted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    assert plan(tmp_path).notes[0].startswith("read as lines: there are few files")
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x\ny\n")
    assert in_flags(plan(tmp_path).notes[0]) == (
        "read as documents: 6 small files (--text-mode lines makes each line a record)"
    )
    with pytest.raises(UsageError, match="words: must be one of auto, lines, documents"):
        recordmill.build(tmp_path, tmp_path / "out", mode="words")  # type: ignore[arg-type]


def test_long_lines_and_documents_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "x" * 50 + "\nshort\n")
    rows, rejects = read_all(plan(path, options=TextOptions(max_line_bytes=20)))
    assert [row[1] for row in rows] == [0, 2]
    assert [(reject.place, in_flags(reject.message)) for reject in rejects] == [
        (
            "line 2",
            "the line has 50 bytes, more than the 20 that --max-line-bytes, and an eighth of --memory, allow",
        )
    ]
    _, rejects = read_all(plan(path, options=TextOptions(mode="documents", max_line_bytes=20)))
    assert [(reject.place, reject.reason) for reject in rejects] == [("", "too_long")]


def test_invalid_text_option_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n")
    with pytest.raises(
        UsageError,
        match=r"--dtype text=int64: text has the features text \(string\), and their types can't be changed",
    ):
        plan(path, dtypes={"text": "int64"})
    with pytest.raises(UsageError, match="--label y: no such column; there are text"):
        plan(path, label="y")
    path.write_bytes("x\n".encode("utf-16"))
    for encoding in ("utf-8", "utf-16"):
        assert values(read_all(plan(path, options=TextOptions(encoding=encoding)))[0]) == [
            {"text": "x"}
        ]


def test_lone_carriage_returns_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\rtwo\rthree")
    source = plan(path)
    assert values(read_all(source)[0]) == [{"text": "one\rtwo\rthree"}]
    assert (
        source.notes[-1]
        == "a.txt: one line with 2 carriage returns, which do not end lines; convert the file if they should"
    )


@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(alphabet="aé\r\n\u2028 \x0b😀", max_size=60), st.integers(1, 20), st.integers(1, 20))
def test_lines_are_the_same_for_ranges_and_blocks_of_any_size(
    tmp_path: Path, content: str, region: int, block: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((content + "end").encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LINE_RANGE_BYTES", region)
        patch.setattr(lines.read_line_blocks, "__defaults__", (block,))
        source = plan(path)
        rows, rejects = read_all(source)
    assert [row[2]["text"] for row in rows] == plain_lines(path.read_bytes())
    assert [row[1] for row in rows] == list(range(len(rows)))
    assert rejects == []


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(max_size=40),
    st.sampled_from(["utf-16", "utf-32-be", "utf-7", "gb18030"]),
    st.integers(1, 9),
)
def test_encodings_are_decoded_across_blocks(
    tmp_path: Path, content: str, encoding: str, block: int
) -> None:
    path = tmp_path / "a.txt"
    content = "x" + content.encode("utf-8", "ignore").decode()
    path.write_bytes(content.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines.stream_line_blocks, "__defaults__", (block,))
        rows, _ = read_all(plan(path, options=TextOptions(mode="lines", encoding=encoding)))
    assert [row[2]["text"] for row in rows] == plain_lines(content.encode())


def test_file_of_long_lines_is_read_once_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + b"y" * 100_000)
    reads: list[int] = []

    def read_and_count(*args: int) -> Bytes:
        reads.append(len(block := read_range(*args)))  # type: ignore[arg-type]
        return block

    monkeypatch.setattr(lines, "read_range", read_and_count)
    monkeypatch.setattr(lines, "LINE_RANGE_BYTES", 50_000)
    bounds = [(span.start, span.stop) for span in plan_line_ranges(input_files(path), "utf-8")]
    assert bounds == [(0, 3_000_001), (3_000_001, 3_100_001)]
    assert sum(reads) < 4_000_000


def test_text_without_blank_lines_keeps_its_order_without_shuffle(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("\nx\n\n\ny\n\n")
    (tmp_path / "b.txt").write_text("z\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    recordmill.build(files, tmp_path / "out", kind="text", shuffle=False, blank_lines=False)
    assert recordmill.open(tmp_path / "out").to_numpy()["text"].tolist() == ["x", "y", "z"]
