"""`schema.pbtxt` stores our schemas exactly, and TensorFlow's tools read it.

Schemas of other programs can be loaded.
"""

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from kit.example_values import every_feature, example, flat, schemas, value
from tensorflow_metadata.proto.v0 import schema_pb2

from recordmill.base.errors import DataError
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Feature, Schema


@given(schemas())
def test_any_schema_survives_a_round_trip_through_pbtxt(schema: Schema) -> None:
    assert tfmd.from_pbtxt(tfmd.to_pbtxt(schema)) == schema


def test_every_dtype_and_shape_survives_a_round_trip() -> None:
    features = every_feature() + [Feature(f"{f.name}?", f.dtype, f.shape) for f in every_feature()]
    assert tfmd.from_pbtxt(tfmd.to_pbtxt(Schema(tuple(features)))) == Schema(tuple(features))


def test_fitted_values_of_a_transform_survive_a_round_trip() -> None:
    age = Feature("age", "float32", (), True, found=(("mean", 1 / 3), ("variance", 1e300)))
    schema = Schema((age, Feature("city", "int64", found=(("vocabulary", 5.0),))))
    text = tfmd.to_pbtxt(schema)
    assert tfmd.from_pbtxt(text) == schema
    for invalid in ("[1]", "3", '{\\"mean\\": null}', "{"):
        with pytest.raises(DataError):
            tfmd.from_pbtxt(text.replace('{\\"vocabulary\\": 5.0}', invalid))


def test_schemas_of_sequence_examples_and_bytes_survive_a_round_trip() -> None:
    steps = Feature("tokens", "string", (None,), True, per_step=True)
    schema = Schema(
        (
            steps,
            Feature("boxes", "float32", (None, None, 4), False, per_step=True),
            Feature("pixels", "float64", (None, 2), True, per_step=True),
            Feature("length", "int64", (), True),
            Feature("nested", "int64", (None, None)),
            Feature("raw", "float64", (None, None)),
        ),
        "length",
        "SequenceExample",
    )
    assert tfmd.from_pbtxt(tfmd.to_pbtxt(schema)) == schema
    payload = Schema((Feature("record", "bytes", (), True),), message="bytes")
    assert tfmd.from_pbtxt(tfmd.to_pbtxt(payload)) == payload
    with pytest.raises(ValueError, match="tokens"):
        tfmd.to_pbtxt(Schema((steps,)))


def test_pbtxt_of_a_schema_equals_the_pinned_text() -> None:
    """Manifests contain digests of this text, so it must never change."""
    schema = Schema(
        (Feature("image", "uint8", (2, 2), True), Feature("label", "int64", (), True, ("a", "b"))),
        "label",
    )
    assert tfmd.to_pbtxt(schema) == (
        'feature {\n  name: "image"\n  type: BYTES\n  presence {\n    min_fraction: 1.0\n    min_count: 1\n  '
        "}\n  annotation {\n"
        '    tag: "recordmill:dtype=uint8"\n    tag: "recordmill:shape=[2, 2]"\n  }\n  shape {\n  }\n}\n'
        'feature {\n  name: "label"\n  type: INT\n  int_domain {\n    min: 0\n    max: 1\n    '
        "is_categorical: true\n  }\n"
        "  presence {\n    min_fraction: 1.0\n    min_count: 1\n  }\n  annotation {\n"
        '    tag: "recordmill:classes=[\\"a\\", \\"b\\"]"\n  }\n  shape {\n  }\n}\n'
        'annotation {\n  tag: "recordmill:message=Example"\n  tag: '
        '"recordmill:label=label"\n}\nrepresent_variable_length_as_ragged: true\n'
    )


def proto_of(schema: Schema) -> Any:
    return text_format.Parse(tfmd.to_pbtxt(schema), schema_pb2.Schema())


@pytest.fixture(scope="module")
def shard() -> tuple[Schema, list[dict[str, Any]], list[bytes]]:
    """A schema with every dtype and shape, both required and optional, and five records.

    Some optional values are missing.
    """
    optional = [Feature(f"{f.name}?", f.dtype, f.shape) for f in every_feature()]
    schema = Schema((*every_feature(), *optional))
    rng = np.random.default_rng(1)
    rows = [
        {f.name: value(f, rng) if f.required or rng.random() < 0.6 else None for f in schema}
        for _ in range(5)
    ]
    return schema, rows, [example(schema.features, row) for row in rows]


def stored_values(feature: Feature, value: Any) -> Any:
    """Returns the values of a feature's value entry, as TensorFlow parses it."""
    values = flat(feature, value)
    if feature.raw:
        return [values.tobytes()]
    if feature.kind == "bytes":
        return values.tolist()
    return values.astype(np.float32 if feature.kind == "float" else np.int64).tolist()


def test_tfx_bsl_decodes_shards_by_our_schema(
    shard: tuple[Schema, list[dict[str, Any]], list[bytes]],
) -> None:
    from tfx_bsl.coders import example_coder
    from tfx_bsl.tfxio import tensor_adapter, tensor_representation_util

    schema, rows, records = shard
    proto = proto_of(schema)
    batch = example_coder.ExamplesToRecordBatchDecoder(proto.SerializeToString()).DecodeBatch(
        records
    )
    for feature in schema:
        column = batch.column(batch.schema.get_field_index(feature.storage()[0].name)).to_pylist()
        assert column == [
            None if row[feature.name] is None else stored_values(feature, row[feature.name])
            for row in rows
        ], feature
    representations = tensor_representation_util.InferTensorRepresentationsFromMixedSchema(proto)
    adapter = tensor_adapter.TensorAdapter(
        tensor_adapter.TensorAdapterConfig(batch.schema, representations)
    )
    tensors = adapter.ToBatchTensors(batch)
    assert tensors["int32nxnx2"].to_list() == [
        [[item.tolist() for item in inner] for inner in row["int32nxnx2"]] for row in rows
    ]
    assert tensors["float322x3"].numpy().tolist() == [row["float322x3"].tolist() for row in rows]


def test_tfx_bsl_decodes_sequence_examples_by_our_schema() -> None:
    import tensorflow as tf
    from tfx_bsl.coders import sequence_example_coder
    from tfx_bsl.tfxio import tensor_representation_util

    schema = Schema(
        (
            Feature("n", "int64", (), True),
            Feature("tokens", "string", (None, None), True, per_step=True),
        ),
        message="SequenceExample",
    )
    record = tf.train.SequenceExample()
    record.context.feature["n"].int64_list.value.append(7)
    for step in ([b"a", b"b"], [], [b"c"]):
        record.feature_lists.feature_list["tokens"].feature.add().bytes_list.value.extend(step)
    proto = proto_of(schema)
    tensor_representation_util.ValidateTensorRepresentationsInSchema(proto)
    context, sequence = tensor_representation_util.CreateTfSequenceExampleParserConfig(proto)
    parsed_context, parsed_steps, _ = tf.io.parse_sequence_example(
        [record.SerializeToString()], context, sequence
    )
    assert parsed_context["n"].numpy().tolist() == [7]
    assert parsed_steps["tokens"].to_list() == [[[b"a", b"b"], [], [b"c"]]]
    decoder = sequence_example_coder.SequenceExamplesToRecordBatchDecoder(
        tfmd.FEATURE_LISTS_STRUCT, proto.SerializeToString()
    )
    batch = decoder.DecodeBatch([record.SerializeToString()]).to_pydict()
    assert batch["n"] == [[7]]
    assert batch[tfmd.FEATURE_LISTS_STRUCT] == [{"tokens": [[b"a", b"b"], [], [b"c"]]}]


PLAIN = """
feature { name: "fare" type: FLOAT presence { min_fraction: 1.0 min_count: 1 } shape { dim { size: 1 } } }
feature { name: "tips" type: FLOAT value_count { min: 1 max: 1 } presence { min_count: 1 } }
feature { name: "pair" type: INT value_count { min: 2 max: 2 } int_domain { min: 0 max: 9 is_categorical: true } }
feature { name: "some" type: INT value_count { min: 1 max: 5 } }
feature { name: "open" type: BYTES }
feature { name: "flag" type: INT value_count { min: 1 max: 1 } bool_domain {} }
feature { name: "company" type: BYTES value_count { min: 1 max: 1 } domain: "companies" }
feature { name: "inline" type: BYTES value_count { min: 1 max: 1 } string_domain { value: "a" } }
feature { name: "picture" type: BYTES shape {} presence { min_fraction: 1 } image_domain {} }
feature { name: "when" type: INT value_count { min: 1 max: 1 } time_domain { integer_format: UNIX_MILLISECONDS } }
feature { name: "old" type: INT deprecated: true }
feature { name: "dense" type: FLOAT }
feature { name: "rows" type: FLOAT shape { dim { size: -1 } dim { size: 3 } } }
string_domain { name: "companies" value: "x" }
default_environment: "TRAINING"
weighted_feature { name: "w" feature { step: "open" } weight_feature { step: "tips" } }
tensor_representation_group { key: "" value { tensor_representation { key: "dense" value {
  dense_tensor { column_name: "dense" shape { dim { size: 4 } } default_value { float_value: 0 } } } } } }
"""


def test_schema_written_by_hand_loads_with_expected_dtypes_and_shapes() -> None:
    assert tfmd.from_pbtxt(PLAIN) == Schema(
        (
            Feature("fare", "float32", (1,), True),
            Feature("tips", "float32"),
            Feature("pair", "int64", (2,)),
            Feature("some", "int64", (None,)),
            Feature("open", "bytes", (None,)),
            Feature("flag", "bool"),
            Feature("company", "string"),
            Feature("inline", "string"),
            Feature("picture", "bytes", (), True),
            Feature("when", "timestamp[ms]"),
            Feature("dense", "float32", (4,)),
            Feature("rows", "float32", (None, 3)),
        )
    )


def test_schema_of_tf_transform_loads() -> None:
    import tensorflow as tf
    from tensorflow_transform.tf_metadata import schema_utils

    proto = schema_utils.schema_from_feature_spec(
        {
            "x": tf.io.FixedLenFeature([2, 2], tf.float32),
            "y": tf.io.VarLenFeature(tf.string),
            "z": tf.io.RaggedFeature(
                tf.int64, value_key="zv", partitions=[tf.io.RaggedFeature.RowLengths("zl")]
            ),
        }
    )
    assert set(tfmd.from_pbtxt(text_format.MessageToString(proto))) == {
        Feature("x", "float32", (2, 2), True),
        Feature("y", "bytes", (None,)),
        # The names of the ragged feature follow another rule, so each entry is a feature.
        Feature("zv", "int64", (None,)),
        Feature("zl", "int64", (None,)),
    }


def test_sequence_schema_of_tfx_loads() -> None:
    text = (
        'feature { name: "##SEQUENCE##" type: STRUCT struct_domain { feature { name: "t" type: INT '
        "value_count { min: 1 max: 1 } } } }"
    )
    assert tfmd.from_pbtxt(text) == Schema(
        (Feature("t", "int64", (None,), per_step=True),), message="SequenceExample"
    )


def test_index_and_value_of_a_sparse_feature_load_as_lists() -> None:
    text = (
        'feature { name: "i" type: INT } feature { name: "v" type: FLOAT } '
        'sparse_feature { name: "s" index_feature { name: "i" } value_feature { name: "v" } }'
    )
    assert tfmd.from_pbtxt(text) == Schema(
        (Feature("i", "int64", (None,)), Feature("v", "float32", (None,)))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("feature { nam: 1 }", ["schema", "nam"]),
        ("", ["no features"]),
        ('feature { name: "x" }', ["'x'", "no type"]),
        ('feature { name: "a" type: STRUCT } feature { name: "b" type: STRUCT }', ["'a'", "'b'"]),
        (
            'feature { name: "a" type: STRUCT struct_domain { feature { name: "b" type: STRUCT } } }',
            ["'a'", "'b'"],
        ),
        (
            'feature { name: "a" type: INT value_counts { value_count { min: 1 } value_count { min: 1 } } }',
            ["'a'", "value_counts"],
        ),
        (
            'feature { name: "a" type: INT shape { dim { size: 2 } dim { size: -1 } } }',
            ["'a'", "variable"],
        ),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:dtype=float32" } }',
            ["'a'", "INT", "FLOAT"],
        ),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:dtype=int128" } }',
            ["'a'", "int128"],
        ),
        (
            'feature { name: "a/x" type: INT annotation { '
            'tag: "recordmill:feature=a" tag: "recordmill:shape=[null, null]" } }',
            ["'a/ragged_flat_values'"],
        ),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:shape=[null" } }',
            ["schema.pbtxt"],
        ),
        ('feature { name: "a" type: INT } annotation { tag: "recordmill:label=b" }', ["'b'"]),
        ('feature { name: "a" type: INT } feature { name: "a" type: INT }', ["a"]),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:found={\\"min\\": 1'
            + "0" * 400
            + '}" } }',
            ["large"],
        ),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:found=5" } }',
            ["schema.pbtxt"],
        ),
        (
            'feature { name: "a" type: INT annotation { tag: "recordmill:shape=[4294967296]" } }',
            ["more than a record"],
        ),
    ],
)
def test_invalid_pbtxt_is_refused_with_file_and_reason(text: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        tfmd.from_pbtxt(text, "schema.pbtxt")
    assert str(caught.value).startswith("schema.pbtxt: ")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "schema.pbtxt: schema.pbtxt" not in str(caught.value)


def test_pbtxt_that_is_not_utf8_is_refused() -> None:
    assert tfmd.from_pbtxt(b'feature { name: "a" type: INT }').names == ("a",)
    with pytest.raises(
        DataError, match=r"^schema\.pbtxt: is not a tensorflow_metadata schema: .*utf-8"
    ):
        tfmd.from_pbtxt(b'feature { name: "\xff" type: INT }', "schema.pbtxt")
