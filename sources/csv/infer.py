"""Tokenized rows in, what was seen in each column out:
`ColumnsSeen`, which adds up over batches, ranges, files and threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.schemas.lattice import TEXT, Seen
from recordmill.sources.csv.fields import Rows
from recordmill.sources.csv.parse import text_column
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.labels import MAX_CLASSES
from recordmill.sources.values.null_tokens import NullTokens


class ColumnsSeen:
    """Collects, for one file's columns, classes and counts (schemas.lattice), and the label's distinct values.

    typed: for each column whether its class matters; else only nulls and values are counted. label: the label's place
    among them, or None.
    """

    def __init__(self, null_tokens: Sequence[str], typed: Sequence[bool], label: int | None) -> None:
        self._names, self._tokens, self._label = tuple(null_tokens), NullTokens.of(null_tokens), label
        self._counts = np.zeros((len(typed), kernels.COUNTS + len(self._names)), np.int64)
        self._counts[~np.array(typed, np.bool_), kernels.CLASSES] = TEXT
        self._typed = tuple(typed)
        self.labels: set[str] = set()

    def add(self, data: Bytes, rows: Rows) -> None:
        for place, counts in enumerate(self._counts):
            kernels.infer_column(data, rows.starts[place], rows.infos[place], self._tokens, counts)
        if self._label is not None and len(self.labels) <= MAX_CLASSES:
            values, fault = text_column(data, rows.starts[self._label], rows.infos[self._label], self._tokens)
            if fault.any():
                values = values.filter(fault == 0)
            self.labels.update(values.drop_null().unique().to_pylist())

    def seen(self) -> list[Seen]:
        """One for each column; for those that are not typed without classes."""
        result = []
        for counts, typed in zip(self._counts.tolist(), self._typed, strict=True):
            head, nulls = counts[: kernels.COUNTS], counts[kernels.COUNTS :]
            names = {name: count for name, count in zip(self._names, nulls, strict=True) if count}
            result.append(
                Seen(
                    head[kernels.CLASSES] if typed else 0,
                    *(head[kernels.VALUES], names, head[kernels.SOFT_NULLS]),
                    *(head[kernels.DECIMALS], head[kernels.INTEGERS], head[kernels.OVERFLOWS]),
                )
            )
        return result
