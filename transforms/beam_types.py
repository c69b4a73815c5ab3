"""What recordmill uses of Beam, with types: Beam's own classes when it runs, and for type checkers what they promise.

Beam's annotations don't hold under strict checking (a step is an Any there, and a class of ours that extends one is
unchecked), so this border says itself what a collection and a step can do. A comment at each `expand` says the
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:

    class Pipeline(Protocol):
        """A graph that is being made. runner: what will run it."""

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

        def with_outputs(self, *tags: str) -> PTransform: ...

    class DoFn:
        """A step with a life per bundle; `process` takes an element and side inputs."""

        def start_bundle(self) -> None: ...

        def finish_bundle(self) -> Iterable[object]: ...

    class CombineFn:
        """A monoid: zero, add, merge, finish."""

    def Create(elements: Iterable[object], /) -> PTransform: ...

    def Map(function: Callable[..., object], /, *sides: object) -> PTransform: ...

    def FlatMap(function: Callable[..., Iterable[object]], /, *sides: object) -> PTransform: ...

    def ParDo(function: DoFn, /, *sides: object) -> PTransform: ...

    def CombineGlobally(function: CombineFn, /) -> PTransform: ...

    def Flatten() -> PTransform: ...

    def GroupByKey() -> PTransform: ...

    def Reshuffle() -> PTransform: ...

    def BatchElements(*, min_batch_size: int, max_batch_size: int) -> PTransform: ...

    def TaggedOutput(tag: str, value: object) -> object: ...

    def windowed(value: object, /) -> object: ...

    def AsIter(collection: PCollection, /) -> object: ...

    def AsSingleton(collection: PCollection, /) -> object: ...

else:
    from apache_beam import (
        BatchElements,
        CombineFn,
        CombineGlobally,
        Create,
        DoFn,
        FlatMap,
        Flatten,
        GroupByKey,
        Map,
        ParDo,
        PCollection,
        Pipeline,
        PTransform,
        Reshuffle,
    )
    from apache_beam.pvalue import AsIter, AsSingleton, TaggedOutput
    from apache_beam.transforms.window import GlobalWindows

    windowed = GlobalWindows.windowed_value  # what a bundle gives when it ends

__all__ = [
    "AsIter",
    "AsSingleton",
    "BatchElements",
    "CombineFn",
    "CombineGlobally",
    "Create",
    "DoFn",
    "FlatMap",
    "Flatten",
    "GroupByKey",
    "Map",
    "PCollection",
    "PTransform",
    "ParDo",
    "Pipeline",
    "Reshuffle",
    "TaggedOutput",
    "windowed",
]
