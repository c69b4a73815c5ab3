"""Classes and functions of Beam that the modules of this package use.

Beam's annotations fail under strict checking, so type checkers see its classes as Any. A comment at
each `expand` names the types of the input and output elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from apache_beam import (
    BatchElements,
    CombineFn,
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
# Wraps an element with the global window. An element that a step outputs at the end of a bundle
# must name its window.
in_global_window = GlobalWindows.windowed_value


def is_global(collection: PCollection) -> bool:
    """Returns whether a collection is bounded, and not divided into windows."""
    return bool(collection.is_bounded) and isinstance(collection.windowing.windowfn, GlobalWindows)


def get_row_fields(collection: PCollection) -> list[tuple[str, Any]]:
    """Returns (name, type) of each field of the rows in a collection.

    Raises:
        UsageError: The elements have no named and typed fields.
    """
    try:
        return list(named_fields_from_element_type(collection.element_type))
    except TypeError:
        element = collection.element_type
        raise UsageError(
            f"elements of type {element} have no named and typed fields: give rows (beam.Row)"
        ) from None


def make_row_type(fields: Iterable[tuple[str, Any]]) -> Any:
    """Returns the type of rows that have the given fields, as (name, type)."""
    return RowTypeConstraint.from_fields(list(fields))


def make_row(values: Mapping[str, Any]) -> Any:
    """Returns a Beam row with these values by field name."""
    return Row(**values)


def with_type_hints(
    *, input_type: object, output_type: object
) -> Callable[[type[_Step]], type[_Step]]:
    """Returns a class decorator that sets the element types of a PTransform.

    Args:
        input_type: The type of the input elements, or None for a transform that starts a pipeline.
        output_type: The type of the output elements.
    """

    def decorate(step: type[_Step]) -> type[_Step]:
        step = with_output_types(output_type)(step)
        return step if input_type is None else with_input_types(input_type)(step)

    return decorate
