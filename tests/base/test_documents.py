"""Values of documents are converted, and a wrong one is an error with its place."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import pytest

from recordmill.base.documents import (
    Count,
    InvalidValueError,
    Number,
    between,
    convert,
    describe_value,
    matches,
)


def test_pickled_invalid_value_error_keeps_its_reason_and_place() -> None:
    received = pickle.loads(pickle.dumps(InvalidValueError("is 7", "parts[3]")))
    assert (received.reason, received.place) == ("is 7", "parts[3]")


@dataclass(frozen=True)
class Limits:
    """A part of a document."""

    rows: Annotated[int, between(1, 9)]
    names: Sequence[str] = ()
    share: float | None = None


class Document(TypedDict, total=False):
    limits: Mapping[str, Limits]
    digest: Annotated[str, matches(r"[0-9a-f]{4}", "4 hexadecimal digits")]


def test_document_is_converted_to_its_types() -> None:
    value = {"limits": {"a": {"rows": 3, "names": ["x"], "share": 1}}, "digest": "00ff", "new": 1}
    assert convert(Document, value) == {
        "limits": {"a": Limits(3, ("x",), 1.0)},
        "digest": "00ff",
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "is a list, not a mapping"),
        ({"limits": {"a": {}}}, "limits.a.rows: is missing"),
        ({"limits": {"a": {"rows": 0}}}, "limits.a.rows: is 0, not from 1 to 9"),
        ({"limits": {"a": {"rows": True}}}, "limits.a.rows: is True, not a whole number"),
        ({"limits": {"a": {"rows": 1, "names": "x"}}}, "limits.a.names: is 'x', not a list"),
        ({"limits": {"a": {"rows": 1, "names": [1]}}}, "limits.a.names[0]: is 1, not a text"),
        ({"limits": {"a": {"rows": 1, "share": "x"}}}, "limits.a.share: is 'x', not a number"),
        ({"digest": "00FF"}, "digest: is '00FF', not 4 hexadecimal digits"),
        ({"digest": "00ff\n"}, "digest: is "),
    ],
)
def test_wrong_value_is_an_error_with_its_place(value: object, message: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        convert(Document, value)
    assert str(error.value).startswith(message)


def test_unknown_name_is_refused_in_a_closed_document() -> None:
    assert convert(Limits, {"rows": 1, "row": 2}) == Limits(1)
    with pytest.raises(InvalidValueError, match=r"has no 'row': one of rows, names, share"):
        convert(Limits, {"rows": 1, "row": 2}, is_closed=True)


def test_number_beyond_int64_or_float64_is_refused() -> None:
    assert convert(Count, 2**63 - 1) == 2**63 - 1
    for value in (2**63, -1, 1.0):
        with pytest.raises(InvalidValueError):
            convert(Count, value)
    with pytest.raises(InvalidValueError):
        convert(Number, 10**400)
    assert type(convert(Number, 2**60 + 1)) is int


def test_described_value_is_short_and_ascii() -> None:
    for value in ("x" * 1000, "\ud800", {"a": [1] * 1000}, None, 1e400):
        text = describe_value(value)
        assert text.isascii()
        assert len(text) < 100
