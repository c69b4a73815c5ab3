"""Members of ZIP and tar archives as files, by paths such as `a.zip!/b/c.csv`; nothing is unpacked to a disk.

A member that is stored is a range of its archive. A deflated one is inflated when it is opened, up to 16 MiB; a larger
one is read as the gzip file of the same deflate stream, so that text and TFRecord files of any size are streamed.

Sources: PKWARE's APPNOTE.TXT (4.3.7, 4.4.5), RFC 1952, POSIX pax by Python's `tarfile`.
"""

from __future__ import annotations

import errno
import functools
import os
import stat as modes
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import UsageError
from recordmill.storage.stores.local import LocalReader, LocalStorage
from recordmill.storage.stores.protocol import Reader, Stat

MARK = "!/"  # between an archive and a member
_INFLATED_BYTES = 16 << 20
_HEADER = np.frombuffer(b"\x1f\x8b\x08\0\0\0\0\0\0\xff", np.uint8)  # of gzip: deflate, nothing else said
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)  # of a member of a ZIP: its bytes; of its name and its extra field
OUTSIDE, LINK = "outside of the archive", "link or device in the archive"


@dataclass(frozen=True, slots=True)
class _Member:
    """start: of its data in a tar, of its header in a ZIP. packed: bytes in the archive. crc: None in a tar."""

    start: int
    packed: int
    size: int
    crc: int | None = None
    deflated: bool = False


@dataclass(frozen=True)
class ArchiveMembers:
    """The members of an archive by name, and the others by the reason why they are none."""

    members: dict[str, _Member] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, member: _Member | None, path: str) -> None:
        name = name.removeprefix("./")
        if not name or name[0] == "/" or "\\" in name or not {"..", "."}.isdisjoint(name.split("/")):
            self.ignored.append((OUTSIDE, name))
        elif member is None:
            self.ignored.append((LINK, name))
        elif name in self.members:
            raise UsageError(f"{path}: holds {name!r} twice; unpack it, and give the folder")
        else:
            self.members[name] = member


def is_archive(path: str) -> bool:
    """Whether the path is that of a file on a disk that is a ZIP or an uncompressed tar archive by name and content."""
    ending = path[-4:].lower()
    return os.path.isfile(path) and (
        (ending == ".zip" and zipfile.is_zipfile(path)) or (ending == ".tar" and tarfile.is_tarfile(path))
    )


def contents(path: str) -> ArchiveMembers:
    """What the archive holds.

    Raises:
        UsageError: it is damaged, encrypted, or packed by another method than deflate.
    """
    about = os.stat(path)
    return _contents(path, about.st_mtime_ns, about.st_size)


@functools.lru_cache(8)
def _contents(path: str, mtime_ns: int, size: int) -> ArchiveMembers:
    found = ArchiveMembers()
    try:
        if path[-4:].lower() == ".tar":
            with tarfile.open(path, "r:") as tar:
                for one in tar:
                    if not one.isdir():
                        plain = one.isreg() and not one.issparse()
                        found.add(one.name, _Member(one.offset_data, one.size, one.size) if plain else None, path)
            return found
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    is_link = modes.S_ISLNK(info.external_attr >> 16)
                    found.add(info.filename, None if is_link else _in_zip(info, path), path)
    except UsageError:
        raise
    except Exception as error:  # damage makes `zipfile` and `tarfile` raise many kinds
        raise UsageError(f"{path}: can't be read as an archive: {error}") from None
    return found


def _in_zip(info: zipfile.ZipInfo, path: str) -> _Member:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        how = "encrypted" if info.flag_bits & 1 else f"packed by method {info.compress_type}, which is not deflate"
        raise UsageError(f"{path}: {info.filename!r} is {how}; unpack it, and give the folder")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    return _Member(info.header_offset, info.compress_size, info.file_size, info.CRC, deflated)


def is_member(path: str) -> bool:
    """Whether the path is that of a member: in front of the mark is a file."""
    return MARK in path and os.path.isfile(path.partition(MARK)[0])


def archive_of(path: str) -> str:
    """Returns the path of the archive that a member lies in; of another file "".

    >>> archive_of("/data/a.tar!/b/c.csv"), archive_of("/data/c.csv")
    ('/data/a.tar', '')
    """
    archive, mark, _ = path.partition(MARK)
    return archive if mark else ""


def is_streamed(path: str) -> bool:
    """Returns whether the file of that path is a large member, which is read as a gzip file."""
    return is_member(path) and _is_streamed(_find(path)[1])


class ArchiveStorage:
    """See `FileStorage`."""

    def stat(self, path: str) -> Stat:
        archive, member = _find(path)
        about = LocalStorage().stat(archive)
        size = member.packed + len(_HEADER) + 8 if _is_streamed(member) else member.size
        return Stat(size, about.mtime_ns, ctime_ns=about.ctime_ns)

    last_seen = stat

    def open(self, path: str) -> Reader:
        archive, member = _find(path)
        reader, about = LocalReader(archive), self.stat(path)
        try:
            start = member.start
            if member.crc is not None:
                header = reader.fill(np.empty(_LOCAL_HEADER, np.uint8), start)[_LENGTHS]
                start += _LOCAL_HEADER + int(header.view("<u2").sum())
            if not member.deflated:
                return _Range(reader, about, start)
            if _is_streamed(member):
                crc, size = member.crc or 0, member.size & 0xFFFFFFFF
                end = np.frombuffer(crc.to_bytes(4, "little") + size.to_bytes(4, "little"), np.uint8)
                return _Range(reader, about, start - len(_HEADER), _HEADER, end)
            data = reader.fill(np.empty(member.packed, np.uint8), start)
            return _Range(reader, about, 0, _inflate(data, member, path))
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
        archive, _, name = path.partition(MARK)
        return name in contents(archive).members

    def is_folder(self, path: str) -> bool:
        archive, _, name = path.partition(MARK)
        return any(one.startswith(f"{name}/") for one in contents(archive).members)

    def names(self, folder: str) -> list[str]:
        archive, _, name = folder.partition(MARK)
        below = [one.removeprefix(f"{name}/") for one in contents(archive).members if one.startswith(f"{name}/")]
        return sorted({one.partition("/")[0] for one in below})


class _Range:
    """The bytes `head`, what the archive has after them from `start` on, and `end`."""

    def __init__(
        self, reader: LocalReader, about: Stat, start: int, head: Bytes = _HEADER[:0], end: Bytes = _HEADER[:0]
    ) -> None:
        self._reader, self._about, self._start, self._head, self._end = reader, about, start, head, end

    def fill(self, into: Bytes, start: int) -> Bytes:
        into = into[: max(self._about.size_bytes - start, 0)]
        tail = self._about.size_bytes - len(self._end)  # where the end begins
        first, last = max(len(self._head) - start, 0), max(tail - start, 0)
        into[:first] = self._head[start : start + len(into)]
        if len(middle := into[first:last]):
            got = len(self._reader.fill(middle, self._start + start + first))
            if got < len(middle):
                return into[: first + got]
        into[last:] = self._end[max(start - tail, 0) :][: max(len(into) - last, 0)]
        return into

    def stat(self) -> Stat:
        return self._about

    def close(self) -> None:
        self._reader.close()


def _find(path: str) -> tuple[str, _Member]:
    archive, _, name = path.partition(MARK)
    try:
        return archive, contents(archive).members[name]
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, "is no member of the archive", path) from None


def _is_streamed(member: _Member) -> bool:
    return member.deflated and member.size > _INFLATED_BYTES


def _inflate(data: Bytes, member: _Member, path: str) -> Bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = stream.decompress(data.data, member.size + 1)
    except zlib.error as error:
        raise OSError(errno.EIO, f"is damaged: {error}", path) from None
    if len(found) != member.size or zlib.crc32(found) != member.crc:
        raise OSError(errno.EIO, "is damaged: it is not what the archive's directory says", path)
    return np.frombuffer(found, np.uint8)
