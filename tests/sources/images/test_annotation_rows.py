"""Boxes and values of annotation files are checked one by one.

An error describes the wrong value.
"""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.sources.images.annotation_rows import (
    AnnotationRows,
    BadRow,
    ImageRow,
    to_class,
    to_float32,
    to_number,
    to_size,
    to_text,
    to_whole,
)


def test_boxes_belong_to_their_images_in_order() -> None:
    rows = AnnotationRows("a.json")
    cat, dog = rows.add_image(ImageRow("cat.jpg")), rows.add_image(ImageRow("dog.jpg"))
    rows.add_box(dog, (1, 2, 3, 4), "dog", "box 1", area=7.0)
    rows.add_box(cat, (0, 0, 1, 1), "cat", "box 2", area=1.0)
    assert list(rows.owners) == [1, 0]
    assert list(rows.edges) == [1, 2, 3, 4, 0, 0, 1, 1]
    assert (rows.texts, rows.places) == (["dog", "cat"], ["box 1", "box 2"])
    assert rows.extras == {"area": [7.0, 1.0]}


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((3, 0, 1, 1), "xmax 1 is less than xmin 3"),
        ((0, 5, 1, 1), "ymax 1 is less than ymin 5"),
        ((2, 0, 2, 1), "has no area: xmin and xmax are 2"),
        ((0, math.nan, 1, 1), "a box has four finite numbers, not [0, nan, 1, 1]"),
        ((0, 0, math.inf, 1), "a box has four finite numbers, not [0, 0, inf, 1]"),
        ((0, 0, 2e9, 1), "a box has four finite numbers"),
    ],
)
def test_impossible_box_is_refused_and_leaves_no_trace(
    edges: tuple[float, ...], message: str
) -> None:
    rows = AnnotationRows("a.json")
    rows.add_image(ImageRow("cat.jpg"))
    with pytest.raises(BadRow) as error:
        rows.add_box(0, edges, "cat", "box 1", area=7.0)
    assert error.value.text.startswith(message)
    assert (len(rows.owners), len(rows.edges), rows.texts, rows.extras) == (0, 0, [], {})


def test_reject_names_its_image_and_is_short() -> None:
    rows = AnnotationRows("a.json")
    rows.reject("box 1", "x" * 1000, image="kätzchen.jpg")
    (reject,) = rows.rejects
    assert (reject.source, reject.place, reject.reason) == ("a.json", "box 1", "box")
    assert len(reject.message) < 300
    assert reject.message.endswith(" (image 'k\\xe4tzchen.jpg')")


@given(st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_and_their_texts_are_numbers(value: float) -> None:
    assert to_number(value, "x") == float(value)
    assert to_number(f" {value!r} ", "x") == float(value)


@pytest.mark.parametrize("value", [None, True, "", "x", math.nan, math.inf, "nan", "1e999", [1]])
def test_value_that_is_not_a_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(BadRow, match=r"^width is .*, not a finite number"):
        to_number(value, "width")


@pytest.mark.parametrize(("value", "number"), [(7, 7), ("7", 7), (7.0, 7), (True, 1), (0, 0)])
def test_integer_in_any_notation_is_an_int(value: Any, number: int) -> None:
    assert to_whole(value, "id") == number


@pytest.mark.parametrize("value", [-1, 1.5, "x", 2**63, "8", 1e300])
def test_number_that_is_not_an_integer_or_too_large_is_refused(value: Any) -> None:
    with pytest.raises(BadRow, match=r"^id is "):
        to_whole(value, "id", maximum=7)


def test_float32_has_a_limit() -> None:
    assert to_float32(3e38, "area") == 3e38
    with pytest.raises(BadRow, match=r"area is 1e\+39, more than float32 holds"):
        to_float32(-1e39 * -1, "area")


@pytest.mark.parametrize(("value", "text"), [("cat", "cat"), (7, "7"), (1.5, "1.5")])
def test_class_is_a_text_or_a_number(value: Any, text: str) -> None:
    assert to_class(value) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "has no class"),
        (" ", "has no class"),
        ([1], "the class is .*, not a text"),
        (1 << 300, "the class is .*, not a text"),
        ("\ud800", "half a UTF-16 character"),
    ],
)
def test_value_that_is_not_a_class_name_is_refused(value: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message):
        to_class(value)
    if message.startswith("half"):
        with pytest.raises(BadRow):
            to_text(value, "x")


def test_impossible_image_size_is_ignored() -> None:
    assert to_size("640", 480) == (640, 480)
    assert to_size(0, 480) is None
    assert to_size("", 480) is None
    assert to_size(None, 480) is None
    assert to_size(1e10, 480) is None
    with pytest.raises(BadRow, match="height is"):
        to_size(640, "x")
