"""Contents of many small files, which are read completely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recordmill.base.errors import DataError
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes, check_unchanged, prefetch_files, read_range


def read_files(files: Sequence[InputFile], buffer: Bytes) -> Iterator[Bytes]:
    """Reads complete files, one after the other, into `buffer`.

    Objects in stores are prefetched.

    Args:
        files: The files. `InputFile.stat` is the state at planning time.
        buffer: The array to fill. It must have the total size of the files.

    Yields:
        The part of the buffer with the content of the next file.

    Raises:
        DataError: A file has changed since planning or can't be read.
    """
    offset = 0
    for file in prefetch_files(files, lambda file: (file.path, file.stat)):
        target = buffer[offset : offset + file.stat.size_bytes]
        offset += file.stat.size_bytes
        try:
            read_range(file.path, target=target)
        except OSError as error:
            raise DataError(f"can't be read: {error.strerror}", source=file.name) from error
        # A file that was too short has changed, too.
        check_unchanged(file.path, file.stat, file.name)
        yield target
