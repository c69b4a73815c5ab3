"""Builds Arrow columns of a tape: numbers parsed, strings unescaped, lists with their offsets.

Each column has the JSON values' own type (bool, int64, float64, large_string; of base64 large_binary); `conform` makes
the features' types of them. Values of a form that the feature can't have (an object for a number, true for an int) come
out as nulls and as misfits, with their record.

Strings of a feature of bytes are base64, as `read` writes it, or taken as UTF-8: `--dtype x=base64` and
`--dtype x=bytes` say which. Where a given schema alone says bytes, they are base64.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import Bools, allocate
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.tape import JsonPath, Tape
from recordmill.sources.values.labels import to_class_numbers
from recordmill.sources.values.text_columns import MANTISSA_BITS

BASE64_DTYPE = "base64"
_INT_GROUP, _FLOAT_GROUP, _TEXT_GROUP, _BOOL_GROUP, _OTHER_GROUP = (
    1,
    2,
    4,
    8,
    16,
)  # which kinds of scalar a column has
_GROUP_BY_KIND = np.array(
    [
        0,
        _BOOL_GROUP,
        _BOOL_GROUP,
        _INT_GROUP,
        _FLOAT_GROUP,
        _TEXT_GROUP,
        _TEXT_GROUP,
        _OTHER_GROUP,
        _OTHER_GROUP,
    ],
    np.uint8,
)  # by kind
TapeEntries = npt.NDArray[np.int32]  # places on the tape
# what becomes of scalars of a feature that is text, or of a label whose classes are texts of its values
TEXT_FROM_STRINGS, TEXT_FROM_SCALARS = (
    "strings",
    "scalars",
)  # only strings are values; all are, as they are written


def resolve_base64(common: PlanOptions) -> tuple[PlanOptions, frozenset[str], tuple[str, ...]]:
    """Returns (the options with bytes where base64 is declared, features whose strings are base64, notes on those of
    which a given schema alone says bytes).
    """
    names = [
        name
        for name, dtype in common.dtypes.items()
        if dtype.strip().partition("[")[0] == BASE64_DTYPE
    ]
    dtypes = {
        name: dtype.replace(BASE64_DTYPE, "bytes", 1) if name in names else dtype
        for name, dtype in common.dtypes.items()
    }
    features = () if common.schema is None else common.schema.features
    of_schema = [f.name for f in features if f.dtype == "bytes" and f.name not in dtypes]
    notes = (
        f"{name}: its text is decoded as base64; {option('dtypes', {name: 'bytes'})} keeps the text"
        for name in of_schema
    )
    return replace(common, dtypes=dtypes), frozenset((*names, *of_schema)), tuple(notes)


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Returns (large_binary, which of the large_string texts are no base64) as RFC 4648 has it: the alphabet with `+`
    and `/`, padded, the bits after the last byte 0.
    """
    encoded = texts.cast(pa.large_binary()).to_pylist()
    values = [None if text is None else _decode_text(text) for text in encoded]
    wrong = [
        text is not None and value is None for text, value in zip(encoded, values, strict=True)
    ]
    return pa.array(values, pa.large_binary()), np.array(wrong, np.bool_)


def _decode_text(text: bytes) -> bytes | None:
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error:
        return None
    return data if binascii.b2a_base64(data, newline=False) == text else None


@dataclass(frozen=True)
class Leaf:
    """A feature and the nodes of the trie on the way to its values;
    a list level is an array's node followed by its elements'. base64: its strings stand for bytes. text_rule: STRINGS,
    SCALARS, or "": that its dtype says.
    """

    feature: Feature
    nodes: tuple[int, ...]
    path: JsonPath
    is_base64: bool = False
    text_rule: str = ""


class Misfit(NamedTuple):
    """entries: places on the tape of values that are no such feature."""

    leaf: Leaf
    entries: TapeEntries


def build_columns(tape: Tape, leaves: list[Leaf]) -> tuple[pa.RecordBatch, list[Misfit]]:
    """Returns (the tape's records as columns named by the features, the values that don't fit)."""
    columns: list[pa.Array] = []
    misfits: list[Misfit] = []
    for leaf in leaves:
        column, wrong = _build_column(tape, leaf)
        columns.append(column)
        if len(wrong):
            misfits.append(Misfit(leaf, wrong))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * tape.rows, pa.struct([]))), misfits
    return pa.RecordBatch.from_arrays(
        columns, names=[leaf.feature.name for leaf in leaves]
    ), misfits


def _build_column(tape: Tape, leaf: Leaf) -> tuple[pa.Array, TapeEntries]:
    """Walks from the record to the leaf: slots say where in the column, or the innermost list, each entry is."""
    wraps: list[Callable[[pa.Array], pa.Array]] = []
    wrong: list[TapeEntries] = []
    size = tape.rows
    slots: npt.NDArray[np.int64] | None = (
        None  # of the entries of the node above; None: the record itself
    )
    for depth, (node, name) in enumerate(zip(leaf.nodes, leaf.path, strict=True)):
        here = tape.node_slice(node)
        entries, kinds = tape.entry_ids[here], tape.kinds[here]
        found = int(tape.kind_masks[node]) if len(kinds) else 0
        have = int(
            np.bitwise_or.reduce(
                _GROUP_BY_KIND[[kind for kind in range(native.JSON_KINDS) if found >> kind & 1]]
            )
        )
        last = depth == len(leaf.nodes) - 1
        wanted = (
            -1
            if last
            else native.JsonKind.ARRAY
            if leaf.path[depth + 1] is None
            else native.JsonKind.OBJECT
        )
        if name is None:
            slots, size = np.arange(len(entries)), len(entries)
        else:
            parents = tape.parents[here]
            slots = parents.astype(np.int64) if slots is None else slots[parents]
        if last:
            scalars = NodeScalars(tape, here, kinds, have)
            values, bad = _build_base64(scalars) if leaf.is_base64 else _build_values(scalars, leaf)
            if bad is not None:
                wrong.append(entries[bad])
            column = _scatter(values, slots, size)
            break
        wrong.append(entries[(kinds != wanted) & (kinds != native.JsonKind.NULL_VALUE)])
        if wanted == native.JsonKind.ARRAY:
            wraps.append(_list_wrapper(tape, leaf.nodes[depth + 1], slots, kinds, size))
    else:
        raise AssertionError("a leaf has nodes")
    for wrap in reversed(wraps):
        column = wrap(column)
    return column, np.concatenate(wrong) if wrong else tape.entry_ids[:0]


def _list_wrapper(
    tape: Tape, element: int, slots: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8], size: int
) -> Callable[[pa.Array], pa.Array]:
    lengths = np.zeros(size, np.int64)
    if len(slots):
        lengths[slots] = np.bincount(tape.parents[tape.node_slice(element)], minlength=len(slots))
    offsets = np.zeros(size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    missing = np.ones(size, np.bool_)
    missing[slots[kinds == native.JsonKind.ARRAY]] = False
    return lambda values: pa.LargeListArray.from_arrays(
        pa.array(offsets), values, mask=pa.array(missing) if missing.any() else None
    )


def _scatter(values: pa.Array, slots: npt.NDArray[np.int64], size: int) -> pa.Array:
    """Returns the values at their slots, nulls elsewhere."""
    if len(values) == size:
        return values
    index = np.zeros(size, np.int64)
    index[slots] = np.arange(len(slots))
    missing = np.ones(size, np.bool_)
    missing[slots] = False
    return values.take(pa.array(index, mask=missing))


@dataclass(frozen=True)
class NodeScalars:
    """The values at one place.

    Attributes:
        tape: where they are.
        node_slice: their slice of the arrays that are sorted by node.
        kinds: uint8 [values].
        groups: the groups of kinds that there are.
    """

    tape: Tape
    node_slice: slice
    kinds: npt.NDArray[np.uint8]
    groups: int

    def group_mask(self, groups: int) -> Bools | None:
        """Returns which of them are of these groups; None if none is."""
        return (_GROUP_BY_KIND[self.kinds] & groups) != 0 if self.groups & groups else None

    def null_mask(self) -> Bools | None:
        """Returns which of them are null; None if none is."""
        nulls = self.kinds == native.JsonKind.NULL_VALUE
        return nulls if nulls.any() else None


def _or_masks(one: Bools | None, other: Bools | None) -> Bools | None:
    return other if one is None else one if other is None else one | other


def _build_values(scalars: NodeScalars, leaf: Leaf) -> tuple[pa.Array, Bools | None]:
    """Returns (the values in the type that their kinds have in common, which of them are no such feature)."""
    feature, have, bad, size = (
        leaf.feature,
        scalars.groups,
        scalars.group_mask(_OTHER_GROUP),
        len(scalars.kinds),
    )
    if leaf.text_rule == TEXT_FROM_STRINGS:
        bad = _or_masks(bad, scalars.group_mask(_INT_GROUP | _FLOAT_GROUP | _BOOL_GROUP))
        return _build_texts(scalars, _or_masks(bad, scalars.null_mask())), bad
    numeric = have & (_INT_GROUP | _FLOAT_GROUP)
    if (
        feature.classes is not None
        and leaf.text_rule != TEXT_FROM_SCALARS
        and have & (_TEXT_GROUP | _BOOL_GROUP)
        and numeric
    ):
        return _build_class_numbers(scalars, leaf, feature.classes)
    is_name = feature.classes is not None and not numeric
    text_wanted = (
        leaf.text_rule == TEXT_FROM_SCALARS or feature.dtype in ("string", "bytes") or is_name
    )
    if have & _BOOL_GROUP and have & (_INT_GROUP | _FLOAT_GROUP | _TEXT_GROUP) and not text_wanted:
        bad = _or_masks(bad, scalars.group_mask(_BOOL_GROUP))
        have &= ~_BOOL_GROUP
    if have & _BOOL_GROUP and not text_wanted and feature.dtype != "bool":
        return pa.nulls(size), _or_masks(bad, scalars.group_mask(_BOOL_GROUP))
    have &= ~_OTHER_GROUP
    if have == 0:
        return pa.nulls(size), bad
    if have == _BOOL_GROUP and not text_wanted:
        return pa.array(scalars.kinds == native.JsonKind.TRUE_VALUE, mask=scalars.null_mask()), bad
    if have & ~(_INT_GROUP | _FLOAT_GROUP) or text_wanted:
        return _build_texts(scalars, _or_masks(bad, scalars.null_mask())), bad
    return _build_numbers(scalars, feature, bad)


def _build_class_numbers(
    scalars: NodeScalars, leaf: Leaf, classes: tuple[str, ...]
) -> tuple[pa.Array, Bools | None]:
    """Returns numbers of a feature of classes: a string, true or false is the name of one, and a number its number, as
    where there are only names or only numbers.
    """
    others = scalars.group_mask(_OTHER_GROUP)
    numeric = scalars.group_mask(_INT_GROUP | _FLOAT_GROUP)
    assert numeric is not None
    names = to_class_numbers(
        _build_texts(scalars, _or_masks(_or_masks(numeric, others), scalars.null_mask())), classes
    )
    read, wrong = _build_numbers(
        scalars, leaf.feature, _or_masks(others, scalars.group_mask(_TEXT_GROUP | _BOOL_GROUP))
    )
    numbers = to_class_numbers(read, classes)
    none = np.zeros(len(numeric), np.bool_)
    misread = wrong if numbers.bad_mask is None else wrong | numbers.bad_mask
    bad = np.where(numeric, misread, none if names.bad_mask is None else names.bad_mask)
    return pc.if_else(pa.array(numeric), numbers.values, names.values), _or_masks(others, bad)


def _build_base64(scalars: NodeScalars) -> tuple[pa.Array, Bools]:
    other = (_GROUP_BY_KIND[scalars.kinds] != _TEXT_GROUP) & (
        scalars.kinds != native.JsonKind.NULL_VALUE
    )
    values, wrong = decode_base64(
        _build_texts(scalars, other | (scalars.kinds == native.JsonKind.NULL_VALUE))
    )
    return values, other | wrong


def _build_texts(scalars: NodeScalars, missing: Bools | None) -> pa.Array:
    """Strings as they are meant, other scalars as they are written."""
    tape, size = scalars.tape, len(scalars.kinds)
    starts, sizes = tape.starts[scalars.node_slice], tape.sizes[scalars.node_slice]
    offsets = allocate(size + 1, np.int64)
    most_bytes = int((sizes if missing is None else sizes[~missing]).sum(dtype=np.int64))
    values = allocate(most_bytes, np.uint8)
    values = values[
        : native.join_texts(tape.data, starts, sizes, scalars.kinds, missing, values, offsets)
    ]
    validity = None if missing is None or not missing.any() else pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(
        pa.large_string(), size, [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _build_numbers(
    scalars: NodeScalars, feature: Feature, bad: Bools | None
) -> tuple[pa.Array, Bools]:
    tape, size = scalars.tape, len(scalars.kinds)
    mask = _or_masks(scalars.null_mask(), bad)
    worse = np.zeros(size, np.bool_) if bad is None else bad
    is_float, unsigned = feature.dtype in MANTISSA_BITS, feature.dtype == "uint64"
    if is_float:
        kind = native.FieldType(
            kind=native.FieldKind.FLOATS,
            mantissa_bits=MANTISSA_BITS[feature.dtype],
            overflow_limit=np.inf,
        )
    else:
        low, high = (0, 2**64 - 1) if unsigned else (-(2**63), 2**63 - 1)
        kind = native.FieldType(kind=native.FieldKind.INTEGERS, low=low, high=high)
    values = allocate(size, np.float64 if is_float else np.int64)
    starts, sizes, faults = (
        tape.starts[scalars.node_slice],
        tape.sizes[scalars.node_slice],
        np.zeros(size, np.uint8),
    )
    fields = native.TextFields(data=tape.data, starts=starts, infos=sizes)
    native.read_fields(
        fields, kind, values.view(np.uint8), None, faults, native.ColumnCounts(), None
    )
    wrong = faults != native.FieldFault.NONE
    if wrong.any():
        wrong &= (_GROUP_BY_KIND[scalars.kinds] & (_INT_GROUP | _FLOAT_GROUP)) != 0
        for at in np.flatnonzero(
            wrong
            & (faults == native.FieldFault.UNDECIDED)
            & (scalars.kinds == native.JsonKind.FLOAT)
        ).tolist():
            values[at] = float(tape.data[starts[at] : starts[at] + sizes[at]].tobytes())
            wrong[at] = np.isinf(values[at])
    return pa.array(values.view(np.uint64) if unsigned else values, mask=mask), worse | wrong
