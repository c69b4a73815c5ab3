"""The parse specification, built into tf.io features as the reader does, gives the values that went in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_values import every_feature, example, flat, numpy_dtype, value

from recordmill.schemas import parse_spec
from recordmill.schemas.feature import Feature, Schema


def tf_feature(parse: parse_spec.Parse) -> Any:
    import tensorflow as tf

    if isinstance(parse, parse_spec.FixedLen):
        return tf.io.FixedLenFeature(parse.shape, parse.dtype, parse.default)
    kinds = tf.io.RaggedFeature
    partitions = [
        kinds.UniformRowLength(part) if isinstance(part, int) else kinds.RowLengths(part) for part in parse.partitions
    ]
    return kinds(tf.as_dtype(parse.dtype), parse.value_key, partitions, row_splits_dtype=tf.int64)


def parse_all(schema: Schema, records: list[bytes], **options: Any) -> dict[str, Any]:
    import tensorflow as tf

    spec = parse_spec.parse_spec(schema, **options)
    parsed: dict[str, Any] = tf.io.parse_example(records, {name: tf_feature(parse) for name, parse in spec.items()})
    return parsed


def finished(finish: parse_spec.Finish, parsed: Any) -> np.ndarray[Any, Any]:
    """All values of one record in order, after what `finish` says."""
    import tensorflow as tf

    values = parsed.flat_values if isinstance(parsed, tf.RaggedTensor) else parsed
    if finish.decode_raw:
        return np.concatenate(
            [np.frombuffer(one, np.dtype(finish.decode_raw).newbyteorder("<")) for one in np.atleast_1d(values.numpy())]
            or [np.empty(0)]
        )
    cast = tf.cast(values, finish.cast) if finish.cast else values
    return np.asarray(cast.numpy(), object if cast.dtype == tf.string else None).ravel()


@pytest.mark.parametrize("required", [True, False])
def test_every_feature_parses_to_what_went_in(required: bool) -> None:
    schema = Schema(tuple(every_feature(required=required)))
    rng = np.random.default_rng(2)
    rows = [{f.name: value(f, rng) if required or rng.random() < 0.6 else None for f in schema} for _ in range(4)]
    spec = parse_spec.parse_spec(schema)
    parsed = parse_all(schema, [example(schema.features, row) for row in rows])
    for feature in schema:
        for index, row in enumerate(rows):
            found = finished(spec[feature.name].finish, parsed[feature.name][index])
            given = (
                flat(feature, row[feature.name]) if row[feature.name] is not None else np.empty(0, numpy_dtype(feature))
            )
            assert found.tolist() == given.tolist(), feature
            if feature.kind != "bytes":
                assert found.dtype == numpy_dtype(feature) or not len(given), feature


def test_nesting_and_shapes_come_from_the_partitions() -> None:
    schema = Schema(
        (Feature("n", "int64", (None, None, 2), True), Feature("o", "float32", (2, 2)), Feature("s", "int64"))
    )
    rows: list[dict[str, Any]] = [
        {"n": [[np.array([1, 2])], []], "o": np.arange(4, dtype=np.float32).reshape(2, 2), "s": None},
        {"n": [], "o": None, "s": np.int64(5)},
    ]
    parsed = parse_all(schema, [example(schema.features, row) for row in rows])
    assert parsed["n"].to_list() == [[[[1, 2]], []], []]
    assert parsed["o"].to_list() == [[[[0.0, 1.0], [2.0, 3.0]]], []]
    assert parsed["s"].to_list() == [[], [5]]
    assert tuple(parsed["o"].shape[2:]) == (2, 2)


def test_nested_raw_values_name_their_row_lengths() -> None:
    parse = parse_spec.parse_spec(Schema((Feature("w", "float64", (None, None, 3), True),)))["w"]
    assert parse == parse_spec.RaggedSpec(
        "string",
        "w/ragged_flat_values",
        (),
        parse_spec.Finish("float64", None, (None, None, 3), ("w/ragged_row_lengths_0",)),
    )


def test_defaults_fill_what_is_missing_and_nothing_else() -> None:
    schema = Schema((Feature("s", "int64"), Feature("t", "string"), Feature("v", "int64", (None,))))
    rows: list[dict[str, Any]] = [{"s": np.int64(0), "t": None}, {"s": None, "t": np.array(b"", object)}]
    parsed = parse_all(schema, [example(schema.features, row) for row in rows], defaults={"s": -1, "t": "none"})
    assert parsed["s"].numpy().tolist() == [0, -1]
    assert parsed["t"].numpy().tolist() == [b"none", b""]
    with pytest.raises(ValueError, match="variable length"):
        parse_spec.parse_spec(schema, {"v": 0})
    with pytest.raises(ValueError, match="no feature"):
        parse_spec.parse_spec(schema, {"w": 0})


def test_steps_of_a_sequence_example() -> None:
    schema = Schema(
        (Feature("a", "float32", (None, 2), True, per_step=True), Feature("b", "int64", (None, None), per_step=True)),
        message="SequenceExample",
    )
    assert parse_spec.parse_spec(schema) == {
        "a": parse_spec.RaggedSpec("float32", "a", (2,), parse_spec.Finish()),
        "b": parse_spec.RaggedSpec("int64", "b", (), parse_spec.Finish()),
    }
    with pytest.raises(ValueError, match="no Examples"):
        parse_spec.parse_spec(Schema((Feature("record", "bytes", (), True),), message="bytes"))
