"""The scanner of JSON reads the values that Python reads, in bounded memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.json_reading import plan, write
from kit.runs import in_flags
from kit.source_reading import are_equal, read_all, values

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.common import lines
from recordmill.sources.jsonl import tape as json_tape
from recordmill.sources.jsonl.records import mark_invalid_lines
from recordmill.sources.jsonl.tape import MEMORY_BYTES_PER_VALUE


def pick(value: Any, names: list[str]) -> Any:
    if value is None or (not names and not isinstance(value, list)):
        return value
    if isinstance(value, list):
        return [pick(item, names) for item in value]
    return pick(value.get(names[0]), names[1:])


def test_escapes_do_not_change_a_json_key(tmp_path: Path) -> None:
    """The scanner compares the bytes of the expected next key.

    This must not match if an escape changes the meaning of the bytes.
    """
    records = [
        rb'{"a\\b": 1, "c": 1}',
        rb'{"a\b": 2, "c" : 2}',
        rb'{"a\\b":3,"c":3}',
        rb'{"a\u005cb": 4, "\u0063": 4}',
        rb'{"a\"b": 5, "c":5}',
        rb'{"a\"b":6,"c":6}',
    ]
    path = write(tmp_path / "a.jsonl", *records)
    rows, rejects = read_all(plan(path))
    assert rejects == []
    result = [
        {name: value for name, value in row.items() if value is not None} for row in values(rows)
    ]
    assert result == [json.loads(line) for line in records]


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
    """A line is a record if Python's json reads it as an object.

    Lines with half surrogates, repeated keys or deep nesting are rejects, too.
    """
    block = np.frombuffer(b"".join(text + b"\n" for text in texts), np.uint8).copy()
    bad = mark_invalid_lines(lines.LineBlock(block))
    good: list[int] = []
    num_lines = 0
    for tape in json_tape.TapeScanner().scan(block):
        good += (tape.row_lines + num_lines).tolist()
        num_lines += tape.lines
    assert num_lines == len(texts)
    assert good == [number for number, text in enumerate(texts) if is_record(text)]
    assert len(bad) == sum(not is_utf8(text) for text in texts)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_record(text: bytes) -> bool:
    has_duplicates = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        has_duplicates.append(len({key for key, _ in items}) < len(items))
        return dict(items)

    try:
        value = json.loads(text.decode(), object_pairs_hook=pairs)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half surrogates
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not any(has_duplicates) and depth(value) <= 60


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
            assert are_equal(row[feature.name], pick(record, feature.name.split("."))), feature
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
    max_values = 70_000
    rows = [
        {"a": [1] * 5},
        {"a": [1] * (max_values + 9)},
        {"a": [1] * (max_values - 9)},
        *[{"a": [1] * 99}] * 9_000,
        {"a": [2] * max_values},
    ]
    path = write(tmp_path / "a.jsonl", *rows)
    good_rows, rejects = read_all(plan(path, memory_bytes=MEMORY_BYTES_PER_VALUE * max_values))
    assert len(good_rows) == len(rows) - 2
    assert [(reject.place, reject.reason) for reject in rejects] == [
        ("line 2", "memory"),
        ("line 9004", "memory"),
    ]
    assert (
        in_flags(rejects[0].message)
        == "has more values than --memory leaves room for; --memory 18MiB is enough"
    )
    assert len(read_all(plan(path, memory_bytes=18 << 20))[0]) == len(rows)


@pytest.mark.parametrize("kind", [None, "jsonl"])
def test_deeply_nested_json_line_is_a_reject(kind: str | None, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"a":' + "[" * 5000 + "]" * 5000 + '}\n{"a": 1}\n')
    result = recordmill.build(tmp_path / "deep.jsonl", tmp_path / "out", kind=kind, max_rejects=1)
    assert (result.kind, result.read, result.rejected) == ("jsonl", 2, 1)
    with pytest.raises(TooManyRejects, match="nested more than 60 levels deep"):
        recordmill.build(tmp_path / "deep.jsonl", tmp_path / "other", kind=kind, max_rejects=0)
