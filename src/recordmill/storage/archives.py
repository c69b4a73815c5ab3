"""Members of ZIP and tar archives as files, by paths such as `a.zip!/b/c.csv`; an archive lies on a disk or in a store.

A member that is stored is a range of its archive. A deflated one is inflated when it is opened, up to 16 MiB; a larger
one is read as the gzip file of the same deflate stream, so that text and TFRecord files of any size are streamed. A tar
that is compressed as a whole can't be read here and there: each process that reads it decompresses it once, into a file
without a name in the folder for temporary files, which goes when no build or read is at work any more.

Sources: PKWARE's APPNOTE.TXT (4.3.7, 4.4.5), RFC 1952, POSIX pax by Python's `tarfile`.
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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, cast

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, UsageError
from recordmill.base.progress import Progress
from recordmill.base.threads import ForkSafeLock
from recordmill.storage.codecs import BZ2, CODECS, GZIP, MAX_RATIO, XZ, ZSTD, Codec
from recordmill.storage.disk_files import write_all
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.local import LocalReader, LocalStorage
from recordmill.storage.stores.objects import ObjectStorage
from recordmill.storage.stores.protocol import FileStorage, Reader, ReaderFile, Stat

MEMBER_SEPARATOR = "!/"  # between an archive and a member
_TAR = r"\.t(?:ar|(?:ar\.)?(?:gz|bz2|xz|zst))"
_MEMBER = re.compile(rf"(.+?(?:\.zip|{_TAR}))!/(.*)", re.IGNORECASE | re.DOTALL)
_ARCHIVE, TAR_SUFFIX = (
    re.compile(f"(?:{ending})$", re.IGNORECASE) for ending in (rf"\.zip|{_TAR}", _TAR)
)
_TAR_CODECS = (GZIP, BZ2, XZ, ZSTD)  # of tars
_HEAD_BYTES = 16  # which tell how a tar is compressed
_MAX_INFLATED_BYTES = 16 << 20
_MAX_HEADER_BYTES = 1 << 20  # 1 MiB: of a member's header in a tar, which `tarfile` holds whole
_MAX_DECOMPRESSED_TARS = (
    200  # tars that stay decompressed: each takes a descriptor, of which a process often has 1,024
)
_MAX_CACHED_ARCHIVES, _MAX_CACHED_MEMBERS = (
    8,
    1 << 18,
)  # whose directories are kept: so many archives, or more of few members each
_GZIP_HEADER = np.frombuffer(
    b"\x1f\x8b\x08\0\0\0\0\0\0\xff", np.uint8
)  # of gzip: deflate, nothing else said
_ZIP_HEADER_BYTES, _ZIP_LENGTH_FIELDS = (
    30,
    slice(26, 30),
)  # of a member of a ZIP: its bytes; of its name and its extra field
_DAMAGED_MESSAGE = "is damaged: it is not what the archive's directory says"
OUTSIDE_ARCHIVE, LINK_IN_ARCHIVE = "outside of the archive", "link or device in the archive"

LOCAL_STORAGE, OBJECT_STORAGE = (
    LocalStorage(),
    ObjectStorage(),
)  # of this process: what holds archives, and other files


@dataclass(frozen=True, slots=True)
class _Member:
    """start: of its data in a tar, of its header in a ZIP. packed: bytes in the archive. crc: None in a tar."""

    offset: int
    packed_bytes: int
    size_bytes: int
    crc: int | None = None
    is_deflated: bool = False


@dataclass(frozen=True)
class ArchiveMembers:
    """The members of an archive by name, and the others by the reason why they are none.

    about: what the archive was when it was read. codec: what all of it is compressed with.
    """

    archive_stat: Stat
    codec: Codec | None = None
    members: dict[str, _Member] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, member: _Member | None, path: str) -> None:
        name = name.removeprefix("./")
        if (
            not name
            or name[0] == "/"
            or "\\" in name
            or not {"..", "."}.isdisjoint(name.split("/"))
        ):
            self.ignored.append((OUTSIDE_ARCHIVE, name))
        elif member is None:
            self.ignored.append((LINK_IN_ARCHIVE, name))
        elif name in self.members:
            raise UsageError(f"{path}: holds {name!r} twice; unpack it, and give the folder")
        else:
            self.members[name] = member


def _storage_of_archive(archive: str) -> FileStorage:
    return (
        LOCAL_STORAGE if "://" not in archive or Address.parse(archive) is None else OBJECT_STORAGE
    )


def is_archive(path: str) -> bool:
    """Returns whether the path is that of a file that is a ZIP or a tar archive by name and content; of a tar that is
    compressed the compression counts as content.
    """
    if _ARCHIVE.search(path) is None or not _storage_of_archive(path).is_file(path):
        return False
    with ReaderFile(_storage_of_archive(path).open(path)) as file:
        if not is_tar(path):
            return zipfile.is_zipfile(cast(BinaryIO, file))
        return _detect_tar_codec(file) is not None or tarfile.is_tarfile(cast(BinaryIO, file))


def is_tar(path: str) -> bool:
    """Returns whether a file of that name is a tar, compressed or not.

    >>> [is_tar(name) for name in ("a.tar", "a.TAR.gz", "a.tgz", "a.tar.zst", "a.zip", "a.gz")]
    [True, True, True, True, False, False]
    """
    return TAR_SUFFIX.search(path) is not None


def _detect_tar_codec(file: ReaderFile) -> Codec | None:
    head = file.read(_HEAD_BYTES) or b""
    file.seek(0)
    return next(
        (codec for codec in CODECS if codec.name in _TAR_CODECS and codec.algorithm.is_head(head)),
        None,
    )


_lock = ForkSafeLock()
# by archive; the one that was used last stands last
_cached_members: OrderedDict[str, ArchiveMembers] = OrderedDict()
_decompressed_tars: OrderedDict[str, tuple[Stat, BinaryIO]] = (
    OrderedDict()
)  # likewise: its state, its content
_active_users: list[None] = []  # one for each that uses these


def read_members(path: str) -> ArchiveMembers:
    """Returns the members of the archive.

    Raises:
        UsageError: it is damaged, encrypted, or packed by another method than deflate.
        DataError: it is a tar whose compression is damaged, or that grows beyond `MAX_RATIO`.
    """
    archive_stat = _storage_of_archive(path).last_known_stat(path)
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
    with ReaderFile(_storage_of_archive(path).open(path)) as file:
        archive_members = ArchiveMembers(
            archive_stat, _detect_tar_codec(file) if is_tar(path) else None
        )
        try:
            if is_tar(path):
                _read_tar(archive_members, path)
                return archive_members
            with zipfile.ZipFile(cast(BinaryIO, file)) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        is_link = modes.S_ISLNK(info.external_attr >> 16)
                        archive_members.add(
                            info.filename, None if is_link else _zip_member(info, path), path
                        )
        except (UsageError, DataError):
            raise
        except Exception as error:  # damage makes `zipfile` and `tarfile` raise many kinds
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise UsageError(f"{path}: can't be read as an archive: {error}") from None
    return archive_members


class _HeaderFile(ReaderFile):
    """Gives no more, from where it was sought to, than a member's header takes; newer `tarfile` reads it in chunks."""

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
        header = tar.next()
        while header is not None:
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
                header = tarfile.TarInfo.fromtarfile(tar)  # which `next` would keep
            except tarfile.HeaderError:  # at the end, too
                header = None
        if tar.offset > file.seek(0, os.SEEK_END):
            raise tarfile.ReadError("unexpected end of data")
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"at byte {tar.offset} no member begins")


@contextlib.contextmanager
def keep_decompressed_tars() -> Iterator[None]:
    """Keeps what is decompressed until the last of those that are at work within has ended."""
    _active_users.append(None)
    try:
        yield
    finally:
        _active_users.pop()
        Progress.activity = ""
        if not _active_users:
            _decompressed_tars.clear()


def _open_archive(path: str, archive: ArchiveMembers) -> Reader:
    """The bytes of the archive; a tar that is compressed is decompressed if it was not yet, or is another one now."""
    if archive.codec is None:
        return _storage_of_archive(path).open(path)
    with _lock:
        known_stat, file = _decompressed_tars.pop(path, (None, None))
        if known_stat is None or file is None or known_stat.is_changed(archive.archive_stat):
            file = _decompress_tar(path, archive.codec)
        _decompressed_tars[path] = archive.archive_stat, file
        if len(_decompressed_tars) > _MAX_DECOMPRESSED_TARS:
            _decompressed_tars.popitem(last=False)
        if archive.archive_stat.is_changed(_storage_of_archive(path).last_known_stat(path)):
            raise DataError("changed while it was read; start again", source=path)
        descriptor_copy = os.dup(file.fileno())
    return _MemberReader(
        LocalReader(path, descriptor_copy),
        os.fstat(descriptor_copy).st_size,
        0,
        archive_stat=archive.archive_stat,
    )


def _decompress_tar(path: str, codec: Codec) -> BinaryIO:
    file = cast(BinaryIO, tempfile.TemporaryFile(prefix="recordmill-", buffering=0))  # noqa: SIM115
    for block in codec.algorithm.decompress_file(path, path, MAX_RATIO):
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


def _zip_member(info: zipfile.ZipInfo, path: str) -> _Member:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = (
            "encrypted"
            if info.flag_bits & 1
            else f"packed by method {info.compress_type}, which is not deflate"
        )
        raise UsageError(f"{path}: {info.filename!r} is {problem}; unpack it, and give the folder")
    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
    return _Member(
        offset=info.header_offset,
        packed_bytes=info.compress_size,
        size_bytes=info.file_size,
        crc=info.CRC,
        is_deflated=is_deflated,
    )


def is_archive_member(path: str) -> bool:
    """Returns whether the path is that of a member: in front of the mark is a file."""
    archive = archive_path(path)
    if not archive or _storage_of_archive(archive) is LOCAL_STORAGE:
        return os.path.isfile(archive)
    with contextlib.suppress(FileNotFoundError):
        return OBJECT_STORAGE.last_known_stat(archive) is not None
    return False


def archive_path(path: str) -> str:
    """Returns the path of the archive that a member lies in; of another file "".

    >>> archive_path("/data/a.tar!/b/c.csv"), archive_path("s3://b/c!/d.zip!/e"), archive_path("/data/c.csv")
    ('/data/a.tar', 's3://b/c!/d.zip', '')
    """
    return _split_path(path)[0] if MEMBER_SEPARATOR in path else ""


def _split_path(path: str) -> tuple[str, str]:
    match = _MEMBER.fullmatch(path)
    return ("", path) if match is None else (match[1], match[2])


def is_streamed_member(path: str) -> bool:
    """Returns whether the file of that path is a large member, which is read as a gzip file."""
    return is_archive_member(path) and _is_streamed(_find_member(path)[1])


class ArchiveStorage:
    """See `FileStorage`."""

    def stat(self, path: str) -> Stat:
        _storage_of_archive(archive := archive_path(path)).stat(archive)
        return self.last_known_stat(path)

    def last_known_stat(self, path: str) -> Stat:
        archive_members, member = _find_member(path)
        return replace(archive_members.archive_stat, size_bytes=_size_as_file(member))

    def open(self, path: str) -> Reader:
        archive_members, member = _find_member(path)
        reader = _open_archive(archive_path(path), archive_members)
        try:
            start = member.offset
            if member.crc is None:
                return _MemberReader(reader, member.size_bytes, start)
            header = reader.fill(np.empty(_ZIP_HEADER_BYTES, np.uint8), start)[_ZIP_LENGTH_FIELDS]
            start += _ZIP_HEADER_BYTES + int(header.view("<u2").sum())
            if not member.is_deflated:
                return _MemberReader(reader, member.size_bytes, start, crc=member.crc, path=path)
            if _is_streamed(member):
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
            data = reader.fill(np.empty(member.packed_bytes, np.uint8), start)
            content = _inflate_member(data, member, path)
            return _MemberReader(reader, member.size_bytes, 0, header=content)
        except BaseException:
            reader.close()
            raise

    def map(self, path: str) -> Bytes:
        reader = self.open(path)
        try:
            return reader.fill(np.empty(reader.stat().size_bytes, np.uint8), 0)
        finally:
            reader.close()

    def exists(self, path: str) -> bool:
        return self.is_file(path) or self.is_folder(path)

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
    """`size` bytes: `head`, what the archive has after them from `start` on, and `end`.

    about: what the archive was, if the reader does not say it. crc: of all bytes, which is checked where they are read
    from the first to the last.
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
        self._lock, self._num_checked, self._running_crc = (
            threading.Lock(),
            0,
            0,
        )  # bytes that were checked, their CRC

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        buffer = buffer[: max(self._size - start, 0)]
        trailer_start = self._size - len(self._trailer)  # where the end begins
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
        raise FileNotFoundError(errno.ENOENT, "is no member of the archive", path) from None


def _is_streamed(member: _Member) -> bool:
    return member.is_deflated and member.size_bytes > _MAX_INFLATED_BYTES


def _size_as_file(member: _Member) -> int:
    return (
        member.packed_bytes + len(_GZIP_HEADER) + 8 if _is_streamed(member) else member.size_bytes
    )


def _inflate_member(data: Bytes, member: _Member, path: str) -> Bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(data.data, member.size_bytes + 1)
    except zlib.error as error:
        raise OSError(errno.EIO, f"is damaged: {error}", path) from None
    if len(content) != member.size_bytes or zlib.crc32(content) != member.crc:
        raise OSError(errno.EIO, _DAMAGED_MESSAGE, path)
    return np.frombuffer(content, np.uint8)
