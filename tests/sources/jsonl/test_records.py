"""Each line of JSON is a record or a reject with its place."""

import re
from pathlib import Path

import pytest
from kit.json_reading import plan, write
from kit.runs import in_flags
from kit.source_reading import read_all

import recordmill
from recordmill.sources.common import lines
from recordmill.sources.jsonl.options import JsonlOptions


def test_position_of_a_record_is_its_line_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \t\r\n{"a": 2}\nx\n {"a":3} \n{"a": 4}')
    rows, rejects = read_all(plan(path))
    assert [(row[1], row[2]["a"]) for row in rows] == [(0, 1), (3, 2), (5, 3), (6, 4)]
    assert [reject.place for reject in rejects] == ["line 5"]
    assert plan(path).notes[-1] == "blank lines, which are not records (2): a.jsonl"


BAD = [
    (b"x", "json", "is not a JSON object: at byte 0 of the line, 'x'"),
    (b"[1]", "json", "is not a JSON object: at byte 0 of the line, '[1]'"),
    (b'{"a": 1', "json", "ends inside its object: at byte 7 of the line"),
    (b'{"a": "', "json", "ends inside its object"),
    (b'{"a": 1} {}', "json", "has more after the end of its object: at byte 9 of the line, '{}'"),
    (b'{"a": 1, "a": 2}', "json", "has a key twice in one object"),
    (b'{"a": 01}', "json", "has a malformed number"),
    (b'{"a": .5}', "json", "is not JSON"),
    (b'{"a": 1.}', "json", "has a malformed number"),
    (b'{"a": tru}', "json", "is not JSON"),
    (b"{'a': 1}", "json", "is not JSON"),
    (b'{"a": 1,}', "json", "is not JSON"),
    (b'{"a" 1}', "json", "is not JSON"),
    (b'{"s": "\t"}', "json", "has a control character inside a string"),
    (b'{"s": "\\x"}', "json", "has an unknown escape in a string"),
    (b'{"s": "\\u12"}', "json", "has an unknown escape in a string"),
    (b'{"s": "\\ud800"}', "json", "has half a surrogate pair in a string"),
    (b'{"s": "\\udc00\\ud800"}', "json", "has half a surrogate pair in a string"),
    (
        b'{"s": "\xff"}',
        "encoding",
        "is not UTF-8: byte 0xFF at byte 7 of the line; declare the file's --encoding",
    ),
    (b'{"s": "\xc3"}', "encoding", "is not UTF-8: byte 0xC3 at byte 7 of the line"),
    (b'{"s": ' + b"[" * 70 + b"]" * 70 + b"}", "json", "is nested more than 60 levels deep"),
]


@pytest.mark.parametrize(
    ("line", "reason", "message"), BAD, ids=[case[0][:20].decode(errors="replace") for case in BAD]
)
def test_bad_json_line_is_a_reject(tmp_path: Path, line: bytes, reason: str, message: str) -> None:
    good = {"a": 1, "s": "x"}
    rows, rejects = read_all(plan(write(tmp_path / "a.jsonl", good, line, good)))
    assert [row[1] for row in rows] == [0, 2]
    assert [(reject.source, reject.place, reject.reason) for reject in rejects] == [
        ("a.jsonl", "line 2", reason)
    ]
    assert in_flags(rejects[0].message).startswith(message)


@pytest.mark.parametrize(
    ("good", "other_record", "message"),
    [
        ({"x": {"y": 1}}, {"x": "bob"}, "x: a string, but an object is expected: 'bob'"),
        ({"x": "bob"}, {"x": {"y": 1}}, "x: an object where string is expected: '{\"y\": 1}'"),
        ({"x": [1, 2]}, {"x": 3}, "x: a number, but a list is expected: '3'"),
        ({"x": [{"y": 1}]}, {"x": [7]}, "x: a number, but an object is expected: '7'"),
        ({"x": 3}, {"x": "b"}, "x: 'b' does not fit int64; --dtype x=string keeps it"),
        ({"x": "b"}, {"x": 3}, "x: a number where most are strings: 3; --dtype x=string keeps it"),
        (
            {"x": "2020-01-02"},
            {"x": True},
            "x: true or false where most are strings: true; --dtype x=string keeps it",
        ),
        (
            {"x": True},
            {"x": 1},
            "x: a number where most are true or false: 1; --dtype x=string keeps it",
        ),
        (
            {"x": [True]},
            {"x": [False, 0.5]},
            "x: a number where most are true or false: 0.5; --dtype x=string keeps it",
        ),
        ({"x": True}, {"x": "b"}, "x: 'b' does not fit bool; --dtype x=string keeps it"),
        ({"x": 3}, {"x": True}, "x: true does not fit int64; --dtype x=string keeps it"),
        ({"x": [1]}, {"x": ["a"]}, "x: ['a'] does not fit int64 [?]; --dtype x=string keeps it"),
    ],
)
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_record_of_an_unusual_form_is_a_reject(
    tmp_path: Path, good: object, other_record: object, message: str, cache_bytes: int
) -> None:
    path = write(tmp_path / "a.jsonl", *[good] * 20, other_record, *[good] * 20)
    source = plan(path, parsed_cache_bytes=cache_bytes)
    rows, rejects = read_all(source)
    assert len(rows) == 40
    assert [(reject.place, in_flags(reject.message)) for reject in rejects] == [
        ("line 21", message)
    ]
    assert any(", and 1 time " in note and "(a.jsonl: line 21)" in note for note in source.notes)
    if (remedy := re.search(r"--dtype '?(\w+=[^ ']+)'? keeps it", message)) is not None:
        assert len(read_all(plan(path, dtypes=dict([remedy[1].split("=")])))[0]) == 41


def test_long_json_lines_are_rejects_with_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"a": "x" * 10}, {"a": "x" * 300}, {"a": "y"}, {"a": "z" * 85}, {"a": "x" * 2000}]
    path = write(tmp_path / "a.jsonl", *rows)
    for block_bytes in (1 << 20, 64, 37):
        monkeypatch.setattr(lines.read_line_blocks, "__defaults__", (block_bytes,))
        good_rows, rejects = read_all(plan(path, options=JsonlOptions(max_line_bytes=100)))
        assert [ordinal for _, ordinal, _ in good_rows] == [0, 2, 3]
        assert [reject.place for reject in rejects] == ["line 2", "line 5"]
        assert in_flags(rejects[0].message) == (
            "the line has 309 bytes, more than the 100 that --max-line-bytes, and an eighth of --memory, allow"
        )


def test_json_line_longer_than_memory_is_a_reject(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": "x" * 100}, {"a": "y"})
    _, rejects = read_all(
        plan(path, options=JsonlOptions(max_line_bytes=1 << 20), memory_bytes=400)
    )
    assert "more than the 50 that" in rejects[0].message


def test_jsonl_with_blank_lines_keeps_its_order_without_shuffle(
    tmp_path: Path,
) -> None:
    """Blank lines have positions, even at the end of a file or range."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.jsonl").write_text('{"a": 0}\n\n\n{"a": 1}\n\n')
    (folder / "1.jsonl").write_text("\n\n")
    (folder / "2.jsonl").write_text('\n{"a": 2}')
    (folder / "3.jsonl").write_text('{"a": 3}\n{"a": 4}\n')
    recordmill.build(folder, tmp_path / "out", shuffle=False, num_shards=2)
    assert recordmill.open(tmp_path / "out").to_numpy()["a"].tolist() == [0, 1, 2, 3, 4]


def test_units_of_a_jsonl_file_count_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *[{"a": row} if row % 3 else "" for row in range(3000)])
    units = plan(path, unit_bytes=1024).units
    assert len(units) > 5
    assert sum(unit.num_positions or 0 for unit in units) == 3000
    assert sum(unit.rows or 0 for unit in units) == 2000
