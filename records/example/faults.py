"""The decoder's status numbers to words: why a record can't be used, in one line."""

from __future__ import annotations

from dataclasses import dataclass

from recordmill.records.example import locate
from recordmill.records.protobuf import wire
from recordmill.schemas.feature import Feature

_REASONS = {
    wire.PAST_END: "truncated: a field reaches past the end of its message",
    wire.LONG_VARINT: "a varint is longer than 10 bytes",
    wire.BAD_TAG: "field number 0, or a tag of more than 32 bits",
    wire.BAD_WIRE_TYPE: "wire type 6 or 7, which protobuf does not have",
    wire.BAD_GROUP: "a group ends that did not begin",
    wire.TOO_DEEP: "messages nested more than 100 deep",
    wire.TOO_LONG: "a field of 2 GiB or more",
    wire.KEY_NOT_UTF8: "a feature's name is not UTF-8",
    wire.HALF_FLOAT: "a float_list whose bytes are no multiple of 4",
    locate.UNUSUAL: "not an Example",
    locate.WRONG_KIND: "another kind of list than the schema's",
    locate.WRONG_COUNT: "another number of values than the schema's",
    locate.MISSING: "missing, though the schema says that every record has it",
    locate.OUT_OF_RANGE: "a value outside the range of its dtype",
    locate.NOT_UTF8: "a value that is not UTF-8",
    locate.WRONG_SIZE: "another number of bytes than its shape and dtype need",
    locate.RAGGED: "row lengths that do not fit each other or the values",
}


@dataclass(frozen=True)
class BadRecord:
    """A record that can't be decoded: its row in the call,
    the feature it fails on ("" if it is no Example at all), and the reason.
    """

    row: int
    feature: str
    reason: str


def reason_of(status: int, feature: Feature | None = None) -> str:
    """The words for a status, with the schema's expectation where there is one."""
    words = _REASONS[status]
    if feature is None or status < locate.UNUSUAL:
        return words
    return f"{words}; expected {feature.describe()}, a {feature.kind}_list"
