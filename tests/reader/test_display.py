"""Values are shown on one line of limited length.

Data sets are shown with their main facts.
"""

from typing import Any

import pyarrow as pa
import pytest
from kit.data_sets import MIXED, mixed_rows
from kit.image_samples import encode_image

from recordmill.reader.display import (
    display_html,
    display_text,
    format_features,
    iter_record_lines,
    show_bytes,
    show_item,
    show_text,
    show_value,
)
from recordmill.schemas.feature import Feature, Schema


def test_long_text_is_cut_and_its_length_is_added() -> None:
    assert show_text("line\nbreak") == r"'line\nbreak'"
    assert show_text("x" * 60) == repr("x" * 60)
    assert show_text("x" * 1061) == f"{'x' * 60!r}... (1,061 characters)"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"text", "b'text'"),
        (b"", "b''"),
        (b"\0\1", r"b'\x00\x01' (2 bytes)"),
        (bytes(5000), repr(bytes(16)) + "... (5,000 bytes)"),
        (b"x" * 61, "b'xxxxxxxxxxxxxxxx'... (61 bytes)"),
    ],
)
def test_binary_value_is_shown_by_its_start_and_length(data: bytes, text: str) -> None:
    assert show_bytes(data) == text


def test_image_is_shown_by_its_size() -> None:
    assert "17 x 23" in show_bytes(encode_image("PNG"))
    assert "17 x 23" in show_item(encode_image("JPEG"))
    assert show_bytes(b"\x89PNG no image").startswith("b'\\x89PNG")


@pytest.mark.parametrize(
    ("feature", "value", "text"),
    [
        (Feature("x", "int64"), None, "missing"),
        (Feature("x", "int64"), 7, "7"),
        (Feature("x", "int64", (), False, ("cat", "dog")), 1, "1 ('dog')"),
        (Feature("x", "int64", (), False, ("cat", "dog")), 5, "5"),
        (Feature("x", "string"), "a", "'a'"),
        (Feature("x", "float32"), 0.1, "0.1"),
        (Feature("x", "int64", (None,)), [1, 2, 3], "[1, 2, 3]"),
        (Feature("x", "int64", (None,)), [], "[]"),
    ],
)
def test_value_of_each_kind_is_shown(feature: Feature, value: Any, text: str) -> None:
    from recordmill.schemas.arrow import arrow_type

    assert show_value(pa.array([value], arrow_type(feature)), feature) == text


def test_long_list_shows_its_shape_and_first_items() -> None:
    feature = Feature("x", "int64", (None,))
    text = show_value(pa.array([list(range(100))], pa.large_list(pa.int64())), feature)
    assert text.startswith("int64 [100] [0, 1, 2, 3, 4, 5")
    assert "99" not in text.split("]", 1)[1]


def test_records_are_shown_with_a_line_for_each_feature() -> None:
    lines = list(iter_record_lines(mixed_rows(2), MIXED, first=40))
    assert lines[0] == "record 40"
    assert lines[len(MIXED.names) + 1] == "record 41"
    assert len(lines) == 2 * (len(MIXED.names) + 1)
    assert lines[1].split() == ["id", "0"]
    assert "\n" not in "".join(lines)


def test_features_are_described_with_label_and_missing_values() -> None:
    schema = Schema(
        (Feature("x", "float32"), Feature("y", "int64", (), True, ("a", "b"))), label="y"
    )
    descriptions = dict(format_features(schema))
    assert descriptions["x"].endswith("or missing")
    assert descriptions["y"].endswith("(label)")
    text = display_text("Dataset out: 3 records, train", schema)
    assert text.splitlines()[0] == "<Dataset out: 3 records, train"
    assert text.endswith(">")
    assert display_text("D", None) == "<D; its schema is inferred when it is needed>"


def test_names_never_become_html() -> None:
    schema = Schema((Feature("<script>", "int64"),))
    html = display_html("<i>", schema)
    assert "<script>" not in html
    assert "<i>" not in html
