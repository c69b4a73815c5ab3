"""TensorFlow's own operations read and parse the records of files, also in emitted programs."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kit.wire_writer import BYTES, INT64, example, feature

tf = pytest.importorskip("tensorflow")

from recordmill.reader.tensorflow.program import (  # noqa: E402
    parse_records,
    read_records,
    tensor_of,
)


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, str, int]]:
    """Three files of ten records each, one of them compressed."""
    result = []
    for number, compression in enumerate(("", "GZIP", "")):
        path = str(tmp_path / f"{number}.tfrecord")
        with tf.io.TFRecordWriter(path, compression) as writer:
            for row in range(10):
                writer.write(b"%d" % (10 * number + row))
        result.append((path, compression, 10))
    return result


def values_of(dataset: object) -> list[int]:
    return [int(value) for value in dataset.as_numpy_iterator()]  # type: ignore[attr-defined]


def test_records_are_read_in_the_order_of_the_files(files: list[tuple[str, str, int]]) -> None:
    dataset = read_records(files)
    assert values_of(dataset) == list(range(30))
    assert int(dataset.cardinality()) == 30


def test_shuffled_records_are_complete_and_differ_by_seed_and_epoch(
    files: list[tuple[str, str, int]],
) -> None:
    orders = []
    for seed in (1, 2):
        dataset = read_records(files, shuffle_records=8, seed=seed)
        orders += [values_of(dataset), values_of(dataset)]
    assert all(Counter(order) == Counter(range(30)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert values_of(read_records(files, shuffle_records=8, seed=1)) == orders[0]


def test_file_with_fewer_records_than_expected_is_an_error(
    files: list[tuple[str, str, int]],
) -> None:
    path, compression, _ = files[0]
    with pytest.raises(tf.errors.OpError):
        values_of(read_records([(path, compression, 11)]))


def test_opaque_records_are_returned_as_they_are() -> None:
    tensors = parse_records(tf.constant([b"a", b"b"]), None, None, {"record": {}})
    assert tensors["record"].numpy().tolist() == [b"a", b"b"]


def test_missing_scalars_are_zero_and_marked() -> None:
    records = [example([("x", feature(INT64, [7]))]), example([])]
    tensors = parse_records(
        tf.constant(records),
        {"x": tf.io.RaggedFeature(tf.int64)},
        None,
        {"x": {"dtype": "int64"}},
    )
    assert tensors["x"].numpy().tolist() == [7, 0]
    assert tensors["x/valid"].numpy().tolist() == [True, False]


def test_raw_numbers_are_decoded_from_bytes() -> None:
    data = np.arange(6, dtype="<i2").tobytes()
    records = tf.constant([example([("x", feature(BYTES, [data]))])] * 2)
    features = tf.io.parse_example(records, {"x": tf.io.FixedLenFeature([], tf.string)})
    tensors = tensor_of("x", features, "int16", shape=(2, 3), item_bytes=2)
    assert tensors["x"].numpy().tolist() == [[[0, 1, 2], [3, 4, 5]]] * 2
    assert set(tensors) == {"x"}
