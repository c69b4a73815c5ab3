"""`TorchRecords`: records by number as a map-style Dataset, for loaders with a sampler of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.utils.data

from recordmill.reader.torch.given import Given
from recordmill.reader.torch.tensors import RaggedRows


class TorchRecords(torch.utils.data.Dataset):  # type: ignore[misc]
    """len(ds) records; `ds[i]` is a dict by feature name, or (x, y), of a record's tensors, numbers and text, as
    PyTorch's default_collate takes them. A loader asks for the records of a batch together.
    """

    def __init__(self, given: Given) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given.dataset)

    def __getitem__(self, at: int) -> Any:
        return self.__getitems__([at])[0]

    def __getitems__(self, at: Sequence[int]) -> list[Any]:
        """The records of these numbers, read together.

        Raises:
            IndexError: there is no such record.
        """
        batch = self._given.records(list(at))
        return [_row(batch, row) for row in range(len(at))]


def _row(batch: Any, row: int) -> Any:
    """What this row of a batch is."""
    if isinstance(batch, RaggedRows):
        begin, end = batch.row_splits[row : row + 2].tolist()
        if isinstance(batch.values, RaggedRows):
            return [_row(batch.values, item) for item in range(begin, end)]
        return batch.values[begin:end]
    if isinstance(batch, dict):
        return {name: _row(column, row) for name, column in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(column, row) for column in batch)
    return batch[row]
