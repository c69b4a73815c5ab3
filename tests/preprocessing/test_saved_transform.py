"""A saved transform is not used if a file has changed.

Rows without a result are refused.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.transform_sets import folder_of
from kit.transformed_set import SPLITS

import recordmill
from recordmill.base.errors import DataError
from recordmill.pipelines.build import build
from recordmill.preprocessing import saved_transform
from recordmill.preprocessing.declaration import NAN_BUCKET, declare_transform
from recordmill.preprocessing.saved_transform import SavedTransform, find_misfits
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import load_manifest

tf = pytest.importorskip("tensorflow")


def test_changed_file_of_a_transform_is_found_and_not_used(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.write_text(words_file.read_text().replace("city 1", "city 9"))
    (folder_of(copy) / "stray").write_text("")
    problems = [str(problem) for problem in recordmill.verify(copy)]
    assert problems == [
        f"{words_file}: SHA-256 differs",
        f"{folder_of(copy) / 'stray'}: is not part of the data set",
    ]
    with pytest.raises(
        DataError, match="differs from what the manifest says; the transform can't be used"
    ):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    assert not (tmp_path / "new").exists()


def test_link_in_place_of_a_file_of_a_transform_is_not_followed(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.rename(tmp_path / "elsewhere")
    words_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is missing; the transform can't be used"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    shutil.rmtree(folder_of(copy))
    with pytest.raises(DataError, match="transform: is missing; the manifest names it"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)


INPUTS = Schema((Feature("x", "float32", required=True),))


OUTPUTS = Schema((Feature("y", "float32", required=True),))


SCHEMA = Schema((*OUTPUTS, Feature("id", "int64")))


def make_transform(monkeypatch: pytest.MonkeyPatch, function: Any) -> SavedTransform:
    model = SimpleNamespace(transform_fn=function)
    monkeypatch.setattr(saved_transform, "load_transform", lambda folder: model)
    return SavedTransform("folder", INPUTS, OUTPUTS, (("id", "number"),), SCHEMA, "digest")


def batch_of(values: list[float]) -> pa.RecordBatch:
    return pa.record_batch(
        {"x": pa.array(values, pa.float32()), "number": pa.array(range(len(values)), pa.int64())}
    )


def double_unless_negative(inputs: Any) -> Any:
    if bool(tf.reduce_any(inputs["x"] < 0)):
        raise tf.errors.InvalidArgumentError(
            None, None, "{{function_node f}} {{node my/check}} secret value -7"
        )
    return {"y": inputs["x"] * 2}


@pytest.mark.parametrize(
    "values", [[], [1], [-1], [1, -1, 2, 3, -4, 5, -6], [-1.0] * 9, list(range(40))]
)
def test_rows_that_the_graph_refuses_are_left_out_and_listed(
    monkeypatch: pytest.MonkeyPatch, values: list[float]
) -> None:
    transform = make_transform(monkeypatch, double_unless_negative)
    records, refusals = transform.apply(batch_of(values))
    accepted_rows = [row for row, value in enumerate(values) if value >= 0]
    assert records.to_pydict() == {
        "y": [2 * values[row] for row in accepted_rows],
        "id": accepted_rows,
    }
    assert refusals == {
        row: "InvalidArgumentError in operation f"
        for row in range(len(values))
        if row not in accepted_rows
    }


def test_too_many_refused_rows_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = make_transform(monkeypatch, double_unless_negative)
    monkeypatch.setattr(saved_transform, "MAX_REFUSED_ROWS", 2)
    assert len(transform.apply(batch_of([-1, 1, -1]))[1]) == 2
    with pytest.raises(DataError, match="the transform refuses more than 2 rows of a batch"):
        transform.apply(batch_of([-1, 1, -1, -1]))


def test_other_errors_of_tensorflow_show_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise tf.errors.InternalError(None, None, "secret")

    with pytest.raises(DataError, match=r"^InternalError$"):
        make_transform(monkeypatch, fail).apply(batch_of([1]))


def test_output_of_another_shape_is_an_error_with_its_feature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transform = make_transform(monkeypatch, lambda inputs: {"y": tf.ones([32, 2])})
    with pytest.raises(
        DataError, match="the transform gave for 'y' 4 values for 2 rows of float32"
    ):
        transform.apply(batch_of([1, 2]))


def column_of(steps: Any, feature: Feature) -> Any:
    return declare_transform({"x": steps}, Schema((feature,))).columns[0]


@given(st.lists(st.floats(width=32) | st.none(), max_size=20), st.data())
def test_rows_without_a_finite_result_are_misfits_if_the_raw_value_is_finite(
    raw: list[float | None], data: Any
) -> None:
    output = [
        None if value is None else data.draw(st.sampled_from([1.0, np.nan, np.inf]))
        for value in raw
    ]
    column = column_of("log1p", Feature("x", "float32"))
    rows, reason = find_misfits(
        column, pa.array(raw, pa.float32()), pa.array(output, pa.float32(), from_pandas=False)
    )
    expected = [
        row
        for row, (raw_value, result) in enumerate(zip(raw, output, strict=True))
        if raw_value is not None and np.isfinite(raw_value) and not np.isfinite(result)
    ]
    assert rows.tolist() == expected
    assert not expected or reason == "log1p gives no finite number for it"


def test_imputed_rows_are_misfits_if_their_result_is_not_finite() -> None:
    column = column_of([{"impute": -1}, "log1p"], Feature("x", "float32"))
    raw = pa.array([None, 1.0, float("nan")], pa.float32())
    rows, reason = find_misfits(
        column, raw, pa.array([float("-inf"), 0.7, float("nan")], pa.float32())
    )
    assert (rows.tolist(), reason) == ([0], "impute, log1p gives no finite number for it")


def test_number_outside_the_classes_and_nan_without_bucket_are_misfits() -> None:
    one_hot = column_of({"one_hot": 3}, Feature("x", "int64", required=True))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0, 1, 0, 0, 0, 0], pa.float32()), 3)
    rows, reason = find_misfits(one_hot, pa.array([1, 7]), vectors)
    assert (rows.tolist(), reason) == ([1], "one_hot has no class for it: not one of 0 to 2")
    buckets = column_of({"bucketize": 4}, Feature("x", "float32", (None,)))
    output = pa.array([[0, 3], [], [NAN_BUCKET, 1, NAN_BUCKET], None], pa.large_list(pa.int64()))
    raw = pa.array([[1.0, 2.0], [], [0.0, 1.0, 0.0], None], pa.large_list(pa.float32()))
    rows, reason = find_misfits(buckets, raw, output)
    assert (rows.tolist(), reason) == ([2], "bucketize has no bucket for NaN")


def test_unknown_word_of_a_vocabulary_is_not_a_misfit() -> None:
    column = column_of(
        [{"vocabulary": {"top_k": 3, "oov_buckets": 0}}, "one_hot"],
        Feature("x", "string", required=True),
    )
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0, 0, 0], pa.float32()), 3)
    assert find_misfits(column, pa.array(["a"]), vectors)[0].tolist() == []


def test_outputs_that_need_a_dropped_feature_are_left_out() -> None:
    outputs = Schema((Feature("a", "float32"), Feature("ab", "float32"), Feature("b", "float32")))
    schema = Schema((*outputs, Feature("c", "int64")))
    entry = {"needs": {"a": ["x"], "ab": ["x", "z"], "b": ["z"]}, "outputs": [], "kept": []}
    transform = SavedTransform("f", INPUTS, outputs, (("c", "w"),), schema, "digest", entry)
    assert transform.drop_features([]) is transform
    reduced = transform.drop_features(["z"])
    assert (reduced.outputs.names, reduced.schema.names, reduced.copied) == (
        ("a",),
        ("a", "c"),
        (("c", "w"),),
    )
    assert reduced.manifest_entry == {"needs": {"a": ["x"]}, "outputs": ["a"], "kept": [["c", "w"]]}
    assert transform.drop_features(["w"]).schema.names == ("a", "ab", "b")
    with pytest.raises(DataError, match="f: the records have no feature that the transform uses"):
        transform.drop_features(["x", "z", "w"])
