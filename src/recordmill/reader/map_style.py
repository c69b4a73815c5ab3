"""Records for loaders that request several at once, such as PyTorch's."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any


def to_map_style(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows as records of a map-style data set.

    In a process that uses PyTorch, the records are dicts of a type for its default collation.
    Errors of the collation then name the feature.
    """
    if "torch.utils.data" not in sys.modules:
        return list(rows)
    make_records = import_module("recordmill.reader.torch.records").make_records
    return make_records(rows)
