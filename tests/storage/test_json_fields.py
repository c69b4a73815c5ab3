"""JSON files from others are checked, and errors name the file and field."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import DataError
from recordmill.storage import json_fields
from recordmill.storage.json_fields import convert_json, load_json, parse_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=20,
)


@dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()


@given(JSON_VALUES)
def test_written_json_is_parsed_to_the_same_value(value: object) -> None:
    assert parse_json(json.dumps(value), "f") == value
    assert parse_json(json.dumps(value, indent=1).encode(), "f") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "f: is not JSON: the key 'a' occurs twice"),
        (b'[{"x": {"b": 1, "b": 1}}]', "f: is not JSON: the key 'b' occurs twice"),
        (b"[NaN]", "f: is not JSON: NaN is not a number in JSON"),
        (b"-Infinity", "f: is not JSON: -Infinity is not a number in JSON"),
        (b'"\xff"', r"f: is not UTF-8 \(byte 1\)"),
        (b"", "f: is not JSON: "),
        (b"{} {}", "f: is not JSON: Extra data"),
        (b"[" * 200_000, "f: is nested too deeply"),
    ],
)
def test_bad_json_is_an_error_with_the_reason(text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        parse_json(text, "f")


def test_nan_is_a_float_if_it_is_allowed() -> None:
    first, second = parse_json("[NaN, -Infinity]", "f", allow_nan=True)
    assert first != first
    assert second == float("-inf")


def test_unknown_fields_are_dropped_and_wrong_ones_are_named() -> None:
    assert convert_json(Part, {"name": "a", "sizes": [1], "new": 2}, "f") == Part("a", (1,))
    with pytest.raises(DataError, match=r"^f: parts\.sizes\[1\]: ") as error:
        convert_json(Part, {"name": "a", "sizes": [1, "2"]}, "f", "parts")
    assert (error.value.source, error.value.place) == ("f", "parts.sizes[1]")


def test_file_is_loaded_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text('{"name": "a"}')
    assert load_json(Part, tmp_path / "f") == Part("a")
    monkeypatch.setattr(json_fields, "MAX_JSON_BYTES", 12)
    with pytest.raises(DataError, match="f: has 13 bytes, above the 12 allowed"):
        load_json(Part, tmp_path / "f")
