"""What padding makes of a record, in bytes, so that blocks of batches are no larger than memory is meant for them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from recordmill.reader.collating.bucketing import lengths_of
from recordmill.reader.collating.ways import Bucketed, Padded, Way
from recordmill.reader.fetching.readable import Fetchable
from recordmill.records.columns.parts import is_bytes, numpy_dtype

_LOOKED_AT = 256  # of the first records: about a batch, whose longest list all of its rows are padded to


def padded_row_bytes(dataset: Fetchable, ways: Mapping[str, Way]) -> int:
    """About how many bytes a row takes in the arrays that lists of numbers are padded to."""
    features = {feature.name: feature for feature in dataset.schema}
    numbers = {name: way for name, way in ways.items() if not is_bytes(features[name])}
    padded = {name: way for name, way in numbers.items() if isinstance(way, Padded | Bucketed) or way == "dense"}
    if not padded:
        return 0
    head = dataset.select(list(padded)).head(_LOOKED_AT)
    total = 0
    for name, way in padded.items():
        length = way.length if isinstance(way, Padded | Bucketed) else None
        if length is None:
            length = max((int(lengths_of(chunk).max(initial=0)) for chunk in head[name].chunks), default=0)
        inner = math.prod(features[name].inner_shape)
        total += length * inner * numpy_dtype(features[name]).itemsize
    return total
