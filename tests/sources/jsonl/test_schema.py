"""JSON types become dtypes, and values of several forms must be declared."""

from pathlib import Path

import pytest
from kit.json_reading import plan, write
from kit.runs import in_flags
from kit.source_reading import features, read_all, values

from recordmill.base.errors import DataError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.jsonl import tape as json_tape


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
    with pytest.raises(DataError) as error:
        plan(path)
    expected = "'x' is a number (a.jsonl: line 1) and a string (a.jsonl: line 2) and true or false (a.jsonl: line 3)"
    assert (
        str(error.value)
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
    with pytest.raises(DataError) as error:
        plan(forms)
    remedy_text = "takes {}, and the others are rejects".format
    assert str(error.value).partition("declare its type: ")[2].split("; ") == [
        f"--dtype x=int64 {remedy_text('a number')}",
        f"--dtype 'x=int64[?]' {remedy_text('a list')}",
        f"--dtype x.y=int64 {remedy_text('an object')}",
    ]
    number_rows, rejects = read_all(plan(forms, dtypes={"x": "int64"}))
    assert values(number_rows) == [{"x": 1}]
    assert [in_flags(reject.message) for reject in rejects] == [
        "x: a list where int64 is expected: '[1]'",
        'x: an object where int64 is expected: \'{"y": 1, "z": "a"}\'',
    ]
    assert values(read_all(plan(forms, dtypes={"x": "int64[?]"}))[0]) == [{"x": [1]}]
    member_rows, rejects = read_all(plan(forms, dtypes={"x.y": "int64"}))
    assert values(member_rows) == [{"x.y": 1, "x.z": "a"}]
    assert [reject.message for reject in rejects] == [
        "x: a number, but an object is expected: '1'",
        "x: a list, but an object is expected: '[1]'",
    ]
    schema = Schema((Feature("x.z", "string"),))
    assert values(read_all(plan(forms, schema=schema))[0]) == [{"x.z": "a"}]
    assert [
        len(read_all(plan(forms, schema=Schema((Feature("x", kind, shape),))))[0])
        for kind, shape in (("int64", ()), ("int64", (None,)))
    ] == [1, 1]


@pytest.mark.parametrize("unit_bytes", [1, 1 << 20])
def test_numbers_among_booleans_are_values_if_bool_is_declared(
    tmp_path: Path, unit_bytes: int
) -> None:
    rows = [{"x": value} for value in (True, 1, False, 0.0, 2, "true", "false", None)]
    path = write(tmp_path / "a.jsonl", *rows)
    source = plan(path, dtypes={"x": "bool"}, unit_bytes=unit_bytes, parsed_cache_bytes=0)
    good_rows, rejects = read_all(source)
    result = [row["x"] for row in values(good_rows)]
    assert result == [True, True, False, False, True, False, None], result
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


def test_integer_beyond_int64_is_a_float_if_float64_represents_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"i": 100000000000000000000}', '{"i": 100000000000000000001}'
    )
    rows, rejects = read_all(plan(path, dtypes={"i": "float64"}))
    assert values(rows) == [{"i": 1e20}]
    assert len(rejects) == 1
