"""Tables and batches as plain Python values, and the check that batches resume at every step."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema


def ids(batches: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """The feature `id` of each batch."""
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def plain(value: Any) -> Any:
    """A value of an array or of our columns in Python's own types: None for what is missing, times
    as numbers.
    """
    if isinstance(value, np.ma.MaskedArray) and value.size and np.ma.getmaskarray(value).all():
        return None
    if isinstance(value, list | tuple | Ragged | Strings) or (
        isinstance(value, np.ndarray) and value.ndim
    ):
        return [plain(item) for item in value]
    if isinstance(value, np.datetime64):
        return int(value.astype(np.int64))
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def tensor_to_list(value: Any) -> list[Any]:
    """A tensor or ragged tensor of TensorFlow as nested lists."""
    return value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()


def table_of(columns: Mapping[str, Any], schema: Schema) -> pa.Table:
    """The columns with the types and the metadata of a schema."""
    arrow = to_arrow(schema)
    return pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)


def check_resumes(
    begin: Callable[..., Any],
    shown: Callable[[Any], list[Any]],
    options: Mapping[str, Any],
    every: int = 1,
) -> list[Any]:
    """Checks that batches go on from the state after `every` so many steps and the last one; gives
    what all show.
    """
    whole, running = shown(begin(**options)), begin(**options)
    behind = shown(begin(**{**options, "epochs": 2 * options["epochs"]}))[len(whole) :]
    for step in range(len(whole) + 1):
        if step == len(whole):
            assert next(running, None) is None
        state = json.loads(json.dumps(running.state()))
        if step % every == 0 or step == len(whole):
            assert shown(begin(**options, state=state)) == (whole[step:] or behind)
        next(running, None)
    return whole
