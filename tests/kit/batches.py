"""Tables and batches as plain Python values, and a check that batches resume."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema


def ids(batches: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Returns the feature `id` of each batch."""
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def plain(value: Any) -> Any:
    """Returns a value of an array or of our columns in Python's own types.

    Missing values become None, and times become integers.
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
    """Returns a tensor or ragged tensor of TensorFlow as nested lists."""
    return value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()


def table_of(columns: Mapping[str, Any], schema: Schema) -> pa.Table:
    """Returns columns with the types and the metadata of a schema."""
    arrow = to_arrow(schema)
    return pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)


def check_resumes(
    begin: Callable[..., Any],
    contents: Callable[[Any], list[Any]],
    options: Mapping[str, Any],
    every: int = 1,
) -> list[Any]:
    """Checks that batches resume from a saved state.

    Args:
        begin: Starts to iterate. Takes the options, and a `state`.
        contents: Returns the remaining batches in a form that can be compared.
        options: Options of `begin`, with a number of `epochs`.
        every: The states after this many steps each are tested. The last state is always tested.

    Returns:
        The contents of all batches.
    """
    expected, batches = contents(begin(**options)), begin(**options)
    next_epochs = contents(begin(**{**options, "epochs": 2 * options["epochs"]}))[len(expected) :]
    for step in range(len(expected) + 1):
        if step == len(expected):
            assert next(batches, None) is None
        state = json.loads(json.dumps(batches.state()))
        if step % every == 0 or step == len(expected):
            # The state at the end resumes with the epochs that follow.
            assert contents(begin(**options, state=state)) == (expected[step:] or next_epochs)
        next(batches, None)
    return expected
