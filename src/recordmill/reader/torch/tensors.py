"""Columns of a batch, as `batches` gives them, to what PyTorch takes; nothing is an object per row but text.

fixed shape          tensor [rows, *shape]; where a record may lack it, zeros (text: "") and `name/valid` [rows] bool
                     beside it
variable length      `RaggedRows`, or a tensor [rows, length, ...] where it is collated; a list that is missing and one
                     that is empty both come as empty
timestamp            int64 since 1970 in the schema's unit
string and bytes     a list of `str` or `bytes`; of a shape, lists of lists

A consumer may change them: no two tensors share memory. The types are the schema's own: bfloat16 is torch.bfloat16.
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

BatchPosition = tuple[int, int] | None  # (epoch, position)


class RaggedRows(NamedTuple):
    """Rows of different lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    Attributes:
        values: [items, ...] tensor; a list of text; another RaggedRows for lists of lists.
        row_splits: int64 [rows + 1].
    """

    values: Any
    row_splits: torch.Tensor

    def to_nested(self) -> torch.Tensor:
        """Returns a nested tensor of the jagged layout; of one variable dimension and numbers only."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.row_splits)


def to_tensors(step: Batch, source: BatchSource) -> Any:
    """A step's columns as they are given: a dict by feature name, or `(x, y)`, `(x, y, weights)`."""
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
    tensor = _to_tensor(value.view(np.int64) if value.dtype.kind == "M" else value)
    return tensor.to(torch.bfloat16) if bfloat16 else tensor


def _to_tensor(array: Array) -> torch.Tensor:
    """Returns the array as a tensor. An array that can be written to was made for this batch, and its part of it is
    nobody else's; Arrow's columns can't.
    """
    is_owned = array.flags.writeable and array.flags.c_contiguous
    return torch.from_numpy(array if is_owned else np.array(array, order="C"))


def tensor_batches(
    source: BatchSource, plan: StepPlan, num_workers: int, skip_below: int
) -> Generator[tuple[Any, BatchPosition], None, None]:
    """Yields the tensors of the steps of one worker of so many that share memory, and where the next step stands if
    its number does not say it.

    Args:
        source: the source of batches.
        plan: the steps of the worker.
        workers: how many share memory.
        skip_below: where bad records are skipped, those of the positions below it are left out.
    """
    refiller, truncated_counts = source.make_refiller(plan), dict[str, int]()

    def finish(block: StepBlock) -> tuple[list[Any], StepBlock]:
        return [
            to_tensors(step, source) for step in source.collate_block(block, nulls=False)
        ], block

    for steps, block in source.map_blocks(
        plan, finish, refiller, workers=num_workers, skip_below=skip_below
    ):
        count_truncated(block.truncated_counts, truncated_counts)
        ends: Iterable[BatchPosition] = block.end_positions or repeat(None)
        if refiller is not None and block.rows.positions is not None:
            positions = block.rows.positions[block.rows.edges[1:] - 1] + 1
            ends = zip(repeat(block.rows.step_range.epoch), positions.tolist(), strict=False)
        yield from zip(steps, ends, strict=False)
