"""Arrow columns from a tape of JSON values.

Numbers are parsed, strings are unescaped, and lists get their offsets. Each column has the type of
its JSON values: bool, int64, float64 or large_string, or large_binary for base64. `conform`
converts them to the types of the features. A value may have a form that the feature can't have,
such as an object for a number, or true for an int. It becomes a null and is reported as a `Misfit`.

The strings of a feature of dtype bytes are decoded as base64, which is how `read` writes bytes, or
their UTF-8 bytes are used. `--dtype x=base64` and `--dtype x=bytes` choose between the two. If only
a declared schema specifies bytes, they are base64.
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
from recordmill.base.buffers import Bools, allocate, to_offsets
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.tape import JsonPath, Tape
from recordmill.sources.values.labels import to_class_numbers
from recordmill.sources.values.text_columns import MANTISSA_BITS, parse_undecided

BASE64_DTYPE = "base64"
# Groups of native.JsonKind that are handled alike, as bits of a mask.
_INT_GROUP = 1
_FLOAT_GROUP = 2
_TEXT_GROUP = 4
_BOOL_GROUP = 8
_OTHER_GROUP = 16
# The group of each native.JsonKind.
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
)
TapeEntries = npt.NDArray[np.int32]  # indices of values on the tape
# Which scalars are values of a text feature, or of a label with text classes: only strings, or also
# numbers and booleans, as they are written in the file.
TEXT_FROM_STRINGS = "strings"
TEXT_FROM_SCALARS = "scalars"
# The rule for a feature that is bool because most of its values are: numbers don't fit, even 0 and
# 1.
BOOLS_WITHOUT_NUMBERS = "bools"


def resolve_base64(common: PlanOptions) -> tuple[PlanOptions, frozenset[str], tuple[str, ...]]:
    """Replaces the dtype base64, which is only an option, by bytes.

    Returns:
        (options without base64, features with base64 strings, notes). The notes list the features
        that are base64 only because of a declared schema.
    """
    declared_names = [
        name
        for name, dtype in common.dtypes.items()
        if dtype.strip().partition("[")[0] == BASE64_DTYPE
    ]
    dtypes = {
        name: dtype.replace(BASE64_DTYPE, "bytes", 1) if name in declared_names else dtype
        for name, dtype in common.dtypes.items()
    }
    features = () if common.schema is None else common.schema.features
    schema_names = [
        feature.name
        for feature in features
        if feature.dtype == "bytes" and feature.name not in dtypes
    ]
    notes = (
        Message(
            "{name}: its text is decoded as base64; {dtypes} keeps the text",
            name=name,
            dtypes=option("dtypes", {name: "bytes"}),
        )
        for name in schema_names
    )
    return replace(common, dtypes=dtypes), frozenset((*declared_names, *schema_names)), tuple(notes)


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Decodes base64 according to RFC 4648.

    The alphabet has `+` and `/`. Padding is required, and the bits after the last byte must be 0.

    Args:
        texts: large_string.

    Returns:
        (large_binary, mask of the texts that are not base64). An invalid text becomes null.
    """
    encoded_texts = texts.cast(pa.large_binary()).to_pylist()
    values = [None if text is None else _decode_text(text) for text in encoded_texts]
    is_invalid = [
        text is not None and value is None
        for text, value in zip(encoded_texts, values, strict=True)
    ]
    return pa.array(values, pa.large_binary()), np.array(is_invalid, np.bool_)


def _decode_text(text: bytes) -> bytes | None:
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error:
        return None
    # Python accepts other characters and stray bits, so the result is encoded again and compared.
    return data if binascii.b2a_base64(data, newline=False) == text else None


@dataclass(frozen=True)
class Leaf:
    """A feature and the place of its values in the records.

    Each key of the path has a node. A list level has two nodes: the array, followed by its
    elements.

    Attributes:
        feature: The feature.
        nodes: The nodes of the path on the tape, from the outermost key to the values.
        path: The path of the values.
        is_base64: Whether its strings are base64.
        scalar_rule: Which scalars are values of the feature: TEXT_FROM_STRINGS or TEXT_FROM_SCALARS
            for text, BOOLS_WITHOUT_NUMBERS for bool. "" if the dtype decides.
    """

    feature: Feature
    nodes: tuple[int, ...]
    path: JsonPath
    is_base64: bool = False
    scalar_rule: str = ""


class Misfit(NamedTuple):
    """Values of one tape that do not fit their feature.

    Attributes:
        leaf: The feature.
        entries: Indices of the values in `Tape.entries`.
    """

    leaf: Leaf
    entries: TapeEntries


def build_columns(tape: Tape, leaves: list[Leaf]) -> tuple[pa.RecordBatch, list[Misfit]]:
    """Converts the records of a tape to columns.

    Args:
        tape: The records.
        leaves: The features.

    Returns:
        (columns with the names of the features, values that don't fit their feature). Such a value
        is null in its column.
    """
    columns: list[pa.Array] = []
    misfits: list[Misfit] = []
    for leaf in leaves:
        column, entries = _build_column(tape, leaf)
        columns.append(column)
        if len(entries):
            misfits.append(Misfit(leaf, entries))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * tape.rows, pa.struct([]))), misfits
    return pa.RecordBatch.from_arrays(
        columns, names=[leaf.feature.name for leaf in leaves]
    ), misfits


def _build_column(tape: Tape, leaf: Leaf) -> tuple[pa.Array, TapeEntries]:
    """Builds the column of one feature.

    The loop follows the path from the outermost key to the values. At each level, `slots` contains
    the position of each value in its column, or in the column of all list elements.

    Returns:
        (column, indices in `Tape.entries` of the values that don't fit).
    """
    wrappers: list[Callable[[pa.Array], pa.Array]] = []
    misfit_entries: list[TapeEntries] = []
    num_slots = tape.rows
    # Slots of the entries of the parent node. None means that the parent is the record itself.
    slots: npt.NDArray[np.int64] | None = None
    for depth, (node, name) in enumerate(zip(leaf.nodes, leaf.path, strict=True)):
        node_slice = tape.node_slice(node)
        entries, kinds = tape.entry_ids[node_slice], tape.kinds[node_slice]
        kind_mask = int(tape.kind_masks[node]) if len(kinds) else 0
        groups = int(
            np.bitwise_or.reduce(
                _GROUP_BY_KIND[[kind for kind in range(native.JSON_KINDS) if kind_mask >> kind & 1]]
            )
        )
        is_leaf = depth == len(leaf.nodes) - 1
        expected_kind = (
            -1
            if is_leaf
            else native.JsonKind.ARRAY
            if leaf.path[depth + 1] is None
            else native.JsonKind.OBJECT
        )
        if name is None:
            # The elements of all lists form a column of their own, which the wrapper divides into
            # lists.
            slots, num_slots = np.arange(len(entries)), len(entries)
        else:
            parents = tape.parents[node_slice]
            slots = parents.astype(np.int64) if slots is None else slots[parents]
        if is_leaf:
            scalars = NodeScalars(tape, node_slice, kinds, groups)
            values, is_bad = (
                _build_base64(scalars) if leaf.is_base64 else _build_values(scalars, leaf)
            )
            if is_bad is not None:
                misfit_entries.append(entries[is_bad])
            column = _scatter(values, slots, num_slots)
            break
        misfit_entries.append(
            # A null in place of an object or list on the path makes the value null, which is
            # allowed.
            entries[(kinds != expected_kind) & (kinds != native.JsonKind.NULL_VALUE)]
        )
        if expected_kind == native.JsonKind.ARRAY:
            wrappers.append(_list_wrapper(tape, leaf.nodes[depth + 1], slots, kinds, num_slots))
    else:
        raise AssertionError("a leaf has nodes")
    # The innermost list is built first.
    for wrapper in reversed(wrappers):
        column = wrapper(column)
    return column, np.concatenate(misfit_entries) if misfit_entries else tape.entry_ids[:0]


def _list_wrapper(
    tape: Tape,
    element_node: int,
    slots: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.uint8],
    num_slots: int,
) -> Callable[[pa.Array], pa.Array]:
    """Returns a function that divides a column of list elements into lists.

    Args:
        tape: The records.
        element_node: The node of the elements.
        slots: The position of each list in the resulting column.
        kinds: The kind of the value at each of these positions. Only arrays become lists.
        num_slots: Length of the resulting column. The other positions are null.
    """
    lengths = np.zeros(num_slots, np.int64)
    if len(slots):
        lengths[slots] = np.bincount(
            tape.parents[tape.node_slice(element_node)], minlength=len(slots)
        )
    offsets = to_offsets(lengths)
    is_missing = np.ones(num_slots, np.bool_)
    # Everything except arrays becomes a null list.
    is_missing[slots[kinds == native.JsonKind.ARRAY]] = False
    return lambda values: pa.LargeListArray.from_arrays(
        pa.array(offsets), values, mask=pa.array(is_missing) if is_missing.any() else None
    )


def _scatter(values: pa.Array, slots: npt.NDArray[np.int64], num_slots: int) -> pa.Array:
    """Returns a column with the values at their slots, and nulls elsewhere.

    Args:
        values: The values.
        slots: The position of each value in the column.
        num_slots: Length of the column.
    """
    if len(values) == num_slots:
        return values
    value_indices = np.zeros(num_slots, np.int64)
    value_indices[slots] = np.arange(len(slots))
    is_missing = np.ones(num_slots, np.bool_)
    is_missing[slots] = False
    return values.take(pa.array(value_indices, mask=is_missing))


@dataclass(frozen=True)
class NodeScalars:
    """The values of one node that is the end of a path.

    Attributes:
        tape: The tape that contains them.
        node_slice: The slice of the sorted arrays of the tape that contains the values.
        kinds: uint8 [values], native.JsonKind.
        groups: The groups that occur among the values, as a mask of `_..._GROUP` bits.
    """

    tape: Tape
    node_slice: slice
    kinds: npt.NDArray[np.uint8]
    groups: int

    def group_mask(self, groups: int) -> Bools | None:
        """Returns a mask of the values in one of some groups.

        The result is None if no value is in them.

        Args:
            groups: Bits of the groups.
        """
        return (_GROUP_BY_KIND[self.kinds] & groups) != 0 if self.groups & groups else None

    def null_mask(self) -> Bools | None:
        """Returns a mask of the nulls, or None without nulls."""
        is_null = self.kinds == native.JsonKind.NULL_VALUE
        return is_null if is_null.any() else None


def _or_masks(first: Bools | None, second: Bools | None) -> Bools | None:
    return second if first is None else first if second is None else first | second


def _build_values(scalars: NodeScalars, leaf: Leaf) -> tuple[pa.Array, Bools | None]:
    """Builds the column of values without base64, in the common type of their kinds.

    Returns:
        (values, mask of the values that don't fit, or None if all fit).
    """
    feature = leaf.feature
    groups = scalars.groups
    is_bad = scalars.group_mask(_OTHER_GROUP)
    num_values = len(scalars.kinds)
    if leaf.scalar_rule == TEXT_FROM_STRINGS:
        is_bad = _or_masks(is_bad, scalars.group_mask(_INT_GROUP | _FLOAT_GROUP | _BOOL_GROUP))
        return _build_texts(scalars, _or_masks(is_bad, scalars.null_mask())), is_bad
    numeric_groups = groups & (_INT_GROUP | _FLOAT_GROUP)
    if (
        feature.classes is not None
        and leaf.scalar_rule != TEXT_FROM_SCALARS
        and groups & (_TEXT_GROUP | _BOOL_GROUP)
        and numeric_groups
    ):
        return _build_class_numbers(scalars, leaf, feature.classes)
    names_classes = feature.classes is not None and not numeric_groups
    is_text = (
        leaf.scalar_rule == TEXT_FROM_SCALARS
        or feature.dtype in ("string", "bytes")
        or names_classes
    )
    if leaf.scalar_rule == BOOLS_WITHOUT_NUMBERS:
        is_bad = _or_masks(is_bad, scalars.group_mask(_INT_GROUP | _FLOAT_GROUP))
        groups &= ~(_INT_GROUP | _FLOAT_GROUP)
    elif feature.dtype != "bool" and not is_text:
        is_bad = _or_masks(is_bad, scalars.group_mask(_BOOL_GROUP))
        groups &= ~_BOOL_GROUP
    groups &= ~_OTHER_GROUP
    if groups & _BOOL_GROUP and groups & (_INT_GROUP | _FLOAT_GROUP) and not is_text:
        return _build_bools(scalars, feature, is_bad)
    if groups == 0:
        return pa.nulls(num_values), is_bad
    if groups == _BOOL_GROUP and not is_text:
        return pa.array(
            scalars.kinds == native.JsonKind.TRUE_VALUE,
            mask=_or_masks(is_bad, scalars.null_mask()),
        ), is_bad
    if groups & ~(_INT_GROUP | _FLOAT_GROUP) or is_text:
        return _build_texts(scalars, _or_masks(is_bad, scalars.null_mask())), is_bad
    return _build_numbers(scalars, feature, is_bad)


def _build_bools(
    scalars: NodeScalars, feature: Feature, is_bad: Bools | None
) -> tuple[pa.Array, Bools | None]:
    """Returns the values of a declared bool feature as texts, which `conform` parses.

    Booleans and strings are kept as they are. The numbers 0 and 1 become "false" and "true".

    Returns:
        (texts, mask of the values that don't fit, or None). Other numbers do not fit.
    """
    is_numeric = scalars.group_mask(_INT_GROUP | _FLOAT_GROUP)
    assert is_numeric is not None
    numbers, is_wrong = _build_numbers(scalars, feature, is_bad)
    is_bad = is_wrong | (
        is_numeric & ~pc.is_in(numbers, pa.array([0, 1])).to_numpy(zero_copy_only=False)
    )
    texts = _build_texts(scalars, _or_masks(is_bad, scalars.null_mask()))
    number_texts = pc.if_else(pc.equal(numbers, 1), "true", "false").cast(texts.type)
    return pc.if_else(pa.array(is_numeric & ~is_bad), number_texts, texts), is_bad


def _build_class_numbers(
    scalars: NodeScalars, leaf: Leaf, classes: tuple[str, ...]
) -> tuple[pa.Array, Bools | None]:
    """Returns class numbers for a column that mixes names and numbers.

    Strings and booleans are looked up as names. Numbers are used as they are.

    Args:
        scalars: The values.
        leaf: The label.
        classes: The class names, in the order of their numbers.

    Returns:
        (class numbers, mask of the values that are not classes, or None).
    """
    other_mask = scalars.group_mask(_OTHER_GROUP)
    is_numeric = scalars.group_mask(_INT_GROUP | _FLOAT_GROUP)
    assert is_numeric is not None
    named_classes = to_class_numbers(
        _build_texts(scalars, _or_masks(_or_masks(is_numeric, other_mask), scalars.null_mask())),
        classes,
    )
    parsed, is_wrong = _build_numbers(
        scalars, leaf.feature, _or_masks(other_mask, scalars.group_mask(_TEXT_GROUP | _BOOL_GROUP))
    )
    numbered_classes = to_class_numbers(parsed, classes)
    no_faults = np.zeros(len(is_numeric), np.bool_)
    is_wrong_number = (
        is_wrong if numbered_classes.bad_mask is None else is_wrong | numbered_classes.bad_mask
    )
    is_bad = np.where(
        is_numeric,
        is_wrong_number,
        no_faults if named_classes.bad_mask is None else named_classes.bad_mask,
    )
    return pc.if_else(
        pa.array(is_numeric), numbered_classes.values, named_classes.values
    ), _or_masks(other_mask, is_bad)


def _build_base64(scalars: NodeScalars) -> tuple[pa.Array, Bools]:
    is_no_text = (_GROUP_BY_KIND[scalars.kinds] != _TEXT_GROUP) & (
        scalars.kinds != native.JsonKind.NULL_VALUE
    )
    values, is_invalid = decode_base64(
        _build_texts(scalars, is_no_text | (scalars.kinds == native.JsonKind.NULL_VALUE))
    )
    return values, is_no_text | is_invalid


def _build_texts(scalars: NodeScalars, is_missing: Bools | None) -> pa.Array:
    """Returns strings without their escapes, and other scalars unchanged.

    A number, for example, becomes the text that the file contains.

    Args:
        scalars: The values.
        is_missing: Mask of the values that become null. None if there are no such values.
    """
    tape, num_values = scalars.tape, len(scalars.kinds)
    starts, sizes = tape.starts[scalars.node_slice], tape.sizes[scalars.node_slice]
    offsets = allocate(num_values + 1, np.int64)
    max_bytes = int((sizes if is_missing is None else sizes[~is_missing]).sum(dtype=np.int64))
    values = allocate(max_bytes, np.uint8)
    values = values[
        : native.join_texts(tape.data, starts, sizes, scalars.kinds, is_missing, values, offsets)
    ]
    validity = (
        None if is_missing is None or not is_missing.any() else pa.array(~is_missing).buffers()[1]
    )
    return pa.Array.from_buffers(
        pa.large_string(), num_values, [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _build_numbers(
    scalars: NodeScalars, feature: Feature, is_bad: Bools | None
) -> tuple[pa.Array, Bools]:
    tape, num_values = scalars.tape, len(scalars.kinds)
    is_missing = _or_masks(scalars.null_mask(), is_bad)
    known_bad = np.zeros(num_values, np.bool_) if is_bad is None else is_bad
    is_float, is_unsigned = feature.dtype in MANTISSA_BITS, feature.dtype == "uint64"
    if is_float:
        field_type = native.FieldType(
            kind=native.FieldKind.FLOATS,
            mantissa_bits=MANTISSA_BITS[feature.dtype],
            overflow_limit=np.inf,
        )
    else:
        min_value, max_value = (0, 2**64 - 1) if is_unsigned else (-(2**63), 2**63 - 1)
        field_type = native.FieldType(kind=native.FieldKind.INTEGERS, low=min_value, high=max_value)
    values = allocate(num_values, np.float64 if is_float else np.int64)
    starts = tape.starts[scalars.node_slice]
    sizes = tape.sizes[scalars.node_slice]
    fault_codes = np.zeros(num_values, np.uint8)
    fields = native.TextFields(data=tape.data, starts=starts, infos=sizes)
    native.read_fields(
        fields, field_type, values.view(np.uint8), None, fault_codes, native.ColumnCounts(), None
    )
    is_wrong = fault_codes != native.FieldFault.NONE
    # Text and nulls have no valid number either, but they are not counted as wrong numbers.
    if is_wrong.any():
        is_wrong &= (_GROUP_BY_KIND[scalars.kinds] & (_INT_GROUP | _FLOAT_GROUP)) != 0
        # The native parser leaves numbers with more than 19 digits to Python.
        is_undecided = is_wrong & (fault_codes == native.FieldFault.UNDECIDED)
        for index in np.flatnonzero(is_undecided).tolist():
            text = tape.data[starts[index] : starts[index] + sizes[index]].tobytes()
            values[index], fault = parse_undecided(text, MANTISSA_BITS[feature.dtype], np.inf)
            is_wrong[index] = fault != native.FieldFault.NONE
    return pa.array(
        values.view(np.uint64) if is_unsigned else values, mask=is_missing
    ), known_bad | is_wrong
