"""Steps return the values of their definitions, and refuse rows outside of their domains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.image_samples import encode_image, picture

import recordmill
from recordmill.base.errors import DataError
from recordmill.pipelines.build import build

tft = pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")
import tensorflow as tf  # noqa: E402

from recordmill.preprocessing.declaration import declare_transform  # noqa: E402
from recordmill.schemas.feature import Feature, Schema  # noqa: E402
from recordmill.transforms.tft.declared import DeclaredFunction, _ResultNames  # noqa: E402

STEPS = {
    "exact": {"from": "n", "clip": [1_700_000_001, 1_700_000_003]},
    "inner": {"from": "i", "clip": [0.5, 5.5]},
    "open": {"from": "i", "clip": [None, 2]},
    "real": {"from": "f", "clip": [0.1, 0.7]},
    "some": {"from": "m", "clip": [None, 3]},
    "filled": {"from": "m", "impute": 1e15},
    "bucket": {"from": "s", "hash": 7},
    "numbers": {"from": "i", "hash": 5},
    "words": {"from": "s", "tokenize": {"lower": True}},
    "parts": {"from": "s", "tokenize": {"separator": "-"}},
    "frequent": {"from": "s", "vocabulary": {"min_count": 3, "oov_buckets": 0}},
    "known": {"from": "s", "vocabulary": {"top_k": 1, "oov_buckets": 2}},
}


def test_values_of_clip_hash_tokenize_and_vocabulary(tmp_path: Path) -> None:
    import tensorflow as tf

    texts = ["Ab c", "x-y", "x-y", "Ab c", "Ab c", "é", "q Q"]
    integers = [-3, 0, 1, 5, 6, 2**62, -(2**62)]
    data = {
        "n": 1_700_000_000 + np.arange(7),
        "i": np.array(integers),
        "f": np.array([0.0, 0.1, 0.25, 0.5, 0.7, 0.9, -1.0]),
        "m": [None, 1, 2, 3, 4, None, 2**53 + 1],
        "s": texts,
    }
    dropped = dict.fromkeys(data, "keep")
    build(data, tmp_path / "out", transform={**dropped, **STEPS})
    rows = recordmill.open(tmp_path / "out").to_table().sort_by("n").to_pylist()

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    assert column("exact") == [1_700_000_000 + number for number in (1, 1, 2, 3, 3, 3, 3)]
    assert column("inner") == [1, 1, 1, 5, 5, 5, 1]
    assert column("open") == [min(number, 2) for number in integers]
    assert column("real") == [
        float(np.float32(number)) for number in (0.1, 0.1, 0.25, 0.5, 0.7, 0.7, 0.1)
    ]
    assert column("some") == [None, 1, 2, 3, 3, None, 3]
    assert column("filled") == [10**15, 1, 2, 3, 4, 10**15, 2**53 + 1]
    assert column("bucket") == tf.strings.to_hash_bucket_fast(texts, 7).numpy().tolist()
    assert (
        column("numbers")
        == tf.strings.to_hash_bucket_fast([str(number) for number in integers], 5).numpy().tolist()
    )
    assert column("words") == [text.lower().split() for text in texts]
    assert column("parts") == [text.split("-") for text in texts]
    assert column("frequent") == [0 if text == "Ab c" else -1 for text in texts]
    numbers = column("known")
    assert [number == 0 for number in numbers] == [text == "Ab c" for text in texts]
    assert {number for number in numbers if number} <= {1, 2}
    assert numbers[1] == numbers[2]


SPARSE = """
import tensorflow as tf

def preprocessing_fn(inputs):
    m = inputs["m"]
    return {
        "id": inputs["id"],
        "double": tf.SparseTensor(m.indices, 2 * m.values, m.dense_shape),
        "one": tf.sparse.from_dense(tf.cast(inputs["id"] % 2, tf.int64)[:, None]),
        "several": tf.sparse.from_dense(tf.stack([inputs["id"], inputs["id"] + 1], 1)),
    }

def with_gaps(inputs):
    id = inputs["id"]
    return {"id": id, "gaps": tf.sparse.from_dense(tf.stack([id * 0, id + 1, id * 0, id + 1], 1))}

def without_gaps(inputs):
    found = with_gaps(inputs)
    return {"id": found["id"], "gaps": tf.ensure_shape(tf.sparse.to_dense(found["gaps"]), [None, 4])}
"""


def test_sparse_outputs_become_optional_values_or_lists_or_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SPARSE)
    data = {"id": np.arange(1, 5), "m": [None, 10, None, 30]}
    result = build(data, tmp_path / "out", transform=tmp_path / "mine.py")
    assert {feature.name: (feature.describe(), feature.required) for feature in result.schema} == {
        "id": ("int64", True),
        "double": ("int64", False),
        "one": ("int64", False),
        "several": ("int64 [?]", False),
    }
    rows = recordmill.open(tmp_path / "out").to_table().sort_by("id").to_pylist()
    assert [row["double"] for row in rows] == [None, 20, None, 60]
    assert [row["one"] for row in rows] == [1, None, 1, None]
    assert [row["several"] for row in rows] == [[1, 2], [2, 3], [3, 4], [4, 5]]
    with pytest.raises(
        DataError,
        match=r"'gaps' a SparseTensor with values in the columns \[1, 3\].*tf\.sparse\.to_dense",
    ):
        build(data, tmp_path / "gaps", transform=f"{tmp_path / 'mine.py'}:with_gaps")
    build(data, tmp_path / "dense", transform=f"{tmp_path / 'mine.py'}:without_gaps")
    rows = recordmill.open(tmp_path / "dense").to_table().sort_by("id").to_pylist()
    assert [row["gaps"] for row in rows] == [
        [0, number + 1, 0, number + 1] for number in (1, 2, 3, 4)
    ]


def test_value_outside_the_domain_of_a_step_is_a_reject(tmp_path: Path) -> None:
    data = {
        "id": np.arange(8),
        "l": [0.5, -1.0, -3.0, 2.0, float("nan"), 1.0, 1.0, 1.0],
        "o": [0, 1, 1, 2**40, 2, -1, 5, 2],
        "b": [0.5, 1.0, 1.0, 2.0, 2.5, 1.0, 1.0, float("nan")],
    }
    steps = {"l": "log1p", "o": {"one_hot": 3}, "b": {"bucketize": 2}}
    result = build(data, tmp_path / "out", transform=steps, max_rejects=6)
    # log1p accepts NaN.
    assert sorted(recordmill.open(result.out).to_table()["id"].to_pylist()) == [
        0,
        4,
    ]
    reasons = [
        json.loads(line)["message"]
        for path in result.rejects
        for line in Path(path).read_text().splitlines()
    ]
    assert sorted(reasons) == sorted(
        ["the transform refuses it: feature 'l': log1p gives no finite number for it"] * 2
        + ["the transform refuses it: feature 'o': one_hot has no class for it: not one of 0 to 2"]
        * 3
        + ["the transform refuses it: feature 'b': bucketize has no bucket for NaN"]
    )


def apply(steps: Any, feature: Feature, tensor: Any) -> Any:
    """Returns the result of steps without analyzers."""
    return DeclaredFunction(declare_transform({"x": steps}, Schema((feature,))))({"x": tensor})["x"]


def sparse(*values: Any, rows: int, positions: list[int]) -> Any:
    """Returns a SparseTensor with one value in each row of `positions`."""
    return tf.SparseTensor([[row, 0] for row in positions], list(values), [rows, 1])


FLOAT = Feature("x", "float32", required=True)


def test_log_is_computed_in_float64_and_rounded_once() -> None:
    values = np.array([0.1, 1e-8, 1e30], np.float32)
    result = apply("log1p", FLOAT, tf.constant(values)).numpy()
    assert result.dtype == np.float32
    assert result.tolist() == np.log1p(values.astype(np.float64)).astype(np.float32).tolist()


def test_step_keeps_the_layout_of_the_tensor() -> None:
    clip = {"clip": [0, 1]}
    lists = apply(
        clip, Feature("x", "float32", (None,)), tf.ragged.constant([[2.0], [], [-1.0, 0.5]])
    )
    assert lists.to_list() == [[1.0], [], [0.0, 0.5]]
    gaps = apply(clip, Feature("x", "float32"), sparse(5.0, rows=3, positions=[1]))
    assert (gaps.indices.numpy().tolist(), gaps.values.numpy().tolist()) == ([[1, 0]], [1.0])


def test_large_integers_are_clipped_exactly() -> None:
    values = tf.constant([2**53 + 1, -5, 2**62], tf.int64)
    result = apply({"clip": [0.5, 2.0**60]}, Feature("x", "int64", required=True), values)
    assert result.numpy().tolist() == [2**53 + 1, 1, 2**60]


def test_missing_value_is_imputed() -> None:
    tensor = sparse(3.0, 4.0, rows=4, positions=[0, 2])
    assert apply({"impute": -1.5}, Feature("x", "float32"), tensor).numpy().tolist() == [3, -1.5, 4, -1.5]  # fmt: skip
    words = sparse("a", rows=2, positions=[1])
    assert apply({"impute": "none"}, Feature("x", "string"), words).numpy().tolist() == [b"none", b"a"]  # fmt: skip
    numbers = sparse(7, rows=2, positions=[0])
    filled = apply({"impute": 0.5}, Feature("x", "int32"), tf.cast(numbers, tf.int64))
    assert filled.numpy().tolist() == [7.0, 0.5]


def test_text_is_divided_into_words() -> None:
    text = tf.constant(["Ä b  C", ""])
    lower = apply({"tokenize": {"lower": True}}, Feature("x", "string", required=True), text)
    assert lower.to_list() == [["ä".encode(), b"b", b"c"], []]
    missing = apply("tokenize", Feature("x", "string"), sparse("a b", rows=2, positions=[1]))
    assert missing.to_list() == [[], [b"a", b"b"]]


def test_numbers_are_hashed_as_their_text() -> None:
    numbers = apply(
        {"hash": 100}, Feature("x", "int64", required=True), tf.constant([12, 7, 12], tf.int64)
    )
    texts = apply(
        {"hash": 100}, Feature("x", "string", required=True), tf.constant(["12", "7", "12"])
    )
    assert numbers.numpy().tolist() == texts.numpy().tolist()
    assert numbers.dtype == tf.int64


def test_class_numbers_become_vectors() -> None:
    feature = Feature("x", "int64", required=True)
    result = apply({"one_hot": 3}, feature, tf.constant([2, 5], tf.int64))
    assert result.numpy().tolist() == [[0, 0, 1], [0, 0, 0]]


def test_image_is_decoded_to_the_size() -> None:
    data = encode_image("PNG", picture(size=(20, 10)))
    steps = {"image": {"resize": [4, 5], "channels": 3, "scale": 1 / 255}}
    pixels = apply(steps, Feature("x", "bytes", required=True), tf.constant([data, data])).numpy()
    assert (pixels.shape, pixels.dtype) == ((2, 4, 5, 3), np.float32)
    assert 0 < pixels.max() <= 1


def test_vocabulary_file_has_a_plain_name() -> None:
    assert _ResultNames(3, "a/ü b", 0).vocabulary == "vocabulary_3_a___b"
    assert _ResultNames(3, "x" * 200, 2).vocabulary == "vocabulary_3_" + "x" * 80 + "_2"
