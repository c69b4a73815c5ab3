"""A schema survives a round trip through Arrow.

Columns of other writers become features.
"""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from kit.example_values import every_feature, schemas

from recordmill.base.errors import DataError
from recordmill.schemas.arrow import (
    METADATA_KEY,
    arrow_type,
    class_names_in_metadata,
    format_float,
    format_ticks,
    format_time,
    from_arrow,
    from_arrow_field,
    label_in_metadata,
    to_arrow,
    to_arrow_field,
)
from recordmill.schemas.feature import Feature, Schema


@given(schemas())
def test_schema_survives_a_round_trip_through_arrow(schema: Schema) -> None:
    assert from_arrow(to_arrow(schema)) == schema


def test_classes_and_label_are_in_the_metadata() -> None:
    schema = Schema((Feature("y", "int64", (), True, ("cat", "dog")),), label="y")
    arrow = to_arrow(schema)
    assert class_names_in_metadata(arrow.field("y")) == ("cat", "dog")
    assert class_names_in_metadata(pa.field("y", pa.int64())) is None
    assert label_in_metadata(arrow) == "y"
    renamed = arrow.set(0, arrow.field(0).with_name("z"))
    assert label_in_metadata(renamed) is None


@pytest.mark.parametrize(
    ("arrow", "dtype", "shape"),
    [
        (pa.string(), "string", ()),
        (pa.string_view(), "string", ()),
        (pa.binary(4), "bytes", ()),
        (pa.dictionary(pa.int8(), pa.string()), "string", ()),
        (pa.list_(pa.int8()), "int8", (None,)),
        (pa.list_(pa.list_(pa.float64(), 3), 2), "float64", (2, 3)),
        (pa.large_list(pa.list_(pa.bool_(), 2)), "bool", (None, 2)),
        (pa.fixed_shape_tensor(pa.int32(), [2, 5]), "int32", (2, 5)),
        (pa.date32(), "timestamp[s]", ()),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp[ms, UTC]", ()),
        (pa.null(), "float32", ()),
    ],
)
def test_column_of_another_writer_is_a_feature(
    arrow: pa.DataType, dtype: str, shape: tuple[int | None, ...]
) -> None:
    feature = from_arrow_field(pa.field("x", arrow))
    assert feature == Feature("x", dtype, shape)


@pytest.mark.parametrize(
    ("arrow", "message"),
    [
        (pa.list_(pa.list_(pa.int8()), 2), "a variable list inside a fixed one"),
        (pa.struct([("a", pa.int8())]), "which no feature can hold"),
        (pa.duration("s"), "which no feature can hold"),
    ],
)
def test_column_that_cannot_be_a_feature_is_an_error(arrow: pa.DataType, message: str) -> None:
    with pytest.raises(DataError, match=f"column 'x'.*{message}"):
        from_arrow_field(pa.field("x", arrow))


def test_metadata_of_a_column_that_was_cast_is_ignored() -> None:
    field = to_arrow_field(Feature("x", "uint8", (2, 3)))
    assert from_arrow_field(field).shape == (2, 3)
    assert from_arrow_field(field.with_type(pa.int64())) == Feature("x", "int64")
    # Lists with 32-bit and 64-bit offsets store the same values.
    ragged = to_arrow_field(Feature("x", "bfloat16", (None,)))
    assert from_arrow_field(ragged.with_type(pa.list_(pa.float32()))).dtype == "bfloat16"


@pytest.mark.parametrize(
    "metadata",
    [b"", b"[]", b"{", b"{}", json.dumps({"dtype": "x", "shape": []}).encode(), b"[" * 9**5],
)
def test_damaged_metadata_is_an_error_that_names_the_column(metadata: bytes) -> None:
    with pytest.raises(DataError, match="column 'x': its metadata 'recordmill' is damaged"):
        from_arrow_field(pa.field("x", pa.int64(), metadata={METADATA_KEY: metadata}))


def test_times_are_shown_with_their_zone_or_as_numbers() -> None:
    assert format_time(pa.scalar(0, pa.timestamp("s"))) == "1970-01-01 00:00:00"
    assert format_time(pa.scalar(0, pa.timestamp("s", "UTC"))).endswith("Z")
    assert "since 1970" in format_time(pa.scalar(2**62, pa.timestamp("s")))
    assert format_ticks(1000.0, Feature("t", "timestamp[ms]")).startswith("1970-01-01 00:00:01")


def test_floats_are_shown_with_the_digits_of_their_dtype() -> None:
    value = 0.10000000149011612  # the float32 next to 0.1
    assert format_float(value, "float32") == "0.1"
    assert format_float(value, "float64") == "0.10000000149011612"


def test_arrow_type_of_each_shape_nests_lists() -> None:
    assert arrow_type(Feature("x", "int8", (None, 2, 3))) == pa.large_list(pa.list_(pa.int8(), 6))
    assert arrow_type(Feature("x", "string")) == pa.large_string()


def test_all_types_except_bfloat16_are_kept_without_metadata() -> None:
    for feature in every_feature():
        field = to_arrow_field(feature).remove_metadata()
        loaded_feature = from_arrow_field(field)
        dtype = "float32" if feature.dtype == "bfloat16" else feature.dtype
        assert (loaded_feature.name, loaded_feature.dtype, loaded_feature.required) == (
            feature.name,
            dtype,
            feature.required,
        )
        assert loaded_feature.ragged_rank == feature.ragged_rank
        assert loaded_feature.inner_size == feature.inner_size


def _field(arrow_type: pa.DataType, metadata: object) -> pa.Field:
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    return pa.field("x", arrow_type, metadata={METADATA_KEY: text})


def test_metadata_of_an_equal_layout_determines_the_feature() -> None:
    metadata = {"dtype": "uint8", "shape": [None, 2, 2]}
    offsets_of_32_bits = pa.list_(pa.list_(pa.uint8(), 4))
    assert from_arrow_field(_field(offsets_of_32_bits, metadata)).shape == (None, 2, 2)
    cast = pa.list_(pa.list_(pa.int32(), 4))
    assert from_arrow_field(_field(cast, metadata)) == Feature("x", "int32", (None, 4))
    milliseconds = _field(pa.timestamp("ms"), {"dtype": "timestamp[s]", "shape": []})
    assert from_arrow_field(milliseconds).dtype == "timestamp[s]"


@pytest.mark.parametrize(
    ("metadata", "label"),
    [({}, None), ({"label": "x"}, "x"), ({"label": "gone"}, None), ({"label": 5}, None)],
)
def test_label_is_used_if_it_is_a_column(metadata: dict[str, Any], label: str | None) -> None:
    text = json.dumps(metadata).encode()
    schema = pa.schema([("x", pa.int8())], metadata={METADATA_KEY: text})
    assert label_in_metadata(schema) == from_arrow(schema).label == label


def test_two_columns_of_one_name_are_an_error() -> None:
    with pytest.raises(DataError, match="feature named twice"):
        from_arrow(pa.schema([("x", pa.int8()), ("x", pa.int8())]))
