"""Collections of users need named and typed fields, or are refused."""

import pytest

beam = pytest.importorskip("apache_beam", reason="these types are of Apache Beam")

from recordmill.base.errors import UsageError  # noqa: E402
from recordmill.transforms.beam_types import (  # noqa: E402
    get_row_fields,
    is_global,
    make_row,
    make_row_type,
    with_type_hints,
)


def test_rows_have_the_fields_of_their_type() -> None:
    pipeline = beam.Pipeline()
    fields = [("x", int), ("name", str)]
    row = make_row({"x": 1, "name": "a"})
    rows = pipeline | beam.Create([row]).with_output_types(make_row_type(fields))
    assert [name for name, _ in get_row_fields(rows)] == ["x", "name"]
    assert (row.x, row.name) == (1, "a")
    with pytest.raises(UsageError, match=r"have no named and typed fields: give rows"):
        get_row_fields(pipeline | "Numbers" >> beam.Create([1, 2]))


def test_windowed_collection_is_not_global() -> None:
    numbers = beam.Pipeline() | beam.Create([1])
    assert is_global(numbers)
    assert not is_global(numbers | beam.WindowInto(beam.window.FixedWindows(10)))


def test_step_has_the_types_of_its_decorator() -> None:
    @with_type_hints(input_type=str, output_type=int)
    class Lengths(beam.PTransform):  # type: ignore[misc]
        def expand(self, texts: object) -> object:
            return texts | beam.Map(len)

    pipeline = beam.Pipeline()
    assert (pipeline | beam.Create(["a"]) | Lengths()).element_type is int
    with pytest.raises(
        beam.typehints.TypeCheckError, match="expected <class 'str'>, got <class 'int'>"
    ):
        _ = pipeline | "Numbers" >> beam.Create([1]) | "Wrong" >> Lengths()
