"""Serialized Examples in one buffer, and a Schema, to a RecordBatch: what `records.example.encode` writes, read back,
and what anybody else wrote.

Two passes: `records.example.locate` walks the records once and finds every wanted feature's values,
`records.example.assemble` gathers them column by column. A record that is written in an unusual way, or that does not
fit, is parsed by protobuf itself (`records.protobuf.message`), which brings it into the plain form or refuses it.
Features that are not wanted are skipped unread.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.names import make_name_table
from recordmill.records.example import locate
from recordmill.records.example.assemble import (
    AssembledColumn,
    ColumnLayout,
    assemble,
    column_of,
    located_size,
)
from recordmill.records.example.locate import BadRecord, reason_of
from recordmill.records.protobuf.message import join_records, plain_form, wrong_name
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES, SEQUENCE_EXAMPLE, Feature, Schema

# names of unwanted features that are remembered, so that each is checked once; more are checked every time
_OTHER_NAMES = 256
_LEAST_VALUE_RATIO = 12  # an empty text, of two bytes, becomes its place, its size and an offset
_OTHER_TEXT = 1 << 14  # bytes of such names


@dataclass(frozen=True)
class _Plan:
    """A schema made ready: as Arrow has it, the storages' names, per feature its layout and its storages' numbers, and
    their owners and modes.
    """

    schema: Schema
    arrow: pa.Schema
    names: Int64s
    layouts: tuple[ColumnLayout, ...]
    storages: tuple[tuple[int, ...], ...]
    owners: tuple[Feature, ...]
    columns: locate.LocatedColumns
    parts: int


def decode(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    schema: Schema,
    columns: Sequence[str] | None = None,
    *,
    source: str = "",
    first_record: int = 0,
    offsets: Int64s | None = None,
) -> pa.RecordBatch:
    """Decodes the records data[starts[i] : starts[i] + lengths[i]] into a batch of `to_arrow(schema.select(columns))`.

    Args:
        data: uint8 [bytes], the buffer in which the payloads stand (not their frames).
        starts: int64 [rows].
        lengths: int64 [rows]; the caller has checked that they lie inside data.
        schema: the features of the records.
        columns: the features to read, in this order, None for all; the others are skipped, not parsed.
        source: the file's name, for messages.
        first_record: the number of the first record in the file, for messages.
        offsets: where each record's frame begins, for messages.

    Raises:
        DataError: a record is no such message, or does not fit the schema; it names the first such record.
        KeyError: columns names a feature that the schema has not.
        ValueError: a record does not lie inside data.
    """
    plan = _plan(schema, None if columns is None else tuple(columns))
    batch, _, _ = _attempt(data, starts, lengths, plan, columns is None)
    if batch is not None:
        return batch
    _, _, bad = decode_lenient(data, starts, lengths, schema, columns)
    first = bad[0]
    place = f"record {first_record + first.row}, byte {int((starts if offsets is None else offsets)[first.row])}"
    raise failure(first, source, place)


def failure(bad: BadRecord, source: str, place: str) -> DataError:
    """The error that names this record of a file."""
    what = f"feature {_short(bad.feature)}: {bad.reason}" if bad.feature else bad.reason
    return DataError(
        what[:180], source=source if len(source) <= 80 else f"...{source[-77:]}", place=place
    )


def decode_lenient(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    schema: Schema,
    columns: Sequence[str] | None = None,
) -> tuple[pa.RecordBatch, Int64s, list[BadRecord]]:
    """Decodes as `decode` does, but leaves out bad records: (the batch of the good ones, their rows, the bad ones in
    order).
    """
    plan = _plan(schema, None if columns is None else tuple(columns))
    good = np.arange(len(starts), dtype=np.int64)
    bad: list[BadRecord] = []
    while True:
        batch, status, culprits = _attempt(data, starts[good], lengths[good], plan, columns is None)
        if batch is not None:
            return batch, good, sorted(bad, key=lambda record: record.row)
        for row in np.flatnonzero(status):
            feature = plan.owners[culprits[row]] if culprits[row] >= 0 else None
            reason = reason_of(int(status[row]), feature)
            if status[row] == native.RecordStatus.MISSING_VALUE and (
                name := wrong_name(_record(data, starts, lengths, good[row]))
            ):
                reason += (
                    f"; it holds one called {name!r}, which is no name (UTF-8 text without NUL)"
                )
            bad.append(BadRecord(int(good[row]), feature.name if feature else "", reason))
        good = good[status == 0]


def _record(data: Bytes, starts: Int64s, lengths: Int64s, row: int) -> bytes:
    return data[starts[row] : starts[row] + lengths[row]].tobytes()


def decode_only(
    data: Bytes, starts: Int64s, lengths: Int64s, schema: Schema
) -> pa.RecordBatch | None:
    """Decodes as `decode` does; None unless every record is written in the plain form and has only features of the
    schema.
    """
    plan = _plan(schema, None)
    data, starts, lengths = checked_batch(data, starts, lengths)
    if schema.message == OPAQUE_BYTES:
        return _payloads(data, starts, lengths, plan)
    cells = plan.columns.cells(len(starts))
    if cells.locate(
        data, starts, lengths, plan.parts, native.OtherFeatures.REFUSE, plan.names.copy()
    ):
        return None
    return _assembled(data, plan, cells)


def decoded_size(data: Bytes, start: int, length: int, schema: Schema) -> tuple[int, int]:
    """Returns (bytes, values) that decoding the record data[start : start + length] makes at most: a value of one
    byte becomes eight, an empty text 24. Nothing is allocated for them.
    """
    plan = _plan(schema, None)
    data, starts, lengths = checked_batch(data, np.array([start]), np.array([length]))
    if schema.message == OPAQUE_BYTES:
        return length, 1
    cells = plan.columns.cells(1)
    if cells.locate(
        data, starts, lengths, plan.parts, native.OtherFeatures.SKIP, plan.names.copy()
    ):
        return (
            _LEAST_VALUE_RATIO * length,
            length // 2,
        )  # what is written in an unusual way is read from a copy
    sizes = (
        located_size(column_of(cells, plan.columns, i, data))
        for numbers in plan.storages
        for i in numbers
    )
    whole, values = (sum(numbers) for numbers in zip((0, 0), *sizes, strict=True))
    return whole, values


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")


@functools.lru_cache(64)
def _plan(schema: Schema, columns: tuple[str, ...] | None) -> _Plan:
    chosen = schema if columns is None else schema.select(columns)
    layouts = tuple(ColumnLayout.of(feature) for feature in chosen)
    names: list[tuple[bytes, int]] = []
    owners: list[Feature] = []
    storages: list[tuple[int, ...]] = []
    for layout in layouts:
        parts = layout.feature.storage()
        storages.append(tuple(range(len(names), len(names) + len(parts))))
        names += [(part.name.encode(), 2 if layout.step else 1) for part in parts]
        owners += [layout.feature] * len(parts)
    text_bytes = sum(len(name) for name, _ in names) + _OTHER_TEXT
    table = make_name_table(len(names) + _OTHER_NAMES, text_bytes, names)
    columns_of = locate.LocatedColumns.of(
        [mode for layout in layouts for mode in layout.modes], [owner.required for owner in owners]
    )
    return _Plan(
        chosen,
        to_arrow(chosen),
        table,
        layouts,
        tuple(storages),
        tuple(owners),
        columns_of,
        2 if chosen.message == SEQUENCE_EXAMPLE else 1,
    )


def checked_batch(data: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Bytes, Int64s, Int64s]:
    """Returns the bytes as a contiguous and read-only array; ValueError where a record does not lie inside data."""
    starts, lengths = (
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(lengths, np.int64),
    )
    if len(starts) != len(lengths) or (
        len(starts)
        and (starts.min() < 0 or lengths.min() < 0 or (len(data) - lengths < starts).any())
    ):
        raise ValueError(
            f"{len(starts)} starts and {len(lengths)} lengths that do not lie inside the {len(data)} bytes of data"
        )
    view = np.ascontiguousarray(data).view()
    view.flags.writeable = False
    return view, starts, lengths


def _attempt(
    data: Bytes, starts: Int64s, lengths: Int64s, plan: _Plan, whole: bool
) -> tuple[pa.RecordBatch | None, npt.NDArray[np.uint8], Int64s]:
    """The batch or, if a record is bad, None; with the status and culprit of every row (see locate.Cells)."""
    data, starts, lengths = checked_batch(data, starts, lengths)
    if plan.schema.message == OPAQUE_BYTES:
        return (
            _payloads(data, starts, lengths, plan),
            np.zeros(len(starts), np.uint8),
            np.empty(0, np.int64),
        )
    cells, names = plan.columns.cells(len(starts)), plan.names.copy()
    others = native.OtherFeatures.CHECK if whole else native.OtherFeatures.SKIP
    if cells.locate(data, starts, lengths, plan.parts, others, names):
        data = _read_unusual(data, starts, lengths, plan, names, cells)
        if cells.status.any():
            return None, cells.status, cells.culprits
    return _assembled(data, plan, cells), cells.status, cells.culprits


def _assembled(data: Bytes, plan: _Plan, cells: locate.Cells) -> pa.RecordBatch | None:
    """The batch of cells that are all good or, if values do not fit, None; cells then say which rows' and why."""
    arrays = []
    for layout, numbers in zip(plan.layouts, plan.storages, strict=True):
        parts = [column_of(cells, plan.columns, i, data) for i in numbers]
        arrays.append(assemble(layout, parts))
        if (bad := parts[0].bad) is not None:
            fresh = (bad != 0) & (cells.status == 0)
            cells.status[fresh], cells.culprits[fresh] = bad[fresh], numbers[0]
    if cells.status.any():
        return None
    return (
        pa.RecordBatch.from_arrays(arrays, schema=plan.arrow)
        if arrays
        else _no_columns(plan, len(cells.status))
    )


def _read_unusual(
    data: Bytes, starts: Int64s, lengths: Int64s, plan: _Plan, names: Int64s, cells: locate.Cells
) -> Bytes:
    """Reads each record that has a status in its plain form; returns data with these after them."""
    odd = np.flatnonzero(cells.status)
    forms = [plain_form(_record(data, starts, lengths, int(row)), plan.parts) for row in odd]
    plain, at, size = join_records([b"" if form is None else form.data for form in forms])
    starts, lengths = starts.copy(), lengths.copy()
    starts[odd], lengths[odd] = len(data) + at, size
    is_refused = np.array([form is None for form in forms], np.bool_)
    cells.status[odd[~is_refused]] = locate.UNREAD
    data = np.concatenate([data, plain])
    cells.locate(data, starts, lengths, plan.parts, native.OtherFeatures.SKIP, names)
    cells.status[odd[is_refused]] = locate.UNUSUAL
    cells.culprits[odd[is_refused]] = -1
    return data


def _payloads(data: Bytes, starts: Int64s, lengths: Int64s, plan: _Plan) -> pa.RecordBatch:
    """Records that are not parsed, as one binary column each (there is one, `record`)."""
    column = AssembledColumn(
        len(starts), data, native.CellMode.ONE_BYTES, starts, lengths, np.empty(0, np.int64)
    )
    arrays = [assemble(layout, [column]) for layout in plan.layouts]
    return (
        pa.RecordBatch.from_arrays(arrays, schema=plan.arrow)
        if arrays
        else _no_columns(plan, len(starts))
    )


def _no_columns(plan: _Plan, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.Array.from_buffers(pa.struct([]), rows, [None])
    ).replace_schema_metadata(plan.arrow.metadata)
