"""Output to a folder with one file per record.

A file contains the bytes of one feature. `metadata.jsonl` contains the other features, with one
line per record in the order of the records. Hugging Face's ImageFolder reads this layout. The first
key of each line is `file_name`, the path relative to the folder. It is null if a record lacks the
feature of the files.

Names are assigned in the order of the records, so they depend only on the records. If two records
have the same name, the first one gets it. Whether `A.jpg` and `a.jpg` are the same name depends on
the file system, but no file is ever overwritten.

A name is not used if it leads out of the folder or means something else on another system. The file
is then named after the record's number.

The system calls for each file take tens of microseconds.
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

# Maximum length of the name of a file or folder. ext4, XFS, APFS and NTFS allow it.
MAX_COMPONENT_BYTES = 255
# Maximum length of the complete relative path. macOS opens paths of up to 1,024 bytes.
MAX_NAME_BYTES = 1023
# 10,000 numbered files in a folder: file managers and `ls` still list as many without delay.
MAX_FOLDER_FILES = 10_000
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
# Keys of FilesWriter._counts: why a record has no file, or another name than requested.
_WITHOUT_FILE = "missing"
_WITHOUT_NAME = "nameless"
_UNSAFE_NAME = "unusable"
_TAKEN_NAME = "double"


def to_safe_name(name: str, split: str | None = None) -> str | None:
    """Converts a name from a record to a relative path inside the output folder.

    The components `.` and "" are removed.

    Args:
        name: The name, with `/` between its components.
        split: The folder of this split is removed from the name, because the output folder belongs
            to the split already. If None, no folder is removed.

    Returns:
        The path. None if the name is empty, absolute or a folder, or contains a drive, `..`, a
        backslash or control characters. Also None if a component exceeds 255 bytes or the path
        exceeds 1,023 bytes.

    >>> names = ["3/0217.png", "val/cat/1.jpg", "./a//b", "../a", "C:x", ""]
    >>> [to_safe_name(name, "validation") for name in names]
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
    # Checked on the result, because `./C:x` and `train/C:x` become a name with a drive.
    if _DRIVE.match(result):
        return None
    sizes = [len(component.encode()) for component in components]
    return (
        result
        if max(sizes) <= MAX_COMPONENT_BYTES and sum(sizes) + len(components) - 1 <= MAX_NAME_BYTES
        else None
    )


def has_split_folder(name: str, split: str) -> bool:
    """Returns whether a folder in the path of a file names this split.

    >>> has_split_folder("val/cat/1.jpg", "validation")
    True
    >>> has_split_folder("cat/val.jpg", "validation")
    False
    """
    return _split_folder_index(name.split("/")[:-1], split) is not None


def _split_folder_index(folders: list[str], split: str) -> int | None:
    """Returns the index of the folder that names the split of a record.

    A folder named exactly like a split takes precedence over one that contains its name as a word.
    If there are several, the outermost one counts. `sources.common.layout` has the same rule.

    Args:
        folders: The folders in the path of a file, from the outermost one.
        split: The split of the record.

    Returns:
        The index. None if there is no such folder, or if it names another split.
    """
    # Whole names first: in `val-2017/train`, the split is `train`.
    for find_split in (
        lambda folder: SPLIT_WORDS.get(folder.lower(), folder if folder == split else None),
        detect_split,
    ):
        for index, folder in enumerate(folders):
            if (folder_split := find_split(folder)) is not None:
                return index if folder_split == split else None
    return None


def make_numbered_name(number: int, extension: str) -> str:
    """Returns the file name for a record that has no name of its own.

    >>> make_numbered_name(42, "jpg"), make_numbered_name(1_230_042, "bin")
    ('00000042.jpg', '0123/01230042.bin')
    """
    folder = f"{number // MAX_FOLDER_FILES:04d}/" if number >= MAX_FOLDER_FILES else ""
    return f"{folder}{number:08d}.{extension}"


def make_alternative_name(name: str, number: int, attempt: int) -> str | None:
    """Returns another file name for a record if its name is already used.

    Args:
        name: The name that is already used.
        number: The record's number, which is appended to the name before the extension.
        attempt: The number of alternatives that were tried before.

    Returns:
        The name. None if it would be too long.

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
    """Returns a file extension that suits a content, without the dot.

    Args:
        head: The first IMAGE_HEAD_BYTES bytes.
        is_text: Whether the feature is a string feature.

    Returns:
        The extension of the image format. If it is not an image, `txt` for text and `bin` for
        bytes.
    """
    image = sniff_image(head[:IMAGE_HEAD_BYTES])
    return _IMAGE_EXTENSIONS[image] if image is not None else "txt" if is_text else "bin"


def add_extension(name: str, extension: str) -> str:
    """Adds an extension to a name that has none.

    If the content is an image, only the extension of an image counts as one.

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
class FileLayout:
    """Choice of the features for the files, their names and the metadata.

    Attributes:
        file_feature: The bytes or string feature with the contents of the files.
        name_feature: The feature that names the files. If None, the files are named after the
            record's number.
        adds_extension: Whether a name without an extension gets one.
        metadata_features: The features in `metadata.jsonl`.
        strips_split_folder: Whether the folder that names the split is removed from names.
    """

    file_feature: str
    name_feature: str | None
    adds_extension: bool
    metadata_features: tuple[str, ...]
    strips_split_folder: bool = False

    @property
    def required_features(self) -> tuple[str, ...]:
        """The features for files and names, which the writer needs in each batch.

        The metadata need not contain them.
        """
        return (
            (self.file_feature,)
            if self.name_feature is None
            else (self.file_feature, self.name_feature)
        )

    @property
    def metadata_fields(self) -> dict[str, str]:
        """The key of each feature in the objects of `metadata.jsonl`, by feature name.

        The key is the feature name. A feature called `file_name` gets underscores appended, because
        this is already the first key of each object.
        """
        fields = {}
        for name in self.metadata_features:
            field = name
            # The changed name must not be the name of another feature either.
            while field == FILE_NAME_FIELD or (field != name and field in self.metadata_features):
                field += "_"
            fields[name] = field
        return fields


class FilesWriter(OutputWriter):
    """Writer of one folder with a file per record.

    Args:
        path: A folder that does not exist yet.
        schema: The features of the batches.
        layout: The features for the files, their names and the metadata.
        split: The split of the records.
    """

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
        # The batch is written in slices, because the metadata of all rows of a slice are Python
        # objects at once.
        for start in range(0, batch.num_rows, JSON_BATCH_ROWS):
            batch_slice = batch.slice(start, JSON_BATCH_ROWS)
            names = self._write_files(batch_slice)
            write_all(self._metadata, self._encoder.encode(batch_slice, **{FILE_NAME_FIELD: names}))
            self.rows += batch_slice.num_rows

    def close(self) -> None:
        self._metadata.close()
        # One sync for all files: a sync of each file would cost milliseconds.
        self._files.sync()
        self._files.close()

    def abort(self) -> None:
        self._metadata.close()
        self._files.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on records without a file, or with another file name than requested."""
        messages = {
            _WITHOUT_FILE: f"without {self._layout.file_feature!r}: no file, and {FILE_NAME_FIELD} is null in {METADATA_NAME}",
            _WITHOUT_NAME: f"without {self._layout.name_feature!r}: the record's number names the file",
            _UNSAFE_NAME: f"whose {self._layout.name_feature!r} is not a safe file "
            "name (absolute, '..', too long, ...): the record's number "
            "names the file",
            _TAKEN_NAME: "whose file name was already used: the record's number was added to it",
        }
        return tuple(
            f"{self._counts[note]:,} record{'s' if self._counts[note] > 1 else ''} {text}"
            for note, text in messages.items()
            if self._counts[note]
        )

    def _write_files(self, batch: pa.RecordBatch) -> list[str | None]:
        """Writes the file of each row.

        Returns:
            The name of each file, or None for a row without the feature.
        """
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
        """Writes the file of a record, and returns its name.

        The file gets the first possible name. The names are tried in this order: the requested name
        and its alternatives, the record's number and its alternatives, and the number without a
        folder.

        Args:
            value: The content of the file.
            number: The record's number.
            record_name: The value of the name feature, or None.

        Raises:
            RecordmillError: The file system refuses all names.
        """
        extension = detect_extension(bytes(value[:IMAGE_HEAD_BYTES]), self._is_text)
        requested_name = self._requested_name(record_name, extension)
        for base_name in (
            requested_name,
            make_numbered_name(number, extension),
            f"{number:08d}.{extension}",
        ):
            # A used name gets alternatives. A name that the file system refuses has none, so the
            # next base name is tried.
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
            f"record {number}: the file system accepts no name for its file, not even "
            f"{number:08d}.{extension}"
        )

    def _requested_name(self, record_name: object, extension: str) -> str | None:
        """Returns the name that a record specifies.

        The result is None if there is no name, or if it is not safe.
        """
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
    """Opens a writer of a folder with a file per record.

    Args:
        path: A folder that does not exist yet.
        schema: The features of the batches.
        settings: The options are a `FileLayout`.
    """
    return FilesWriter(path, schema, layout=settings.options, split=settings.split)


def _iter_views(column: pa.Array) -> Iterator[memoryview | None]:
    """Yields a view of the bytes of each row. None if the value is missing."""
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
