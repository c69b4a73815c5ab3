"""TensorFlow's tools read the statistics of a sketch, with the numbers of the records."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.protobuf import finite_or_none, to_bytes, to_proto

SCHEMA = Schema(
    (
        Feature("x", "float64"),
        Feature("words", "string", (None,)),
        Feature("y", "int64", (), True, ("cat", "dog")),
    ),
    label="y",
)


def message(
    rows: list[tuple[float | None, list[str], int]],
) -> statistics_pb2.DatasetFeatureStatistics:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.float64()),
            pa.array([row[1] for row in rows], pa.large_list(pa.large_string())),
            pa.array([row[2] for row in rows], pa.int64()),
        ],
        schema=to_arrow(SCHEMA),
    )
    sketch = DatasetSketch(SCHEMA, ["train"])
    sketch.add(batch, np.arange(len(rows), dtype=np.uint64), np.zeros(len(rows), np.int64))
    proto = to_proto(sketch)
    parsed = statistics_pb2.DatasetFeatureStatisticsList.FromString(to_bytes(proto))
    assert parsed == proto
    return parsed.datasets[0]


@pytest.fixture(scope="module")
def dataset() -> statistics_pb2.DatasetFeatureStatistics:
    rows: list[tuple[float | None, list[str], int]] = [
        (float(number), ["a"] * (number % 3), number % 2) for number in range(100)
    ]
    return message([*rows, (None, [], 0), (float("inf"), ["b"], 1)])


def features_of(
    dataset: statistics_pb2.DatasetFeatureStatistics,
) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    return {feature.name or feature.path.step[0]: feature for feature in dataset.features}


def test_numbers_have_their_moments_and_extremes(
    dataset: statistics_pb2.DatasetFeatureStatistics,
) -> None:
    assert (dataset.name, dataset.num_examples) == ("train", 102)
    numbers = features_of(dataset)["x"].num_stats
    assert numbers.common_stats.num_missing == 1
    assert numbers.common_stats.num_non_missing == 101
    assert numbers.mean == pytest.approx(49.5)
    assert numbers.std_dev == pytest.approx(np.arange(100).std())
    assert numbers.min == 0


def test_histograms_count_every_finite_number(
    dataset: statistics_pb2.DatasetFeatureStatistics,
) -> None:
    numbers = features_of(dataset)["x"].num_stats
    for histogram in numbers.histograms:
        buckets = histogram.buckets
        assert all(bucket.low_value <= bucket.high_value for bucket in buckets)
        assert sum(bucket.sample_count for bucket in buckets) == pytest.approx(100, abs=1.5)
        edges = [bucket.high_value for bucket in buckets]
        assert edges == sorted(edges)


def test_lists_have_their_lengths_and_texts_their_frequencies(
    dataset: statistics_pb2.DatasetFeatureStatistics,
) -> None:
    words = features_of(dataset)["words"].string_stats
    assert (words.common_stats.min_num_values, words.common_stats.max_num_values) == (0, 2)
    assert words.unique == 2
    top = {value.value: value.frequency for value in words.top_values}
    assert top == {"a": 99, "b": 1}


def test_numbers_that_json_lacks_become_none() -> None:
    assert finite_or_none(np.array([[1.5, np.nan], [np.inf, -2.0]])) == [[1.5, None], [None, -2.0]]


INT = statistics_pb2.FeatureNameStatistics.INT


def sketch_of(
    feature: Feature,
    values: list[Any],
    label: str | None = None,
    splits: tuple[str, ...] = ("train",),
) -> DatasetSketch:
    schema = Schema((feature,), label=label)
    sketch = DatasetSketch(schema, splits)
    batch = pa.record_batch({"x": pa.array(values, to_arrow(schema).field("x").type)})
    sketch.add(batch, np.arange(len(values), dtype=np.uint64))
    return sketch


def message_of(feature: Feature, values: list[Any], label: str | None = None) -> Any:
    (dataset,) = to_proto(sketch_of(feature, values, label)).datasets
    assert dataset.num_examples == len(values)
    (proto,) = dataset.features
    assert list(proto.path.step) == ["x"]
    return proto


def custom(proto: Any) -> dict[str, Any]:
    return {stat.name: getattr(stat, stat.WhichOneof("val")) for stat in proto.custom_stats}


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=30))
def test_figures_of_integers_are_exact(values: list[int | None]) -> None:
    proto = message_of(Feature("x", "int64"), values)
    stats, present_values = proto.num_stats, [value for value in values if value is not None]
    common = stats.common_stats
    assert (common.num_non_missing, common.num_missing) == (
        len(present_values),
        len(values) - len(present_values),
    )
    assert proto.type == INT
    if not present_values:
        assert not stats.histograms
        return
    texts = custom(proto)
    assert int(texts.get("min", stats.min)) == min(present_values)
    assert int(texts.get("max", stats.max)) == max(present_values)
    assert stats.num_zeros == present_values.count(0)
    assert texts["distinct"] == len(set(present_values))
    top = {bucket.label: bucket.sample_count for bucket in texts["top_values"].buckets}
    assert top == {str(value): present_values.count(value) for value in present_values}
    for histogram in stats.histograms:
        total = sum(bucket.sample_count for bucket in histogram.buckets)
        assert total == pytest.approx(len(present_values))


def test_numbers_that_are_not_finite_are_counted_apart() -> None:
    values = [float("nan"), float("inf"), float("-inf"), float("inf"), 1.0, 3.0]
    proto = message_of(Feature("x", "float64"), values)
    stats, custom_stats = proto.num_stats, custom(proto)
    assert (stats.min, stats.max, stats.mean) == (1.0, 3.0, 2.0)
    assert (
        custom_stats["plus_infinities"],
        custom_stats["minus_infinities"],
        custom_stats["variance"],
    ) == (2, 1, 1.0)
    assert [histogram.num_nan for histogram in stats.histograms] == [1, 1]
    assert "min" not in custom_stats


def test_values_without_a_finite_number_have_a_histogram_without_buckets() -> None:
    stats = message_of(Feature("x", "float32"), [float("nan")] * 3).num_stats
    assert [(item.num_nan, len(item.buckets)) for item in stats.histograms] == [(3, 0)]
    assert not message_of(Feature("x", "float32"), [None]).num_stats.histograms


def test_range_beyond_float64_has_no_histogram_of_equal_widths() -> None:
    stats = message_of(Feature("x", "float64"), [-1e308, 1e308]).num_stats
    by_type = {histogram.type: len(histogram.buckets) for histogram in stats.histograms}
    assert by_type == {
        statistics_pb2.Histogram.STANDARD: 0,
        statistics_pb2.Histogram.QUANTILES: 10,
    }


def test_only_floats_with_few_distinct_values_are_listed() -> None:
    stats_of_few = custom(message_of(Feature("x", "float32"), [0.5, 0.25] * 5))
    assert [bucket.label for bucket in stats_of_few["top_values"].buckets] == ["0.25", "0.5"]
    stats_of_many = custom(message_of(Feature("x", "float32"), list(range(257))))
    assert "top_values" not in stats_of_many
    assert stats_of_many["distinct"] == 257


def test_texts_are_listed_by_frequency_then_by_bytes() -> None:
    values = ["b", "a", "ü", "a", "b", None, "x" * 3000]
    proto = message_of(Feature("x", "string"), values)
    stats = proto.string_stats
    assert [(top.value, top.frequency) for top in stats.top_values][:3] == [("a", 2), ("b", 2), ("x" * (len(stats.top_values[2].value) - 1) + "…", 1)]  # fmt: skip
    assert stats.top_values[3].value == "ü"
    assert stats.unique == 4
    assert custom(proto)["distinct_error"] == 0
    assert (custom(proto)["min_bytes"], custom(proto)["max_bytes"]) == (1, 3000)
    ranks = [(bucket.low_rank, bucket.label) for bucket in stats.rank_histogram.buckets]
    assert [rank for rank, _ in ranks] == [0, 1, 2, 3]


def test_all_values_of_a_label_are_listed() -> None:
    values = [number for number in range(1100) for _ in range(2)]
    counts = [
        len(custom(message_of(Feature("x", "int64"), values, label))["top_values"].buckets)
        for label in (None, "x")
    ]
    assert counts[0] < counts[1] == 1100


def test_lengths_of_lists_and_sizes_of_bytes_are_summarized() -> None:
    lists = message_of(Feature("x", "int64", (None,)), [[1, 2, 3], [], None, [4]])
    common = lists.num_stats.common_stats
    assert (common.min_num_values, common.max_num_values, common.tot_num_values) == (0, 3, 4)
    assert common.avg_num_values == pytest.approx(4 / 3)
    assert common.num_missing == 1
    assert len(common.num_values_histogram.buckets) == 10
    assert len(custom(lists)["lengths"].buckets) == 120
    stats = message_of(Feature("x", "bytes"), [b"", b"abc"]).bytes_stats
    assert (stats.min_num_bytes, stats.max_num_bytes_int, stats.avg_num_bytes) == (0, 3, 1.5)
    fixed_stats = message_of(
        Feature("x", "float32", (2, 3)), [[0.0] * 6] * 2
    ).num_stats.common_stats
    assert (fixed_stats.min_num_values, fixed_stats.max_num_values, fixed_stats.tot_num_values) == (
        6,
        6,
        12,
    )


def test_elements_of_arrays_are_json_without_negative_zeros() -> None:
    proto = message_of(Feature("x", "float32", (2,)), [[-0.0, float("nan")], [0.0, float("nan")]])
    elements = json.loads(custom(proto)["elements"])
    assert elements["finite"] == [2, 0]
    assert elements["mean"] == [0.0, None]
    assert "-0.0" not in custom(proto)["elements"]
    assert finite_or_none(np.array([[np.inf, -0.0], [1, np.nan]])) == [[None, 0.0], [1.0, None]]


def test_splits_without_records_are_left_out() -> None:
    proto = to_proto(sketch_of(Feature("x", "int64"), [1, 2], splits=("train", "test")))
    assert [dataset.name for dataset in proto.datasets] == ["train"]


@given(st.lists(st.sampled_from(["a", "b", "c", "ü"]), min_size=2, max_size=40), st.data())
def test_equal_records_in_another_order_have_equal_bytes(values: list[str], data: Any) -> None:
    feature, keys = Feature("x", "string"), np.arange(len(values), dtype=np.uint64)
    order = np.array(data.draw(st.permutations(range(len(values)))))
    sketch = DatasetSketch(Schema((feature,)), ("train",))
    middle = len(values) // 2
    for rows in (order[:middle], order[middle:]):
        batch = pa.record_batch({"x": pa.array([values[row] for row in rows], pa.large_string())})
        sketch.add(batch, keys[rows])
    assert to_bytes(to_proto(sketch)) == to_bytes(to_proto(sketch_of(feature, values)))
