"""`recordmill stats` prints statistics of data sets, TFRecord files and raw data."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.flights import flight_rows
from tensorflow_metadata.proto.v0 import statistics_pb2

import recordmill
from recordmill.commands.main import run


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecord", "jsonl"])
def test_stats_counts_raw_data_and_foreign_tfrecords(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = flight_rows(400)
    path = tmp_path / f"data.{kind}"
    if kind == "csv":
        rows.to_csv(path, index=False)
    elif kind == "jsonl":
        rows[["count", "name"]].to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pandas(rows), path)
    else:
        recordmill.build(rows, tmp_path / "built", num_shards=1)
        next((tmp_path / "built").glob("data-*/*.tfrecord")).rename(path)
    assert run(["stats", str(path), "--json", "--quiet", "--out", str(tmp_path / "s.pb")]) == 0
    (counts,) = json.loads(capfd.readouterr().out).values()
    assert counts["records"] == 400
    features = {feature["name"]: feature for feature in counts["features"]}
    assert features["count"]["mean"] == pytest.approx(rows["count"].mean())
    assert features["name"]["distinct"] == rows["name"].nunique()
    proto = statistics_pb2.DatasetFeatureStatisticsList.FromString((tmp_path / "s.pb").read_bytes())
    assert proto.datasets[0].num_examples == 400
    assert run(["stats", str(path), "--columns", "count", "--quiet"]) == 0
    assert "FEATURE" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--columns", "counts"], "no feature 'counts'"),
        (["--split", "test"], "--split test: there are train"),
        (["--out", "there.pb"], "--out there.pb already exists; --overwrite"),
    ],
)
def test_invalid_stats_option_is_refused_in_one_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    flight_rows(20).to_csv("data.csv", index=False)
    Path("there.pb").touch()
    assert run(["stats", "data.csv", "--quiet", *options]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_bad_row_stops_stats_unless_max_rejects_allows_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3\n4,5\n")
    assert run(["stats", str(tmp_path / "data.csv"), "--quiet"]) == 1
    assert "line 3" in capfd.readouterr().err
    assert run(["stats", str(tmp_path / "data.csv"), "--quiet", "--max-rejects", "1"]) == 0
    assert "train: 2 records" in capfd.readouterr().out
