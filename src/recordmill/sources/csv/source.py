"""Plans CSV files by a scan of all rows, for schema, exact row counts and units, and reads units as typed batches.

Large plain files are cut into units where rows start; compressed files and those in other encodings are one unit each;
small files are read several to a unit. A row's position is its number in its file, from 0, rejected rows counted,
comments and, in files of several columns, blank lines not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.threads import prefetch_one, thread_map
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    PlanOptions,
    Unit,
    pack_units,
)
from recordmill.sources.common.encoding import read_utf8_blocks
from recordmill.sources.common.lines import note_blank_lines, prefetch_unit_files, to_reject
from recordmill.sources.common.scan_cache import CachedBatch, ScanCache
from recordmill.sources.common.tables import CompactTable
from recordmill.sources.csv.dialect import AUTO_QUOTE, CsvOptions
from recordmill.sources.csv.fields import TokenizedRows, Tokenizer, read_rows
from recordmill.sources.csv.head import CsvHead, read_head
from recordmill.sources.csv.parse import RowParser, make_cached_batch
from recordmill.sources.csv.ranges import (
    ROW_RANGE_BYTES,
    ROW_RANGE_STEP_BYTES,
    STREAM_BLOCK_BYTES,
    RowRange,
    ScannedRowRange,
    ScanSettings,
    max_rows_per_call,
    scan_files,
)
from recordmill.sources.csv.schema import (
    ScanTotals,
    SchemaPredictor,
    are_parsed_alike,
    check_quotes,
    columns_without_inference,
    make_csv_schema,
    note_columns,
    note_dialect,
    unify_dialects,
)
from recordmill.sources.csv.sniff_header import FirstRow, agree_on_header
from recordmill.sources.values.conform import encode_classes
from recordmill.sources.values.text_columns import NullTokens
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, prefetch_files, read_blocks, read_range


@dataclass(frozen=True)
class CsvSource:
    """A planned CSV input; implements sources.contract.Source.

    heads: for each file where its rows start and what its columns are. options: with the delimiter and the quote of all
    files. A unit's line is the physical one.
    """

    schema: Schema
    files: FileTable
    heads: Sequence[CsvHead]
    units: Sequence[Unit]
    notes: tuple[str, ...]
    options: CsvOptions
    plan_rejects: tuple[Reject, ...] = ()
    cache: ScanCache = field(default_factory=ScanCache, compare=False, repr=False)
    kind: str = field(default="csv", init=False)

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's rows; see sources.contract.Source.

        Raises:
            DataError: a file changed since it was planned, or its compressed data is damaged.
        """
        ordinals = prefetch_unit_files(
            unit, self.files, self.cache, lambda ordinal: self._row_start(ordinal, unit)
        )
        pieces = (chunk for ordinal in ordinals for chunk in self._read_file(ordinal, unit))
        return _join_small_chunks(pieces) if unit.end_file - unit.begin_file > 1 else pieces

    def _row_start(self, ordinal: int, unit: Unit) -> int:
        """Returns where the unit's rows in that file start."""
        head = self.heads[ordinal]
        return unit.start if unit.stop else 0 if head.is_streamed else head.start

    def _read_file(self, ordinal: int, unit: Unit) -> Iterator[Chunk]:
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        position = unit.first_row
        for line, piece in self._parse_batches(ordinal, unit):
            yield _to_chunk(ordinal, file, position, line, piece)
            position += piece.num_positions
        check_unchanged(file.path, file.stat, file.name)

    def _parse_batches(self, ordinal: int, unit: Unit) -> Iterator[tuple[int, CachedBatch]]:
        """Yields (lines before the first one of the unit's file as the piece counts them, piece) for all rows of it."""
        head, start = self.heads[ordinal], self._row_start(ordinal, unit)
        if (pieces := self.cache.take((ordinal, start))) is not None:
            line = unit.first_line if unit.stop else 1 if head.is_streamed else head.line
            yield from (
                (line - 1, replace(piece, batch=self._encode_classes(piece.batch)))
                for piece in pieces
            )
            return
        columns = len(head.names)
        parser = RowParser(self.schema, head.names, NullTokens.from_texts(self.options.null_tokens))
        for data, rows in self._tokenize(
            ordinal, unit, Tokenizer(self.options, columns, max_rows_per_call(columns))
        ):
            yield (
                0,
                make_cached_batch(
                    data, rows, parser.parse(data, rows), self.options.max_line_bytes, columns
                ),
            )

    def _encode_classes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a cached batch with the classes that all of the data tells."""
        columns = [
            encode_classes(column, f) for f, column in zip(self.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow(self.schema))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these rows: see `RecordLocator`. Units that hold them are read once more."""
        first, last, columns = min(positions), max(positions), len(self.heads[file].names)
        lines: dict[int, int] = {}
        for unit in self.units:
            if not unit.begin_file <= file < unit.end_file:
                continue
            at = unit.first_row
            if unit.stop and not (at <= last and first < at + (unit.rows or 0)):
                continue
            for _, rows in self._tokenize(
                file, unit, Tokenizer(self.options, columns, max_rows_per_call(columns))
            ):
                found = np.isin(at + rows.ordinals, positions)
                lines.update(
                    zip(
                        (at + rows.ordinals)[found].tolist(),
                        rows.lines[found].tolist(),
                        strict=True,
                    )
                )
                at += rows.num_rows
        return [_format_place(lines[position], position) for position in positions]

    def _tokenize(
        self, ordinal: int, unit: Unit, tokenizer: Tokenizer
    ) -> Iterator[tuple[Bytes, TokenizedRows]]:
        file, head = self.files[ordinal], self.heads[ordinal]
        if head.is_streamed:
            blocks = prefetch_one(
                read_utf8_blocks(file, head.encoding, STREAM_BLOCK_BYTES, head.compression)
            )
            yield from read_rows(tokenizer, blocks, head.start, head.line, BATCH_BYTES)
            return
        start, stop, line = (
            (unit.start, unit.stop, unit.first_line)
            if unit.stop
            else (head.start, file.stat.size_bytes, head.line)
        )
        if (
            stop - start > ROW_RANGE_BYTES + self.options.max_line_bytes
        ):  # a line that is passed over makes it so long
            blocks = read_blocks(file.path, STREAM_BLOCK_BYTES, start, stop)
            yield from read_rows(tokenizer, blocks, 0, line, BATCH_BYTES)
            return
        data, at = read_range(file.path, start, stop), 0
        while at < len(data):
            rows = tokenizer.read(data, at, at + BATCH_BYTES, final=True, line=line)
            if rows.num_rows:
                yield data, rows
            at, line = rows.stop, rows.stop_line


def _format_place(line: int, row: int) -> str:
    return f"line {line}, row {row}"


def _to_chunk(ordinal: int, file: InputFile, first: int, line: int, piece: CachedBatch) -> Chunk:
    """Returns the chunk of a piece whose first row has that position; line: of those before its count begins."""
    rejects = tuple(
        to_reject(one, file, _format_place(line + one.line, first + one.ordinal))
        for one in piece.rejects
    )
    position = piece.positions(first)
    return Chunk(piece.batch, np.full(len(position), ordinal, np.uint32), position, rejects)


def _join_small_chunks(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yields the records in fewer chunks: many small files make one."""
    waiting: list[Chunk] = []
    rows = size = 0
    for chunk in chunks:
        assert isinstance(chunk.records, pa.RecordBatch)
        if waiting and (
            rows + chunk.rows > BATCH_ROWS or size + chunk.records.nbytes > BATCH_BYTES
        ):
            yield _concatenate_chunks(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(chunk)
        rows, size = rows + chunk.rows, size + chunk.records.nbytes
    if waiting:
        yield _concatenate_chunks(waiting)


def _concatenate_chunks(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    table = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks()
    batch = table.to_batches()[0] if table.num_rows else chunks[0].records
    file, position = (
        np.concatenate([getattr(chunk, name) for chunk in chunks])
        for name in ("file_ids", "positions")
    )
    return Chunk(
        batch, file, position, tuple(reject for chunk in chunks for reject in chunk.rejects)
    )


def plan_csv(files: Sequence[InputFile], options: CsvOptions, common: PlanOptions) -> CsvSource:
    """Scans the files and say what they hold.

    Raises:
        UsageError: there are no files; a dtype or the label names no column; an option doesn't fit.
        DataError: a file is empty, is no text, has no usable header, is damaged or changed meanwhile; files don't
            agree; there are no rows at all.
    """
    options = replace(options, max_line_bytes=common.cap_line_bytes(options.max_line_bytes))
    common = replace(common, columns=options.columns)
    # of memory, for the bytes of one range: what becomes of them takes the rest
    share = common.memory_bytes // (16 * max(common.threads, 1))
    return _plan_with_ranges(
        files,
        options,
        common,
        min(max(share // ROW_RANGE_STEP_BYTES, 1) * ROW_RANGE_STEP_BYTES, common.unit_bytes),
    )


def _plan_with_ranges(
    files: Sequence[InputFile],
    options: CsvOptions,
    common: PlanOptions,
    range_bytes: int,
    found: str = "",
) -> CsvSource:
    """found: what an earlier look at all rows told."""
    if not files:
        raise UsageError("no CSV files among the inputs")
    files = FileTable.from_files(files)
    threads = max(1, min(common.threads, common.memory_bytes // (4 * range_bytes)))
    expected = prefetch_files(files, lambda file: (file.path, file.stat))
    detected, firsts = list[str](), dict[tuple[tuple[str, ...], str], FirstRow]()
    read = thread_map(lambda file: read_head(file, options), expected, threads)
    heads = CompactTable.from_items(
        _settle_heads(read, detected, firsts), ("start", "line", "blank_lines")
    )
    dialect = unify_dialects(files, heads, options)
    header = agree_on_header([*firsts.values()], options.names, _names_in_options(common))
    # files may lack columns, and have them in any order
    names = tuple(
        dict.fromkeys(
            name for names in dict.fromkeys(head.names for head in heads) for name in names
        )
    )
    check_feature_count(len(names), common.memory_bytes, files[0].name if len(files) == 1 else "")
    label = common.label if common.schema is None else None
    cache = common.create_parsed_cache()
    scan = ScanSettings(
        dialect,
        columns_without_inference(names, common),
        label,
        range_bytes,
        predict_schema=SchemaPredictor(names, common),
        cache=cache,
    )
    totals = ScanTotals(names, files, heads, label)
    parts = _add_up_ranges(scan_files(files, heads, scan, threads), totals)
    if not any(part.rows for part in parts):
        what = "no rows" if options.header is False else "a header and no rows"
        raise DataError(
            f"holds {what}"
            + (f", as do the other {len(files) - 1} files" if len(files) > 1 else ""),
            source=files[0].name,
        )
    of_quotes = tuple[str, ...]()
    if options.quote == AUTO_QUOTE and dialect.quote is not None:
        are_text, of_quotes = check_quotes(totals, dialect.quote, len(names))
        if are_text:
            cache.drop_invalid(lambda used: False)
            plain = replace(dialect, quote=None)
            return _plan_with_ranges(
                files, plain, common, range_bytes, "; ".join([*detected[:1], are_text])
            )
    columns = totals.summarize_columns()
    schema, notes = make_csv_schema(columns, totals.labels, common)
    parsed, _ = make_csv_schema(columns, None, common)
    cache.drop_invalid(lambda used: are_parsed_alike(used, parsed))
    notes = (
        *note_dialect(found or "".join(detected[:1]), header if firsts else "", len(files)),
        *of_quotes,
        *note_columns(columns, schema, heads, options.null_tokens),
        *_note_empty_files(files, parts),
        *note_blank_lines(_count_blank_lines(files, heads, parts)),
        *notes,
    )
    units = _make_units(heads, parts, common.unit_bytes)
    return CsvSource(schema, files, heads, units, notes, dialect, cache=cache)


def _names_in_options(common: PlanOptions) -> set[str]:
    label = () if common.label is None else (common.label,)
    return {*label, *common.dtypes, *(common.schema.names if common.schema is not None else ())}


def _settle_heads(
    heads: Iterable[CsvHead],
    detected: list[str],
    firsts: dict[tuple[tuple[str, ...], str], FirstRow],
) -> Iterator[CsvHead]:
    """Yields the heads without how they were detected, which is added to `detected` and to `firsts` (of rows that are
    the same and seem to be the same, one), and with one tuple of names for all files that have the same.
    """
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for head in heads:
        if head.dialect_reason and not detected:
            detected.append(head.dialect_reason)
        if head.first_row is not None:
            firsts.setdefault((head.first_row.fields, head.first_row.guess.verdict), head.first_row)
        yield replace(
            head, names=names.setdefault(head.names, head.names), dialect_reason="", first_row=None
        )


def _add_up_ranges(scanned: Iterable[ScannedRowRange], totals: ScanTotals) -> Sequence[RowRange]:
    """Adds up the parts, and returns what is kept of each."""

    def each() -> Iterator[RowRange]:
        for part in scanned:
            totals.add(part)
            yield part.row_range

    return CompactTable.from_items(each(), tuple(RowRange.__dataclass_fields__))


def _note_empty_files(files: Sequence[InputFile], parts: Iterable[RowRange]) -> tuple[str, ...]:
    filled = np.zeros(len(files), np.bool_)
    filled[[part.file_ordinal for part in parts if part.rows]] = True
    empty = np.flatnonzero(~filled)
    if not len(empty):
        return ()
    shown = ", ".join(files[at].name for at in empty[:3].tolist()) + (
        ", ..." if len(empty) > 3 else ""
    )
    return (f"{len(empty)} files hold a header and no rows: {shown}",)


def _count_blank_lines(
    files: Sequence[InputFile], heads: Sequence[CsvHead], parts: Iterable[RowRange]
) -> Counter[str]:
    found = Counter(
        {
            file.name: head.blank_lines
            for file, head in zip(files, heads, strict=True)
            if head.blank_lines
        }
    )
    for part in parts:
        if part.blank_lines:
            found[files[part.file_ordinal].name] += part.blank_lines
    return found


def _make_units(
    heads: Sequence[CsvHead], parts: Iterable[RowRange], unit_bytes: int
) -> tuple[Unit, ...]:
    """Returns the units in order; those of a part of a file have the physical line where it starts."""

    def each() -> Iterator[Unit]:
        for ordinal, of_file in groupby(parts, key=lambda part: part.file_ordinal):
            mine = list(of_file)
            if len(mine) == 1:
                if mine[0].rows:
                    yield Unit(
                        ordinal, ordinal + 1, rows=mine[0].rows, size_bytes=mine[0].size_bytes
                    )
                continue
            row, line = 0, heads[ordinal].line
            for part in mine:
                if part.rows:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        part.start,
                        part.stop,
                        row,
                        part.rows,
                        part.size_bytes,
                        line,
                    )
                row, line = row + part.rows, line + part.lines

    return pack_units(each(), unit_bytes)
