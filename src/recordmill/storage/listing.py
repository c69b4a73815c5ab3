"""INPUTs as a user types them (files, folders, globs, `@list.txt`) to a `Listing`: every file once, in one order, with
what was left out.

It looks at names and sizes only; `detect` looks inside, `layout` reads meaning into folders. What holds on a disk holds
in a store, which has no links.
"""

from __future__ import annotations

import contextlib
import os
import stat as modes
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.storage.external_sort import Row, Sorter
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Stat, input_path, is_remote, plain_name, read_blocks, stat, stat_of
from recordmill.storage.folders import is_folder, real_path
from recordmill.storage.walk import (
    UNFINISHED,
    FileEntry,
    Ignored,
    Walk,
    has_magic,
    look_for_runs,
    no_data_set,
    shared_content,
    unfinished_in,
    walk_store,
    within,
)

_SHOWN = 3  # names in a message
_BLOCK_BYTES = 1 << 20  # of a list of names


@dataclass(frozen=True)
class Root:
    """One INPUT. given: as typed. path: the real folder to which its names are relative.
    folder: the INPUT is itself a folder.
    """

    given: str
    path: str
    folder: bool

    @property
    def label(self) -> str:
        """The folder's own name as typed (`data/cats/` is `cats`), which may name a class or a split."""
        return os.path.basename(os.path.abspath(self.given)) if self.folder else ""


@dataclass(frozen=True)
class Listing:
    """The files of all INPUTs.

    files: sorted by (root, name as bytes). roots: the INPUTs, by ordinal. ignored: how many files per reason were left
    out. notes: the same in words, with names. named: the paths of files given by their own name; named_roots: of the
    INPUTs all of whose files were given so, the ordinals. See `is_named`. data_extensions: those that promise data.
    """

    files: FileTable
    roots: tuple[Root, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    named_roots: frozenset[int] = frozenset()
    data_extensions: Collection[str] = ()

    def is_named(self, file: InputFile) -> bool:
        """Whether the file was given by its own name, so that nothing may leave it out silently."""
        return file.root in self.named_roots or file.path in self.named

    def are_named(self, some: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[files] which of some files were given by their own names."""
        found = np.zeros(len(self.files), np.bool_)
        if self.named or self.named_roots:
            for at in np.flatnonzero(some).tolist():
                found[at] = self.is_named(self.files[at])
        return found

    @property
    def size_bytes(self) -> int:
        return self.files.size_bytes


def list_inputs(
    inputs: Sequence[str],
    *,
    follow_links: bool = False,
    data_extensions: Collection[str] = (),
    folder: str | None = None,
) -> Listing:
    """The files that the INPUTs name.

    data_extensions: lower-case, without dots; they promise data, so an empty file of these is kept. folder: where very
    many files are sorted and kept; None: among the system's temporary files.

    - A path that exists is taken by its own name, whatever characters it holds; a glob (`*`, `?`, `[a-z]`, `**`) is
      what doesn't exist.
    - Folders are walked without hidden, temporary and marker files; empty files stay only where their extension
      is one of data_extensions.
    - `@list.txt` holds one path or glob a line, relative to the list's own folder (never to the working directory);
      blank lines are skipped. Names are relative to the list's folder, or, where a file lies outside it, to the deepest
      folder that holds all files.
    - A link out of its root, and what lies behind it, is read only with follow_links. A link to a file inside the root
      is a file of its own; a link to a folder inside the root is not followed without follow_links, since that folder
      is walked anyway.
    - A file that two INPUTs name, by itself or by a link, is refused: its records would be there twice, under two
      identities. Of several names of one file within an INPUT a note tells.
    - What builds and reads at work have written, and killed ones left, is left out; an INPUT that is all of that kind
      is refused, and so is such a file that was named.

    Raises:
        UsageError: nothing there, nothing in it, not readable, a dangling link, a link out of the root, a file named
            twice, a name that is not UTF-8, a URI; the message names the file and says what to do.
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [os.fspath(inputs)]
    if not inputs:
        raise UsageError("no INPUT: name files, folders, a quoted glob or @list.txt")
    ignored = Ignored(data_extensions, folder)
    roots: list[Root] = []
    named, all_named = set[str](), set[int]()
    found = _Gathered(folder)
    for ordinal, given in enumerate(map(os.fspath, inputs)):
        root, by_name = _resolve(given, follow_links, ignored, found, ordinal)
        roots.append(root)
        if by_name is None:
            all_named.add(ordinal)
        else:
            named.update(by_name)
    files = found.files(roots, _Unfinished(ignored, named, all_named))
    said = dict(ignored.count), (*ignored.notes(), *found.linked(files, roots))
    return Listing(files, tuple(roots), *said, frozenset(named), frozenset(all_named), data_extensions)


class _Unfinished:
    """What runs have put where the INPUTs lie that is no result, or not yet. named, all_named: paths of files, and
    numbers of INPUTs all of whose files, were given by their own names.
    """

    def __init__(self, ignored: Ignored, named: Collection[str], all_named: Collection[int]) -> None:
        self._folders = [path for folder in sorted(ignored.runs_in) for path in unfinished_in(folder)]
        self._named, self._all_named = named, all_named
        for folder in self._folders:
            ignored.add(UNFINISHED, folder, folder)

    def without(self, rows: Iterable[Row]) -> Iterable[Row]:
        """The rows (root, name, path, ...) of other files.

        Raises:
            UsageError: a file that was given by its own name is among them, or all that an INPUT names.
        """
        return self._others(rows) if self._folders else rows

    def _others(self, rows: Iterable[Row]) -> Iterator[Row]:
        beginnings = tuple(f"{folder}/" for folder in self._folders)
        left_out, roots = dict[int, str](), set[int]()
        for row in rows:
            path = real_path(row[2])
            if not path.startswith(beginnings):
                roots.add(row[0])
                yield row
                continue
            left_out[row[0]] = folder = next(one for one in self._folders if path.startswith(f"{one}/"))
            if row[0] in self._all_named or row[2] in self._named:
                raise no_data_set(folder)
        for root, folder in left_out.items():
            if root not in roots:
                raise no_data_set(folder)


class _Gathered:
    """What the INPUTs name, as it is found, to files in order, each once."""

    def __init__(self, folder: str | None) -> None:
        self.folder, self._rows = folder, Sorter(folder)
        self._contents, self._has_links = Sorter(folder), False

    def of(self, root: int) -> Callable[[FileEntry], None]:
        """What takes the files of that INPUT, of which a pattern may find one in two ways."""
        return lambda file: self.add(root, file, 0)

    def add(self, root: int, file: FileEntry, line: int) -> None:
        """line: of a list, two of which must not name the same file."""
        about = file.stat
        if file.content:
            self._contents.add((file.content, file.path, root, file.name))
            self._has_links = self._has_links or file.content == os.path.abspath(file.content)
        known = about.size_bytes, about.mtime_ns, about.etag, about.ctime_ns
        self._rows.add((root, file.name, line, file.path, *known))

    def files(self, roots: Sequence[Root], unfinished: _Unfinished) -> FileTable:
        """All of them, but what is unfinished.

        Raises:
            UsageError: a name is not UTF-8, or a file is named twice, or unfinished.
        """
        rows = _named_well(
            unfinished.without(_each_once(self._rows.sorted()))
        )  # code points sort as their UTF-8 bytes do
        found = (InputFile(root, name, path, Stat(*about)) for root, name, path, *about in rows)
        files = FileTable.of(found, self.folder)
        if len(roots) > 1 or not roots[0].folder:  # else each name is a path of its own
            by_path = Sorter(self.folder)
            for number, file in enumerate(files):
                by_path.add((file.path, file.root, file.name, number))
            _check_once(by_path.sorted(), roots)
        return files

    def linked(self, files: FileTable, roots: Sequence[Root]) -> list[str]:
        """Notes of files that have several names among these.

        Raises:
            UsageError: two INPUTs name them.
        """
        for file in files if self._has_links else ():  # what links lead to
            self._contents.add((file.path, file.path, file.root, file.name))
        count, shown, first = 0, list[str](), ("", "", 0, "")
        for content, path, root, name in self._contents.sorted():
            if content != first[0]:
                first = content, path, root, name
            elif path != first[1]:
                if root != first[2]:
                    both = f"{roots[first[2]].given!r} and {roots[root].given!r}"
                    raise UsageError(
                        f"{path} is {first[1]} by a link, so {both} name one file: its records would be there twice; "
                        "leave one out"
                    )
                count += 1
                shown += [f"{name} is {first[3]}"] if count <= _SHOWN else []
        names = ", ".join(shown) + (", ..." if count > _SHOWN else "")
        return [f"{count:,} file(s) are others by a link, so their records are there twice: {names}"] if count else []


def _each_once(rows: Iterable[Row]) -> Iterator[Row]:
    """(root, name, path, size, mtime, etag, ctime) of sorted rows that have the line behind the name."""
    last: Row = ()
    for row in rows:
        if row[:4] != last[:4]:
            yield (*row[:2], *row[3:])
        last = row


def _resolve(
    given: str, follow_links: bool, ignored: Ignored, found: _Gathered, ordinal: int
) -> tuple[Root, Iterable[str] | None]:
    """The root, and which of its files were given by their own names; None: all of them."""
    path = input_path(given)
    if path[0] == "@" and not os.path.lexists(path):
        return _read_list(given, input_path(path[1:]), follow_links, ignored, found, ordinal)
    base, single = _expand(path, given, follow_links, ignored, found.of(ordinal))
    return Root(given, base, single is None and is_folder(path)), () if single is None else None


def _expand(
    path: str, given: str, follow_links: bool, ignored: Ignored, take: Callable[[FileEntry], None]
) -> tuple[str, str | None]:
    """The real folder that names are relative to, and the file that the path is, if it is no folder and no glob."""
    count = 0

    def counted(file: FileEntry) -> None:
        nonlocal count
        count += 1
        take(file)

    look_for_runs(real_path(path), ignored)
    if is_remote(path):
        return _of_store(path, given, ignored, take)
    if os.path.isdir(path):
        walk = Walk(path, follow_links, ignored, counted)
        walk.everything()
    elif os.path.lexists(path):
        base, single = _single(path)
        take(single)
        return base, single.path
    elif has_magic(path):
        fixed, pattern = _split_glob(path)
        if not os.path.isdir(fixed):
            raise UsageError(f"{given}: there is no folder {fixed}")
        walk = Walk(fixed, follow_links, ignored, counted)
        walk.matching(pattern)
    else:
        raise UsageError(f"{given}: no such file or folder{_hint(path)}")
    walk.finish()
    if not count:
        raise _nothing(given, has_magic(path) and not os.path.isdir(path), ignored)
    return walk.root, None


def _nothing(given: str, is_glob: bool, ignored: Ignored) -> UsageError:
    for folder in sorted(ignored.runs_in):
        for unfinished in unfinished_in(folder):
            return no_data_set(unfinished)
    left_out = f" that holds data ({'; '.join(ignored.notes())})" if ignored.count else ""
    return UsageError(f"{given}: no file {'matches' if is_glob else 'in this folder'}{left_out}")


def _of_store(path: str, given: str, ignored: Ignored, take: Callable[[FileEntry], None]) -> tuple[str, str | None]:
    path, is_glob = path.rstrip("/"), False
    try:
        with contextlib.suppress(FileNotFoundError):
            about, (base, _, name) = stat(path), path.rpartition("/")
            take(FileEntry(plain_name(name, path), path, about))
            return base, path
        base, pattern = path, None
        if has_magic(path) and not is_folder(path):
            (base, pattern), is_glob = _split_glob(path), True
        is_empty = True
        for file in walk_store(base, pattern, ignored):
            take(file)
            is_empty = False
    except OSError as error:
        raise UsageError(f"{given}: {error.strerror}") from error
    if is_empty:
        raise _nothing(given, is_glob, ignored)
    return base, None


def _single(path: str) -> tuple[str, FileEntry]:
    folder, name = os.path.split(path)
    try:
        about = os.stat(path)
    except OSError as error:
        target = f" to {os.readlink(path)}" if os.path.islink(path) else ""
        raise UsageError(f"{path}: {'link' + target + ': ' if target else ''}{error.strerror}") from error
    if not modes.S_ISREG(about.st_mode):
        raise UsageError(f"{path}: neither a file nor a folder (a pipe or a device); write it to a file first")
    base = os.path.realpath(folder or ".")
    path = os.path.join(base, name)
    return base, FileEntry(name, path, stat_of(about), shared_content(path, about, os.path.islink(path)))


def _split_glob(path: str) -> tuple[str, str]:
    """The folder in front of the first wildcard, and the pattern below it;
    a folder that exists by its own name is no pattern.
    """
    parts = path.split("/")
    first = next(
        (at for at, part in enumerate(parts) if has_magic(part) and not is_folder("/".join(parts[: at + 1]))),
        len(parts) - 1,
    )
    fixed = "/".join(parts[:first])
    return fixed or ("/" if path.startswith("/") else "."), "/".join(part for part in parts[first:] if part)


def _read_list(
    given: str, list_path: str, follow_links: bool, ignored: Ignored, found: _Gathered, ordinal: int
) -> tuple[Root, Iterable[str] | None]:
    """As `_resolve`. What its lines name waits on a disk until all are known, and with them the folder that names are
    relative to.
    """
    folder = real_path(os.path.dirname(list_path) or ".")
    about, rows, named, is_empty = _About(folder), Sorter(found.folder), list[str](), True
    for row in _entries(given, list_path, folder, follow_links, ignored, about):
        rows.add(row)
        is_empty = False
    if is_empty:
        raise UsageError(f"{given}: the list is empty; it needs one path a line")
    if about.stores and about.disks:
        raise UsageError(f"{given}: some of its files are on a disk and others in a store; make a list of each")
    base = folder if about.all_within else about.above
    for line, is_named, path, content, *rest in rows.sorted():
        named += [path] if is_named and about.has_patterns else []
        name = plain_name(os.path.relpath(path, base), path)
        found.add(ordinal, FileEntry(name, path, Stat(*rest), content), line)
    return Root(given, base, False), named if about.has_patterns else None


class _About:
    """What is known of all files that the lines of a list name. above: the deepest folder that holds them; stores,
    disks: how many lie there; has_patterns: some were not given by their own names.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self.all_within, self.above, self.has_patterns = folder, True, "", False
        self.stores = self.disks = 0

    def add(self, path: str, is_named: bool) -> None:
        remote, is_first = is_remote(path), not self.stores + self.disks
        self.stores, self.disks = self.stores + remote, self.disks + (not remote)
        self.has_patterns = self.has_patterns or not is_named
        self.all_within = self.all_within and within(path, self._folder)
        if not (self.stores and self.disks):
            above = os.path.dirname(path)
            self.above = os.path.commonpath([above] if is_first else [self.above, above])


def _entries(
    given: str, list_path: str, folder: str, follow_links: bool, ignored: Ignored, about: _About
) -> Iterator[Row]:
    """(number, whether its own name was given, path, what it shares, size in bytes, mtime_ns, etag, ctime_ns) of each
    file that the lines name, in their order.
    """
    for number, line in enumerate(_lines(given, list_path), 1):
        entry = os.fsdecode(line)
        if not entry.strip():
            continue
        path = _beside(folder, input_path(entry), list_path)
        by_name: dict[str, FileEntry] = {}  # a pattern may find a file in two ways
        try:
            _, single = _expand(path, entry, follow_links, ignored, _into(by_name))
        except UsageError as error:
            raise UsageError(
                f"{list_path}, line {number}: {error} (paths are relative to the list's folder, {folder})"
            ) from error
        for file in by_name.values():
            about.add(file.path, single is not None)
            known = file.stat.size_bytes, file.stat.mtime_ns, file.stat.etag, file.stat.ctime_ns
            yield number, single is not None, file.path, file.content, *known


def _lines(given: str, list_path: str) -> Iterator[bytes]:
    rest = b""
    try:
        for number, block in enumerate(read_blocks(list_path, _BLOCK_BYTES)):
            data = block.tobytes()
            *lines, rest = (rest + (data if number else data.removeprefix(b"\xef\xbb\xbf"))).split(b"\n")
            yield from (line.rstrip(b"\r") for line in lines)
    except OSError as error:
        raise UsageError(f"{given}: the list {list_path!r} can't be read: {error.strerror}") from error
    yield rest.rstrip(b"\r")


def _into(by_name: dict[str, FileEntry]) -> Callable[[FileEntry], None]:
    def take(file: FileEntry) -> None:
        by_name[file.name] = file

    return take


def _beside(folder: str, entry: str, list_path: str) -> str:
    """The path, or URI, that a line of a list names."""
    if is_remote(entry) or not is_remote(folder):
        return entry if is_remote(entry) else os.path.join(folder, entry)
    if os.path.isabs(entry) or ".." in entry.split("/"):
        raise UsageError(f"{list_path}: it lies in a store, and {entry!r} leads out of its folder there")
    return f"{folder}/{entry.removeprefix('./')}"


def _named_well(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows; raises UsageError behind the last one if names are not UTF-8."""
    bad, shown = 0, list[str]()
    for row in rows:
        if not row[1].isascii() and not _is_utf8(row[1]):
            bad += 1
            shown += [ascii(os.fsencode(row[2]))[1:]] if bad <= _SHOWN else []
        yield row
    if bad:
        raise UsageError(
            f"{bad} file name(s) are not UTF-8, so no manifest can hold them: {', '.join(shown)}; rename them "
            "(convmv does) and build again"
        )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_once(rows: Iterable[Row], roots: Sequence[Root]) -> None:
    """Refuse a path that stands in two rows (path, root, name, number), which come in order, but for links to a folder
    within a root.
    """
    last: Row = ("", 0, "", 0)
    for row in rows:
        if row[0] == last[0] and (row[1] != last[1] or row[2] == last[2]):
            both = roots[last[1]].given, roots[row[1]].given
            where = f"by {both[0]!r} and {both[1]!r}" if last[1] != row[1] else f"twice by {both[0]!r}"
            raise UsageError(f"{row[0]} is named {where}: its records would be there twice; leave one out")
        last = row


def _hint(path: str) -> str:
    """What may have been meant: the nearest folder that exists."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return f" (in {folder or '.'})" if folder not in ("", "/") else ""
