"""Statistics of a build equal the figures of pandas.

Their bytes do not depend on threads, shards, memory or the order of the inputs.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kit.files import flip
from kit.flights import ROWS, flight_rows

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.commands.main import run
from recordmill.shards.manifest import Manifest


@pytest.fixture(scope="module")
def csv_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    rows = flight_rows()
    for number in range(3):
        rows.iloc[number::3].to_csv(folder / f"{number}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def built(csv_files: Path, tmp_path_factory: pytest.TempPathFactory) -> recordmill.BuildResult:
    return recordmill.build(
        csv_files,
        tmp_path_factory.mktemp("out") / "set",
        splits="train=0.7,test=0.3",
        label="carrier",
    )


def stored_statistics(out: Path | str) -> bytes:
    return Path(out, "statistics.pb").read_bytes()


def test_statistics_equal_those_of_pandas(built: recordmill.BuildResult) -> None:
    for split in ("train", "test"):
        dataset = recordmill.open(built.out, split)
        rows = pd.DataFrame(dataset.to_table().to_pylist())
        features = dataset.statistics[split]
        assert dataset.statistics.records == {split: len(rows)}
        for name in ("fare", "count", "time"):
            feature, column = features[name], rows[name].dropna()
            assert (feature.present, feature.missing) == (len(column), len(rows) - len(column))
            assert (feature.min, feature.max) == (column.min(), column.max())
            assert feature.zeros == (column == 0).sum()
            exact_values = column.to_list() if name == "fare" else [int(value) for value in column]
            assert feature.mean == pytest.approx(sum(exact_values) / len(exact_values), rel=1e-15)
            assert feature.std_dev == pytest.approx(
                np.std(np.array(exact_values, np.longdouble)), rel=1e-12
            )
            assert feature.distinct == column.nunique()
            assert feature.distinct_error == 0
            assert feature.quantile_error == 0
            expected = np.quantile(column.to_numpy(), np.linspace(0, 1, 11), method="inverted_cdf")
            assert feature.quantiles == tuple(expected.astype(float).tolist())
        assert features["count"].top_values == {
            str(k): v for k, v in rows["count"].value_counts().items()
        }
        names = rows["name"].value_counts()
        assert features["name"].top_values == names.to_dict()
        assert features["name"].distinct == len(names)
        lengths = rows["name"].str.encode("utf-8").str.len()
        assert features["name"].sizes == (
            lengths.min(),
            pytest.approx(lengths.mean()),
            lengths.max(),
        )


def test_statistics_are_the_same_bytes_for_any_threads_shards_and_memory(
    csv_files: Path, built: recordmill.BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"splits": "train=0.7,test=0.3", "label": "carrier"}
    for number, settings in enumerate(
        ({"threads": 1}, {"threads": 8, "num_shards": 3}, {"memory": "300MiB"})
    ):
        result = recordmill.build(csv_files, tmp_path / str(number), **options, **settings)
        assert stored_statistics(result.out) == stored_statistics(built.out)
    monkeypatch.setattr("recordmill.sources.common.contract.UNIT_BYTES", 20_000)
    result = recordmill.build(
        [str(csv_files / f"{number}.csv") for number in (2, 0, 1)], tmp_path / "o", **options
    )
    recount = recordmill.stats(result.out, recount=True)
    assert (
        recount.to_bytes()
        == recordmill.stats(result.out).to_bytes()
        == stored_statistics(result.out)
    )


def test_stats_counts_a_data_set_that_was_built_without_statistics(
    csv_files: Path, built: recordmill.BuildResult, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    recordmill.build(csv_files, out)
    assert (
        run(
            [
                "build",
                str(csv_files),
                "--out",
                str(out),
                "--no-stats",
                "--overwrite",
                "--quiet",
                "--splits",
                "train=0.7,test=0.3",
                "--label",
                "carrier",
                "--name",
                built.manifest.name,
            ]
        )
        == 0
    )
    assert not (out / "statistics.pb").exists()  # the file of the earlier generation was removed
    assert not list(out.glob("data-*/statistics.pb"))[1:]
    dataset = recordmill.open(out)
    manifest = dataset.records.catalog.manifest
    assert manifest is not None
    assert manifest.fingerprint == built.manifest.fingerprint
    assert list(manifest.statistics) == ["notes"]
    assert dataset.statistics.to_bytes() == stored_statistics(built.out)
    assert recordmill.verify(out) == []


def test_manifest_has_a_summary_of_statistics_and_old_manifests_open_without(
    built: recordmill.BuildResult,
) -> None:
    statistics = built.manifest.statistics
    summary = statistics["splits"]["train"]["count"]
    feature = recordmill.open(built.out).statistics["train"]["count"]
    assert summary == {
        "missing": 0,
        "min": feature.min,
        "max": feature.max,
        "mean": feature.mean,
        "std_dev": feature.std_dev,
        "distinct": feature.distinct,
    }
    old_manifest = json.loads(built.manifest.to_json())
    del old_manifest["statistics"]
    assert Manifest.from_json(json.dumps(old_manifest)).statistics == {}
    for invalid in (
        {"file": {"name": "../x", "bytes": 1, "digest": ""}},
        {"splits": {"train": 3}},
        {"file": 3},
    ):
        with pytest.raises(DataError, match="statistics"):
            Manifest.from_json(json.dumps({**old_manifest, "statistics": invalid}))


def test_changed_statistics_file_is_reported_and_not_used(csv_files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(csv_files, out)
    (path,) = out.glob("data-*/statistics.pb")
    flip(path, 100)
    assert [str(path)] == [problem.file for problem in recordmill.verify(out)]
    with pytest.raises(DataError, match="it has another digest"):
        _ = recordmill.open(out).statistics
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        recordmill.stats(out)
    assert recordmill.stats(out, recount=True).records == {"train": ROWS}


def test_class_weights_equal_those_of_scikit_learn(built: recordmill.BuildResult) -> None:
    dataset = recordmill.open(built.out)
    train = recordmill.open(built.out, "train")
    classes = np.asarray(train.to_numpy()["carrier"])
    values, counts = np.unique(classes, return_counts=True)
    expected = {
        int(v): len(classes) / (len(values) * int(c)) for v, c in zip(values, counts, strict=True)
    }
    assert dataset.class_weights() == train.class_weights("carrier") == expected
    assert set(dataset.class_weights("name")) == set(train.to_table().column("name").to_pylist())
    for feature, message in (
        ("fare", "floats"),
        ("time", "distinct values"),
        ("carier", "did you mean"),
    ):
        with pytest.raises(UsageError, match=message):
            dataset.class_weights(feature)


def test_normalization_returns_the_arguments_of_the_keras_layer(
    built: recordmill.BuildResult,
) -> None:
    dataset = recordmill.open(built.out)
    values = recordmill.open(built.out, "train").to_table().column("fare").drop_null().to_numpy()
    arguments = dataset.normalization("fare")
    assert set(arguments) == {"axis", "mean", "variance"}
    assert arguments["mean"] == pytest.approx(values.mean())
    assert arguments["variance"] == pytest.approx(values.var())
    with pytest.raises(UsageError, match="no numbers"):
        dataset.normalization("name")
    all_arguments = dataset.normalization()
    assert all_arguments["fare"] == arguments
    assert {*all_arguments} == {
        feature.name
        for feature in dataset.schema
        if feature.dtype[:3] in ("flo", "int") and feature.classes is None
    }


def test_view_has_the_statistics_of_its_columns_and_records(built: recordmill.BuildResult) -> None:
    dataset = recordmill.open(built.out, columns=["count", "fare"])
    assert list(dataset.statistics["test"]) == ["count", "fare"]
    filtered = recordmill.open(built.out, where="count < 0")
    assert filtered.statistics["train"]["count"].max == -1
    assert sum(filtered.statistics.records.values()) == len(filtered)
    renamed = dataset.rename({"count": "n"})
    assert renamed.statistics["train"]["n"].mean == dataset.statistics["train"]["count"].mean


def test_estimated_distinct_values_are_at_most_the_values(tmp_path: Path) -> None:
    count = 15_000  # the estimates for this many values are too high
    rows = {"number": np.arange(count), "word": [f"w{number}" for number in range(count)]}
    recordmill.build(pa.table(rows), tmp_path / "out")
    for feature in recordmill.open(tmp_path / "out").statistics["train"].values():
        assert feature.distinct_error
        assert feature.distinct == count


def test_counts_of_many_distinct_values_are_estimated_and_marked_as_estimates(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(2)
    words = np.where(
        random.random(40_000) < 0.6,
        random.choice(3, 40_000, p=[0.5, 0.3, 0.2]),
        random.integers(0, 20_000, 40_000),
    )
    rows = pa.table({"word": [f"w{number}" for number in words]})
    manifest = recordmill.build(rows, tmp_path / "out").manifest
    assert manifest.statistics["splits"]["train"]["word"]["missing"] == 0
    feature = recordmill.open(tmp_path / "out").statistics["train"]["word"]
    values, counts = np.unique(words, return_counts=True)
    assert len(values) > 4096
    assert feature.distinct_error == 1 / 64
    assert not feature.top_values_are_exact
    assert abs((feature.distinct or 0) - len(values)) < 4 * len(values) / 64
    frequent_words = values[np.argsort(-counts)][:3].tolist()
    assert list(feature.top_values)[:3] == [f"w{number}" for number in frequent_words]
    assert feature.top_values[f"w{frequent_words[0]}"] == pytest.approx(counts.max(), rel=0.1)
    assert not math.isnan(feature.distinct_error)
    assert feature.sampled == 2048
    # A rare value is not listed, even if the sample contains it twice.
    assert {"w0", "w1", "w2"} == set(feature.top_values)
    assert set(feature.to_json()["top_values"]) == set(feature.top_values)
    assert all(value in feature.row()[-1] for value in feature.top_values)


def test_column_of_rare_texts_has_no_top_values(tmp_path: Path) -> None:
    words = np.random.default_rng(2).integers(0, 10_000, 40_000)
    rows = pa.table({"word": [f"w{number}" for number in words]})
    recordmill.build(rows, tmp_path / "out")
    feature = recordmill.open(tmp_path / "out").statistics["train"]["word"]
    # A rare value is not listed, even if the sample contains it more often than others.
    assert not feature.top_values
    message = recordmill.open(tmp_path / "out").statistics.to_proto().datasets[0].features[0]
    assert not message.string_stats.top_values
    assert feature.row()[-1] == ""
    assert feature.to_json()["top_values"] == {}


@pytest.mark.parametrize("label", [None, "n"])
def test_split_without_values_of_a_feature_is_handled_by_every_command(
    tmp_path: Path, label: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table(
        {"part": ["a"] * 20 + ["b"] * 20, "n": pa.array([None] * 20 + [*range(20)], pa.int64())}
    )
    recordmill.build(
        rows, tmp_path / "out", splits="train=0.5,test=0.5", split_by="part", label=label
    )
    statistics = recordmill.open(tmp_path / "out").statistics
    (empty_feature,) = (
        features["n"] for features in statistics.values() if not features["n"].present
    )
    assert (empty_feature.missing, empty_feature.min, empty_feature.top_values) == (20, None, {})
    assert empty_feature.row()[2] == "100 %"
    for command in (
        ["stats"],
        ["stats", "--json"],
        ["inspect"],
        ["report", "-o", str(tmp_path / "report.html")],
    ):
        assert run([command[0], str(tmp_path / "out"), *command[1:], "--quiet"]) == 0
    assert run(["check", str(tmp_path / "out"), "--quiet"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
