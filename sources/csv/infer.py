"""Tokenized rows in, what was seen in each column out: `ColumnsSeen`, which adds up over batches, ranges, files and
threads; and `Stray`, the value that makes text of a column.
"""

# mypy: disable-error-code="arg-type,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.base.kernels import kernel
from recordmill.schemas.lattice import TEXT, Seen
from recordmill.sources.csv.fields import Rows
from recordmill.sources.csv.parse import text_column
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.field_kernels import LENGTH
from recordmill.sources.values.labels import MAX_CLASSES
from recordmill.sources.values.null_tokens import NullTokens, null_index
from recordmill.sources.values.text_values import classify

_SHOWN_BYTES = 256  # of a value


@dataclass(frozen=True)
class Stray:
    """The first value that makes text of a column, in the batch of rows where it stands.

    line: its row's physical line, counted as the batch's are. texts, values: how many values of the batch are text, and
    how many there are. classes: what the others are.
    """

    line: int
    value: bytes
    texts: int
    values: int
    classes: int


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
        self.strays: dict[int, Stray] = {}

    def add(self, data: Bytes, rows: Rows) -> None:
        for place, counts in enumerate(self._counts):
            before = counts[kernels.CLASSES] & TEXT
            kernels.infer_column(data, rows.starts[place], rows.infos[place], self._tokens, counts)
            if not before and counts[kernels.CLASSES] & TEXT:
                self.strays[place] = self._stray(data, rows, place)
        if self._label is not None and len(self.labels) <= MAX_CLASSES:
            values, fault = text_column(data, rows.starts[self._label], rows.infos[self._label], self._tokens)
            if fault.any():
                values = values.filter(fault == 0)
            self.labels.update(values.drop_null().unique().to_pylist())

    def classes(self) -> list[int]:
        """The classes of each column so far; of those that are not typed none."""
        return np.where(self._typed, self._counts[:, kernels.CLASSES], 0).tolist()

    def _stray(self, data: Bytes, rows: Rows, place: int) -> Stray:
        starts, infos = rows.starts[place], rows.infos[place]
        row, texts, values, classes = (int(found) for found in _texts_among(data, starts, infos, self._tokens))
        value = kernels.field(data, starts, infos, row)[:_SHOWN_BYTES]
        return Stray(int(rows.lines[row]), value, texts, values, classes)

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


@kernel
def _texts_among(
    data: Bytes, starts: kernels.Spans, infos: kernels.Spans, tokens: NullTokens
) -> tuple[int, int, int, int]:
    """(the first row whose value is text, how many are, how many values there are, the classes of the others)."""
    first, texts, values, classes = -1, 0, 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH)
        if null_index(data, start, size, tokens) >= 0:
            continue
        values += 1
        bits, _ = classify(data, start, start + size)
        if bits == TEXT:
            texts += 1
            first = row if first < 0 else first
        else:
            classes |= bits
    return first, texts, values, classes
