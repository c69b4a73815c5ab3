"""A schema guessed from the first records is confirmed by all, or refused."""

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.wire_writer import BYTES, FLOAT, INT64, Scribe, field, serialize_row

from recordmill.base.errors import DataError
from recordmill.records.example.decode import decode
from recordmill.records.inference.confirm import SchemaGuess, SchemaNotConfirmed, can_guess_schema
from recordmill.records.inference.infer import infer
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.feature import Feature, Schema

Row = dict[str, tuple[int, list[object]] | None]
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


def guess_schema(records: list[bytes]) -> SchemaGuess | None:
    inference = infer(*buffer(records))
    if not can_guess_schema(inference):
        return None
    return SchemaGuess(
        inference.to_schema(),
        (),
        frozenset(name for (name, _), counts in inference.features.items() if not counts.kinds),
    )


def is_confirmed(head: list[bytes], tail: list[bytes]) -> bool:
    """Returns whether all records confirm the schema of `head`.

    Args:
        head: The first records.
        tail: All other records.

    Raises:
        AssertionError: The confirmed schema or its columns differ from the ones inferred from all
            records.
    """
    guess = guess_schema(head)
    if guess is None:
        return False
    try:
        batches = [guess.decode(*buffer(part)) for part in (head, tail)]
    except SchemaNotConfirmed:
        return False
    assert infer(*buffer(head + tail)).to_schema() == guess.schema
    assert batches == [decode(*buffer(part), guess.schema) for part in (head, tail)]
    return True


ROW: Row = {
    "floats": (FLOAT, [1.0, 2.0]),
    "image": (BYTES, [JPEG]),
    "ints": (INT64, [1, 2, 3]),
    "one": (INT64, [-5]),
    "text": (BYTES, ["größe".encode()]),
    "texts": (BYTES, [b"a", b""]),
}
HEAD: list[Row] = [
    ROW | {"some": (INT64, [7]), "list": (INT64, [1, 300]), "empty": None},
    ROW | {"list": (INT64, [])},
]
SAME: list[Row] = [
    {},
    {"one": (INT64, [1 << 62]), "text": (BYTES, [b""]), "image": (BYTES, [b"plain text"])},
    {"list": (INT64, [-1] * 40), "text": (BYTES, ["日本 語\n".encode() * 9])},
    {"empty": None, "some": None},
    # These values begin like images, but are text.
    {"text": (BYTES, [b"GIF89a is a format"]), "texts": (BYTES, [b"a", b"RIFFaaaaWEBP"])},
]
OTHERWISE: dict[str, Row] = {
    "a new name": {"new": (INT64, [1])},
    "a new name without a kind": {"new": None},
    "a name of control characters": {"\x01": (INT64, [1])},
    "a name longer than there is room for": {"n" * (1 << 15): (INT64, [1])},
    "another kind": {"one": (FLOAT, [1.0])},
    "another kind of a list": {"list": (BYTES, [b"1"])},
    "two values": {"one": (INT64, [1, 2])},
    "no value": {"one": (INT64, [])},
    "no float": {"floats": (FLOAT, [])},
    "a longer tensor": {"ints": (INT64, [1, 2, 3, 4])},
    "a shorter tensor of texts": {"texts": (BYTES, [b"a"])},
    "a value of what had none": {"empty": (BYTES, [b"text"])},
    "an empty list of what had none": {"empty": (INT64, [])},
    "missing": {"one": None},
    "no UTF-8": {"text": (BYTES, [b"\xff"])},
    "a control character": {"text": (BYTES, [b"12345678\x01234567"])},
    "a control character behind much text": {"text": (BYTES, [b"line\r\n" * 50_000 + b"\x01"])},
    "a NUL in a tensor of texts": {"texts": (BYTES, [b"", b"\x00"])},
}


@pytest.mark.parametrize("row", SAME)
def test_record_that_fits_the_guess_confirms_it(row: Row) -> None:
    head = [serialize_row(head_row) for head_row in HEAD]
    assert is_confirmed(
        head, [serialize_row(ROW | row | {"list": row.get("list", (INT64, [1]))})] * 20
    )


@pytest.mark.parametrize("change", OTHERWISE)
def test_record_that_changes_the_schema_is_noticed(change: str) -> None:
    head, last_record = (
        [serialize_row(head_row) for head_row in HEAD],
        serialize_row(ROW | {"list": (INT64, [1])} | OTHERWISE[change]),
    )
    guess = guess_schema(head)
    assert guess is not None
    with pytest.raises(SchemaNotConfirmed):
        guess.decode(*buffer([*head * 20, last_record]))


@pytest.mark.parametrize(
    "last_record",
    [
        b"no Example",
        serialize_row(ROW)[:-1],
        field(1, b"")[:1],
        serialize_row(ROW) + field(2, b""),
        serialize_row(ROW) + serialize_row(ROW),
        serialize_row(ROW) + b"\x18\x01",
        field(1, field(1, field(1, b"one") + field(2, field(3, b"\x08\x05")))),
    ],
)
def test_record_that_is_not_a_plain_example_is_noticed(last_record: bytes) -> None:
    guess = guess_schema([serialize_row(ROW)])
    assert guess is not None
    with pytest.raises(SchemaNotConfirmed):
        guess.decode(*buffer([serialize_row(ROW), last_record]))


@pytest.mark.parametrize(
    "head",
    [
        [],
        [b"no Example"],
        [serialize_row(ROW), b"no Example", b"nor this"],
        [serialize_row({"x": (INT64, [1])}), serialize_row({"x": (FLOAT, [1.0])})],
        [
            serialize_row(
                {"x/ragged_flat_values": (INT64, [1]), "x/ragged_row_lengths_0": (INT64, [1])}
            )
        ],
    ],
)
def test_schema_is_not_guessed_without_examples_or_with_conflicts(head: list[bytes]) -> None:
    assert guess_schema(head) is None


def test_schema_is_not_guessed_from_names_of_nested_lists() -> None:
    schema = Schema((Feature("x/ragged_flat_values", "int64", (), True),))
    assert (
        infer(*buffer([serialize_row({"x/ragged_flat_values": (INT64, [1])})])).to_schema()
        == schema
    )
    assert guess_schema([serialize_row({"x/ragged_flat_values": (INT64, [1])})]) is None


def make_generator(random_state: random.Random, change: float) -> Callable[[], bytes]:
    """Returns a generator of records from one random template.

    Args:
        change: Probability that a record deviates from the template at a feature.
    """
    kinds = {name: random_state.choice([INT64, FLOAT, BYTES]) for name in "abcd"}
    lengths = {name: random_state.choice([1, 1, 2, None]) for name in kinds}
    missing_rates = {name: random_state.choice([0.0, 0.0, 0.5]) for name in kinds}

    def values(kind: int, count: int) -> list[object]:
        texts = [
            b"text",
            b"",
            "ö".encode(),
            *([b"\xff", b"\x01", b"GIF8 12345678", JPEG] if deviates() else []),
        ]
        return [
            random_state.choice(texts)
            if kind == BYTES
            else 1.5
            if kind == FLOAT
            else random_state.choice([0, -1, 1 << 40])
            for _ in range(count)
        ]

    def deviates() -> bool:
        return random_state.random() < change

    def record() -> bytes:
        row: Row = {}
        for name, kind in kinds.items():
            if random_state.random() < missing_rates[name] or deviates():
                continue
            kind = random_state.choice([INT64, FLOAT, BYTES]) if deviates() else kind
            length = (
                lengths[name]
                if lengths[name] is not None and not deviates()
                else random_state.randrange(4)
            )
            row[name] = None if deviates() else (kind, values(kind, length))  # type: ignore[arg-type]
        if deviates():
            row["new"] = (INT64, [1])
        return serialize_row(row)

    return record


@settings(max_examples=75)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.0, 0.002, 0.02]), st.integers(1, 30))
def test_confirmed_guess_equals_the_schema_of_all_records(
    seed: int, change: float, first: int
) -> None:
    record = make_generator(random.Random(seed), change)
    is_confirmed([record() for _ in range(first)], [record() for _ in range(40)])


def test_guesses_of_plain_records_are_confirmed_often() -> None:
    generators = (
        make_generator(random.Random(seed), change) for seed in range(60) for change in (0.0, 0.01)
    )
    results = [
        is_confirmed([generate() for _ in range(20)], [generate() for _ in range(40)])
        for generate in generators
    ]
    assert 20 < sum(results) < 100


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.01]), st.booleans())
def test_confirmed_guess_of_unusual_records_equals_the_schema_of_all(
    seed: int, change_rate: float, sequence: bool
) -> None:
    generator = Scribe(seed, change_rate, {"a": INT64, "b": BYTES, "c": FLOAT})
    records = [generator.message(sequence) for _ in range(30)]
    try:
        is_confirmed(records[:25], records[25:])
    except DataError as error:
        raise AssertionError("nothing but SchemaNotConfirmed tells of a wrong guess") from error
