"""Parsed documents are converted to their types, and errors name the field."""

import contextlib
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.documents import (
    INTERNAL,
    MAX_COUNT,
    Count,
    InvalidValueError,
    Number,
    Parse,
    PositiveCount,
    Share,
    between,
    convert,
    describe_value,
    matches,
)


@dataclass(frozen=True)
class Shard:
    name: str
    records: Count
    sizes: tuple[int, ...] = ()
    cached: Annotated[str, INTERNAL] = ""

    def __post_init__(self) -> None:
        if self.sizes and len(self.sizes) != self.records:
            raise ValueError("needs a size for each record")


class Note(TypedDict):
    text: str
    shard: Shard


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (str | None, None, None),
        (str | None, "a", "a"),
        (int | float, 2**60 + 1, 2**60 + 1),
        (float, 3, 3.0),
        (Sequence[int], [1, 2], (1, 2)),
        (tuple[str, int], ["a", 1], ("a", 1)),
        (tuple[int, ...], [], ()),
        (Mapping[str, Sequence[int]], {"a": [1]}, {"a": (1,)}),
        (Shard, {"name": "a", "records": 2, "new": 1}, Shard("a", 2)),
        (Note, {"text": "b", "shard": {"name": "a", "records": 0}}, {"text": "b", "shard": Shard("a", 0)}),
        (Annotated[str, matches("[a-z]+", "a word")], "abc", "abc"),
        (Annotated[int, Parse(int), between(1, 9)], "7", 7),
        (Count, MAX_COUNT, MAX_COUNT),
        (Number, 10**300, 10**300),
        (Share, 1, 1.0),
    ],
)  # fmt: skip
def test_value_of_its_type_is_converted(kind: Any, value: object, result: object) -> None:
    converted = convert(kind, value)
    assert converted == result
    assert type(converted) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, True, "f: is True, not a whole number"),
        (int, 1.0, "f: is 1.0, not a whole number"),
        (bool, 1, "f: is 1, not true or false"),
        (str, None, "f: is null, not a text"),
        (float, True, "f: is True, not a number"),
        (float, math.nan, "f: is nan, not a number"),
        (float, 2**63, "f: is 9223372036854775808, not a number"),
        (int | float, "1", "f: is '1', not a number"),
        (Number, math.inf, "f: is inf, not a finite number"),
        (Number, 10**400, "f: is a number of 1329 bits, not a finite number"),
        (Count, -1, "f: is -1, not from 0 to 2^63 - 1"),
        (PositiveCount, 0, "f: is 0, not from 1 to 2^63 - 1"),
        (Share, 1.5, "f: is 1.5, not a share from 0 to 1"),
        (Sequence[int], {"a": 1}, "f: is a mapping, not a list"),
        (Sequence[int], [1, "2"], "f[1]: is '2', not a whole number"),
        (tuple[int, int], [1], "f: has 1 values, not 2"),
        (tuple[int, int], "12", "f: is '12', not a list of 2 values"),
        (Mapping[str, int], [1], "f: is a list, not a mapping"),
        (Mapping[str, int], {"a\n": None}, r"f.a\n: is null, not a whole number"),
        (Mapping[str, int], {5: 1}, "f.5: is 5, not a text"),
        (Shard, {"records": 1}, "f.name: is missing"),
        (Shard, {"name": "a", "records": 1, "sizes": [1, 2]}, "f: needs a size for each record"),
        (Note, {"text": "", "shard": {"name": 1, "records": 1}}, "f.shard.name: is 1, not a text"),
        (Annotated[str, matches("[a-z]+", "a word")], "ab1", "f: is 'ab1', not a word"),
        (Annotated[str, matches(r"\d", "a digit")], "٣", r"f: is '\u0663', not a digit"),
        (Annotated[int, Parse(int)], "x", "f: invalid literal for int() with base 10: 'x'"),
    ],
)
def test_invalid_value_is_an_error_with_its_field(kind: Any, value: object, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        convert(kind, value, "f")
    assert str(caught.value) == message


def test_place_of_a_parsed_part_follows_the_place_of_its_field() -> None:
    kinds = (Annotated[Any, Parse(lambda value: convert(Sequence[int], value))],)
    for kind in kinds:
        with pytest.raises(InvalidValueError) as caught:
            convert(kind, [1, "x"], "rules.age")
        assert caught.value.place == "rules.age[1]"
    mapping_kind = Annotated[Any, Parse(lambda value: convert(Mapping[str, int], value))]
    for place, expected in (("rules", "rules.a"), ("", "a")):
        with pytest.raises(InvalidValueError) as caught:
            convert(mapping_kind, {"a": "x"}, place)
        assert caught.value.place == expected


def test_unknown_field_is_an_error_only_if_the_type_is_closed() -> None:
    value = {"name": "a", "records": 1, "size": [1]}
    assert convert(Shard, value) == Shard("a", 1)
    with pytest.raises(InvalidValueError, match=r"^f: has no 'size': one of name, records, sizes"):
        convert(Shard, value, "f", is_closed=True)
    with pytest.raises(InvalidValueError, match=r"^shard: has no 'size'"):
        convert(Note, {"text": "", "shard": value}, is_closed=True)
    assert convert(Shard, {**value, "cached": "x"}).cached == ""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    )
)
def test_wrong_values_are_described_in_one_short_line_of_ascii(value: object) -> None:
    text = describe_value(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 63
    with contextlib.suppress(InvalidValueError):
        convert(Mapping[str, Shard], value)


def test_pickled_invalid_value_error_keeps_its_reason_and_place() -> None:
    received = pickle.loads(pickle.dumps(InvalidValueError("is 7", "parts[3]")))
    assert (received.reason, received.place) == ("is 7", "parts[3]")
