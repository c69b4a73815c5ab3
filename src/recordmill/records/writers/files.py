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
from recordmill.records.images.header import EXTENSIONS
from recordmill.records.writers.jsonl import ROWS_AT_ONCE, JsonLines
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import SPLIT_WORDS, detect_split
from recordmill.storage.disk_files import FILE_CREATED, NAME_UNFIT, NewFiles
from recordmill.storage.files import create_file, write_all

NAME_PART_BYTES = 255  # of a file or a folder: what ext4, XFS, APFS and NTFS allow
NAME_BYTES = 1023  # of all of it: macOS opens paths up to 1,024 bytes
FOLDER_FILES = 10_000  # numbered files in a folder: what file managers and `ls` still list at once
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|/$")
_DRIVE = re.compile(r"[A-Za-z]:")
_IMAGES = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "WebP": "webp", "TIFF": "tif"}
METADATA_NAME, FILE_NAME = "metadata.jsonl", "file_name"
_MISSING, _NAMELESS, _UNUSABLE, _DOUBLE = "missing", "nameless", "unusable", "double"


def safe_name(said: str, split: str | None = None) -> str | None:
    """Returns the name below the split's folder, or None where it can't be one.

    Left out are `.`, doubled slashes and, if split is given, the folder that says it, since the split has a folder of
    its own here. None for: nothing, an absolute path, a drive, `..`, a backslash, control characters, a folder's name,
    more than 255 bytes between slashes or 1,023 in all.

    >>> [safe_name(name, "validation") for name in ("3/0217.png", "val/cat/1.jpg", "./a//b", "../a", "C:x", "")]
    ['3/0217.png', 'cat/1.jpg', 'a/b', None, None, None]
    """
    if _UNSAFE.search(said):
        return None
    parts = [part for part in said.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    if split is not None and (at := _split_folder(parts[:-1], split)) is not None:
        del parts[at]
    name = "/".join(parts)
    if _DRIVE.match(name):  # asked of what is left: `./C:x` and `train/C:x` hide it
        return None
    sizes = [len(part.encode()) for part in parts]
    return (
        name
        if max(sizes) <= NAME_PART_BYTES and sum(sizes) + len(parts) - 1 <= NAME_BYTES
        else None
    )


def says_split(said: str, split: str) -> bool:
    """Returns whether a folder of the name says this split.

    >>> says_split("val/cat/1.jpg", "validation"), says_split("cat/val.jpg", "validation")
    (True, False)
    """
    return _split_folder(said.split("/")[:-1], split) is not None


def _split_folder(folders: list[str], split: str) -> int | None:
    """Returns which folder says the split as `sources.common.layout` does: whole names first, then the outermost."""
    for says in (
        lambda part: SPLIT_WORDS.get(part.lower(), part if part == split else None),
        detect_split,
    ):
        for at, part in enumerate(folders):
            if (found := says(part)) is not None:
                return at if found == split else None
    return None


def numbered_name(number: int, extension: str) -> str:
    """Returns the name of a record that has none of its own.

    >>> numbered_name(42, "jpg"), numbered_name(1_230_042, "bin")
    ('00000042.jpg', '0123/01230042.bin')
    """
    folder = f"{number // FOLDER_FILES:04d}/" if number >= FOLDER_FILES else ""
    return f"{folder}{number:08d}.{extension}"


def another_name(name: str, number: int, attempt: int) -> str | None:
    """Another name where a file of this one is there already: the record's number tells them apart;
    None if it gets too long.

    >>> another_name("cat/1.jpg", 17, 0), another_name("cat/1.jpg", 17, 1)
    ('cat/1-17.jpg', 'cat/1-17-2.jpg')
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".") if "." in last[1:] else (last, "", "")
    suffix = f"-{number}" if attempt == 0 else f"-{number}-{attempt + 1}"
    last = f"{stem}{suffix}{dot}{extension}"
    fits = len(last.encode()) <= NAME_PART_BYTES and len(name.encode()) + len(suffix) <= NAME_BYTES
    return f"{folder}{slash}{last}" if fits else None


def extension_of(head: bytes, is_text: bool) -> str:
    """Returns the extension for content that begins so: that of its kind of image, `txt` for text, else `bin`."""
    image = sniff_image(head[:IMAGE_HEAD_BYTES])
    return _IMAGES[image] if image is not None else "txt" if is_text else "bin"


def with_extension(name: str, extension: str) -> str:
    """Returns the name with an extension that tells of its content: as it is where it has one, which of images must be
    an image's.

    >>> with_extension("a", "jpg"), with_extension("a.JPEG", "jpg")
    ('a.jpg', 'a.JPEG')
    >>> with_extension("scan.2", "png"), with_extension("scan.2", "bin")
    ('scan.2.png', 'scan.2')
    """
    last = name.rpartition("/")[2]
    has = last[1:].rpartition(".")[2].lower() if "." in last[1:] else ""
    is_image = extension in _IMAGES.values()
    return name if (has in EXTENSIONS if is_image else has) else f"{name}.{extension}"


@dataclass(frozen=True)
class FileRequest:
    """A request for files as output. file_feature: it becomes the files, None: found by content. name_feature: it names
    them, "": the record's number, None: `source` if it tells records apart.
    """

    file_feature: str | None = None
    name_feature: str | None = None


@dataclass(frozen=True)
class FileLayout:
    """Which feature becomes the files, and what names them.

    Attributes:
        file: Of type bytes or string.
        name: The feature that names the file, None: the record's number.
        extend: A name without an extension gets one.
        shown: The features in metadata.jsonl.
        strip: The folder of a name that says the split is left out.
    """

    file: str
    name: str | None
    extend: bool
    shown: tuple[str, ...]
    strip: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """The features that it takes, whatever is shown."""
        return (self.file,) if self.name is None else (self.file, self.name)

    @property
    def fields(self) -> dict[str, str]:
        """Each feature of metadata.jsonl to its field there: its own name, unless that is `file_name`."""
        fields = {}
        for name in self.shown:
            field = name
            while field == FILE_NAME or (field != name and field in self.shown):
                field += "_"
            fields[name] = field
        return fields


class FilesWriter(OutputWriter):
    """Appends batches of the schema's Arrow types to a new folder; split: the one that they belong to."""

    def __init__(self, path: Path, schema: Schema, layout: FileLayout, split: str) -> None:
        self.rows, self._layout = 0, layout
        self._split = split if layout.strip else None
        self._text = schema[layout.file].dtype == "string"
        self._file_at = schema.names.index(layout.file)
        self._name_at = None if layout.name is None else schema.names.index(layout.name)
        self._counts: Counter[str] = Counter()
        self._lines = JsonLines(schema, layout.fields)
        self._files = NewFiles(path)
        self._metadata = create_file(path / METADATA_NAME)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            names = self._write_files(part)
            write_all(self._metadata, self._lines.encode(part, **{FILE_NAME: names}))
            self.rows += part.num_rows

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
        said = {
            _MISSING: f"without {self._layout.file!r}: no file, and {FILE_NAME} is null in {METADATA_NAME}",
            _NAMELESS: f"without {self._layout.name!r}: the record's number names the file",
            _UNUSABLE: f"whose {self._layout.name!r} is no safe name of a file below a folder (absolute, '..', too "
            "long, ...): the record's number names it",
            _DOUBLE: "whose file name another file had already: the record's number was added to it",
        }
        return tuple(
            f"{self._counts[what]:,} record{'s' if self._counts[what] > 1 else ''} {text}"
            for what, text in said.items()
            if self._counts[what]
        )

    def _write_files(self, part: pa.RecordBatch) -> list[str | None]:
        """Returns the name of each row's file, or None for a row that has none."""
        said: list[object] = (
            [None] * part.num_rows
            if self._name_at is None
            else part.column(self._name_at).to_pylist()
        )
        names: list[str | None] = []
        for number, (value, name) in enumerate(
            zip(_views(part.column(self._file_at)), said, strict=True), self.rows
        ):
            if value is None:
                self._counts[_MISSING] += 1
                names.append(None)
            else:
                names.append(self._write_file(value, number, name))
        return names

    def _write_file(self, value: memoryview, number: int, said: object) -> str:
        """Writes the record's file under the first of its names that is free; gives that name."""
        extension = extension_of(bytes(value[:IMAGE_HEAD_BYTES]), self._text)
        wanted = self._wanted(said, extension)
        for base in (wanted, numbered_name(number, extension), f"{number:08d}.{extension}"):
            name, attempt = base, 0
            while name is not None and (outcome := self._files.create(name, value)) != NAME_UNFIT:
                if outcome == FILE_CREATED:
                    self._counts[_DOUBLE] += attempt > 0
                    if self._name_at is not None and base is not wanted:
                        self._counts[_NAMELESS if said is None else _UNUSABLE] += 1
                    return name
                name = another_name(str(base), number, attempt)
                attempt += 1
        raise RecordmillError(
            f"record {number}: the file system takes no name for its file, not even {number:08d}.{extension}"
        )

    def _wanted(self, said: object, extension: str) -> str | None:
        """Returns the name that the record asks for, if it is one."""
        if isinstance(said, bytes):
            try:
                said = said.decode()
            except UnicodeDecodeError:
                return None
        name = None if said is None else safe_name(str(said), self._split)
        return with_extension(name, extension) if name is not None and self._layout.extend else name


def open_files(path: Path, schema: Schema, settings: WriterSettings) -> FilesWriter:
    """Returns a writer of files to a new folder; settings.own: the layout."""
    return FilesWriter(path, schema, settings.own, settings.split)


def _views(column: pa.Array) -> Iterator[memoryview | None]:
    """Yields the bytes of each row where they lie; None where there are none."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[
        column.offset : column.offset + len(column) + 1
    ].tolist()
    view = memoryview(b"" if data is None else data)
    for start, stop, there in zip(ends[:-1], ends[1:], column.is_valid().to_pylist(), strict=True):
        yield view[start:stop] if there else None
