"""Thousands of files are read with 256 file descriptors, and single records are parsed quickly
and correctly.
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kit.data_sets import FOLDER, MIXED, mixed_rows, write_data_set
from kit.example_oracle import schemas_and_rows
from kit.runs import limit_descriptors, run_python

from recordmill.base.errors import DataError
from recordmill.base.lru import LruLimit, LruSlot
from recordmill.reader.dataset import open
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import make_parse_plan, parse_record, range_calls, take_rows
from recordmill.records.columns.conversions import Decoding
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.record_files import RecordFiles
from recordmill.sources.arrow.single_example import example, parse_example

SCHEMA = Schema((Feature("id", "int64", (), True), Feature("words", "string", (None,), True)))
READ = """
import sys
import numpy as np
import recordmill
from recordmill.__main__ import main

whole, foreign, out = sys.argv[1], sys.argv[2].split("|"), sys.argv[3]

def ids_of(batches):
    return sorted(n for batch in batches for n in np.asarray(batch["id"]).tolist())

def read(ds):
    total = len(ds)
    every = list(range(total))
    assert ds.head(3)["id"].to_pylist() == [0, 1, 2]
    for mode in (False, "window", "global"):
        batches = ds.batches(50, shuffle=mode, drop_remainder=False)
        assert ids_of([next(batches), *batches]) == every, mode
    assert ds[total - 1]["id"] == total - 1
    assert ds.take([5, total - 2, 7])["id"].to_pylist() == [5, total - 2, 7]
    assert ds[total // 2 :]["id"].to_pylist() == every[total // 2 :]
    assert [row["id"] for row in ds] == every
    assert ds.to_numpy()["id"].tolist() == ds.to_table()["id"].to_pylist() == every
    assert len(ds.filter("id % 2 = 0")) == (total + 1) // 2
    assert ids_of(ds.to_tf(50)) == every
    try:
        import torch.utils.data
    except ImportError:
        return
    assert ids_of(ds.to_torch(50)) == every
    assert ids_of(torch.utils.data.DataLoader(ds.to_torch(50), batch_size=None, num_workers=2)) == every

ours = recordmill.open(whole, threads=2)
read(ours)
for folder in foreign:
    ds = recordmill.open(folder, threads=2)
    read(ds)
    mixed = recordmill.mixture([(ours, 1), (ds, 2)], stop="all")
    assert len(ids_of(mixed.batches(50, shuffle="window"))) == len(mixed)
for number, folder in enumerate([whole, *foreign]):
    assert recordmill.verify(folder, threads=2) == []
    assert main(["inspect", folder, "--threads", "2"]) == 0
    assert recordmill.read(folder, f"{out}-{number}", to="parquet", threads=2).written == len(ours)
"""


def make(folder: Path, shards: int) -> tuple[Path, list[Path]]:
    """(a data set of so many shards, folders of the same shards as files that nothing
    describes).
    """
    rows, arrow = range(2 * shards), to_arrow(SCHEMA)
    words = pa.array([["a"] * (i % 3) for i in rows], arrow.field("words").type)
    out = write_data_set(
        folder / "ours",
        {"train": pa.table([pa.array(rows), words], schema=arrow)},
        SCHEMA,
        shards=shards,
    )
    plain, packed = folder / "plain", folder / "packed.gz"
    plain.mkdir()
    packed.mkdir()
    for shard in (out / FOLDER).glob("train-*"):
        (plain / shard.name).write_bytes(shard.read_bytes())
        (packed / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes(), 1))
    return out, [plain, packed]


@pytest.mark.sweep
def test_every_consumer_reads_2_000_files_with_256_descriptors(tmp_path: Path) -> None:
    out, foreign = make(tmp_path, 2_000)
    given = [out, "|".join(map(str, foreign)), tmp_path / "read"]
    done = run_python("-c", READ, *given, check=False, preexec_fn=limit_descriptors)
    assert done.returncode == 0, done.stderr[-3000:]


class Asked(list[Any]):
    """Files, and which of them were asked for."""

    def __init__(self, files: list[Any]) -> None:
        super().__init__(files)
        self.numbers: set[int] = set()

    def __getitem__(self, at: Any) -> Any:
        self.numbers.add(at)
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        raise AssertionError("all files are gone through")


def test_reads_touch_only_the_files_that_hold_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, (_, packed) = make(tmp_path, 40)
    ours, inflated = open(out), open(packed, schema=SCHEMA)
    numbers = np.array([61, 4, 5])  # two of each file
    for ds in (ours, inflated):
        files: RecordFiles = ds.files
        assert len(files.ends) == 40
        asked = Asked(list(files))
        monkeypatch.setattr(files, "_files", asked)
        assert files.frames(numbers).numbers.tolist() == [61, 4, 5]
        assert take_rows(files, numbers, Decoding(SCHEMA), 1)["id"].to_pylist() == [61, 4, 5]
        assert len(list(range_calls(files, 60, 63))) == 2
        assert asked.numbers == {2, 30, 31}
        asked.numbers.clear()
        one = RecordSubset.from_numbers(np.array([61]), 80)
        assert len(list(range_calls(files, 0, 80, subset=one))) == 1
        assert asked.numbers == {30}


def test_lru_limit_keeps_the_most_recently_used_values() -> None:
    limit, made = LruLimit(2), []
    slots: list[LruSlot[int]] = [LruSlot(limit) for _ in range(3)]

    def get(number: int) -> int:
        return slots[number].get(lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    assert [get(0), get(1), get(0), get(2), get(0), get(1)] == [0, 1, 0, 2, 0, 1]
    assert made == [0, 1, 2, 1]
    assert sorted(limit.values()) == [0, 1]
    assert not limit.has_room()
    slots.clear()  # what nobody has any more is not held
    assert limit.values() == []
    assert limit.has_room()


FLAT = MIXED.select([feature.name for feature in MIXED if feature.name != "nested"])
ROWS = 40
FRAMES = encode(mixed_rows(ROWS).select(FLAT.names).combine_chunks().to_batches()[0], FLAT)
RECORDS = [FRAMES.payload(i).tobytes() for i in range(ROWS)]


def decoded(data: bytes, schema: Schema) -> dict[str, Any] | None:
    try:
        return parse_example(data, schema)
    except DataError:
        return None


def quick(data: bytes, schema: Schema, whole: bool = True) -> dict[str, Any] | None:
    plan = make_parse_plan(schema)
    assert plan is not None
    return parse_record(data, plan, schema, is_full_schema=whole)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert type(value) is type(other[name]), name
        if isinstance(value, np.ndarray):
            assert value.dtype == other[name].dtype
            assert value.shape == other[name].shape
        np.testing.assert_equal(value, other[name])


@pytest.mark.parametrize("columns", [FLAT.names, ("label", "tokens"), ("when",)])
def test_quick_parser_equals_the_decoder_for_plain_records(columns: tuple[str, ...]) -> None:
    schema = FLAT.select(columns)
    for data in RECORDS:
        found, truth = quick(data, schema, whole=columns == FLAT.names), decoded(data, schema)
        assert found is not None
        assert truth is not None
        same(found, truth)
    long = quick(example({"x": list(range(2000))}), Schema((Feature("x", "int64", (None,)),)))
    assert long is not None
    assert long["x"].tolist() == list(range(2000))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_quick_parser_never_disagrees_on_damaged_records(data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from(RECORDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if change == "set":
            record[at] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(record) > 1:
            del record[at]
        else:
            record.insert(at, data.draw(st.integers(0, 255)))
    found, truth = quick(bytes(record), FLAT), decoded(bytes(record), FLAT)
    if found is not None:
        assert truth is not None
        same(found, truth)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas_and_rows())
def test_quick_parser_equals_the_decoder_for_every_dtype_and_shape(
    case: tuple[Schema, list[dict[str, Any]]],
) -> None:
    schema, rows = case
    assume("bfloat16" not in {feature.dtype for feature in schema})  # which a build rounds
    for row in rows if make_parse_plan(schema) is not None else ():
        record = example(row, schema)
        found, truth = quick(record, schema), decoded(record, schema)
        assert found is not None
        assert truth is not None
        same(found, truth)


def test_quick_parser_leaves_misfits_to_the_decoder() -> None:
    assert quick(example({"x": 300}), Schema((Feature("x", "int8"),))) is None
    assert quick(example({"x": [1, 2]}), Schema((Feature("x", "int64"),))) is None
    assert quick(example({"x": "a"}), Schema((Feature("x", "int64"),))) is None
    assert quick(b"", Schema((Feature("x", "int64", (), True),))) is None
    assert quick(b"", Schema((Feature("x", "int64"),))) == {"x": None}
    assert quick(example({"x": b"\xff"}), Schema((Feature("x", "string"),))) is None
    assert make_parse_plan(MIXED) is None
    assert make_parse_plan(Schema((Feature("record", "bytes"),), message="bytes")) is None


def test_quick_parser_leaves_names_that_are_not_utf8_to_the_decoder() -> None:
    good = example({"a": 1})
    entry = b"\x0a\x05" + b"\x0a\x01\xff" + b"\x12\x00"
    bad = bytes([good[0], good[1] + len(entry)]) + good[2:] + entry
    schema = Schema((Feature("a", "int64"),))
    plan = make_parse_plan(schema)
    assert plan is not None
    assert parse_record(good, plan, schema, is_full_schema=False) == {"a": 1}
    assert parse_record(bad, plan, schema, is_full_schema=False) is None
