"""`inspect` reports damaged records and, within max_rejects, counts the good ones."""

from pathlib import Path

import pytest
from kit.data_sets import flip_record, write_data_set

from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.inspect.summary import (
    inspect,
)
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects

ROWS = 50


@pytest.fixture(params=["ours", "foreign"])
def damaged_input(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data set or a file with 50 records.

    Records 0 and 7 are damaged. Feature `a` is missing in record 9.
    """
    schema = Schema((Feature("n", "int64", (), True), Feature("a", "float32")))
    columns = {"n": range(ROWS), "a": [None if i == 9 else float(i) for i in range(ROWS)]}
    out = write_data_set(tmp_path / "out", {"all": columns}, schema, shards=1)
    for record in (0, 7):
        shard, _ = flip_record(out, record, "all-00000")
    if request.param == "ours":
        return out
    return shard.rename(tmp_path / "foreign.tfrecord")


def test_inspect_error_names_record_byte_reason_and_option(damaged_input: Path) -> None:
    with pytest.raises(DataError, match=r"record 0, byte 0: .*CRC of the data.*max_rejects=\"1%\""):
        inspect(damaged_input)


def test_inspect_with_max_rejects_counts_good_and_damaged_records(damaged_input: Path) -> None:
    summary = inspect(damaged_input, max_rejects=2)
    assert (summary.records, summary.looked_at, summary.rejected.total) == (ROWS, ROWS - 2, 2)
    assert dict(summary.rejected.counts) == {"crc": 2}
    assert [reject.place.split(",")[0] for reject in summary.rejected.first] == [
        "record 0",
        "record 7",
    ]
    assert summary.features["n"].values == (1, ROWS - 1)
    missing = summary.features["a"].missing_at
    assert missing is not None
    assert missing[1] == 9
    places = {
        place[1]
        for finding in summary.findings
        if finding.feature == "a"
        for place in finding.places
    }
    assert places <= {9}
    assert summary.to_json()["rejects"]["count"] == 2


def test_inspect_over_max_rejects_is_an_error(damaged_input: Path) -> None:
    with pytest.raises(
        TooManyRejects, match=r"2 records \(reason: wrong checksum\); max_rejects=1 allows fewer"
    ):
        inspect(damaged_input, max_rejects=1)
    with pytest.raises(UsageError, match="infer_from"):
        inspect(damaged_input, max_rejects=1, infer_from=3)


def test_inspect_command_prints_damaged_records(
    damaged_input: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(damaged_input), "--quiet"]) == 1
    assert "--max-rejects" in capsys.readouterr().err
    assert main(["inspect", str(damaged_input), "--quiet", "--max-rejects", "10%"]) == 0
    output = capsys.readouterr().out
    assert "damaged records, which are not included: 2 records (reason: wrong checksum)" in output
    assert "record 7, byte" in output
    assert main(["inspect", str(damaged_input), "--emit", "schema", "--max-rejects", "10%"]) == 2


def test_truncated_file_is_inspected_up_to_the_cut(damaged_input: Path) -> None:
    (file,) = damaged_input.rglob("*.tfrecord") if damaged_input.is_dir() else [damaged_input]
    file.write_bytes(file.read_bytes()[:-5])
    summary = inspect(damaged_input, max_rejects="50%")
    assert summary.rejected.total == 3
    assert summary.looked_at == ROWS - 3
