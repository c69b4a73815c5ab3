"""`inspect` of damaged files: an error that says where and what helps, or, by option, all that can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.inspect.summary import inspect
from recordmill.shards.rejects import TooManyRejects

ROWS = 50


@pytest.fixture(params=["ours", "foreign"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Fifty records, of which number 0 and number 7 of the one file are damaged; a is missing in number 9."""
    lines = "".join(json.dumps({"n": i} | ({} if i == 9 else {"a": float(i)})) + "\n" for i in range(ROWS))
    (tmp_path / "in.jsonl").write_text(lines)
    out = tmp_path / "out"
    recordmill.build(tmp_path / "in.jsonl", out, shuffle=False, num_shards=1, splits="all=1")
    (shard,) = out.rglob("*.tfrecord")
    data = bytearray(shard.read_bytes())
    at, starts = 0, []
    while at < len(data):
        starts.append(at)
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    for record in (0, 7):
        data[starts[record] + 13] ^= 1
    shard.write_bytes(data)
    if request.param == "ours":
        return out
    (tmp_path / "foreign.tfrecord").write_bytes(data)
    return tmp_path / "foreign.tfrecord"


def test_an_error_names_record_byte_reason_and_the_option(damaged: Path) -> None:
    with pytest.raises(DataError, match=r"record 0, byte 0: .*CRC of the data.*max_rejects=\"1%\""):
        inspect(damaged)


def test_the_others_are_looked_at_and_the_damaged_ones_told(damaged: Path) -> None:
    summary = inspect(damaged, max_rejects=2)
    assert (summary.records, summary.looked_at, summary.rejected.total) == (ROWS, ROWS - 2, 2)
    assert dict(summary.rejected.counts) == {"crc": 2}
    assert [reject.place.split(",")[0] for reject in summary.rejected.first] == ["record 0", "record 7"]
    assert summary.features["n"].values == (1, ROWS - 1)
    missing = summary.features["a"].missing_at
    assert missing is not None
    assert missing[1] == 9
    places = {place[1] for found in summary.findings if found.feature == "a" for place in found.places}
    assert places <= {9}
    assert summary.to_json()["rejects"]["count"] == 2


def test_more_than_allowed_is_an_error(damaged: Path) -> None:
    with pytest.raises(TooManyRejects, match=r"2 records \(2 crc\); max_rejects=1 allows fewer"):
        inspect(damaged, max_rejects=1)
    with pytest.raises(UsageError, match="infer_from"):
        inspect(damaged, max_rejects=1, infer_from=3)


def test_the_command_says_it(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(damaged), "--quiet"]) == 1
    assert "--max-rejects" in capsys.readouterr().err
    assert main(["inspect", str(damaged), "--quiet", "--max-rejects", "10%"]) == 0
    said = capsys.readouterr().out
    assert "damaged, and left out of all this: 2 records (2 crc)" in said
    assert "record 7, byte" in said
    assert main(["inspect", str(damaged), "--emit", "schema", "--max-rejects", "10%"]) == 2


def test_a_cut_file_gives_what_stands_before_the_cut(damaged: Path) -> None:
    (file,) = damaged.rglob("*.tfrecord") if damaged.is_dir() else [damaged]
    file.write_bytes(file.read_bytes()[:-5])
    summary = inspect(damaged, max_rejects="50%")
    assert summary.rejected.total == 3
    assert summary.looked_at == ROWS - 3
