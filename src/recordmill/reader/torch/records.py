"""Records of a map-style data set for PyTorch's loaders: `DataLoader(ds, 64)`.

PyTorch's default collation has no tensor for a missing value, a time, or lists of different
lengths, and its errors name no feature. It accepts a collate function for a type. So `__getitems__`
returns records of a type of ours. A `collate_fn` of the user receives them as dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

# PyTorch's documentation of `default_collate` names this dict as the way to add a type.
from torch.utils.data._utils.collate import default_collate_fn_map

from recordmill.base.errors import UsageError


class Record(dict[str, Any]):
    """A record, as `ds[number]` returns it."""


def make_records(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns records that PyTorch's default collation passes to `collate_records`."""
    default_collate_fn_map[Record] = collate_records
    return [Record(row) for row in rows]


def collate_records(records: Sequence[Record], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Collates each feature as PyTorch does.

    Args:
        records: The records of a batch.
        collate_fn_map: Part of PyTorch's protocol. It is not used.

    Raises:
        UsageError: A feature can't become one tensor. The message names it.
    """
    columns = {name: [record[name] for record in records] for name in records[0]}
    for name, values in columns.items():
        if (problem := _find_problem(name, values)) is not None:
            raise UsageError(f"feature {name!r}: {problem}, or pass collate_fn= to the DataLoader")
    return {name: default_collate(values) for name, values in columns.items()}


def _find_problem(name: str, values: Sequence[Any]) -> str | None:
    """Returns the reason why values can't be collated, with advice. None if they can."""
    if (missing := sum(value is None for value in values)) > 0:
        return (
            f"{missing} of the {len(values)} records of this batch lack it, and PyTorch has no missing value. "
            f"""Leave them out (ds.filter('"{name}" is not null')), use ds.to_torch(), which adds '{name}/valid'"""
        )
    dtypes = {value.dtype for value in values if isinstance(value, np.ndarray | np.generic)}
    if any(dtype.kind == "M" for dtype in dtypes):
        return (
            f"PyTorch has no dtype for times. Use ds.to_torch(), which returns int64, leave the feature out "
            f"(ds.drop([{name!r}]))"
        )
    if any(dtype.hasobject for dtype in dtypes):
        return (
            f"PyTorch has no tensors of text. Use ds.to_torch(), which returns lists, leave the feature out "
            f"(ds.drop([{name!r}]))"
        )
    lengths = {len(value) for value in values if isinstance(value, np.ndarray | list)}
    if len(lengths) > 1:
        return (
            f"the lists of this batch have {min(lengths)} to {max(lengths)} items, and a tensor needs one length. "
            f'Use ds.to_torch(collate="padded")'
        )
    return None
