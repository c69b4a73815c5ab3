"""Beam's classes with types: its own when it runs, and for type checkers what they promise.

Beam's annotations don't hold under strict checking (a step is an Any there, and a class of ours that extends one is
unchecked), so this border says itself what a collection and a step can do. A comment at each `expand` says the
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from recordmill.base.errors import UsageError

if TYPE_CHECKING:
    Step = TypeVar("Step")

    class Pipeline(Protocol):
        """A graph that is being made.

        Attributes:
            runner: what will run it.
        """

        runner: object

        def __or__(self, step: PTransform, /) -> PCollection: ...

    class PCollection(Protocol):
        """Elements that the pipeline will have."""

        @property
        def pipeline(self) -> Pipeline: ...

        def __or__(self, step: PTransform, /) -> PCollection: ...

    class PTransform:
        """A step: a collection in, a collection out. `"label" >> step` names it."""

        def expand(self, collection: PCollection, /) -> PCollection: ...

        def __rrshift__(self, label: str, /) -> PTransform: ...

        def with_output_types(self, hint: object, /) -> PTransform: ...

        def with_outputs(self, *tags: str, main: str | None = None) -> PTransform: ...

    class DoFn:
        """A step with a life per bundle; `process` takes an element and side inputs."""

        def start_bundle(self) -> None: ...

        def finish_bundle(self) -> Iterable[object]: ...

    def Create(elements: Iterable[object], /) -> PTransform: ...

    def Impulse() -> PTransform: ...

    def Map(function: Callable[..., object], /, *sides: object) -> PTransform: ...

    def FlatMap(function: Callable[..., Iterable[object]], /, *sides: object) -> PTransform: ...

    def ParDo(function: DoFn, /, *sides: object) -> PTransform: ...

    def CombineGlobally(function: Callable[[Iterable[Any]], object], /) -> PTransform: ...

    def Flatten() -> PTransform: ...

    def Reshuffle() -> PTransform: ...

    def BatchElements(*, min_batch_size: int, max_batch_size: int) -> PTransform: ...

    def TaggedOutput(tag: str, value: object) -> object: ...

    class Counter(Protocol):
        """A number that the engine adds up."""

        def inc(self, n: int = 1) -> None: ...

    def counter(namespace: str, name: str, /) -> Counter: ...

    def windowed(value: object, /) -> object: ...

    def is_global(collection: PCollection, /) -> bool: ...

    def typed(*, takes: object, gives: object) -> Callable[[type[Step]], type[Step]]: ...

    def row_fields(collection: PCollection, /) -> list[tuple[str, object]]: ...

    def row_type(fields: Iterable[tuple[str, object]], /) -> object: ...

    def row_of(values: Mapping[str, object], /) -> object: ...

    def AsIter(collection: PCollection, /) -> object: ...

    def AsSingleton(collection: PCollection, /) -> object: ...

else:
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

    counter = Metrics.counter
    windowed = GlobalWindows.windowed_value  # what a bundle gives when it ends

    def is_global(collection: PCollection) -> bool:
        """Returns whether a collection is bounded and all of it in one window."""
        return collection.is_bounded and isinstance(collection.windowing.windowfn, GlobalWindows)

    def row_fields(collection: PCollection) -> list:
        """Returns (name, type) of the fields of rows; UsageError where they are no rows."""
        element = collection.element_type
        rows = element if isinstance(element, RowTypeConstraint) else RowTypeConstraint.from_user_type(element)
        if rows is None:
            raise UsageError(f"elements of type {element} have no named and typed fields: give rows (beam.Row)")
        return list(rows._fields)

    def row_type(fields: Iterable[tuple[str, object]]) -> object:
        """The type of rows with these fields."""
        return RowTypeConstraint.from_fields(list(fields))

    def row_of(values: Mapping[str, object]) -> object:
        """A row."""
        return Row(**values)

    def typed(*, takes, gives):
        """Type hints of a step's elements.

        Args:
            takes: None where it is at the begin of a pipeline.
        """

        def decorate(step):
            step = with_output_types(gives)(step)
            return step if takes is None else with_input_types(takes)(step)

        return decorate
