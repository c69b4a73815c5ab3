"""Text files in, a `TextSource` out: each line one record, or each file one; with the class that its folder says.

Lines end with a line feed or CRLF; every other character that some programs break lines at (U+2028, NEL, a lone
carriage return) is text. A record's position is its line's number from 0, or 0 for a document. What is not UTF-8 is a
reject that names line and byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.base.people.nearest import there_are
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.inputs.classes import ERROR, LEAVE, STRAYS, UNKNOWN_CLASSES, known_classes, without_strays
from recordmill.sources.inputs.contract import UNIT_BYTES, Chunk, PlanOptions, Unit
from recordmill.sources.inputs.detect import keep_kind
from recordmill.sources.inputs.encoding import check_encoding
from recordmill.sources.inputs.layout import AUTO, Layout, with_splits
from recordmill.sources.inputs.lines import MAX_LINE_BYTES, file_lines, stream_lines
from recordmill.sources.inputs.packing import packed_files
from recordmill.sources.text.documents import read_documents
from recordmill.sources.text.line_records import TextColumns, count_lines, line_chunks
from recordmill.storage.files import check_unchanged
from recordmill.storage.listed.coded import pick
from recordmill.storage.listed.files import InputFile, chosen
from recordmill.storage.listing import Listing

LINES, DOCUMENTS = "lines", "documents"
TEXT, SOURCE, LABEL, CLASS_NAME = "text", "source", "label", "class_name"  # the features' names
_SMALL_BYTES = 64 << 10  # 64 KiB: files that are smaller in the mean are documents rather than collections of lines


@dataclass(frozen=True)
class TextOptions:
    """How the files are read.

    mode: `lines`, `documents`, or `auto`: documents where folders say classes or there are several small files, else
    lines. blank_lines: whether lines of nothing but white space are records; documents are always kept.
    encoding: of all files, any that Python knows. max_line_bytes: a longer line or document is a reject.
    split_from, class_from: as in sources.inputs.layout. strays, unknown_class: of files beside class folders, and in
    folders whose class a given schema lacks, as in sources.inputs.classes.
    """

    mode: str = AUTO
    blank_lines: bool = True
    encoding: str = "utf-8"
    max_line_bytes: int = MAX_LINE_BYTES
    split_from: str = AUTO
    class_from: str = AUTO
    strays: str = LEAVE
    unknown_class: str = ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", check_encoding(self.encoding))
        if self.mode not in (AUTO, LINES, DOCUMENTS):
            raise UsageError(f"{option('mode', self.mode)}: one of {AUTO}, {LINES}, {DOCUMENTS}")
        if not 1 <= self.max_line_bytes <= 1 << 30:
            raise UsageError(f"{option('max_line_bytes', self.max_line_bytes)}: it lies between 1 and {1 << 30}")
        for name, allowed in (("strays", STRAYS), ("unknown_class", UNKNOWN_CLASSES)):
            if getattr(self, name) not in allowed:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} {getattr(self, name)}: one of {', '.join(allowed)}")


@dataclass(frozen=True)
class TextSource:
    """classes: per file its class, None where it has none; empty without classes. streamed: ordinals of files that
    can't be cut into ranges.
    """

    schema: Schema
    files: Sequence[InputFile]
    units: Sequence[Unit]
    options: TextOptions
    mode: str
    classes: Sequence[str | None] = ()
    streamed: frozenset[int] = frozenset()
    digests: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kind: str = "text"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The unit's records in order; a unit without a stop is whole files."""
        columns = TextColumns(self.schema, self.classes)
        if self.mode == DOCUMENTS:
            yield from self.read_files(range(unit.first_file, unit.last_file))
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

    @property
    def is_record_per_file(self) -> bool:
        return self.mode == DOCUMENTS

    def read_files(self, ordinals: Sequence[int]) -> Iterator[Chunk]:
        """The documents of these files, in this order."""
        columns = TextColumns(self.schema, self.classes)
        yield from read_documents(self.files, ordinals, columns, self.options.encoding, self.options.max_line_bytes)


def plan_text(listing: Listing, options: TextOptions, common: PlanOptions) -> TextSource:
    """Choose lines or documents, read the folders' meaning, and count lines.

    Raises:
        DataError: there is no record, or a file is damaged. UsageError: an option asks for a column that is not there.
    """
    listing = keep_kind(listing, "text")
    files, layout, left = without_strays(
        listing.files,
        listing.roots,
        split_from=options.split_from,
        class_from=options.class_from,
        strays=options.strays,
    )
    files = with_splits(files, layout.splits)
    mode, reason = _mode(files, layout, options)
    if mode == DOCUMENTS and not options.blank_lines:
        raise UsageError(f"{option('blank_lines', False)} is of lines, and these were read as {mode}: {reason}")
    notes = (f"read as {mode}: {reason}", *listing.notes, *left, *layout.notes)
    schema, left_out = _schema(mode, layout, common)
    notes = (*notes, *left_out)
    classes: Sequence[str | None] = layout.classes if layout.class_names else ()
    rejects = tuple[Reject, ...]()
    if classes and LABEL in schema and (names := schema[LABEL].classes) is not None:
        keep, bad = known_classes(files, classes, names, options.unknown_class)
        files, classes, rejects = chosen(files, keep), pick(classes, keep), tuple(bad)
    if None in classes and any(feature.required for feature in schema if feature.name in (LABEL, CLASS_NAME)):
        raise DataError(
            "is in no class folder, and the schema requires a label", source=files[classes.index(None)].name
        )
    if not files:
        raise DataError(f"there is no file of a class that the schema names, among {len(listing.files)}")
    if mode == DOCUMENTS:
        units = _document_units(files)
        return TextSource(schema, files, units, options, mode, classes, notes=notes, plan_rejects=rejects)
    parts = count_lines(files, options.encoding, options.max_line_bytes, options.blank_lines, common.threads)
    if not parts.records:
        raise DataError("there are no lines", source=files[0].name if files else "")
    source = TextSource(schema, files, parts.units, options, mode, classes, parts.streamed, parts.digests)
    return replace(source, notes=(*notes, *parts.notes), plan_rejects=rejects)


def _mode(files: Sequence[InputFile], layout: Layout, options: TextOptions) -> tuple[str, str]:
    if options.mode != AUTO:
        return options.mode, "as asked"
    if layout.class_names:
        return DOCUMENTS, f"the folders say classes ({option('mode', 'lines')} makes each line a record)"
    size = sum(file.stat.size_bytes for file in files)
    if len(files) > 3 and size < _SMALL_BYTES * len(files):
        return DOCUMENTS, f"{len(files)} small files ({option('mode', 'lines')} makes each line a record)"
    return LINES, f"one file or few, or large ones ({option('mode', 'documents')} makes each file a record)"


def _schema(mode: str, layout: Layout, common: PlanOptions) -> tuple[Schema, list[str]]:
    """(the features of every record, notes of what the given schema has beside)."""
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
    common, left_out = common.without_absent(own.names, "the text")
    if common.schema is not None and common.schema != own:
        lacking = [f.name for f in common.schema if f.name not in own]
        if lacking:
            raise UsageError(
                f"the schema names {lacking[0]!r}, which text does not have; its features are {', '.join(own.names)}"
            )
        for feature in common.schema:
            _check_given(feature, own[feature.name])
        own = replace(common.schema.select(common.schema.names), label=common.schema.label)
    wrong = [name for name, dtype in common.dtypes.items() if name not in own or dtype != own[name].dtype]
    if wrong:
        raise UsageError(
            f"{option('dtypes', {wrong[0]: common.dtypes[wrong[0]]})}: text has "
            f"{', '.join(f'{f.name} ({f.describe()})' for f in own)}, which can't be others"
        )
    if common.label is not None and common.label not in own:
        raise UsageError(f"{option('label', common.label)}: no such column; {there_are(common.label, own.names)}")
    return own if common.label is None else replace(own, label=common.label), left_out


def _check_given(given: Feature, own: Feature) -> None:
    """Refuses what the schema says of a feature and text can't give. A label may be the class's name itself."""
    if given.shape or given.dtype not in ({own.dtype, "string"} if own.name == LABEL else {own.dtype}):
        raise UsageError(
            f"the schema says that {own.name!r} is {given.describe()}; of text it is {own.describe()}, which can't be "
            "another"
        )
    if own.name == LABEL and given.dtype == "int64" and given.classes is None:
        raise UsageError(
            "the schema does not name the classes of 'label', so nothing says which number a folder has; name them in "
            "its string_domain, or leave 'label' out of it"
        )


def _document_units(files: Sequence[InputFile]) -> tuple[Unit, ...]:
    return packed_files((file.stat.size_bytes for file in files), UNIT_BYTES)
