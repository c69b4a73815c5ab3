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

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from recordmill.reader.collating.form import Batch, Form
from recordmill.reader.collating.ways import OneHot, Way
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Feature, Schema

VALID = "/valid"  # behind the name of a feature that may be missing, as `to_tf` has it


class RaggedRows(NamedTuple):
    """Rows of different lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    values: [items, ...] tensor; a list of text; another RaggedRows for lists of lists. row_splits: int64 [rows + 1].
    """

    values: Any
    row_splits: torch.Tensor

    def to_nested(self) -> torch.Tensor:
        """The same as a nested tensor of the jagged layout; of one variable dimension and numbers only."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.row_splits)


def filled(columns: Batch, schema: Schema, ways: Mapping[str, Way]) -> Batch:
    """The columns without gaps, and which rows have a value, where the schema lets them lack it."""
    features = {feature.name: feature for feature in schema}
    there: Batch = {}
    for name, column in columns.items():
        known = isinstance(ways.get(name), OneHot)  # a missing number is no class
        there |= {name: column} if known else _filled(name, column, features.get(name))
    return there


def tensors_of(step: Batch, schema: Schema, form: Form) -> Any:
    """A step's columns in its form: a dict by feature name, or `(x, y)`, `(x, y, weights)`."""
    wide = {feature.name for feature in schema if feature.dtype == "bfloat16"}
    return form.given({name: _converted(value, name in wide) for name, value in step.items()})


def _filled(name: str, column: Array | Ragged | Strings, feature: Feature | None) -> Batch:
    if isinstance(column, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(column)
        return {name: column.data, name + VALID: ~mask.reshape(len(mask), -1)[:, 0] if mask.size else ~mask[:0]}
    if not isinstance(column, np.ndarray) or column.dtype != object or feature is None or feature.required:
        return {name: column}
    valid = np.array([value is not None for value in column.tolist()], np.bool_)
    return {name: np.where(valid, column, "" if feature.dtype == "string" else b""), name + VALID: valid}


def _converted(value: Any, bfloat16: bool) -> Any:
    if isinstance(value, Ragged):
        return RaggedRows(_converted(value.values, bfloat16), _tensor(value.row_splits))
    if isinstance(value, Strings) or value.dtype == object:
        return value.to_list() if isinstance(value, Strings) else value.tolist()
    tensor = _tensor(value.view(np.int64) if value.dtype.kind == "M" else value)
    return tensor.to(torch.bfloat16) if bfloat16 else tensor


def _tensor(array: Array) -> torch.Tensor:
    """What can be written to was made for this batch, and its part of it is nobody else's; Arrow's columns can't."""
    own = array.flags.writeable and array.flags.c_contiguous
    return torch.from_numpy(array if own else np.array(array, order="C"))
