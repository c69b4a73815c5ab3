"""`Form`: how a batch is given, lists in the way asked for and a label and weights beside the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.collating.ways import Collate, Padded
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Schema

LENGTH = "/length"  # behind the name of a feature that is padded
Batch = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """How a batch is given. collate: by feature, of lists only. label, weights: the features that are y and the sample
    weights of `(x, y)` or `(x, y, weights)`.
    """

    collate: Mapping[str, Collate]
    label: str | None = None
    weights: str | None = None

    def check(self, schema: Schema) -> None:
        """Raises:
        UsageError: a name or a way to collate that the schema does not have.
        """
        for name, what in self.collate.items():
            if name not in schema or not schema[name].ragged_rank:
                lists = ", ".join(feature.name for feature in schema if feature.ragged_rank)
                raise UsageError(f"collate: {name!r} is no list that is read; there are {lists or 'none'}")
            if not isinstance(what, Padded) and what not in ("ragged", "dense", "padded"):
                raise UsageError(f'collate: {name} is "ragged", "dense", "padded" or Padded(...), not {what!r}')
        for option, wanted in (("label", self.label), ("weights", self.weights)):
            if wanted is not None and wanted not in schema:
                raise UsageError(f"{option} {wanted!r} is no feature that is read; there are {', '.join(schema.names)}")
        if self.weights is not None and self.label is None:
            raise UsageError("weights go with a label: (x, y, weights)")

    def given(self, batch: Batch) -> Any:
        """The batch as it is wanted; with a label, x is the column itself where it is the only one."""
        for name, what in self.collate.items():
            _collate(batch, name, what)
        if self.label is None:
            return batch
        rest = [batch.pop(name) for name in (self.label, self.weights) if name is not None]
        return (batch.popitem()[1] if len(batch) == 1 else batch, *rest)


def _collate(batch: Batch, name: str, what: Collate) -> None:
    column: Ragged = batch[name]
    lengths = column.lengths
    if what == "dense":
        if len(lengths) and lengths.min() != lengths.max():
            raise DataError(
                f"feature {name!r} has rows of {lengths.min()} to {lengths.max()} items in one batch, which are not "
                'dense: collate it as "padded" or "ragged"'
            )
        batch[name] = column.to_padded()
    elif what != "ragged":
        padded = Padded() if what == "padded" else what
        assert isinstance(padded, Padded)
        length = padded.length
        if length is None:
            length = -(-int(lengths.max(initial=0)) // padded.multiple) * padded.multiple
        batch[name] = column.to_padded(length, padded.value)
        batch[name + LENGTH] = np.asarray(lengths)
