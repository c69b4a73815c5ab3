"""Conversion of batches into PyTorch tensors.

Only text becomes a Python object per row.

    fixed shape        tensor [rows, *shape]. If records may lack the feature, their rows are zeros
                       or "", and `name/valid` is a bool tensor [rows].
    variable length    `RaggedRows`, or a tensor [rows, length, ...] if it is collated. Missing and
                       empty lists are both empty.
    timestamp          int64 since 1970, in the unit of the schema
    string, bytes      a list of `str` or `bytes`, or nested lists if the feature has a shape

No two tensors share memory, so a consumer may change them. The schema determines the dtypes:
bfloat16 becomes torch.bfloat16.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from recordmill.reader.batches.collate import Batch
from recordmill.reader.batches.plan import StepBlock, StepPlan
from recordmill.reader.batches.source import BatchSource, count_truncated
from recordmill.records.columns.ragged import Array, Ragged, Strings

# (epoch, position) at which the next step begins. None if the number of the step determines it.
BatchPosition = tuple[int, int] | None


class RaggedRows(NamedTuple):
    """Rows of different lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    Attributes:
        values: Tensor [items, ...], a list of text, or another RaggedRows for lists of lists.
        row_splits: int64 [rows + 1].
    """

    values: Any
    row_splits: torch.Tensor

    def to_nested(self) -> torch.Tensor:
        """Returns a nested tensor in the jagged layout.

        Only numbers with one variable dimension have such a tensor.
        """
        return torch.nested.nested_tensor_from_jagged(self.values, self.row_splits)


def to_tensors(step: Batch, source: BatchSource) -> Any:
    """Converts the columns of a step and applies the user's map function.

    Returns:
        A dict by feature name, or `(x, y)` or `(x, y, weights)`. With a map function, its
        result.
    """
    bfloat16_names = {feature.name for feature in source.schema if feature.dtype == "bfloat16"}
    batch = source.collator.assemble(
        {name: _convert_value(value, name in bfloat16_names) for name, value in step.items()}
    )
    return source.apply_map(batch)


def _convert_value(value: Any, bfloat16: bool) -> Any:
    if isinstance(value, Ragged):
        return RaggedRows(_convert_value(value.values, bfloat16), _to_tensor(value.row_splits))
    if isinstance(value, Strings) or value.dtype == object:
        return value.to_list() if isinstance(value, Strings) else value.tolist()
    # PyTorch has no type for timestamps
    tensor = _to_tensor(value.view(np.int64) if value.dtype.kind == "M" else value)
    return tensor.to(torch.bfloat16) if bfloat16 else tensor


def _to_tensor(array: Array) -> torch.Tensor:
    """Returns the array as a tensor, without a copy if it is contiguous."""
    return torch.from_numpy(np.ascontiguousarray(array))


def tensor_batches(
    source: BatchSource, plan: StepPlan, num_workers: int, skip_below: int
) -> Generator[tuple[Any, BatchPosition], None, None]:
    """Yields (tensors, end position) of each step of one worker.

    The end position is None if the number of the step determines it. It is set if records are
    packed, or if bad records are skipped.

    Args:
        source: The data set with its options.
        plan: The steps of the worker.
        num_workers: Number of workers that share the memory limit.
        skip_below: If bad records are skipped, positions of the first epoch below this one are left
            out.
    """
    refiller, truncated_counts = source.make_refiller(plan), dict[str, int]()

    def finish(block: StepBlock) -> tuple[list[Any], StepBlock]:
        return [
            to_tensors(step, source) for step in source.collate_block(block, nulls=False)
        ], block

    for steps, block in source.map_blocks(
        plan, finish, refiller, num_workers=num_workers, skip_below=skip_below
    ):
        count_truncated(block.truncated_counts, truncated_counts)
        ends: Iterable[BatchPosition] = block.end_positions or repeat(None)
        if refiller is not None and block.rows.positions is not None:
            # a batch ends after its last record, because records before it may be left out
            positions = block.rows.positions[block.rows.edges[1:] - 1] + 1
            ends = zip(repeat(block.rows.step_range.epoch), positions.tolist(), strict=False)
        yield from zip(steps, ends, strict=False)
