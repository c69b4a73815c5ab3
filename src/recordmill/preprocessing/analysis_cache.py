"""Files whose analysis is kept: a file of a cache says which input files a group has, and what tf.Transform's analysers
had found in them. What is not whole, not of this context or not of this format is no group.

    MAGIC, length of the header (8 bytes), header as JSON, members (32 bytes each), a block per entry, SHA-256 of it all

A block is an entry's elements, each behind its length (4 bytes, as the other numbers little-endian). An element is
what an analyser makes of numbers and texts; none is a pickle, and none is ever taken for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.storage.files import atomic_write, create_file, has_hole, open_file, stat, write_all
from recordmill.storage.folders import names_in

KNOWN, UNUSED = -1, -2  # of a file, in place of the number of its group: found before; not in the split
CACHE_MEMBER_BYTES = 32  # the SHA-256 that stands for a file
_MAGIC = b"recordmill known group 2\n"
_NAME = re.compile(r"([0-9a-f]{32})-[0-9a-f]{32}\.known")
_COPIED_BYTES = 8 << 20  # 8 MiB: what is held of a group at once
_MOST_HEADER = 16 << 20  # 16 MiB: names of entries
_MOST_ELEMENT = 256 << 20  # 256 MiB: the largest are sums of large matrices, and one is held at a time


@dataclass(frozen=True)
class CachedGroup:
    """A group that was found whole. path: its file. members: of its files, sorted. entries: key of tf.Transform's cache
    to where its elements begin and end.
    """

    path: str
    members: tuple[bytes, ...]
    entries: Mapping[bytes, tuple[int, int]]

    def elements(self, key: bytes) -> Iterator[bytes]:
        """What was found, one by one."""
        return read_elements((self.path, *self.entries[key]))


@dataclass(frozen=True)
class Groups:
    """What is to be analysed. of_file: [files] the group of each file, or KNOWN or UNUSED. known: what was found in the
    others.
    """

    of_file: npt.NDArray[np.int16]
    known: tuple[CachedGroup, ...]

    @property
    def new(self) -> list[int]:
        """The numbers of the groups that are to be analysed."""
        return [int(number) for number in np.unique(self.of_file) if number >= 0]


def read_elements(block: tuple[str, int, int]) -> Iterator[bytes]:
    """The elements between two places of a file."""
    path, start, stop = block
    with open_file(path) as file:
        file.seek(start)
        while file.tell() < stop:
            yield file.read(struct.unpack("<I", file.read(4))[0])


def framed(element: bytes) -> bytes:
    """The element as it stands in a block."""
    return struct.pack("<I", len(element)) + element


def group_name(context: str, members: Sequence[bytes]) -> str:
    """The name of a group's file. context: hex digits of what all groups that go together have in common."""
    return f"{context[:32]}-{hashlib.sha256(b''.join(sorted(members))).hexdigest()[:32]}.known"


def write_group(folder: str, context: str, members: Sequence[bytes], parts: Mapping[bytes, Sequence[str]]) -> None:
    """Put the group into the cache, whole; one that is there of the same name is replaced by its like.

    parts: key of an entry to the files that hold its framed elements.
    """
    sizes = [[key.hex(), sum(stat(path).size_bytes for path in paths)] for key, paths in sorted(parts.items())]
    header = json.dumps({"context": context, "members": len(members), "entries": sizes}).encode()
    digest = hashlib.sha256()

    def put(file: BinaryIO, data: bytes) -> None:
        digest.update(data)
        write_all(file, data)

    with atomic_write(Path(folder, group_name(context, members))) as file:
        put(file, _MAGIC + struct.pack("<Q", len(header)) + header)
        put(file, b"".join(sorted(members)))
        for _, paths in sorted(parts.items()):
            for path in paths:
                with open_file(path) as part:
                    while data := part.read(_COPIED_BYTES):
                        put(file, data)
        write_all(file, digest.digest())


def find_groups(folder: str, context: str, into: str) -> tuple[list[CachedGroup], int]:
    """(the whole groups of this context, copied into a folder of the run's where nobody changes them; how many were
    damaged).
    """
    found, damaged = [], 0
    for name in names_in(folder):
        match = _NAME.fullmatch(name)
        if match is None or match[1] != context[:32]:
            continue
        try:
            check_header(os.path.join(folder, name), context)  # before anything of its size is copied
            _copy(os.path.join(folder, name), copy := os.path.join(into, name))
            group = open_group(copy, context)
            if name != group_name(context, group.members):
                raise DataError("has another group's name", source=name)
            found.append(group)
        except (DataError, OSError):
            damaged += 1
    return found, damaged


def choose_groups(groups: Iterable[CachedGroup], members: Iterable[bytes]) -> list[CachedGroup]:
    """Groups that have no files but these, each at most as often as it is there; the largest first."""
    left = Counter(members)
    chosen: list[CachedGroup] = []
    for group in sorted(groups, key=lambda one: (-len(one.members), one.path)):
        mine = Counter(group.members)
        same = not chosen or group.entries.keys() == chosen[0].entries.keys()
        if same and all(left[member] >= count for member, count in mine.items()):
            left -= mine
            chosen.append(group)
    return chosen


def _copy(source: str, target: str) -> None:
    """A regular file's bytes; a link or a device in a cache is nothing that was written there."""
    with open_file(source, follow_links=False) as file, create_file(target) as out:
        while data := file.read(_COPIED_BYTES):
            write_all(out, data)


def open_group(path: str, context: str) -> CachedGroup:
    """The group of a file. Raises DataError if it is damaged, or of another context."""
    group = check_header(path, context)
    _check_digest(path)
    for key in group.entries:
        _check_elements(group, key)
    return group


def check_header(path: str, context: str) -> CachedGroup:
    """What the header says. Raises DataError unless the file is of this context, and as long as its header says without
    a hole in it: one takes no room where it lies, and all of it where it is copied to.
    """
    with open_file(path, follow_links=False) as file:
        if has_hole(file) or file.read(len(_MAGIC)) != _MAGIC:
            raise DataError("is no group of files", source=path)
        try:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(min(size, _MOST_HEADER)))
            if header["context"] != context:
                raise DataError("is of another context", source=path)
            sizes = [CACHE_MEMBER_BYTES * header["members"], *(block for _, block in header["entries"])]
            if not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError("a size is none")
            members = file.read(sizes[0])
            at, entries = file.tell(), {}
            for (key, _), block in zip(header["entries"], sizes[1:], strict=True):
                entries[bytes.fromhex(key)] = (at, at + block)
                at += block
        except (KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
            raise DataError(f"has a header that can't be read ({type(error).__name__})", source=path) from None
    if at + CACHE_MEMBER_BYTES != stat(path).size_bytes:
        raise DataError("has another length than its header says", source=path)
    split = tuple(members[i : i + CACHE_MEMBER_BYTES] for i in range(0, len(members), CACHE_MEMBER_BYTES))
    return CachedGroup(path, split, entries)


def _check_digest(path: str) -> None:
    digest = hashlib.sha256()
    size = stat(path).size_bytes - digest.digest_size
    with open_file(path) as file:
        while size > 0 and (data := file.read(min(_COPIED_BYTES, size))):
            digest.update(data)
            size -= len(data)
        if size or file.read() != digest.digest():
            raise DataError("is damaged: its digest is another", source=path)


def _check_elements(group: CachedGroup, key: bytes) -> None:
    """Raises DataError unless the elements fill their block, and each can be held."""
    start, stop = group.entries[key]
    with open_file(group.path) as file:
        while start < stop:
            file.seek(start)
            (size,) = struct.unpack("<I", file.read(4))
            if size > _MOST_ELEMENT:
                raise DataError(f"has an element of {size:,} bytes", source=group.path)
            start += 4 + size
    if start != stop:
        raise DataError("has elements that do not fill their block", source=group.path)
