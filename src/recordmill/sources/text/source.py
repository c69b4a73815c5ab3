"""Plan and reader of text files.

Each line is a record with the feature `text`. Or each file, called a document, is a record with the
features `text` and `source`, the name of the file. The folder of a file can determine its class.
Lines are read block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import to_offsets
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.base.utf8 import find_invalid_utf8, is_utf8, split_lines
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common import contract
from recordmill.sources.common.content import filter_kind
from recordmill.sources.common.encoding import (
    decode_to_utf8_blocks,
    describe_non_text,
    read_utf8_blocks,
    resolve_compression,
    suggest_encodings,
)
from recordmill.sources.common.layout import (
    FolderLayout,
    exclude_unlabelled_files,
    reject_unknown_classes,
    resolve_class_rule,
)
from recordmill.sources.common.lines import (
    LINE_RANGE_INTEGERS,
    STREAMED_COLUMN,
    LineBlock,
    LineRange,
    make_line_units,
    note_blank_lines_in_ranges,
    plan_line_ranges,
    read_line_blocks,
    scan_ranges,
    stream_line_blocks,
)
from recordmill.sources.common.tables import CompactTable, take_file_batch
from recordmill.sources.text.options import TextOptions
from recordmill.sources.values.labels import to_class_numbers
from recordmill.storage.codecs import UNCOMPRESSED
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import FileTable, InputFile, null_mask, read_files
from recordmill.storage.files import Bytes, check_unchanged, read_range
from recordmill.storage.listing import Listing

LINES_MODE, DOCUMENTS_MODE, AUTO_MODE = "lines", "documents", "auto"
TEXT_FEATURE = "text"
SOURCE_FEATURE = "source"
LABEL_FEATURE = "label"
CLASS_NAME_FEATURE = "class_name"
# 64 KiB: several files with a smaller mean size are documents rather than collections of lines.
_MAX_MEAN_DOCUMENT_BYTES = 64 << 10


def _read_line_texts(
    blocks: Iterable[LineBlock], file: InputFile, first_line: int, options: TextOptions
) -> Iterator[tuple[pa.Array, npt.NDArray[np.int64], tuple[Reject, ...]]]:
    """Converts lines to arrays of texts with at most BATCH_ROWS lines each.

    Args:
        blocks: The lines.
        file: The file, for rejects.
        first_line: Line number of the first line, from 0.
        options: The options of the files.

    Yields:
        (large_string texts, line number of each text, rejects). Bad lines have no text. Neither
        have blank lines, unless they are records.
    """
    for block in blocks:
        if block.skipped_line_bytes:
            message = Message(
                "the line has {skipped_line_bytes} bytes, more than the {max_line_bytes} "
                "that {max_line_bytes2}, and an eighth of {memory}, allow",
                skipped_line_bytes=f"{block.skipped_line_bytes:,}",
                max_line_bytes=f"{options.max_line_bytes:,}",
                max_line_bytes2=option("max_line_bytes"),
                memory=option("memory"),
            )
            reject = Reject(file.name, f"line {first_line + 1}", "too_long", message)
            yield pa.array([], pa.large_string()), np.empty(0, np.int64), (reject,)
            first_line += 1
            continue
        starts, stops = split_lines(block.data)
        is_all_utf8 = is_utf8(block.data)
        for begin in range(0, len(starts), contract.BATCH_ROWS):
            line_starts = starts[begin : begin + contract.BATCH_ROWS]
            line_stops = stops[begin : begin + contract.BATCH_ROWS]
            is_kept, rejects = np.ones(len(line_starts), np.bool_), []
            # The check of the complete block is fast, so the lines are only checked if it fails.
            if not is_all_utf8:
                bad_offsets = np.empty(len(line_starts), np.int64)
                native.find_bad_lines(block.data, line_starts, line_stops, bad_offsets)
                is_kept = bad_offsets < 0
                rejects = [
                    _invalid_utf8_reject(
                        block.data,
                        file,
                        first_line + row,
                        int(bad_offsets[row]),
                        int(line_starts[row]),
                    )
                    for row in np.flatnonzero(~is_kept).tolist()
                ]
            texts = _copy_texts(block.data, line_starts[is_kept], line_stops[is_kept])
            positions = np.flatnonzero(is_kept) + first_line
            # The positions still count the blank lines that are left out.
            if not options.blank_lines and (is_filled := pc.invert(_are_blank(texts))).false_count:
                texts = texts.filter(is_filled)
                positions = positions[is_filled.to_numpy(zero_copy_only=False)]
            yield texts, positions, tuple(rejects)
            first_line += len(line_starts)


def _invalid_utf8_reject(
    data: Bytes, file: InputFile, line: int, bad_offset: int, line_start: int
) -> Reject:
    message = Message(
        "is not UTF-8: byte 0x{data} at byte {bad_offset} of the line; declare the "
        "file's {encoding}{suggest_encodings}",
        data=f"{data[bad_offset]:02X}",
        bad_offset=bad_offset - line_start,
        encoding=option("encoding"),
        suggest_encodings=suggest_encodings(file),
    )
    return Reject(file.name, f"line {line + 1}", "encoding", message)


def _copy_texts(
    data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> pa.Array:
    offsets = to_offsets(stops - starts)
    values = np.empty(int(offsets[-1]), np.uint8)
    native.copy_spans([data], None, starts, stops - starts, offsets[:-1], values)
    return pa.Array.from_buffers(
        pa.large_string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _are_blank(texts: pa.Array) -> pa.Array:
    """Returns whether each text is blank, as a boolean array.

    A blank text is empty or consists of ASCII white space.
    """
    return pc.or_(pc.ascii_is_space(texts), pc.equal(pc.binary_length(texts), 0))


def _count_blank_lines(
    data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> int:
    # Only lines that begin with white space can be blank, so most texts need not be copied.
    may_be_blank = (starts == stops) | (data[np.minimum(starts, len(data) - 1)] <= ord(" "))
    return int(_are_blank(_copy_texts(data, starts[may_be_blank], stops[may_be_blank])).true_count)


def count_lines(
    files: Sequence[InputFile], options: TextOptions, threads: int
) -> CompactTable[LineRange]:
    """Divides the files into ranges, and counts the lines of each on several threads.

    Returns:
        The ranges of all files in order, with their counts.
    """

    def scan(_: int, line_range: LineRange, blocks: Iterator[LineBlock]) -> LineRange:
        lines = num_blank = carriage_returns = content_bytes = 0
        for block in blocks:
            spans = split_lines(block.data)
            lines += len(spans[0]) + bool(block.skipped_line_bytes)
            num_blank += 0 if options.blank_lines else _count_blank_lines(block.data, *spans)
            # Carriage returns only need to be counted in files with a single line.
            carriage_returns += int(np.count_nonzero(block.data == ord("\r"))) if lines < 2 else 0
            content_bytes += len(block.data)
        return replace(
            line_range,
            lines=lines,
            records=lines - num_blank,
            content_bytes=content_bytes,
            carriage_returns=carriage_returns,
        )

    def stream(file: InputFile) -> Iterator[LineBlock]:
        return stream_line_blocks(file, options.encoding, options.max_line_bytes)

    ranges = plan_line_ranges(files, options.encoding)
    return CompactTable.from_items(
        scan_ranges(files, ranges, scan, stream, options.max_line_bytes, threads),
        LINE_RANGE_INTEGERS,
    )


def _note_carriage_returns(
    files: Sequence[InputFile], line_ranges: Iterable[LineRange]
) -> list[str]:
    """Returns a note for each file that is one line with carriage returns.

    In such a file, carriage returns may be intended as line ends.
    """
    explanation = "carriage returns, which do not end lines; convert the file if they should"
    suspicious_ranges = (
        line_range
        for line_range in line_ranges
        if line_range.lines == 1 and line_range.carriage_returns > 1
    )
    return [
        f"{files[line_range.file_ordinal].name}: one line with {line_range.carriage_returns} {explanation}"
        for line_range in suspicious_ranges
    ]


def _read_contents(files: Sequence[InputFile], total_bytes: int) -> Iterator[Bytes | None]:
    """Yields the content of each file.

    If all files together are larger than BATCH_BYTES, it yields None for each file, and the caller
    reads them one by one. In both cases, a file that has changed since the plan is an error.

    Args:
        files: The files.
        total_bytes: Total size of the files.
    """
    if total_bytes <= contract.BATCH_BYTES:
        yield from read_files(files, np.empty(total_bytes, np.uint8))
        return
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
        yield None


def _join_texts(texts: Sequence[Bytes]) -> pa.Array:
    offsets = to_offsets([len(text) for text in texts])
    values = np.concatenate(texts) if texts else np.empty(0, np.uint8)
    return pa.Array.from_buffers(
        pa.large_string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _read_document(file: InputFile, data: Bytes | None, options: TextOptions) -> Bytes | Reject:
    """Returns the text of a file as UTF-8, or its reject.

    The text has no byte order mark.

    Args:
        file: The file.
        data: The bytes of the file. If None, the file is read block by block.
        options: The options of the files.
    """
    head = (
        read_range(file.path, 0, COMPRESSED_HEAD_BYTES)
        if data is None
        else data[:COMPRESSED_HEAD_BYTES]
    ).tobytes()
    if description := describe_non_text(head):
        return Reject(file.name, "", "binary", f"is not text but {description}")
    # Compressed files are decompressed from the disk, block by block.
    plain_data = data if resolve_compression(head) == UNCOMPRESSED else None
    blocks, text_bytes = [], 0
    try:
        for block in (
            read_utf8_blocks(file, options.encoding)
            if plain_data is None
            else decode_to_utf8_blocks(plain_data, options.encoding, file)
        ):
            blocks.append(block)
            text_bytes += len(block)
            # Checked for each block, so that a large document is not read to its end.
            if text_bytes > options.max_line_bytes:
                allowed = Message(
                    "{max_line_bytes} bytes that {max_line_bytes2}",
                    max_line_bytes=f"{options.max_line_bytes:,}",
                    max_line_bytes2=option("max_line_bytes"),
                )
                message = Message(
                    "the document has more than the {allowed}, and an eighth of {memory}, allow",
                    allowed=allowed,
                    memory=option("memory"),
                )
                return Reject(file.name, "", "too_long", message)
    except DataError as error:
        return Reject(file.name, error.place, "encoding", error.reason)
    text = (
        blocks[0]
        if len(blocks) == 1
        else np.concatenate(blocks)
        if blocks
        else np.empty(0, np.uint8)
    )
    bad_offset = find_invalid_utf8(text)
    if bad_offset < 0:
        return text
    line = int(np.count_nonzero(text[:bad_offset] == 10)) + 1
    return Reject(
        file.name,
        f"line {line}, byte {bad_offset}",
        "encoding",
        Message(
            "is not UTF-8: byte 0x{text} at byte {bad_offset}; declare the file's "
            "{encoding}{suggest_encodings}",
            text=f"{text[bad_offset]:02X}",
            bad_offset=bad_offset,
            encoding=option("encoding"),
            suggest_encodings=suggest_encodings(file),
        ),
    )


@dataclass(frozen=True)
class TextSource:
    """A planned text input.

    Attributes:
        files: The input files. The column CLASS_NAME_FEATURE contains the class of each file, if
            there are classes. The column STREAMED_COLUMN marks files that can't be divided into
            ranges.
        mode: LINES_MODE or DOCUMENTS_MODE.
    """

    schema: Schema
    files: FileTable
    units: Sequence[contract.Unit]
    options: TextOptions
    mode: str
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kind: str = "text"

    def read(self, unit: contract.Unit) -> Iterator[contract.Chunk]:
        """Yields the records of a unit, in the order of files and lines."""
        if self.mode == DOCUMENTS_MODE:
            yield from self.read_files(range(unit.begin_file, unit.end_file))
            return
        max_line_bytes = self.options.max_line_bytes
        for ordinal in range(unit.begin_file, unit.end_file):
            file = self.files[ordinal]
            check_unchanged(file.path, file.stat, file.name)
            start, stop = (unit.start, unit.stop) if unit.stop else (0, file.stat.size_bytes)
            blocks = (
                stream_line_blocks(file, self.options.encoding, max_line_bytes)
                if self.files.has_flag(STREAMED_COLUMN, ordinal)
                else read_line_blocks(file, start, stop, max_line_bytes)
            )
            for texts, positions, rejects in _read_line_texts(
                blocks, file, unit.first_row, self.options
            ):
                file_ids = np.full(len(positions), ordinal, np.uint32)
                yield contract.Chunk(
                    records=self._make_batch(texts, file_ids),
                    file_ids=file_ids,
                    positions=positions,
                    rejects=rejects,
                )
            check_unchanged(file.path, file.stat, file.name)

    @property
    def is_record_per_file(self) -> bool:
        return self.mode == DOCUMENTS_MODE

    def read_files(self, ordinals: Sequence[int]) -> Iterator[contract.Chunk]:
        """Yields the documents of these files, in the order of `ordinals`."""
        begin = 0
        while begin < len(ordinals):
            candidates = ordinals[begin : begin + contract.BATCH_FILES]
            batch_files, total_bytes = take_file_batch(self.files, candidates, contract.BATCH_BYTES)
            # The documents by their index in `batch_files`.
            documents_by_index: dict[int, Bytes] = {}
            rejects = list[Reject]()
            for index, (file, data) in enumerate(
                zip(batch_files, _read_contents(batch_files, total_bytes), strict=True)
            ):
                document = _read_document(file, data, self.options)
                if isinstance(document, Reject):
                    rejects.append(document)
                else:
                    documents_by_index[index] = document
                # Files that were read at once are checked by `read_files`.
                if data is None:
                    check_unchanged(file.path, file.stat, file.name)
            file_ids = np.array([candidates[index] for index in documents_by_index], np.uint32)
            texts = _join_texts(list(documents_by_index.values()))
            batch = self._make_batch(
                texts, file_ids, [batch_files[index].name for index in documents_by_index]
            )
            positions = np.zeros(len(file_ids), np.int64)
            yield contract.Chunk(
                records=batch, file_ids=file_ids, positions=positions, rejects=tuple(rejects)
            )
            begin += len(batch_files)

    def _make_batch(
        self, texts: pa.Array, file_ids: npt.NDArray[np.uint32], names: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """Returns a batch of texts with the other columns of the schema.

        Args:
            texts: large_string.
            file_ids: Index of the file of each text.
            names: The name of each file for documents. None for lines.
        """
        columns: dict[str, pa.Array] = {TEXT_FEATURE: texts}
        if names is not None:
            columns[SOURCE_FEATURE] = pa.array(names, pa.large_string())
        if CLASS_NAME_FEATURE in self.files.extra_columns:
            columns[CLASS_NAME_FEATURE] = columns[LABEL_FEATURE] = self.files.take_columns(
                file_ids, (CLASS_NAME_FEATURE,)
            )[CLASS_NAME_FEATURE]
            if (classes := next((f.classes for f in self.schema if f.classes), None)) is not None:
                columns[LABEL_FEATURE] = to_class_numbers(
                    columns[CLASS_NAME_FEATURE], classes
                ).values
        target = to_arrow(self.schema)
        return pa.RecordBatch.from_arrays([columns[name] for name in target.names], schema=target)


def plan_text(listing: Listing, options: TextOptions, common: contract.PlanOptions) -> TextSource:
    """Plans a text input: chooses lines or documents, finds classes and counts lines.

    Raises:
        DataError: There is no record, a file is damaged, or a file lacks the class that the schema
            requires.
        UsageError: An option names an unknown column, or does not fit documents.
    """
    listing = filter_kind(listing, "text")
    options = replace(options, max_line_bytes=common.cap_line_bytes(options.max_line_bytes))
    files, layout, excluded_notes = exclude_unlabelled_files(
        listing.files,
        listing.roots,
        split_from=options.split_from,
        class_from=resolve_class_rule(options.class_from, options.label_regex),
        unlabelled=options.unlabelled,
    )
    files = files.with_splits(layout.splits)
    mode, reason = _choose_mode(files, layout, options)
    if mode == DOCUMENTS_MODE and not options.blank_lines:
        raise UsageError(
            ("{blank_lines} is only for lines, and the files were read as {mode}: {reason}"),
            blank_lines=option("blank_lines", False),
            mode=mode,
            reason=reason,
        )
    notes = (
        Message("read as {mode}: {reason}", mode=mode, reason=reason),
        *listing.notes,
        *excluded_notes,
        *layout.notes,
    )
    schema, schema_notes = _resolve_schema(mode, layout, common)
    notes = (*notes, *schema_notes)
    class_rejects: Sequence[Reject] = ()
    if layout.class_names:
        files, class_rejects = _add_classes(files, layout, schema)
    files, rejects = common.drop_known(files, class_rejects)
    if not files:
        raise DataError(
            f"there is no file of a class that the schema names, among {len(listing.files)}"
        )
    if mode == DOCUMENTS_MODE:
        # The number of records is known without reading: each file is one.
        units = contract.pack_file_units(files.sizes.tolist(), contract.UNIT_BYTES)
        return TextSource(
            schema=schema,
            files=files,
            units=units,
            options=options,
            mode=mode,
            notes=notes,
            plan_rejects=rejects,
        )
    line_ranges = count_lines(files, options, common.threads)
    if not any(line_range.records for line_range in line_ranges):
        raise DataError("there are no lines", source=files[0].name if files else "")
    marked_files = files.with_flags(
        STREAMED_COLUMN,
        (line_range.file_ordinal for line_range in line_ranges if line_range.is_streamed),
    )
    notes = (
        *notes,
        *_note_carriage_returns(files, line_ranges),
        *note_blank_lines_in_ranges(files, line_ranges),
    )
    return TextSource(
        schema=schema,
        files=marked_files,
        units=make_line_units(line_ranges),
        options=options,
        mode=mode,
        notes=notes,
        plan_rejects=rejects,
    )


def _add_classes(
    files: FileTable, layout: FolderLayout, schema: Schema
) -> tuple[FileTable, Sequence[Reject]]:
    """Adds the class of each file, in which reading looks it up.

    Returns:
        (files, a reject for each file of another class than those of a declared schema).

    Raises:
        DataError: A file has no class, and the schema requires a label.
    """
    files, rejects = files.with_column(CLASS_NAME_FEATURE, layout.classes), list[Reject]()
    if LABEL_FEATURE in schema and (known_classes := schema[LABEL_FEATURE].classes) is not None:
        is_kept, rejects = reject_unknown_classes(files, layout.classes, known_classes)
        files = files.filter(is_kept)
    is_missing = null_mask(files.column(CLASS_NAME_FEATURE))
    if is_missing.any() and any(
        feature.required
        for feature in schema
        if feature.name in (LABEL_FEATURE, CLASS_NAME_FEATURE)
    ):
        raise DataError(
            "is in no class folder, and the schema requires a label",
            source=files[int(np.argmax(is_missing))].name,
        )
    return files, rejects


def _choose_mode(files: FileTable, layout: FolderLayout, options: TextOptions) -> tuple[str, str]:
    """Returns (LINES_MODE or DOCUMENTS_MODE, the reason for a note)."""
    if options.mode != AUTO_MODE:
        return options.mode, "as asked"
    if layout.class_names:
        return (
            DOCUMENTS_MODE,
            Message(
                "the folders name classes ({mode} makes each line a record)",
                mode=option("mode", "lines"),
            ),
        )
    if len(files) > 3 and files.size_bytes < _MAX_MEAN_DOCUMENT_BYTES * len(files):
        return (
            DOCUMENTS_MODE,
            Message(
                "{files_count} small files ({mode} makes each line a record)",
                files_count=len(files),
                mode=option("mode", "lines"),
            ),
        )
    return (
        LINES_MODE,
        Message(
            "there are few files, or they are large ({mode} makes each file a record)",
            mode=option("mode", "documents"),
        ),
    )


def _resolve_schema(
    mode: str, layout: FolderLayout, common: contract.PlanOptions
) -> tuple[Schema, list[str]]:
    """Determines the features of every record.

    Args:
        mode: LINES_MODE or DOCUMENTS_MODE.
        layout: The classes of the files.
        common: The options of the plan.

    Returns:
        (schema, notes about a declared schema).

    Raises:
        UsageError: The declared schema, dtypes or label do not fit text.
    """
    features = [Feature(TEXT_FEATURE, "string", required=True)]
    if mode == DOCUMENTS_MODE:
        features.append(Feature(SOURCE_FEATURE, "string", required=True))
    if layout.class_names:
        is_required = not null_mask(layout.classes).any()
        features += [
            Feature(LABEL_FEATURE, "int64", (), is_required, layout.class_names),
            Feature(CLASS_NAME_FEATURE, "string", (), is_required),
        ]
    text_schema = Schema(tuple(features), LABEL_FEATURE if layout.class_names else None)
    common, schema_notes = common.drop_absent_features(text_schema.names, "the text")
    if common.schema is not None and common.schema != text_schema:
        unknown_features = [f.name for f in common.schema if f.name not in text_schema]
        if unknown_features:
            raise UsageError(
                f"the schema names {unknown_features[0]!r}, which text does not have; its features are {', '.join(text_schema.names)}"
            )
        for feature in common.schema:
            _check_schema_feature(feature, text_schema[feature.name])
        text_schema = replace(common.schema.select(common.schema.names), label=common.schema.label)
    wrong_names = [
        name
        for name, dtype in common.dtypes.items()
        if name not in text_schema or dtype != text_schema[name].dtype
    ]
    if wrong_names:
        raise UsageError(
            ("{dtypes}: text has the features {text_schema}, and their types can't be changed"),
            dtypes=option("dtypes", {wrong_names[0]: common.dtypes[wrong_names[0]]}),
            text_schema=", ".join(f"{f.name} ({f.describe()})" for f in text_schema),
        )
    if common.label is not None and common.label not in text_schema:
        raise UsageError(
            "{label}: no such column; {available_names}",
            label=option("label", common.label),
            available_names=available_names(common.label, text_schema.names),
        )
    return text_schema if common.label is None else replace(
        text_schema, label=common.label
    ), schema_notes


def _check_schema_feature(schema_feature: Feature, text_feature: Feature) -> None:
    """Raises UsageError if a declared feature does not fit text.

    Dtype and shape must be equal, but a label may also be a string, the name of the class. If it is
    a number, the schema must name its classes.
    """
    if schema_feature.shape or schema_feature.dtype not in (
        {text_feature.dtype, "string"}
        if text_feature.name == LABEL_FEATURE
        else {text_feature.dtype}
    ):
        raise UsageError(
            f"the schema declares {text_feature.name!r} as {schema_feature.describe()}"
            f", but for text it is {text_feature.describe()}, which can't be changed"
        )
    if (
        text_feature.name == LABEL_FEATURE
        and schema_feature.dtype == "int64"
        and schema_feature.classes is None
    ):
        raise UsageError(
            "the schema does not name the classes of 'label', so the number of a "
            "folder is unknown; name them in its string_domain, or leave 'label' out "
            "of it"
        )
