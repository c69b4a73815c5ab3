"""Writes a stream of RecordBatches to a folder with a file per record, the bytes of one feature, and `metadata.jsonl`,
which holds all the others.

It is the layout that Hugging Face's ImageFolder reads: `file_name`, relative to the folder, is the first field of each
line. Lines stand in the records' order, and a record without the feature has a line too, whose file_name is null. Names
are given in that order, so they depend on the records alone. The first to ask for a name has it: `A.jpg` and `a.jpg`
are two names where the file system keeps them apart, and one where it does not, so nothing is overwritten there either.
A file per record costs the system's calls for each, tens of microseconds, whatever is done around them.

A name with a meaning outside the folder, or another one on another system, is not bent to fit: the record's number
takes its place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recordmill.base.errors import RecordmillError
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image
from recordmill.records.images.header import FORMATS_BY_EXTENSION
from recordmill.records.writers.jsonl import JSON_BATCH_ROWS, JsonLineEncoder
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import SPLIT_WORDS, detect_split
from recordmill.storage.disk_files import FILE_CREATED, NAME_UNFIT, NewFiles
from recordmill.storage.files import create_file, write_all

MAX_COMPONENT_BYTES = 255  # of a file or a folder: what ext4, XFS, APFS and NTFS allow
MAX_NAME_BYTES = 1023  # of all of it: macOS opens paths up to 1,024 bytes
MAX_FOLDER_FILES = (
    10_000  # numbered files in a folder: what file managers and `ls` still list at once
)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|/$")
_DRIVE = re.compile(r"[A-Za-z]:")
_IMAGE_EXTENSIONS = {
    "JPEG": "jpg",
    "PNG": "png",
    "GIF": "gif",
    "BMP": "bmp",
    "WebP": "webp",
    "TIFF": "tif",
}
METADATA_NAME, FILE_NAME_FIELD = "metadata.jsonl", "file_name"
# keys of FilesWriter._counts
_WITHOUT_FILE = "missing"
_WITHOUT_NAME = "nameless"
_UNSAFE_NAME = "unusable"
_TAKEN_NAME = "double"


def to_safe_name(name: str, split: str | None = None) -> str | None:
    """Returns the name below the split's folder, or None where it can't be one.

    Left out are `.`, doubled slashes and, if split is given, the folder that says it, since the split has a folder of
    its own here. None for: nothing, an absolute path, a drive, `..`, a backslash, control characters, a folder's name,
    more than 255 bytes between slashes or 1,023 in all.

    >>> [to_safe_name(name, "validation") for name in ("3/0217.png", "val/cat/1.jpg", "./a//b", "../a", "C:x", "")]
    ['3/0217.png', 'cat/1.jpg', 'a/b', None, None, None]
    """
    if _UNSAFE.search(name):
        return None
    components = [component for component in name.split("/") if component not in ("", ".")]
    if not components or ".." in components:
        return None
    if (
        split is not None
        and (folder_index := _split_folder_index(components[:-1], split)) is not None
    ):
        del components[folder_index]
    result = "/".join(components)
    if _DRIVE.match(result):  # asked of what is left: `./C:x` and `train/C:x` hide it
        return None
    sizes = [len(component.encode()) for component in components]
    return (
        result
        if max(sizes) <= MAX_COMPONENT_BYTES and sum(sizes) + len(components) - 1 <= MAX_NAME_BYTES
        else None
    )


def has_split_folder(name: str, split: str) -> bool:
    """Returns whether a folder of the name says this split.

    >>> has_split_folder("val/cat/1.jpg", "validation"), has_split_folder("cat/val.jpg", "validation")
    (True, False)
    """
    return _split_folder_index(name.split("/")[:-1], split) is not None


def _split_folder_index(folders: list[str], split: str) -> int | None:
    """Returns which folder says the split as `sources.common.layout` does: whole names first, then the outermost."""
    for find_split in (
        lambda folder: SPLIT_WORDS.get(folder.lower(), folder if folder == split else None),
        detect_split,
    ):
        for index, folder in enumerate(folders):
            if (folder_split := find_split(folder)) is not None:
                return index if folder_split == split else None
    return None


def make_numbered_name(number: int, extension: str) -> str:
    """Returns the name of a record that has none of its own.

    >>> make_numbered_name(42, "jpg"), make_numbered_name(1_230_042, "bin")
    ('00000042.jpg', '0123/01230042.bin')
    """
    folder = f"{number // MAX_FOLDER_FILES:04d}/" if number >= MAX_FOLDER_FILES else ""
    return f"{folder}{number:08d}.{extension}"


def make_alternative_name(name: str, number: int, attempt: int) -> str | None:
    """Another name where a file of this one is there already: the record's number tells them apart;
    None if it gets too long.

    >>> make_alternative_name("cat/1.jpg", 17, 0), make_alternative_name("cat/1.jpg", 17, 1)
    ('cat/1-17.jpg', 'cat/1-17-2.jpg')
    """
    folder, slash, file_name = name.rpartition("/")
    stem, dot, extension = (
        file_name.rpartition(".") if "." in file_name[1:] else (file_name, "", "")
    )
    suffix = f"-{number}" if attempt == 0 else f"-{number}-{attempt + 1}"
    file_name = f"{stem}{suffix}{dot}{extension}"
    is_short_enough = (
        len(file_name.encode()) <= MAX_COMPONENT_BYTES
        and len(name.encode()) + len(suffix) <= MAX_NAME_BYTES
    )
    return f"{folder}{slash}{file_name}" if is_short_enough else None


def detect_extension(head: bytes, is_text: bool) -> str:
    """Returns the extension for content that begins so: that of its kind of image, `txt` for text, else `bin`."""
    image = sniff_image(head[:IMAGE_HEAD_BYTES])
    return _IMAGE_EXTENSIONS[image] if image is not None else "txt" if is_text else "bin"


def add_extension(name: str, extension: str) -> str:
    """Returns the name with an extension that tells of its content: as it is where it has one, which of images must be
    an image's.

    >>> add_extension("a", "jpg"), add_extension("a.JPEG", "jpg")
    ('a.jpg', 'a.JPEG')
    >>> add_extension("scan.2", "png"), add_extension("scan.2", "bin")
    ('scan.2.png', 'scan.2')
    """
    file_name = name.rpartition("/")[2]
    current_extension = file_name[1:].rpartition(".")[2].lower() if "." in file_name[1:] else ""
    is_image = extension in _IMAGE_EXTENSIONS.values()
    return (
        name
        if (current_extension in FORMATS_BY_EXTENSION if is_image else current_extension)
        else f"{name}.{extension}"
    )


@dataclass(frozen=True)
class FileOptions:
    """A request for files as output. file_feature: it becomes the files, None: found by content. name_feature: it names
    them, "": the record's number, None: `source` if it tells records apart.
    """

    file_feature: str | None = None
    name_feature: str | None = None


@dataclass(frozen=True)
class FileLayout:
    """Which feature becomes the files, and what names them.

    Attributes:
        file_feature: Of type bytes or string.
        name_feature: The feature that names the file, None: the record's number.
        adds_extension: A name without an extension gets one.
        metadata_features: The features in metadata.jsonl.
        strips_split_folder: The folder of a name that says the split is left out.
    """

    file_feature: str
    name_feature: str | None
    adds_extension: bool
    metadata_features: tuple[str, ...]
    strips_split_folder: bool = False

    @property
    def required_features(self) -> tuple[str, ...]:
        """The features that it takes, whatever is shown."""
        return (
            (self.file_feature,)
            if self.name_feature is None
            else (self.file_feature, self.name_feature)
        )

    @property
    def metadata_fields(self) -> dict[str, str]:
        """Each feature of metadata.jsonl to its field there: its own name, unless that is `file_name`."""
        fields = {}
        for name in self.metadata_features:
            field = name
            while field == FILE_NAME_FIELD or (field != name and field in self.metadata_features):
                field += "_"
            fields[name] = field
        return fields


class FilesWriter(OutputWriter):
    """Appends batches of the schema's Arrow types to a new folder; split: the one that they belong to."""

    def __init__(self, path: Path, schema: Schema, layout: FileLayout, split: str) -> None:
        self.rows, self._layout = 0, layout
        self._split = split if layout.strips_split_folder else None
        self._is_text = schema[layout.file_feature].dtype == "string"
        self._file_column = schema.names.index(layout.file_feature)
        self._name_column = (
            None if layout.name_feature is None else schema.names.index(layout.name_feature)
        )
        self._counts: Counter[str] = Counter()
        self._encoder = JsonLineEncoder(schema, layout.metadata_fields)
        self._files = NewFiles(path)
        self._metadata = create_file(path / METADATA_NAME)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, JSON_BATCH_ROWS):
            batch_slice = batch.slice(start, JSON_BATCH_ROWS)
            names = self._write_files(batch_slice)
            write_all(self._metadata, self._encoder.encode(batch_slice, **{FILE_NAME_FIELD: names}))
            self.rows += batch_slice.num_rows

    def close(self) -> None:
        self._metadata.close()
        self._files.sync()
        self._files.close()

    def abort(self) -> None:
        self._metadata.close()
        self._files.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on records that could not have the file, or the name, that they ask for."""
        messages = {
            _WITHOUT_FILE: f"without {self._layout.file_feature!r}: no file, and {FILE_NAME_FIELD} is null in {METADATA_NAME}",
            _WITHOUT_NAME: f"without {self._layout.name_feature!r}: the record's number names the file",
            _UNSAFE_NAME: f"whose {self._layout.name_feature!r} is no safe name of a file below a folder (absolute, '..', too "
            "long, ...): the record's number names it",
            _TAKEN_NAME: "whose file name another file had already: the record's number was added to it",
        }
        return tuple(
            f"{self._counts[note]:,} record{'s' if self._counts[note] > 1 else ''} {text}"
            for note, text in messages.items()
            if self._counts[note]
        )

    def _write_files(self, batch: pa.RecordBatch) -> list[str | None]:
        """Returns the name of each row's file, or None for a row that has none."""
        record_names: list[object] = (
            [None] * batch.num_rows
            if self._name_column is None
            else batch.column(self._name_column).to_pylist()
        )
        names: list[str | None] = []
        for number, (value, record_name) in enumerate(
            zip(_iter_views(batch.column(self._file_column)), record_names, strict=True), self.rows
        ):
            if value is None:
                self._counts[_WITHOUT_FILE] += 1
                names.append(None)
            else:
                names.append(self._write_file(value, number, record_name))
        return names

    def _write_file(self, value: memoryview, number: int, record_name: object) -> str:
        """Writes the record's file under the first of its names that is free; gives that name."""
        extension = detect_extension(bytes(value[:IMAGE_HEAD_BYTES]), self._is_text)
        requested_name = self._requested_name(record_name, extension)
        for base_name in (
            requested_name,
            make_numbered_name(number, extension),
            f"{number:08d}.{extension}",
        ):
            name, attempt = base_name, 0
            while name is not None and (outcome := self._files.create(name, value)) != NAME_UNFIT:
                if outcome == FILE_CREATED:
                    self._counts[_TAKEN_NAME] += attempt > 0
                    if self._name_column is not None and base_name is not requested_name:
                        self._counts[_WITHOUT_NAME if record_name is None else _UNSAFE_NAME] += 1
                    return name
                name = make_alternative_name(str(base_name), number, attempt)
                attempt += 1
        raise RecordmillError(
            f"record {number}: the file system takes no name for its file, not even {number:08d}.{extension}"
        )

    def _requested_name(self, record_name: object, extension: str) -> str | None:
        """Returns the name that the record asks for, if it is one."""
        if isinstance(record_name, bytes):
            try:
                record_name = record_name.decode()
            except UnicodeDecodeError:
                return None
        name = None if record_name is None else to_safe_name(str(record_name), self._split)
        return (
            add_extension(name, extension)
            if name is not None and self._layout.adds_extension
            else name
        )


def open_files(path: Path, schema: Schema, settings: WriterSettings) -> FilesWriter:
    """Returns a writer of files to a new folder; settings.options: the layout."""
    return FilesWriter(path, schema, layout=settings.options, split=settings.split)


def _iter_views(column: pa.Array) -> Iterator[memoryview | None]:
    """Yields the bytes of each row where they lie; None where there are none."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[
        column.offset : column.offset + len(column) + 1
    ].tolist()
    view = memoryview(b"" if data is None else data)
    for start, stop, is_present in zip(
        ends[:-1], ends[1:], column.is_valid().to_pylist(), strict=True
    ):
        yield view[start:stop] if is_present else None
