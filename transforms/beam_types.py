"""Beam's classes and functions that the modules here use, and what they ask it about rows and windows.

Beam's annotations don't hold under strict checking, so that for type checkers its classes are of any type. A comment at
each `expand` says the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from apache_beam import (
    BatchElements,
    CombineGlobally,
    Create,
    DoFn,
    FlatMap,
    Flatten,
    Impulse,
    Map,
    ParDo,
    PCollection,
    Pipeline,
    PTransform,
    Reshuffle,
    Row,
)
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import with_input_types, with_output_types
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type

from recordmill.base.errors import UsageError

_Step = TypeVar("_Step")

counter = Metrics.counter
in_global_window = GlobalWindows.windowed_value  # what a bundle gives when it ends


def is_global(collection: PCollection) -> bool:
    """Returns whether a collection is bounded and all of it in one window."""
    return bool(collection.is_bounded) and isinstance(collection.windowing.windowfn, GlobalWindows)


def get_row_fields(collection: PCollection) -> list[tuple[str, Any]]:
    """Returns (name, type) of the fields of rows; UsageError where they are no rows."""
    try:
        return list(named_fields_from_element_type(collection.element_type))
    except TypeError:
        element = collection.element_type
        raise UsageError(
            f"elements of type {element} have no named and typed fields: give rows (beam.Row)"
        ) from None


def make_row_type(fields: Iterable[tuple[str, Any]]) -> Any:
    """The type of rows with these fields."""
    return RowTypeConstraint.from_fields(list(fields))


def make_row(values: Mapping[str, Any]) -> Any:
    """A row."""
    return Row(**values)


def with_type_hints(
    *, input_type: object, output_type: object
) -> Callable[[type[_Step]], type[_Step]]:
    """Type hints of a step's elements; takes: None where it is at the begin of a pipeline."""

    def decorate(step: type[_Step]) -> type[_Step]:
        step = with_output_types(output_type)(step)
        return step if input_type is None else with_input_types(input_type)(step)

    return decorate
