"""JSON Lines are read value for value like Python's json module reads them, and each bad line is
a reject.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.runs import in_flags
from kit.source_reading import features, input_files, read_all, same, values

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.common import lines
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl import tape as json_tape
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.records import mark_invalid_lines
from recordmill.sources.jsonl.source import JsonlSource, plan_jsonl
from recordmill.sources.jsonl.tape import MEMORY_BYTES_PER_VALUE


def write(path: Path, *rows: Any) -> Path:
    """Rows as JSON, or as they are if they are text or bytes."""
    path.write_bytes(
        b"".join(
            (
                row
                if isinstance(row, bytes)
                else row.encode()
                if isinstance(row, str)
                else json.dumps(row).encode()
            )
            + b"\n"
            for row in rows
        )
    )
    return path


def plan(*paths: Path, options: JsonlOptions | None = None, **common: Any) -> JsonlSource:
    return plan_jsonl(input_files(*paths), options or JsonlOptions(), PlanOptions(**common))


def test_json_types_become_dtypes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {
            "i": 1,
            "f": 1,
            "b": True,
            "s": "2020-01-01",
            "l": [1, 2],
            "o": {"x": 1.5, "y": {"z": "a"}},
            "p": [{"q": 1, "r": "u"}],
            "n": None,
            "e": [],
        },
        {
            "i": -5,
            "f": 2.5,
            "b": False,
            "s": "007",
            "l": [],
            "o": {"x": None},
            "p": [],
            "n": None,
            "e": [],
        },
        {
            "f": None,
            "b": None,
            "s": "",
            "l": None,
            "o": None,
            "p": [{"q": 3, "r": "v"}, {"r": "w", "q": 4}],
            "nn": [[1], [], [2, 3]],
        },
    )
    source = plan(path)
    assert features(source) == {
        "i": "int64",
        "f": "float32",
        "b": "bool",
        "s": "string!",
        "l": "int64 [?]",
        "o.x": "float32",
        "o.y.z": "string",
        "p.q": "int64 [?]!",
        "p.r": "string [?]!",
        "n": "string",
        "e": "string [?]",
        "nn": "int64 [?, ?]",
    }
    assert [note for note in source.notes if "no value" in note] == [
        "n: no value in any record; kept as string",
        "e: no value in any record; kept as string [?]",
    ]
    rows, rejects = read_all(source)
    assert rejects == []
    assert [(row["p.r"], row["e"], row["nn"]) for row in values(rows)] == [
        (["u"], [], None),
        ([], [], None),
        (["v", "w"], None, [[1], [], [2, 3]]),
    ]


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


def test_json_values_that_do_not_fit_are_rejects(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"i": 1, "f": 0.5, "l": [1]},
        '{"i": 1.5, "f": 1, "l": []}',
        '{"i": 2, "f": 16777217, "l": []}',
        '{"i": 2, "f": 1e39, "l": []}',
        '{"i": 2, "f": 1e999, "l": []}',
        {"i": 3, "f": 1.0, "l": [1, None]},
        {"i": 4, "f": 16777216, "l": None},
    )
    source = plan(path, dtypes={"i": "int64"})
    assert features(source) == {"i": "int64!", "f": "float32!", "l": "int64 [?]"}
    rows, rejects = read_all(source)
    assert [row[1] for row in rows] == [0, 6]
    assert [(reject.place, reject.reason, in_flags(reject.message)) for reject in rejects] == [
        ("line 2", "range", "i: 1.5 does not fit int64; --dtype i=float64 keeps it"),
        ("line 3", "range", "f: 16777217 does not fit float32; --dtype f=float64 keeps it"),
        ("line 4", "range", "f: 1e+39 does not fit float32; --dtype f=float64 keeps it"),
        ("line 5", "range", "f: 1e999 does not fit float32; --dtype f=string keeps it"),
        ("line 6", "null", "l: a null inside a list, which an Example can't hold: [1, None]"),
    ]
    assert any("3 of 7 values do not fit float32" in note for note in source.notes)
    rows, rejects = read_all(plan(path, dtypes={"i": "string", "f": "float64"}))
    assert [row[2]["i"] for row in rows] == ["1", "1.5", "2", "2", "4"]
    assert [row[2]["f"] for row in rows][2:4] == [16777217.0, 1e39]
    digits = plan(write(tmp_path / "b.jsonl", {"x": 0.5}, {"x": 3.14159274101}))
    assert "x: 1 of 2 values lose digits as float32; --dtype x=float64 keeps them" in map(
        in_flags, digits.notes
    )


def test_integers_beyond_int64_become_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", {"i": 2**63}, {"i": -(2**63)}, '{"i": 1.50}', {"i": -(2**64)}
    )
    source = plan(path)
    assert [row["i"] for row in values(read_all(source)[0])] == [
        str(2**63),
        str(-(2**63)),
        "1.50",
        str(-(2**64)),
    ]
    assert source.notes == (
        "i: 2 of 4 values are whole numbers beyond int64, so all are kept as text",
    )
    rows, rejects = read_all(plan(path, dtypes={"i": "int64"}))
    assert values(rows) == [{"i": -(2**63)}]
    assert (
        in_flags(rejects[0].message)
        == "i: 9223372036854775808 does not fit int64; --dtype i=string keeps it"
    )


def test_values_of_two_forms_are_refused_until_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"x": 1}, {"x": "b"}, {"x": True}, {"x": 2.50})
    with pytest.raises(DataError) as caught:
        plan(path)
    expected = "'x' is a number (a.jsonl: line 1) and a string (a.jsonl: line 2) and true or false (a.jsonl: line 3)"
    assert (
        str(caught.value)
        == f"{expected}; declare its type: --dtype x=string keeps the scalars as text"
    )
    assert [row["x"] for row in values(read_all(plan(path, dtypes={"x": "string"}))[0])] == [
        "1",
        "b",
        "true",
        "2.5",
    ]
    rows, rejects = read_all(plan(path, dtypes={"x": "float32"}))
    assert [row["x"] for row in values(rows)] == [1.0, 2.5]
    assert [(reject.place, reject.reason) for reject in rejects] == [
        ("line 2", "type"),
        ("line 3", "type"),
    ]


def test_each_remedy_for_values_of_several_forms_works(tmp_path: Path) -> None:
    forms = write(tmp_path / "b.jsonl", {"x": 1}, {"x": [1]}, {"x": {"y": 1, "z": "a"}})
    with pytest.raises(DataError) as caught:
        plan(forms)
    taken = "takes {}, and the others are rejects".format
    assert str(caught.value).partition("declare its type: ")[2].split("; ") == [
        f"--dtype x=int64 {taken('a number')}",
        f"--dtype 'x=int64[?]' {taken('a list')}",
        f"--dtype x.y=int64 {taken('an object')}",
    ]
    number, whole = read_all(plan(forms, dtypes={"x": "int64"}))
    assert values(number) == [{"x": 1}]
    assert [in_flags(reject.message) for reject in whole] == [
        "x: a list where int64 is expected: '[1]'",
        'x: an object where int64 is expected: \'{"y": 1, "z": "a"}\'',
    ]
    assert values(read_all(plan(forms, dtypes={"x": "int64[?]"}))[0]) == [{"x": [1]}]
    members, whole = read_all(plan(forms, dtypes={"x.y": "int64"}))
    assert values(members) == [{"x.y": 1, "x.z": "a"}]
    assert [reject.message for reject in whole] == [
        "x: a number, but an object is expected: '1'",
        "x: a list, but an object is expected: '[1]'",
    ]
    given = Schema((Feature("x.z", "string"),))
    assert values(read_all(plan(forms, schema=given))[0]) == [{"x.z": "a"}]
    assert [
        len(read_all(plan(forms, schema=Schema((Feature("x", kind, shape),))))[0])
        for kind, shape in (("int64", ()), ("int64", (None,)))
    ] == [1, 1]


@pytest.mark.parametrize(
    ("good", "odd", "message"),
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
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_record_of_an_unusual_form_is_a_reject(
    tmp_path: Path, good: object, odd: object, message: str, kept: int
) -> None:
    path = write(tmp_path / "a.jsonl", *[good] * 20, odd, *[good] * 20)
    source = plan(path, parsed_cache_bytes=kept)
    rows, rejects = read_all(source)
    assert len(rows) == 40
    assert [(reject.place, in_flags(reject.message)) for reject in rejects] == [
        ("line 21", message)
    ]
    assert any(", and 1 time " in note and "(a.jsonl: line 21)" in note for note in source.notes)
    if (said := re.search(r"--dtype '?(\w+=[^ ']+)'? keeps it", message)) is not None:
        assert len(read_all(plan(path, dtypes=dict([said[1].split("=")])))[0]) == 41


@pytest.mark.parametrize("unit_bytes", [1, 1 << 20])
def test_numbers_among_booleans_are_values_if_bool_is_declared(
    tmp_path: Path, unit_bytes: int
) -> None:
    rows = [{"x": value} for value in (True, 1, False, 0.0, 2, "true", "false", None)]
    path = write(tmp_path / "a.jsonl", *rows)
    source = plan(path, dtypes={"x": "bool"}, unit_bytes=unit_bytes, parsed_cache_bytes=0)
    good, rejects = read_all(source)
    read = [row["x"] for row in values(good)]
    assert read == [True, True, False, False, True, False, None], read
    assert [reject.place for reject in rejects] == ["line 5"]


def test_numeric_text_among_numbers_is_a_value_and_noted(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.jsonl", *({"x": value} for value in (5, "6", 7, "t", 8)))
    source = plan(path)
    good, rejects = read_all(source)
    assert [row["x"] for row in values(good)] == [5, 6, 7, 8]
    assert [reject.place for reject in rejects] == ["line 4"]
    assert [in_flags(note) for note in source.notes if note.startswith("x:")] == [
        "x: a number in most records, and 2 times a string (a.jsonl: line 2), which is rejected "
        "unless its text is valid for int64; --dtype x=string keeps all as text"
    ]


def test_declared_dtypes_cast_json_values(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"t": "2020-01-02T03:04:05", "n": 1.0, "v": [[1, 2], [3, 4]], "q": "12"},
        {"t": None, "n": 2.5, "v": [[1], [2]], "q": "x"},
    )
    source = plan(path, dtypes={"t": "timestamp[ms]", "n": "int8", "v": "uint8[2,2]", "q": "int32"})
    assert features(source) == {
        "t": "timestamp[ms]",
        "n": "int8!",
        "v": "uint8 [2, 2]!",
        "q": "int32!",
    }
    rows, rejects = read_all(source)
    assert values(rows)[0] | {"t": str(values(rows)[0]["t"])} == {
        "t": "2020-01-02 03:04:05",
        "n": 1,
        "v": [1, 2, 3, 4],
        "q": 12,
    }
    assert [(reject.place, reject.reason) for reject in rejects] == [("line 2", "range")]
    with pytest.raises(UsageError, match="--dtype z=int8: no such column; there are t, n, v, q"):
        plan(path, dtypes={"z": "int8"})
    with pytest.raises(UsageError, match="unknown dtype 'flaot'"):
        plan(path, dtypes={"t": "flaot"})
    with pytest.raises(DataError, match="but the schema has int64"):
        plan(path, dtypes={"v": "int64[]"})


def test_given_schema_selects_and_casts_json_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": 1, "b": "x", "c": 2}, {"a": 300, "b": 5, "c": 2})
    schema = Schema(
        (Feature("b", "string", required=True), Feature("a", "uint8"), Feature("d", "float32")),
        label="a",
    )
    source = plan(path, schema=schema)
    assert source.schema == schema
    assert source.notes == (
        "d: in the schema but not in the files: missing in every record",
        "columns left out, since the schema does not name them: c",
    )
    rows, rejects = read_all(source)
    assert values(rows) == [{"b": "x", "a": 1, "d": None}]
    assert [in_flags(reject.message) for reject in rejects] == [
        "a: 300 does not fit uint8; --dtype a=int64 keeps it"
    ]
    with pytest.raises(DataError, match="the schema requires 'z'"):
        plan(path, schema=Schema((Feature("z", "string", required=True),)))


def test_unusual_json_keys_become_names(tmp_path: Path) -> None:
    rows = [{"a.b": 1, "": 2, "ключ\n": 3, "\U0001f600": 4}]
    path = write(tmp_path / "a.jsonl", *rows)
    assert values(read_all(plan(path))[0]) == rows
    with pytest.raises(
        DataError, match=r"two places in the records are called 'a.b': \['a.b'\] and \['a'\]\['b'\]"
    ):
        plan(write(tmp_path / "b.jsonl", {"a.b": 1, "a": {"b": 2}}))


def test_too_many_different_json_keys_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", *({f"user {i}": 1} for i in range(json_tape.MAX_JSON_PATHS + 5000))
    )
    with pytest.raises(DataError, match="more than 20,000 different keys, such as 'user 2"):
        plan(path)


def test_file_without_json_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no lines"):
        plan(write(tmp_path / "a.jsonl", "", ""))
    with pytest.raises(
        DataError,
        match=r"a.jsonl: line 1: no line is a JSON object: .*'\['.* \(JSON Lines has one object on each line\)",
    ):
        plan(write(tmp_path / "a.jsonl", "[", '  "a"', "]"))


def test_long_json_lines_are_rejects_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"a": "x" * 10}, {"a": "x" * 300}, {"a": "y"}, {"a": "z" * 85}, {"a": "x" * 2000}]
    path = write(tmp_path / "a.jsonl", *rows)
    for block in (1 << 20, 64, 37):
        monkeypatch.setattr(lines.read_line_blocks, "__defaults__", (block,))
        found, rejects = read_all(plan(path, options=JsonlOptions(max_line_bytes=100)))
        assert [row[1] for row in found] == [0, 2, 3]
        assert [reject.place for reject in rejects] == ["line 2", "line 5"]
        assert in_flags(rejects[0].message) == (
            "the line has 309 bytes, more than the 100 that --max-line-bytes, and an eighth of --memory, allow"
        )


def test_sizes_of_units_and_blocks_do_not_change_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {
            "i": i,
            "s": "é\u2028" * int(rng.integers(9)),
            "l": rng.integers(9, size=int(rng.integers(4))).tolist(),
        }
        for i in range(3000)
    ]
    rows.insert(1234, "broken {")  # type: ignore[arg-type]
    path = write(tmp_path / "a.jsonl", *rows)
    expected = read_all(plan(path))
    assert len(expected[0]) == 3000
    monkeypatch.setattr(lines, "LINE_RANGE_BYTES", 10_000)
    monkeypatch.setattr(json_tape, "_MAX_TAPE_ERRORS", 1)
    source = plan(path, threads=3)
    assert len(source.units) > 5
    assert read_all(source) == expected


def pick(value: Any, names: list[str]) -> Any:
    if value is None or (not names and not isinstance(value, list)):
        return value
    if isinstance(value, list):
        return [pick(item, names) for item in value]
    return pick(value.get(names[0]), names[1:])


def test_json_key_is_the_same_however_it_is_escaped(tmp_path: Path) -> None:
    """The key that followed last time is looked for by its bytes, but not where an escape gives
    them a meaning.
    """
    written = [
        rb'{"a\\b": 1, "c": 1}',
        rb'{"a\b": 2, "c" : 2}',
        rb'{"a\\b":3,"c":3}',
        rb'{"a\u005cb": 4, "\u0063": 4}',
        rb'{"a\"b": 5, "c":5}',
        rb'{"a\"b":6,"c":6}',
    ]
    path = write(tmp_path / "a.jsonl", *written)
    rows, rejects = read_all(plan(path))
    assert rejects == []
    read = [
        {name: value for name, value in row.items() if value is not None} for row in values(rows)
    ]
    assert read == [json.loads(line) for line in written]


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
lines_strategy = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "", "ab", "ключ"]), trees, max_size=4).map(
            lambda tree: json.dumps(tree).encode()
        ),
        st.dictionaries(st.text(max_size=2), trees, max_size=3).map(
            lambda tree: json.dumps(tree, ensure_ascii=False, indent=None).encode(
                errors="surrogatepass"
            )
        ),
        st.text(alphabet='{}[]",:\\ \tabtrue10.-+eE\x01é', max_size=20).map(
            lambda text: text.encode()
        ),
        st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
    ),
    max_size=8,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines_strategy)
def test_scanner_accepts_the_lines_that_python_accepts(texts: list[bytes]) -> None:
    """A line is a record if and only if Python's json makes an object of it, but for the module's
    exceptions.
    """
    block = np.frombuffer(b"".join(text + b"\n" for text in texts), np.uint8).copy()
    bad = mark_invalid_lines(lines.LineBlock(block))
    good: list[int] = []
    before = 0
    for tape in json_tape.TapeScanner().scan(block):
        good += (tape.row_lines + before).tolist()
        before += tape.lines
    assert before == len(texts)
    assert good == [number for number, text in enumerate(texts) if is_record(text)]
    assert len(bad) == sum(not is_utf8(text) for text in texts)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_record(text: bytes) -> bool:
    twice = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.append(len({key for key, _ in items}) < len(items))
        return dict(items)

    try:
        value = json.loads(text.decode(), object_pairs_hook=pairs)
        json.dumps(value, ensure_ascii=False).encode()  # no half surrogates
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not any(twice) and depth(value) <= 60


def depth(value: Any) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


columns_strategy = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(),
            "s": st.none() | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
            "b": st.none() | st.booleans(),
            "l": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
            "o": st.none()
            | st.fixed_dictionaries(
                {}, optional={"x": st.none() | st.text(max_size=3, alphabet='aé\n\\"')}
            ),
            "p": st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {"u": st.integers(0, 9), "v": st.lists(st.floats(allow_nan=False), max_size=2)}
                ),
                max_size=2,
            ),
        },
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(columns_strategy, st.booleans(), st.booleans())
def test_json_values_equal_those_of_python(
    tmp_path: Path, records: list[dict[str, Any]], ascii_only: bool, spaced: bool
) -> None:
    path = tmp_path / "a.jsonl"
    separators = (" , ", " : ") if spaced else (",", ":")
    path.write_text(
        "".join(
            json.dumps(r, ensure_ascii=ascii_only, separators=separators) + "\n" for r in records
        ),
        "utf-8",
    )
    floats = {
        name: "float64"
        for name in ("f", "p.v")
        if any(has_float(record, name) for record in records)
    }
    source = plan(path, dtypes=floats)
    rows, rejects = read_all(source)
    assert rejects == []
    for row, record in zip(values(rows), records, strict=True):
        for feature in source.schema:
            assert same(row[feature.name], pick(record, feature.name.split("."))), feature
    assert {name.split(".")[0] for name in source.schema.names} >= {
        key for record in records for key, value in record.items() if value not in (None, {})
    }


def has_float(record: dict[str, Any], name: str) -> bool:
    return name.split(".")[0] in record and (
        name == "f" or any(item["v"] for item in record["p"] or [])
    )


def test_long_keys_enlarge_only_the_buffer_of_keys() -> None:
    scanner = json_tape.TapeScanner()
    for number in range(12):
        line = b'{"%d%s": 1}\n' % (number, b"k" * 700_000)
        assert sum(tape.rows for tape in scanner.scan(np.frombuffer(line, np.uint8).copy())) == 1
    assert len(scanner._tape) == 1 << 16
    assert scanner._names.nbytes < 32 << 20
    lines_left = [b'{"%d%s": 1}\n' % (number, b"k" * 700_000) for number in range(12, 120)]
    with pytest.raises(DataError, match="more than 67,108,864 bytes of keys: if the keys are data"):
        [list(scanner.scan(np.frombuffer(line, np.uint8).copy())) for line in lines_left]


def test_json_line_of_more_values_than_memory_is_a_reject(tmp_path: Path) -> None:
    most = 70_000
    rows = [
        {"a": [1] * 5},
        {"a": [1] * (most + 9)},
        {"a": [1] * (most - 9)},
        *[{"a": [1] * 99}] * 9_000,
        {"a": [2] * most},
    ]
    path = write(tmp_path / "a.jsonl", *rows)
    found, rejects = read_all(plan(path, memory_bytes=MEMORY_BYTES_PER_VALUE * most))
    assert len(found) == len(rows) - 2
    assert [(reject.place, reject.reason) for reject in rejects] == [
        ("line 2", "memory"),
        ("line 9004", "memory"),
    ]
    assert (
        in_flags(rejects[0].message)
        == "has more values than --memory leaves room for; --memory 18MiB is enough"
    )
    assert len(read_all(plan(path, memory_bytes=18 << 20))[0]) == len(rows)


def test_json_line_longer_than_memory_is_a_reject(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": "x" * 100}, {"a": "y"})
    _, rejects = read_all(
        plan(path, options=JsonlOptions(max_line_bytes=1 << 20), memory_bytes=400)
    )
    assert "more than the 50 that" in rejects[0].message


@pytest.mark.parametrize("kind", [None, "jsonl"])
def test_deeply_nested_json_line_is_a_reject(kind: str | None, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"a":' + "[" * 5000 + "]" * 5000 + '}\n{"a": 1}\n')
    built = recordmill.build(tmp_path / "deep.jsonl", tmp_path / "out", kind=kind, max_rejects=1)
    assert (built.kind, built.read, built.rejected) == ("jsonl", 2, 1)
    with pytest.raises(TooManyRejects, match="nested more than 60 levels deep"):
        recordmill.build(tmp_path / "deep.jsonl", tmp_path / "other", kind=kind, max_rejects=0)


def test_whole_number_beyond_int64_is_a_float_if_float64_holds_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"i": 100000000000000000000}', '{"i": 100000000000000000001}'
    )
    rows, rejects = read_all(plan(path, dtypes={"i": "float64"}))
    assert values(rows) == [{"i": 1e20}]
    assert len(rejects) == 1


def test_jsonl_with_blank_lines_keeps_its_order_without_shuffle(
    tmp_path: Path,
) -> None:
    """Blank lines have positions, at the ends of files and of ranges too."""
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
