"""Decoder of serialized Examples and SequenceExamples in one buffer to a RecordBatch.

The decoder reads the records of `records.example.encode`, and records of any other writer. There
are two passes: `records.example.locate` walks through the records once and finds the values of
every selected feature. `records.example.assemble` gathers them feature by feature. Features that
are not selected are not read.

A record that is not in the plain form (`records.protobuf.message`) is parsed by protobuf, which
converts it to the plain form or refuses it.
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
from recordmill.base.messages import Message, shorten
from recordmill.base.names import make_name_table
from recordmill.records.example import locate
from recordmill.records.example.assemble import (
    ColumnLayout,
    LocatedColumn,
    assemble_column,
    get_column,
    max_array_size,
)
from recordmill.records.example.locate import BadRecord, describe_status
from recordmill.records.protobuf.message import find_invalid_name, join_records, to_plain_form
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES, SEQUENCE_EXAMPLE, Feature, Schema

# 256 names of unselected features are remembered, so that each is checked only once. Any further
# name is checked in every record.
_MAX_OTHER_NAMES = 256
# An empty text has two bytes in a record. It becomes 24 bytes: its position, its size and an
# offset.
_MAX_DECODE_RATIO = 12
# 16 KiB: total size of the names of unselected features.
_MAX_OTHER_NAME_BYTES = 1 << 14


@dataclass(frozen=True)
class _DecodePlan:
    """Everything that the decoder derives from a schema before it sees a record.

    A storage is an entry of the maps of a record. A feature is stored in one or more storages,
    because the lengths of nested lists have storages of their own.

    Attributes:
        schema: The selected features.
        arrow: The Arrow schema of the result.
        names: The table of the names of the storages. Decoding adds names of other features to it,
            so each call uses a copy.
        layouts: The layout of each feature.
        storage_ids: The numbers of the storages of each feature.
        owners: The feature of each storage.
        cell_layout: The layout of the first pass, with one column per storage.
        map_count: The number of maps of a message: 1 in an Example, 2 in a SequenceExample.
    """

    schema: Schema
    arrow: pa.Schema
    names: Int64s
    layouts: tuple[ColumnLayout, ...]
    storage_ids: tuple[tuple[int, ...], ...]
    owners: tuple[Feature, ...]
    cell_layout: locate.CellLayout
    map_count: int


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
    """Decodes records to a batch with the Arrow schema `to_arrow(schema.select(columns))`.

    Args:
        data: uint8 [bytes], a buffer that contains the records. Record i is `data[starts[i] :
            starts[i] + lengths[i]]`.
        starts: int64 [rows], the offset of each record.
        lengths: int64 [rows], the size of each record.
        schema: The features of the records.
        columns: The features to read, in this order. None means all features. Features that are not
            in `columns` are skipped without parsing.
        source: The file name for messages.
        first_record: The number of the first record in its file, for messages.
        offsets: int64 [rows], the offset of each record in its file, for messages. None means
            `starts`.

    Raises:
        DataError: A record is not such a message, or does not fit the schema. The error names the
            first such record.
        KeyError: `columns` contains a name that is not in the schema.
        ValueError: A record is not inside `data`.
    """
    plan = _make_plan(schema, None if columns is None else tuple(columns))
    batch, _, _ = _try_decode(
        data, starts, lengths, plan=plan, checks_other_features=columns is None
    )
    if batch is not None:
        return batch
    # Only the lenient decoder finds the reason for each record.
    _, _, bad = decode_lenient(data, starts, lengths, schema, columns)
    first_bad = bad[0]
    place = f"record {first_record + first_bad.row}, byte {int((starts if offsets is None else offsets)[first_bad.row])}"
    raise make_record_error(first_bad, source, place)


def make_record_error(bad: BadRecord, source: str, place: str) -> DataError:
    """Returns the error for a bad record of a file.

    Args:
        bad: The record.
        source: The file name.
        place: Where in the file the record is.
    """
    message = (
        Message(
            "feature {feature}: {message}",
            feature=_shorten_name(bad.feature),
            message=bad.message,
        )
        if bad.feature
        else bad.message
    )
    return DataError(
        shorten(message, 180),
        source=source if len(source) <= 80 else f"...{source[-77:]}",
        place=place,
    )


def decode_lenient(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    schema: Schema,
    columns: Sequence[str] | None = None,
) -> tuple[pa.RecordBatch, Int64s, list[BadRecord]]:
    """Decodes records as `decode` does, but leaves out bad ones.

    `decode` describes the arguments.

    Returns:
        (batch of the good records, the index of each of them in `starts`, the bad records in
        order).
    """
    plan = _make_plan(schema, None if columns is None else tuple(columns))
    good = np.arange(len(starts), dtype=np.int64)
    bad: list[BadRecord] = []
    # Each round leaves out the rows that are bad so far. Others may turn out bad later, because
    # values are checked after the first pass.
    while True:
        batch, status, culprits = _try_decode(
            data, starts[good], lengths[good], plan=plan, checks_other_features=columns is None
        )
        if batch is not None:
            return batch, good, sorted(bad, key=lambda record: record.row)
        for row in np.flatnonzero(status):
            feature = plan.owners[culprits[row]] if culprits[row] >= 0 else None
            reason = describe_status(int(status[row]), feature)
            # The feature may be missing only because the name in the record is invalid.
            if status[row] == native.RecordStatus.MISSING_VALUE and (
                name := find_invalid_name(_record_bytes(data, starts, lengths, good[row]))
            ):
                reason += (
                    f"; it holds one called {name!r}, which is not a name (UTF-8 text without NUL)"
                )
            bad.append(BadRecord(int(good[row]), feature.name if feature else "", reason))
        good = good[status == 0]


def _record_bytes(data: Bytes, starts: Int64s, lengths: Int64s, row: int) -> bytes:
    return data[starts[row] : starts[row] + lengths[row]].tobytes()


def decode_if_plain(
    data: Bytes, starts: Int64s, lengths: Int64s, schema: Schema
) -> pa.RecordBatch | None:
    """Decodes records as `decode` does, if all are in the plain form.

    Returns:
        The batch. None if a record is not in the plain form, or has a feature that is not in the
        schema.
    """
    plan = _make_plan(schema, None)
    data, starts, lengths = validate_spans(data, starts, lengths)
    if schema.message == OPAQUE_BYTES:
        return _payload_batch(data, starts, lengths, plan)
    cells = plan.cell_layout.allocate_cells(len(starts))
    if cells.locate(
        data,
        starts,
        lengths,
        map_count=plan.map_count,
        other_features=native.OtherFeatures.REFUSE,
        names=plan.names.copy(),
    ):
        return None
    return _assemble_batch(data, plan, cells)


def max_decoded_size(data: Bytes, start: int, length: int, schema: Schema) -> tuple[int, int]:
    """Returns the maximum size of a record after decoding, as (bytes, number of values).

    A record may grow: a value of one byte can become eight bytes, and an empty text can become 24.
    No memory for the values is allocated here.
    """
    plan = _make_plan(schema, None)
    data, starts, lengths = validate_spans(data, np.array([start]), np.array([length]))
    if schema.message == OPAQUE_BYTES:
        return length, 1
    cells = plan.cell_layout.allocate_cells(1)
    if cells.locate(
        data,
        starts,
        lengths,
        map_count=plan.map_count,
        other_features=native.OtherFeatures.SKIP,
        names=plan.names.copy(),
    ):
        # A record that is written in an unusual way would be read from a copy.
        return _MAX_DECODE_RATIO * length, length // 2
    sizes = (
        max_array_size(get_column(cells, layout=plan.cell_layout, column=storage_id, data=data))
        for storage_ids in plan.storage_ids
        for storage_id in storage_ids
    )
    num_bytes, num_values = (sum(column) for column in zip((0, 0), *sizes, strict=True))
    return num_bytes, num_values


def _shorten_name(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")


@functools.lru_cache(64)
def _make_plan(schema: Schema, columns: tuple[str, ...] | None) -> _DecodePlan:
    selected_schema = schema if columns is None else schema.select(columns)
    layouts = tuple(ColumnLayout.from_feature(feature) for feature in selected_schema)
    names: list[tuple[bytes, int]] = []
    owners: list[Feature] = []
    storage_ids: list[tuple[int, ...]] = []
    for layout in layouts:
        storage_list = layout.feature.storage()
        storage_ids.append(tuple(range(len(names), len(names) + len(storage_list))))
        names += [(part.name.encode(), 2 if layout.step else 1) for part in storage_list]
        owners += [layout.feature] * len(storage_list)
    text_bytes = sum(len(name) for name, _ in names) + _MAX_OTHER_NAME_BYTES
    name_table = make_name_table(len(names) + _MAX_OTHER_NAMES, text_bytes, names)
    cell_layout = locate.CellLayout.from_modes(
        [mode for layout in layouts for mode in layout.modes], [owner.required for owner in owners]
    )
    return _DecodePlan(
        schema=selected_schema,
        arrow=to_arrow(selected_schema),
        names=name_table,
        layouts=layouts,
        storage_ids=tuple(storage_ids),
        owners=tuple(owners),
        cell_layout=cell_layout,
        map_count=2 if selected_schema.message == SEQUENCE_EXAMPLE else 1,
    )


def validate_spans(data: Bytes, starts: Int64s, lengths: Int64s) -> tuple[Bytes, Int64s, Int64s]:
    """Checks that all records are inside a buffer.

    Returns:
        The arguments as contiguous arrays, `data` as a read-only view.

    Raises:
        ValueError: A record is not inside `data`.
    """
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


def _try_decode(
    data: Bytes, starts: Int64s, lengths: Int64s, plan: _DecodePlan, checks_other_features: bool
) -> tuple[pa.RecordBatch | None, npt.NDArray[np.uint8], Int64s]:
    """Decodes records to a batch, if all of them are good.

    Returns:
        (batch, status of each row, column with the fault of each row). The batch is None if a
        record is bad. The arrays are `status` and `culprits` of `LocatedCells`.
    """
    data, starts, lengths = validate_spans(data, starts, lengths)
    if plan.schema.message == OPAQUE_BYTES:
        return (
            _payload_batch(data, starts, lengths, plan),
            np.zeros(len(starts), np.uint8),
            np.empty(0, np.int64),
        )
    cells, names = plan.cell_layout.allocate_cells(len(starts)), plan.names.copy()
    other_features = (
        native.OtherFeatures.CHECK if checks_other_features else native.OtherFeatures.SKIP
    )
    if cells.locate(
        data, starts, lengths, map_count=plan.map_count, other_features=other_features, names=names
    ):
        data = _read_unusual(data, starts, lengths, plan=plan, names=names, cells=cells)
        if cells.status.any():
            return None, cells.status, cells.culprits
    return _assemble_batch(data, plan, cells), cells.status, cells.culprits


def _assemble_batch(
    data: Bytes, plan: _DecodePlan, cells: locate.LocatedCells
) -> pa.RecordBatch | None:
    """Builds the batch from the located cells.

    Returns:
        The batch. None if a value does not fit its feature. Then `cells.status` and
        `cells.culprits` of its row contain the fault and the column.
    """
    arrays = []
    for layout, storage_ids in zip(plan.layouts, plan.storage_ids, strict=True):
        columns = [
            get_column(cells, layout=plan.cell_layout, column=i, data=data) for i in storage_ids
        ]
        arrays.append(assemble_column(layout, columns))
        if (bad := columns[0].bad) is not None:
            is_new = (bad != 0) & (cells.status == 0)
            cells.status[is_new], cells.culprits[is_new] = bad[is_new], storage_ids[0]
    if cells.status.any():
        return None
    return (
        pa.RecordBatch.from_arrays(arrays, schema=plan.arrow)
        if arrays
        else _batch_without_columns(plan, len(cells.status))
    )


def _read_unusual(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    plan: _DecodePlan,
    names: Int64s,
    cells: locate.LocatedCells,
) -> Bytes:
    """Rewrites records in the plain form, and reads them again.

    Only the records with another status than GOOD are rewritten. `to_plain_form` describes the
    plain form. If protobuf accepts a record, its cells are filled. Otherwise its status becomes
    UNUSUAL.

    Returns:
        A buffer with `data`, followed by the rewritten records. The cells refer to it.
    """
    unusual_rows = np.flatnonzero(cells.status)
    forms = [
        to_plain_form(_record_bytes(data, starts, lengths, int(row)), plan.map_count)
        for row in unusual_rows
    ]
    plain, plain_starts, plain_sizes = join_records(
        [b"" if form is None else form.data for form in forms]
    )
    starts, lengths = starts.copy(), lengths.copy()
    starts[unusual_rows], lengths[unusual_rows] = len(data) + plain_starts, plain_sizes
    is_refused = np.array([form is None for form in forms], np.bool_)
    cells.status[unusual_rows[~is_refused]] = native.RecordStatus.UNREAD
    data = np.concatenate([data, plain])
    cells.locate(
        data,
        starts,
        lengths,
        map_count=plan.map_count,
        other_features=native.OtherFeatures.SKIP,
        names=names,
    )
    cells.status[unusual_rows[is_refused]] = native.RecordStatus.UNUSUAL
    cells.culprits[unusual_rows[is_refused]] = -1
    return data


def _payload_batch(
    data: Bytes, starts: Int64s, lengths: Int64s, plan: _DecodePlan
) -> pa.RecordBatch:
    """Returns a batch with the complete payloads in its only column, `record`."""
    column = LocatedColumn(
        rows=len(starts),
        data=data,
        mode=native.CellMode.ONE_BYTES,
        starts=starts,
        sizes=lengths,
        numbers=np.empty(0, np.int64),
    )
    arrays = [assemble_column(layout, [column]) for layout in plan.layouts]
    return (
        pa.RecordBatch.from_arrays(arrays, schema=plan.arrow)
        if arrays
        else _batch_without_columns(plan, len(starts))
    )


def _batch_without_columns(plan: _DecodePlan, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.Array.from_buffers(pa.struct([]), rows, [None])
    ).replace_schema_metadata(plan.arrow.metadata)
