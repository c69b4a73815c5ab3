"""Statistics of a feature contain figures of its elements, unless these are damaged."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.schemas.feature import Feature
from recordmill.statistics.feature_statistics import (
    COLUMNS,
    ELEMENT_COLUMNS,
    ElementStatistics,
    FeatureStatistics,
    feature_name,
    format_value,
)

FIGURES = ("finite", "mean", "variance", "min", "max", "q01", "q50", "q99")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sampled": 1}', '{"sampled": "x", "finite": [1]}', "[" * 100_000, "NaN"],
)
def test_elements_in_another_form_are_ignored(text: str) -> None:
    assert ElementStatistics.from_json(text) is None


@pytest.mark.parametrize("invalid", [5, [], [[1]], ["a"], None])
def test_elements_with_a_wrong_array_are_ignored(invalid: Any) -> None:
    document = {name: [1.0] for name in FIGURES} | {"sampled": 1, "q99": invalid}
    assert ElementStatistics.from_json(json.dumps(document)) is None


def numeric(kind: str = "FLOAT", **fields: Any) -> Any:
    proto = statistics_pb2.FeatureNameStatistics(
        name="x", type=statistics_pb2.FeatureNameStatistics.Type.Value(kind)
    )
    common = proto.num_stats.common_stats
    common.num_non_missing, common.num_missing, common.tot_num_values = 8, 2, 8
    for name, value in fields.items():
        setattr(proto.num_stats, name, value)
    return proto


def with_buckets(proto: Any, *edges: float) -> Any:
    histogram = proto.num_stats.histograms.add(type=statistics_pb2.Histogram.QUANTILES)
    for low, high in itertools.pairwise(edges):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=1)
    return proto


def test_foreign_message_has_the_figures_that_it_contains() -> None:
    proto = with_buckets(numeric(mean=2.0, std_dev=0.5, min=1.0, max=3.0, num_zeros=1), 1, 2, 3)
    statistics = FeatureStatistics.from_proto(proto)
    assert (statistics.name, statistics.type, statistics.present, statistics.missing) == (
        "x",
        "FLOAT",
        8,
        2,
    )
    assert (statistics.min, statistics.max, statistics.mean, statistics.variance) == (
        1.0,
        3.0,
        2.0,
        0.25,
    )
    assert statistics.quantiles == (1.0, 2.0, 3.0)
    assert (statistics.distinct, statistics.distinct_error, statistics.top_values) == (
        None,
        None,
        {},
    )
    assert (statistics.colours, statistics.elements, statistics.sizes) == (None, None, None)


def test_message_without_finite_numbers_has_no_minimum() -> None:
    proto = numeric()
    proto.num_stats.histograms.add(num_nan=5)
    statistics = FeatureStatistics.from_proto(proto)
    assert (statistics.min, statistics.mean, statistics.quantiles) == (None, None, ())
    assert (statistics.nans, statistics.finite) == (5, 3)
    empty_statistics = FeatureStatistics.from_proto(statistics_pb2.FeatureNameStatistics(name="y"))
    assert (empty_statistics.name, empty_statistics.values, empty_statistics.min) == ("y", 0, None)


def test_exact_integers_replace_the_rounded_ones() -> None:
    proto = with_buckets(numeric("INT", min=-(2.0**63), max=2.0**53), 0, 1)
    proto.custom_stats.add(name="max", str=str(2**53 + 1))
    statistics = FeatureStatistics.from_proto(proto)
    assert (statistics.min, statistics.max) == (-(2**63), 2**53 + 1)
    assert type(statistics.max) is int


def test_name_is_the_last_step_of_the_path() -> None:
    proto = statistics_pb2.FeatureNameStatistics(name="old")
    assert feature_name(proto) == "old"
    proto.path.step.extend(["a", "b"])
    assert feature_name(proto) == "b"


def elements(**changes: Any) -> str:
    names = ("mean", "variance", "min", "max", "q01", "q50", "q99")
    return json.dumps(
        {"finite": [3, 0], **{name: [4.0, None] for name in names}, "sampled": 3, **changes}
    )


def test_elements_have_the_shape_of_the_feature() -> None:
    statistics = ElementStatistics.from_json(elements(), (1, 2))
    assert statistics is not None
    assert statistics.mean.shape == (1, 2)
    assert np.isnan(statistics.mean[0, 1])
    assert statistics.std_dev[0, 0] == 2
    assert statistics.to_json()["std_dev"] == [[2.0, None]]
    rows = statistics.rows("a")
    assert [row[0] for row in rows] == ["a[0,0]", "a[0,1]"]
    assert rows[0][1:3] == ("4", "2")
    assert all(len(row) == len(ELEMENT_COLUMNS) for row in rows)
    flat_statistics = ElementStatistics.from_json(elements(), (3,))
    assert flat_statistics is not None
    assert flat_statistics.mean.shape == (2,)


def texts(*counts: int, values: int, exact: bool = True) -> FeatureStatistics:
    proto = statistics_pb2.FeatureNameStatistics(
        name="x", type=statistics_pb2.FeatureNameStatistics.STRING
    )
    stats = proto.string_stats
    stats.common_stats.tot_num_values = stats.common_stats.num_non_missing = values
    for rank, count in enumerate(counts):
        stats.rank_histogram.buckets.add(low_rank=rank, label=f"v{rank}", sample_count=count)
    if not exact:
        proto.custom_stats.add(name="top_values_are_estimates", num=1)
        proto.custom_stats.add(name="distinct_error", num=0.01)
    return FeatureStatistics.from_proto(proto)


def test_share_of_values_that_are_not_listed_is_bounded() -> None:
    assert texts(3, 1, values=4).lists_all_values
    assert texts(3, 1, values=4).unlisted == 0
    partial_list = texts(30, 10, values=100)
    assert (partial_list.lists_all_values, partial_list.unlisted, partial_list.sampled) == (
        False,
        0.1,
        None,
    )
    assert texts(values=5).unlisted == 1
    assert not texts(values=0).lists_all_values
    estimates = texts(50, values=100_000, exact=False)
    assert estimates.sampled is not None
    assert estimates.unlisted == 16 / estimates.sampled
    assert not texts(4, values=4, exact=False).lists_all_values


def row(statistics: FeatureStatistics, feature: Feature | None = None) -> dict[str, str]:
    return dict(zip(COLUMNS, statistics.row(feature), strict=True))


def test_row_shows_times_and_no_mean_of_class_numbers() -> None:
    statistics = FeatureStatistics.from_proto(
        with_buckets(numeric("INT", mean=1.23456789, std_dev=0.5, min=0, max=86400), 0, 86400)
    )
    plain_row = row(statistics)
    assert (plain_row["MISSING"], plain_row["MIN"], plain_row["MEAN"], plain_row["MAX"]) == ("20 %", "0", "1.2346", "86400")  # fmt: skip
    time_row = row(statistics, Feature("x", "timestamp[s]"))
    assert (time_row["MIN"], time_row["MEAN"], time_row["MAX"]) == (
        "1970-01-01 00:00:00",
        "",
        "1970-01-02 00:00:00",
    )
    class_row = row(statistics, Feature("x", "int64", classes=("a",)))
    assert (class_row["MIN"], class_row["MEAN"], class_row["STD"], class_row["MAX"]) == ("",) * 4


def test_row_shows_the_most_frequent_values() -> None:
    assert row(texts(6, 2, 1, 1, values=10))["MOST FREQUENT"] == "v0 (6, 60 %), v1 (2, 20 %)"
    assert row(texts(1, 1, values=2))["MOST FREQUENT"] == "v0 (1, 50 %), v1 (1, 50 %)"
    assert row(texts(1, 1, 1, 1, values=4))["MOST FREQUENT"] == "each once"
    assert row(texts(50, values=100, exact=False))["MOST FREQUENT"] == "v0 (~50, 50 %)"
    assert row(texts(values=0))["MOST FREQUENT"] == ""


def test_value_is_formatted_by_its_feature() -> None:
    classes = Feature("x", "int64", classes=("a", "b"))
    assert [format_value(value, classes) for value in ("1", "2", "-1", "")] == [
        "b",
        "2",
        "-1",
        "''",
    ]
    assert format_value("60", Feature("x", "timestamp[s]")) == "1970-01-01 00:01:00"
    assert format_value("0.10000000149011612", Feature("x", "float32")) == "0.1"
    assert format_value("7", None) == "7"


def test_summary_has_only_finite_figures() -> None:
    statistics = FeatureStatistics.from_proto(
        with_buckets(numeric(mean=float("inf"), std_dev=float("nan"), min=1.0, max=2.0), 1, 2)
    )
    assert statistics.summary() == {"missing": 2, "min": 1.0, "max": 2.0}
    json.dumps(statistics.to_json())
