"""Batches to ORC files: pyarrow reads back every value; what ORC can't hold is refused by name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.records.writers.orc import OrcWriter
from recordmill.records.writers.outputs import find_output
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import DTYPES, Feature, Schema

ROWS = 3000
NO_ORC = {"uint8", "uint16", "uint32", "uint64", "float16"}


def column(dtype: str, shape: tuple[int | None, ...], rng: np.random.Generator) -> pa.Array:
    """Values, some of which are missing."""
    feature = Feature("x", dtype, shape, required=False)

    def value(sizes: tuple[int | None, ...]) -> Any:
        if sizes:
            size = int(rng.integers(0, 4)) if sizes[0] is None else int(np.prod(sizes))
            return [value(sizes[1:] if sizes[0] is None else ()) for _ in range(size)]
        if dtype == "string":
            return "ä" * int(rng.integers(0, 9))
        if dtype == "bytes":
            return rng.bytes(int(rng.integers(0, 9)))
        if dtype == "bool":
            return bool(rng.integers(2))
        if dtype.startswith("timestamp"):
            return int(rng.integers(-(2**30), 2**30))
        if "float" in dtype:
            return float(np.float32(rng.normal()))
        limits = np.iinfo(dtype)
        return int(rng.choice([limits.min, limits.max, 0, 1]))

    rows = [None if rng.random() < 0.1 else value(shape) for _ in range(ROWS)]
    return pa.array(rows, to_arrow(Schema((feature,))).field(0).type)


@pytest.mark.parametrize("shape", [(), (3,), (None,), (None, 2), (None, None), (0,)], ids=str)
def test_every_dtype_comes_back_or_is_refused_by_name(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(5)
    for dtype in [*DTYPES, "timestamp[us]", "timestamp[s, UTC]"]:
        schema = Schema((Feature("x", dtype, shape, required=False),))
        path = tmp_path / f"{dtype}.orc"
        if dtype in NO_ORC:
            with pytest.raises(UsageError, match=rf'to="orc": .*x \({dtype}.*columns=, or use to="parquet"'):
                OrcWriter(path, schema)
            assert not path.exists()
            continue
        values = column(dtype, shape, rng)
        writer = OrcWriter(path, schema)
        for start in (0, 1, 1000):
            stop = {0: 1, 1: 1000, 1000: ROWS}[start]
            writer.write(pa.record_batch([values.slice(start, stop - start)], to_arrow(schema)))
        writer.close()
        assert writer.rows == ROWS
        found = orc.read_table(path)["x"]
        assert found.null_count == values.null_count > 0
        if dtype.startswith("timestamp"):
            assert ("tz=UTC" in str(found.type)) == ("UTC" in dtype)
            found, values = (_moments(one) for one in (found, values))
        assert found.to_pylist() == values.to_pylist(), dtype


def _moments(column: Any) -> Any:
    """Times as nanoseconds."""

    def kind(one: pa.DataType) -> pa.DataType:
        return pa.list_(kind(one.value_type)) if pa.types.is_nested(one) else pa.timestamp("ns", one.tz)

    return column.cast(kind(column.type))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {
        "id": np.arange(500),
        "text": [f"row {at}" for at in range(500)],
        "tokens": [list(range(at % 5)) for at in range(500)],
        "small": np.arange(500).astype(np.uint8),
    }
    return Path(recordmill.build(rows, tmp_path_factory.mktemp("in") / "out", num_shards=3).out)


def test_a_read_to_orc(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"to=.orc.* small \(uint8"):
        recordmill.read(out, tmp_path / "to", to="orc")
    options: dict[str, Any] = {"to": "orc", "columns": "id,text,tokens", "file_size": "8KiB"}
    result = recordmill.read(out, tmp_path / "to", **options)
    assert [Path(path).suffix for path in result.paths] == [".orc"] * len(result.paths)
    assert len(result.paths) > 1
    found = pa.concat_tables(orc.read_table(path) for path in result.paths).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": at, "text": f"row {at}", "tokens": list(range(at % 5))} for at in range(500)
    ]
    again = recordmill.read(out, tmp_path / "again", threads=1, **options)
    assert [Path(path).read_bytes() for path in again.paths] == [Path(path).read_bytes() for path in result.paths]
    assert recordmill.read(out, tmp_path / "none", where="id < 0", **options).written == 0
    assert orc.read_table(tmp_path / "none" / Path(result.paths[0]).name).schema.names == ["id", "text", "tokens"]


def test_options_of_other_outputs_are_refused_by_name(out: Path, tmp_path: Path) -> None:
    for to, option, value in [
        ("orc", "compression", "gzip"), ("csv", "compression", "none"), ("npy", "row_group_rows", 5),
        ("arrow", "row_group_size", "1MiB"), ("parquet", "file_feature", "text"), ("orc", "name_feature", ""),
    ]:  # fmt: skip
        served = "files" if "feature" in option else "parquet"
        with pytest.raises(UsageError, match=rf'^{option}=.*{value}.*: an option of to="{served}", not of to="{to}"'):
            recordmill.read(out, tmp_path / "to", to=to, **{option: value})
    assert not (tmp_path / "to").exists()
    assert recordmill.read(out, tmp_path / "to", to="csv", columns="id", compression="zstd").written == 500  # as always


def test_what_was_aborted_is_no_file(tmp_path: Path) -> None:
    schema = Schema((Feature("x", "int64"),))
    writer = OrcWriter(tmp_path / "x.orc", schema)
    writer.write(pa.record_batch([pa.array([1, 2])], to_arrow(schema)))
    writer.abort()
    del writer
    with pytest.raises((pa.ArrowInvalid, OSError)):
        orc.read_table(io.BytesIO((tmp_path / "x.orc").read_bytes()))


def test_an_estimate_is_what_is_written(out: Path, tmp_path: Path) -> None:
    from recordmill.pipelines.dry_run import dry_run

    found = dry_run(str(out), to="orc", columns="id,text,tokens")
    result = recordmill.read(out, tmp_path / "to", to="orc", columns="id,text,tokens")
    written = sum(Path(path).stat().st_size for path in result.paths)
    assert written / 2 < found.disk_bytes < written * 2
    assert not find_output("orc").is_folder
