"""Text files in, a `TextSource` out: each line one record, or each file one; with the class that its folder says.

Lines end with a line feed or CRLF; every other character that some programs break lines at (U+2028, NEL, a lone
carriage return) is text. A record's position is its line's number from 0, or 0 for a document. What is not UTF-8 is a
reject that names line and byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.inputs.contract import UNIT_BYTES, Chunk, PlanOptions, Unit
from recordmill.sources.inputs.detect import keep_kind
from recordmill.sources.inputs.encoding import check_encoding
from recordmill.sources.inputs.layout import AUTO, Layout, read_layout
from recordmill.sources.inputs.lines import MAX_LINE_BYTES, file_lines, stream_lines
from recordmill.sources.inputs.packing import packed
from recordmill.sources.text.documents import read_documents
from recordmill.sources.text.line_records import TextColumns, count_lines, line_chunks
from recordmill.storage.files import check_unchanged
from recordmill.storage.listing import InputFile, Listing

LINES, DOCUMENTS = "lines", "documents"
TEXT, SOURCE, LABEL, CLASS_NAME = "text", "source", "label", "class_name"  # the features' names
_SMALL_BYTES = 64 << 10  # 64 KiB: files that are smaller in the mean are documents rather than collections of lines


@dataclass(frozen=True)
class TextOptions:
    """How the files are read.

    mode: `lines`, `documents`, or `auto`: documents where folders say classes or there are several small files, else
    lines. blank_lines: whether lines of nothing but white space are records; documents are always kept.
    encoding: of all files, any that Python knows. max_line_bytes: a longer line or document is a reject.
    split_from, class_from: as in sources.layout.
    """

    mode: str = AUTO
    blank_lines: bool = True
    encoding: str = "utf-8"
    max_line_bytes: int = MAX_LINE_BYTES
    split_from: str = AUTO
    class_from: str = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", check_encoding(self.encoding))
        if self.mode not in (AUTO, LINES, DOCUMENTS):
            raise UsageError(f"text mode is {self.mode!r}; it is auto, lines or documents")
        if not 1 <= self.max_line_bytes <= 1 << 30:
            raise UsageError(f"max_line_bytes is {self.max_line_bytes}; it lies between 1 and {1 << 30}")


@dataclass(frozen=True)
class TextSource:
    """labels: per file its class, None where it has none; empty without classes. streamed: ordinals of files that can't
    be cut into ranges.
    """

    schema: Schema
    files: tuple[InputFile, ...]
    units: tuple[Unit, ...]
    options: TextOptions
    mode: str
    labels: tuple[int | None, ...] = ()
    streamed: frozenset[int] = frozenset()
    digests: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kind: str = "text"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The unit's records in order; a unit without a stop is whole files."""
        columns = TextColumns(self.schema, self.labels)
        if self.mode == DOCUMENTS:
            yield from read_documents(self.files, unit, columns, self.options.encoding, self.options.max_line_bytes)
            return
        most = self.options.max_line_bytes
        for ordinal in range(unit.first_file, unit.last_file):
            file = self.files[ordinal]
            check_unchanged(file.path, file.stat, file.name)
            start, stop = (unit.start, unit.stop) if unit.stop else (0, file.stat.size_bytes)
            blocks = (
                stream_lines(file, self.options.encoding, most)
                if ordinal in self.streamed
                else file_lines(file, start, stop, most)
            )
            yield from line_chunks(blocks, file.name, ordinal, unit.first_row, columns, self.options.blank_lines, most)
            check_unchanged(file.path, file.stat, file.name)


def plan_text(listing: Listing, options: TextOptions, common: PlanOptions) -> TextSource:
    """Choose lines or documents, read the folders' meaning, and count lines.

    Raises:
        DataError: there is no record, or a file is damaged. UsageError: an option asks for a column that is not there.
    """
    kept = keep_kind(listing, "text")
    beside = tuple(note for note in kept.notes if note not in listing.notes)
    listing = kept
    layout = read_layout(listing.files, listing.roots, split_from=options.split_from, class_from=options.class_from)
    files = tuple(replace(file, split=split) for file, split in zip(listing.files, layout.splits, strict=True))
    mode, reason = _mode(files, layout, options)
    notes = (f"read as {mode}: {reason}", *beside, *layout.notes)
    schema = _schema(mode, layout, common)
    ids = {name: at for at, name in enumerate(layout.class_names)}
    labels = tuple(None if name is None else ids[name] for name in layout.classes) if layout.class_names else ()
    if mode == DOCUMENTS:
        return TextSource(schema, files, _document_units(files), options, mode, labels, notes=notes)
    parts = count_lines(files, options.encoding, options.max_line_bytes, options.blank_lines, common.threads)
    if not parts.records:
        raise DataError("there are no lines", source=files[0].name if files else "")
    return TextSource(
        schema, files, parts.units, options, mode, labels, parts.streamed, parts.digests, (*notes, *parts.notes)
    )


def _mode(files: Sequence[InputFile], layout: Layout, options: TextOptions) -> tuple[str, str]:
    if options.mode != AUTO:
        return options.mode, "as asked"
    if layout.class_names:
        return DOCUMENTS, "the folders say classes (--text-mode lines makes each line a record)"
    size = sum(file.stat.size_bytes for file in files)
    if len(files) > 3 and size < _SMALL_BYTES * len(files):
        return DOCUMENTS, f"{len(files)} small files (--text-mode lines makes each line a record)"
    return LINES, "one file or few, or large ones (--text-mode documents makes each file a record)"


def _schema(mode: str, layout: Layout, common: PlanOptions) -> Schema:
    features = [Feature(TEXT, "string", required=True)]
    if mode == DOCUMENTS:
        features.append(Feature(SOURCE, "string", required=True))
    if layout.class_names:
        everywhere = None not in layout.classes
        features += [
            Feature(LABEL, "int64", (), everywhere, layout.class_names),
            Feature(CLASS_NAME, "string", (), everywhere),
        ]
    own = Schema(tuple(features), LABEL if layout.class_names else None)
    if common.schema is not None and common.schema != own:
        lacking = [f.name for f in common.schema if f.name not in own]
        if lacking:
            raise UsageError(
                f"the schema names {lacking[0]!r}, which text does not have; its features are {', '.join(own.names)}"
            )
        own = replace(common.schema.select(common.schema.names), label=common.schema.label)
    wrong = [name for name, dtype in common.dtypes.items() if name not in own or dtype != own[name].dtype]
    if wrong:
        raise UsageError(
            f"--dtype {wrong[0]}={common.dtypes[wrong[0]]}: text has "
            f"{', '.join(f'{f.name} ({f.describe()})' for f in own)}, which can't be others"
        )
    if common.label is not None and common.label not in own:
        raise UsageError(f"--label {common.label}: no such column; there are {', '.join(own.names)}")
    return own if common.label is None else replace(own, label=common.label)


def _document_units(files: Sequence[InputFile]) -> tuple[Unit, ...]:
    sizes = (Unit(at, at + 1, rows=1, size_bytes=file.stat.size_bytes) for at, file in enumerate(files))
    return packed(sizes, UNIT_BYTES)
