"""TensorFlow's tools read the statistics of a sketch, and its numbers are those of the records."""

import numpy as np
import pyarrow as pa
import pytest
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
