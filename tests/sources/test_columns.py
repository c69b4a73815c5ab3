"""`--columns`: the same features from every kind that has it, and nothing of what is left out."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recordmill
from recordmill.base.errors import UsageError

ROWS = [{"a": n, "b": f"t{n % 3}", "odd": n if n % 2 else f"x{n}", "c": n / 4} for n in range(300)]


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"in.{request.param}"
    if request.param == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif request.param == "csv":
        path.write_text("\n".join([",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]))
    else:
        rows = [{**row, "odd": str(row["odd"])} for row in ROWS]
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("threads", [1, 4])
def test_only_these_in_this_order(path: Path, tmp_path: Path, threads: int) -> None:
    wanted = ["c", "b", "c", "a"] if path.suffix != ".parquet" else ["c", "b", "a"]
    result = recordmill.build(path, tmp_path / "out", columns=wanted, label="b", threads=threads, quiet=True)
    assert list(result.schema.names) == ["c", "b", "a"]
    assert result.schema["b"].classes == ("t0", "t1", "t2")
    assert not any("odd" in note for note in result.notes)
    table = recordmill.open(tmp_path / "out").to_table()
    found = sorted(zip(*(table[name].to_pylist() for name in ("a", "b", "c")), strict=True))
    assert found == [(row["a"], row["a"] % 3, row["c"]) for row in ROWS]


def test_a_column_that_is_not_there_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"column .prise.*(are|is) a, b, odd, c"):
        recordmill.build(path, tmp_path / "out", columns=["a", "prise"], quiet=True)
    with pytest.raises(UsageError, match="label"):
        recordmill.build(path, tmp_path / "out", columns=["a", "b"], label="c", quiet=True)
    assert not (tmp_path / "out").exists()


def test_members_of_an_object_come_with_it(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"u": {"id": 1, "tags": ["x"]}, "t": [1]}\n{"u": {"id": 2, "tags": []}, "t": "odd"}\n')
    assert list(recordmill.build(path, tmp_path / "out", columns=["u"], quiet=True).schema.names) == ["u.id", "u.tags"]
