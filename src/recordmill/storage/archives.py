"""Members of ZIP and tar archives as files, with paths such as `a.zip!/b/c.csv`.

An archive is a file on a disk or an object in a store. How a member is read depends on how it is
stored:

* A stored member is a byte range of its archive.
* A deflated member of at most 16 MiB is inflated when it is opened.
* A larger deflated member is read as a gzip file with the same deflate stream. So text and TFRecord
  files of any size can be streamed.
* Each process that reads a compressed tar decompresses it once. Larger deflated members are treated
  in the same way if their format needs random access, such as Parquet or an image. The content is
  kept in unnamed files in the folder for temporary files. These files are removed when the last
  build or read of the process ends.

Sources: PKWARE's APPNOTE.TXT (4.3.7, 4.4.5), RFC 1952, and the POSIX pax format as Python's
`tarfile` reads it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat as modes
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, cast

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import limit_descriptors
from recordmill.base.magic import FORMAT_HEAD_BYTES, needs_random_access
from recordmill.base.progress import Progress
from recordmill.base.threads import ForkSafeLock
from recordmill.storage.codecs import BZ2, CODECS, GZIP, MAX_RATIO, XZ, ZSTD, Codec
from recordmill.storage.disk_files import write_all
from recordmill.storage.stores.address import is_remote
from recordmill.storage.stores.local import LocalReader, LocalStorage, create_unnamed_file
from recordmill.storage.stores.objects import ObjectStorage
from recordmill.storage.stores.protocol import FileStorage, Reader, ReaderFile, Stat

MEMBER_SEPARATOR = "!/"  # between an archive and a member
_TAR = r"\.t(?:ar|(?:ar\.)?(?:gz|bz2|xz|zst))"
_MEMBER = re.compile(rf"(.+?(?:\.zip|{_TAR}))!/(.*)", re.IGNORECASE | re.DOTALL)
_ARCHIVE, TAR_SUFFIX = (
    re.compile(f"(?:{ending})$", re.IGNORECASE) for ending in (rf"\.zip|{_TAR}", _TAR)
)
_TAR_CODECS = (GZIP, BZ2, XZ, ZSTD)
_HEAD_BYTES = 16  # enough for the magic bytes of these codecs
_MAX_INFLATED_BYTES = 16 << 20  # 16 MiB: larger deflated members are streamed
_MAX_HEADER_BYTES = 1 << 20  # 1 MiB: `tarfile` reads a header of any size into memory
# Each decompressed file takes a descriptor. A process often has 1,024, sometimes 256 or fewer, and
# needs most of them for other files.
_MIN_DECOMPRESSED_FILES, _MAX_DECOMPRESSED_FILES = 4, 200
_BLOCK_BYTES = 1 << 20  # 1 MiB: compressed bytes, or zeros after a tar, that are read at a time
# Directories of archives stay cached until both limits are exceeded. So many of them may stay if
# they are small.
_MAX_CACHED_ARCHIVES, _MAX_CACHED_MEMBERS = 8, 1 << 18
# A minimal gzip header: deflate, no flags, no time, unknown operating system.
_GZIP_HEADER = np.frombuffer(b"\x1f\x8b\x08\0\0\0\0\0\0\xff", np.uint8)
# The local header of a ZIP member has 30 bytes. Its last 4 bytes are the lengths of the name and of
# the extra field, which follow it.
_ZIP_HEADER_BYTES, _ZIP_LENGTH_FIELDS = 30, slice(26, 30)
_ZIP_MAGIC = b"PK\x03\x04"
# The record at the end of a ZIP archive without a comment.
_ZIP_END_MAGIC, _ZIP_END_BYTES = b"PK\x05\x06", 22
_DAMAGED_MESSAGE = "is damaged: it is not what the archive's directory says"
OUTSIDE_ARCHIVE, LINK_IN_ARCHIVE = "outside of the archive", "link or device in the archive"

# The storages of this process, for archives and for all other files.
LOCAL_STORAGE, OBJECT_STORAGE = LocalStorage(), ObjectStorage()


@dataclass(frozen=True, slots=True)
class _Member:
    """Location of a member in its archive.

    Attributes:
        offset: Offset of the data in a tar, or of the local header in a ZIP.
        packed_bytes: The size in the archive.
        size_bytes: The size of the content.
        crc: CRC32 of the content. None in a tar, which has no checksum of the content.
        is_deflated: Whether the member is in a ZIP and is compressed.
        is_streamed: Whether the member is read as a gzip file, because its content is large.
    """

    offset: int
    packed_bytes: int
    size_bytes: int
    crc: int | None = None
    is_deflated: bool = False
    is_streamed: bool = False

    @property
    def is_large(self) -> bool:
        """Whether the member is too large to be inflated in memory."""
        return self.is_deflated and self.size_bytes > _MAX_INFLATED_BYTES


@dataclass(frozen=True)
class ArchiveMembers:
    """The directory of an archive.

    Attributes:
        archive_stat: State of the archive when its directory was read.
        codec: The codec of a compressed tar, or None.
        members: The readable members by name.
        ignored: (reason, name) of each entry that is not a readable member.
    """

    archive_stat: Stat
    codec: Codec | None = None
    members: dict[str, _Member] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, member: _Member | None, path: str) -> None:
        """Adds a member, or adds its name to `ignored`.

        A link, a device, an empty name and a name that leads out of the archive are ignored.

        Args:
            name: The name in the archive.
            member: The member, or None for a link or a device.
            path: The path of the archive, for messages.

        Raises:
            UsageError: The archive has a member of this name already.
        """
        is_outside = name.startswith("/") or "\\" in name or ".." in name.split("/")
        if not is_outside:
            # `a//b` and `./a/b` are `a/b`, as for every other tool.
            name = "/".join(part for part in name.split("/") if part not in ("", "."))
        # The name becomes a path, so it must not be absolute and must not contain `..` or a
        # backslash.
        if is_outside or not name:
            self.ignored.append((OUTSIDE_ARCHIVE, name))
        elif member is None:
            self.ignored.append((LINK_IN_ARCHIVE, name))
        elif name in self.members:
            raise UsageError(f"{path}: holds {name!r} twice; unpack it, and give the folder")
        else:
            self.members[name] = member


def find_file_storage(path: str) -> FileStorage:
    """Returns the storage that contains a path outside archives: a disk, or the stores."""
    return OBJECT_STORAGE if is_remote(path) else LOCAL_STORAGE


def is_archive(path: str) -> bool:
    """Returns whether a file has both the name and the content of an archive.

    The content of a compressed tar is only compared with the magic bytes of its compression.

    Raises:
        UsageError: The file is the beginning of a ZIP archive.
    """
    if _ARCHIVE.search(path) is None or not find_file_storage(path).is_file(path):
        return False
    with ReaderFile(find_file_storage(path).open(path)) as file:
        if not is_tar(path):
            if zipfile.is_zipfile(cast(BinaryIO, file)):
                return True
            file.seek(0)
            if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                raise UsageError(
                    f"{path}: the ZIP archive is cut off or damaged: the directory at its end is missing; "
                    "copy or download it again"
                )
            return False
        return _detect_tar_codec(file) is not None or tarfile.is_tarfile(cast(BinaryIO, file))


def is_tar(path: str) -> bool:
    """Returns whether a file has the name of a tar, compressed or not.

    >>> [is_tar(name) for name in ("a.tar", "a.TAR.gz", "a.tgz", "a.tar.zst", "a.zip", "a.gz")]
    [True, True, True, True, False, False]
    """
    return TAR_SUFFIX.search(path) is not None


def archive_name(path: str) -> str:
    """Returns the path of an archive without its extension.

    >>> [archive_name(path) for path in ("a/b.tar.gz", "b.ZIP", "b.csv")]
    ['a/b', 'b', 'b.csv']
    """
    return _ARCHIVE.sub("", path)


def _detect_tar_codec(file: ReaderFile) -> Codec | None:
    head = file.read(_HEAD_BYTES) or b""
    file.seek(0)
    return next(
        (codec for codec in CODECS if codec.name in _TAR_CODECS and codec.algorithm.is_head(head)),
        None,
    )


_lock = ForkSafeLock()
# Both caches are keyed by the path of the archive, with the most recently used one at the end.
_cached_members: OrderedDict[str, ArchiveMembers] = OrderedDict()
# (state of the archive when the tar or member was decompressed, the content)
_decompressed_files: OrderedDict[str, tuple[Stat, BinaryIO]] = OrderedDict()
_active_users: list[None] = []  # one entry for each `keep_decompressed_files` block in progress


def read_members(path: str) -> ArchiveMembers:
    """Reads the directory of an archive, or takes it from a cache.

    If the archive has changed since it was cached, it is read again. The last known state of the
    archive shows this, without a request to a store. Threads may share the result.

    Raises:
        UsageError: The archive is damaged or encrypted, or compresses a member with a method other
            than deflate.
        DataError: The compression of a tar is damaged, or its content exceeds `MAX_RATIO` times its
            size.
    """
    archive_stat = find_file_storage(path).last_known_stat(path)
    with _lock:
        archive_members = _cached_members.pop(path, None)
        if archive_members is None or archive_members.archive_stat.is_changed(archive_stat):
            archive_members = _read_archive(path, archive_stat)
        _cached_members[path] = archive_members
        while (
            len(_cached_members) > _MAX_CACHED_ARCHIVES
            and sum(len(members.members) for members in _cached_members.values())
            > _MAX_CACHED_MEMBERS
        ):
            _cached_members.popitem(last=False)
        return archive_members


def _read_archive(path: str, archive_stat: Stat) -> ArchiveMembers:
    with ReaderFile(find_file_storage(path).open(path)) as file:
        archive_members = ArchiveMembers(
            archive_stat, _detect_tar_codec(file) if is_tar(path) else None
        )
        try:
            if is_tar(path):
                _read_tar(archive_members, path)
                return archive_members
            with zipfile.ZipFile(cast(BinaryIO, file)) as archive:
                _check_single_zip(archive, file, path)
                for info in archive.infolist():
                    # Some tools of Windows write backslashes, although the format forbids them.
                    name = info.filename.replace("\\", "/")
                    if not name.endswith("/"):
                        is_link = modes.S_ISLNK(info.external_attr >> 16)
                        archive_members.add(
                            name, None if is_link else _zip_member(archive, info, path), path
                        )
        except (UsageError, DataError):
            raise
        except Exception as error:  # damage makes `zipfile` and `tarfile` raise many types
            # An error with a file name comes from the storage, and is not damage of the archive.
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise UsageError(
                "{path}: can't be read as an archive: {error}", path=path, error=error
            ) from None
    return archive_members


def _check_single_zip(archive: zipfile.ZipFile, file: ReaderFile, path: str) -> None:
    """Raises UsageError if the file contains another ZIP archive before `archive`."""
    start = min((info.header_offset for info in archive.infolist()), default=0)
    if start >= _ZIP_END_BYTES:
        file.seek(start - _ZIP_END_BYTES)
        if file.read(len(_ZIP_END_MAGIC)) == _ZIP_END_MAGIC:
            raise UsageError(
                f"{path}: two ZIP archives are joined in this file, and only the last one can be read; "
                "unpack both, and give the folder"
            )


class _HeaderFile(ReaderFile):
    """Tar file that refuses to read a header of more than 1 MiB.

    `tarfile` reads a header of any size into memory. The limit counts from the last `seek`, because
    newer versions of `tarfile` read a header in several steps.
    """

    _header_start = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._header_start = super().seek(offset, whence)
        return self._header_start

    def read(self, size: int = -1) -> bytes:
        if size < 0 or self.position + size - self._header_start > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(
                f"the header at byte {self._header_start} takes more than {_MAX_HEADER_BYTES:,} bytes"
            )
        return super().read(size) or b""


def _read_tar(archive_members: ArchiveMembers, path: str) -> None:
    with (
        _HeaderFile(_open_archive(path, archive_members)) as file,
        tarfile.open(fileobj=cast(BinaryIO, file), mode="r:") as tar,
    ):
        size, header = file.seek(0, os.SEEK_END), tar.next()
        while True:
            if header is None:
                # Another tar may follow the zeros at the end of the first one.
                start = _find_content(file, tar.offset)
                if start is None:
                    break
                file.seek(start)
                tar.offset = start
                try:
                    header = tarfile.TarInfo.fromtarfile(tar)
                except tarfile.HeaderError:
                    raise tarfile.ReadError(f"at byte {start} no member begins") from None
            if not header.isdir():
                is_plain_file = header.isreg() and not header.issparse()
                archive_members.add(
                    header.name,
                    _Member(header.offset_data, header.size, header.size)
                    if is_plain_file
                    else None,
                    path,
                )
            file.seek(tar.offset)
            try:
                # `tar.next` would keep every TarInfo, so the memory would grow with the archive.
                header = tarfile.TarInfo.fromtarfile(tar)
            except tarfile.HeaderError:  # the regular end of the archive, or damage
                header = None
        if tar.offset > size:
            raise tarfile.ReadError("unexpected end of data")


def _find_content(file: _HeaderFile, start: int) -> int | None:
    """Returns the offset of the next block of a tar that is not zeros.

    Args:
        file: The tar.
        start: Offset of the start of the search.

    Returns:
        The offset, or None if the rest of the file is zeros.
    """
    while True:
        file.seek(start)
        data = file.read(_BLOCK_BYTES)
        if not data:
            return None
        num_zeros = len(data) - len(data.lstrip(b"\0"))
        if num_zeros < len(data):
            return start + num_zeros // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        start += len(data)


@contextlib.contextmanager
def keep_decompressed_files() -> Iterator[None]:
    """Keeps decompressed files in the `with` block, so that each is decompressed only once.

    Blocks may overlap. The files are dropped at the end of the last one.
    """
    _active_users.append(None)
    try:
        yield
    finally:
        _active_users.pop()
        Progress.activity = ""
        if not _active_users:
            _decompressed_files.clear()


def _open_archive(path: str, archive: ArchiveMembers) -> Reader:
    """Opens an archive. A compressed tar is decompressed unless a current copy exists."""
    if archive.codec is None:
        return find_file_storage(path).open(path)
    blocks = archive.codec.algorithm.decompress_file(path, path, MAX_RATIO)
    return _open_decompressed(path, path, archive.archive_stat, blocks)


def _open_decompressed(
    path: str, archive: str, archive_stat: Stat, blocks: Iterable[bytes]
) -> Reader:
    """Opens the decompressed content of a tar or member. It is decompressed if there is no copy.

    Args:
        path: The path of the tar or member.
        archive: The path of the archive.
        archive_stat: State of the archive when its directory was read.
        blocks: The content, which is only consumed if there is no copy.
    """
    with _lock:
        known_stat, file = _decompressed_files.pop(path, (None, None))
        if known_stat is None or file is None or known_stat.is_changed(archive_stat):
            file = _decompress(path, blocks)
        _decompressed_files[path] = archive_stat, file
        # Readers have a descriptor of their own, so a dropped file stays readable for them.
        while len(_decompressed_files) > limit_descriptors(
            _MIN_DECOMPRESSED_FILES, _MAX_DECOMPRESSED_FILES
        ):
            _decompressed_files.popitem(last=False)
        if archive_stat.is_changed(find_file_storage(archive).last_known_stat(archive)):
            raise DataError("changed while it was read; start again", source=archive)
        descriptor_copy = os.dup(file.fileno())
    return _MemberReader(
        LocalReader(path, descriptor_copy),
        os.fstat(descriptor_copy).st_size,
        0,
        archive_stat=archive_stat,
    )


def _decompress(path: str, blocks: Iterable[bytes]) -> BinaryIO:
    file = create_unnamed_file()
    for block in blocks:
        try:
            write_all(file, block)
        except OSError as error:
            reason = (
                f"{error.strerror} in {tempfile.gettempdir()} (of TMPDIR), where it is decompressed"
            )
            raise OSError(error.errno, reason, path) from None
        Progress.activity = f"decompressing {os.path.basename(path)}, {file.tell() >> 20:,} MiB"
    Progress.activity = ""
    return file


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> _Member:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = (
            "encrypted"
            if info.flag_bits & 1
            else f"packed by method {info.compress_type}, which is not deflate"
        )
        raise UsageError(f"{path}: {info.filename!r} is {problem}; unpack it, and give the folder")
    member = _Member(
        offset=info.header_offset,
        packed_bytes=info.compress_size,
        size_bytes=info.file_size,
        crc=info.CRC,
        is_deflated=info.compress_type == zipfile.ZIP_DEFLATED,
    )
    if not member.is_large:
        return member
    head = b""
    # Damage of a member is reported when the member is read.
    with contextlib.suppress(zipfile.BadZipFile, zlib.error, EOFError), archive.open(info) as file:
        head = file.read(FORMAT_HEAD_BYTES)
    return replace(member, is_streamed=not needs_random_access(head))


def is_archive_member(path: str) -> bool:
    """Returns whether a path names a member of an existing archive.

    Only the archive must exist. The member may be missing.
    """
    archive = archive_path(path)
    if not is_remote(archive):
        return archive != "" and os.path.isfile(archive)
    with contextlib.suppress(FileNotFoundError):
        return OBJECT_STORAGE.last_known_stat(archive) is not None
    return False


def archive_path(path: str) -> str:
    """Returns the path of a member's archive, or "" for any other path.

    >>> archive_path("/data/a.tar!/b/c.csv"), archive_path("s3://b/c!/d.zip!/e")
    ('/data/a.tar', 's3://b/c!/d.zip')
    >>> archive_path("/data/c.csv")
    ''
    """
    return _split_path(path)[0] if MEMBER_SEPARATOR in path else ""


def _split_path(path: str) -> tuple[str, str]:
    match = _MEMBER.fullmatch(path)
    return ("", path) if match is None else (match[1], match[2])


def is_streamed_member(path: str) -> bool:
    """Returns whether a path names a member that is read as a gzip file.

    Such members are deflated and have more than 16 MiB of content, in a format that does not need
    random access.
    """
    return is_archive_member(path) and _find_member(path)[1].is_streamed


class ArchiveStorage(FileStorage):
    """Storage of the members of archives. See `FileStorage`."""

    def stat(self, path: str) -> Stat:
        find_file_storage(archive := archive_path(path)).stat(archive)
        return self.last_known_stat(path)

    def last_known_stat(self, path: str) -> Stat:
        archive_members, member = _find_member(path)
        return replace(archive_members.archive_stat, size_bytes=_size_as_file(member))

    def open(self, path: str) -> Reader:
        archive_members, member = _find_member(path)
        reader = _open_archive(archive_path(path), archive_members)
        try:
            start = member.offset
            if member.crc is None:  # a member of a tar
                return _MemberReader(reader, member.size_bytes, start)
            # The extra field of the local header may differ from that of the directory, so the
            # lengths are read from the local header.
            header = reader.fill(np.empty(_ZIP_HEADER_BYTES, np.uint8), start)[_ZIP_LENGTH_FIELDS]
            start += _ZIP_HEADER_BYTES + int(header.view("<u2").sum())
            if not member.is_deflated:
                return _MemberReader(reader, member.size_bytes, start, crc=member.crc, path=path)
            if member.is_streamed:
                # The trailer of a gzip file: CRC32 and size modulo 2**32.
                trailer = np.array([member.crc, member.size_bytes & 0xFFFFFFFF], "<u4").view(
                    np.uint8
                )
                return _MemberReader(
                    reader,
                    _size_as_file(member),
                    start - len(_GZIP_HEADER),
                    header=_GZIP_HEADER,
                    trailer=trailer,
                )
            blocks = _inflate_blocks(reader, start, member, path)
            if not member.is_large:
                content = np.frombuffer(b"".join(blocks), np.uint8)
                return _MemberReader(reader, member.size_bytes, 0, header=content)
            content_reader = _open_decompressed(
                path, archive_path(path), archive_members.archive_stat, blocks
            )
            reader.close()
            return content_reader
        except BaseException:
            reader.close()
            raise

    def map(self, path: str) -> Bytes:
        return self.read_file(path)

    def is_file(self, path: str) -> bool:
        archive, name = _split_path(path)
        return name in read_members(archive).members

    def is_folder(self, path: str) -> bool:
        archive, name = _split_path(path)
        return any(
            member_name.startswith(f"{name}/") for member_name in read_members(archive).members
        )

    def list_names(self, folder: str) -> list[str]:
        archive, name = _split_path(folder)
        relative_names = [
            member_name.removeprefix(f"{name}/")
            for member_name in read_members(archive).members
            if member_name.startswith(f"{name}/")
        ]
        return sorted({member_name.partition("/")[0] for member_name in relative_names})


class _MemberReader:
    """Reader of a member: a header, a range of the archive, and a trailer.

    Args:
        reader: The reader of the archive, which is closed with this one.
        size: The size of all three parts in bytes.
        start: Offset of the first byte after the header, in the archive.
        archive_stat: State of the archive. If None, the reader provides it.
        crc: CRC32 of all bytes. It is only checked if the bytes are read from the first to the
            last.
        path: The path of the member, for the error of a wrong CRC.
    """

    def __init__(
        self,
        reader: Reader,
        size: int,
        start: int,
        header: Bytes = _GZIP_HEADER[:0],
        trailer: Bytes = _GZIP_HEADER[:0],
        archive_stat: Stat | None = None,
        crc: int | None = None,
        path: str = "",
    ) -> None:
        self._reader, self._size, self._start, self._header, self._trailer = (
            reader,
            size,
            start,
            header,
            trailer,
        )
        self._archive_stat, self._crc, self._path = archive_stat, crc, path
        # The number of bytes that are checked, and their CRC.
        self._lock, self._num_checked, self._running_crc = threading.Lock(), 0, 0

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        buffer = buffer[: max(self._size - start, 0)]
        # `trailer_start` is an offset in the file, the other two are offsets in the buffer.
        trailer_start = self._size - len(self._trailer)
        header_end, trailer_begin = max(len(self._header) - start, 0), max(trailer_start - start, 0)
        buffer[:header_end] = self._header[start : start + len(buffer)]
        if len(middle := buffer[header_end:trailer_begin]):
            num_read = len(self._reader.fill(middle, self._start + start + header_end))
            if num_read < len(middle):
                return buffer[: header_end + num_read]
        buffer[trailer_begin:] = self._trailer[max(start - trailer_start, 0) :][
            : max(len(buffer) - trailer_begin, 0)
        ]
        if self._crc is not None and len(buffer):
            self._check(buffer, start)
        return buffer

    def _check(self, data: Bytes, start: int) -> None:
        with self._lock:
            # Reads in another order are not checked, because a CRC can only be computed in order.
            if start == self._num_checked:
                self._num_checked, self._running_crc = (
                    start + len(data),
                    zlib.crc32(data.data, self._running_crc),
                )
                if self._num_checked == self._size and self._running_crc != self._crc:
                    raise OSError(errno.EIO, _DAMAGED_MESSAGE, self._path)

    def stat(self) -> Stat:
        return replace(self._archive_stat or self._reader.stat(), size_bytes=self._size)

    def close(self) -> None:
        self._reader.close()


def _find_member(path: str) -> tuple[ArchiveMembers, _Member]:
    archive, name = _split_path(path)
    archive_members = read_members(archive)
    try:
        return archive_members, archive_members.members[name]
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, "is not a member of the archive", path) from None


def _size_as_file(member: _Member) -> int:
    return member.packed_bytes + len(_GZIP_HEADER) + 8 if member.is_streamed else member.size_bytes


def _inflate_blocks(reader: Reader, start: int, member: _Member, path: str) -> Iterator[bytes]:
    """Yields the content of a deflated member.

    Args:
        reader: The reader of the archive.
        start: Offset of the deflate stream.
        member: The member. Its size and CRC are checked.
        path: The path of the member, for messages.
    """
    stream, num_bytes, crc = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
    buffer = np.empty(min(member.packed_bytes, _BLOCK_BYTES), np.uint8)
    for offset in range(0, member.packed_bytes, _BLOCK_BYTES):
        block = reader.fill(buffer[: member.packed_bytes - offset], start + offset)
        data, content = block.tobytes(), b""
        # A full output block may leave content in the stream although all input is consumed.
        while data or len(content) == _BLOCK_BYTES:
            try:
                content = stream.decompress(data, _BLOCK_BYTES)
            except zlib.error as error:
                raise OSError(errno.EIO, f"is damaged: {error}", path) from None
            num_bytes, crc = num_bytes + len(content), zlib.crc32(content, crc)
            if num_bytes > member.size_bytes:
                raise OSError(errno.EIO, _DAMAGED_MESSAGE, path)
            yield content
            data = stream.unconsumed_tail
    if num_bytes != member.size_bytes or crc != member.crc:
        raise OSError(errno.EIO, _DAMAGED_MESSAGE, path)
