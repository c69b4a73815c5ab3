"""INPUTs as a user types them (files, folders, globs, `@list.txt`) to a `Listing`: every file once, in one order, with
what was left out.

It looks at names and sizes only; `detect` looks inside, `layout` reads meaning into folders. What holds on a disk holds
in a store, which has no links.
"""

from __future__ import annotations

import contextlib
import os
import stat as modes
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recordmill.base.errors import UsageError
from recordmill.storage.files import Stat, input_path, is_remote, plain_name, read_range, stat
from recordmill.storage.folders import has_name, is_folder, real_path
from recordmill.storage.store_walk import walk_store
from recordmill.storage.walk import Found, Ignored, Walk, has_magic, within


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file.

    root: the ordinal of the INPUT it was found under; name: its path relative to that root, with `/`; never absolute.
    path: where to open it. stat: what it was when it was listed. split: what its folders or its name say, or None.
    """

    root: int
    name: str
    path: str
    stat: Stat
    split: str | None = None


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
    out. notes: the same in words, with names. named: the paths of files given by their own name, which nothing may
    leave out silently.
    """

    files: tuple[InputFile, ...]
    roots: tuple[Root, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()

    @property
    def size_bytes(self) -> int:
        return sum(file.stat.size_bytes for file in self.files)


def list_inputs(inputs: Sequence[str], *, follow_links: bool = False, data_extensions: Collection[str] = ()) -> Listing:
    """The files that the INPUTs name.

    data_extensions: lower-case, without dots; they promise data, so an empty file of these is kept.

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
    - A file that two INPUTs name is refused: its records would be there twice, under two identities.

    Raises:
        UsageError: nothing there, nothing in it, not readable, a dangling link, a link out of the root, a file named
            twice, a name that is not UTF-8, a URI; the message names the file and says what to do.
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [os.fspath(inputs)]
    if not inputs:
        raise UsageError("no INPUT: name files, folders, a quoted glob or @list.txt")
    ignored = Ignored(data_extensions)
    roots: list[Root] = []
    files: list[InputFile] = []
    named: set[str] = set()
    for ordinal, given in enumerate(map(os.fspath, inputs)):
        root, found, by_name = _resolve(given, follow_links, ignored)
        roots.append(root)
        named.update(by_name)
        files.extend(InputFile(ordinal, file.name, file.path, file.stat) for file in found)
    files.sort(key=lambda file: (file.root, file.name))  # code points sort as their UTF-8 bytes do
    _check_names(files)
    _check_once(files, roots)
    return Listing(tuple(files), tuple(roots), dict(ignored.count), tuple(ignored.notes()), frozenset(named))


def _resolve(given: str, follow_links: bool, ignored: Ignored) -> tuple[Root, list[Found], Iterable[str]]:
    """The root, its files and which of these were given by their own names."""
    path = input_path(given)
    if not path:
        raise UsageError("an INPUT is empty: name files, folders, a quoted glob or @list.txt")
    if path[0] == "@" and not os.path.lexists(path):
        return _read_list(given, input_path(path[1:]), follow_links, ignored)
    base, found = _expand(path, given, follow_links, ignored)
    by_name = _named(path, found)
    return Root(given, base, not by_name and is_folder(path)), found, by_name


def _named(path: str, found: Sequence[Found]) -> list[str]:
    """The file that the path is, if it is no folder and no glob."""
    if is_remote(path):
        return [path] if [file.path for file in found] == [path] else []
    return [found[0].path] if has_name(path) and not is_folder(path) else []


def _expand(path: str, given: str, follow_links: bool, ignored: Ignored) -> tuple[str, list[Found]]:
    """The real folder that names are relative to, and the files of one path or glob."""
    if is_remote(path):
        return _of_store(path, given, ignored)
    if os.path.isdir(path):
        walk = Walk(path, follow_links, ignored)
        walk.everything()
    elif os.path.lexists(path):
        return _single(path)
    elif has_magic(path):
        fixed, pattern = _split_glob(path)
        if not os.path.isdir(fixed):
            raise UsageError(f"{given}: there is no folder {fixed}")
        walk = Walk(fixed, follow_links, ignored)
        walk.matching(pattern)
    else:
        raise UsageError(f"{given}: no such file or folder{_hint(path)}")
    found = walk.finish()
    if not found:
        raise _nothing(given, has_magic(path) and not os.path.isdir(path), ignored)
    return walk.root, found


def _nothing(given: str, is_glob: bool, ignored: Ignored) -> UsageError:
    left_out = f" that holds data ({'; '.join(ignored.notes())})" if ignored.count else ""
    return UsageError(f"{given}: no file {'matches' if is_glob else 'in this folder'}{left_out}")


def _of_store(path: str, given: str, ignored: Ignored) -> tuple[str, list[Found]]:
    path, is_glob = path.rstrip("/"), False
    try:
        with contextlib.suppress(FileNotFoundError):
            about, (base, _, name) = stat(path), path.rpartition("/")
            return base, [Found(plain_name(name, path), path, about)]
        base, pattern = path, None
        if has_magic(path) and not is_folder(path):
            (base, pattern), is_glob = _split_glob(path), True
        found = walk_store(base, pattern, ignored)
    except OSError as error:
        raise UsageError(f"{given}: {error.strerror}") from error
    if not found:
        raise _nothing(given, is_glob, ignored)
    return base, found


def _single(path: str) -> tuple[str, list[Found]]:
    folder, name = os.path.split(path)
    try:
        about = os.stat(path)
    except OSError as error:
        target = f" to {os.readlink(path)}" if os.path.islink(path) else ""
        raise UsageError(f"{path}: {'link' + target + ': ' if target else ''}{error.strerror}") from error
    if not modes.S_ISREG(about.st_mode):
        raise UsageError(f"{path}: neither a file nor a folder (a pipe or a device); write it to a file first")
    base = os.path.realpath(folder or ".")
    return base, [Found(name, os.path.join(base, name), Stat(about.st_size, about.st_mtime_ns))]


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


def _read_list(given: str, list_path: str, follow_links: bool, ignored: Ignored) -> tuple[Root, list[Found], list[str]]:
    try:
        text = read_range(list_path).tobytes()
    except OSError as error:
        raise UsageError(f"{given}: the list {list_path!r} can't be read: {error.strerror}") from error
    folder = real_path(os.path.dirname(list_path) or ".")
    found: list[Found] = []
    named: list[str] = []
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        entry = os.fsdecode(line.rstrip(b"\r"))
        if not entry.strip():
            continue
        path = _beside(folder, input_path(entry), list_path)
        try:
            files = _expand(path, entry, follow_links, ignored)[1]
        except UsageError as error:
            raise UsageError(
                f"{list_path}, line {number}: {error} (paths are relative to the list's folder, {folder})"
            ) from error
        found.extend(files)
        named.extend(_named(path, files))
    if not found:
        raise UsageError(f"{given}: the list is empty; it needs one path a line")
    if len({is_remote(file.path) for file in found}) > 1:
        raise UsageError(f"{given}: some of its files are on a disk and others in a store; make a list of each")
    base = (
        folder
        if all(within(file.path, folder) for file in found)
        else os.path.commonpath([os.path.dirname(file.path) for file in found])
    )
    return (
        Root(given, base, False),
        [Found(plain_name(os.path.relpath(file.path, base), file.path), file.path, file.stat) for file in found],
        named,
    )


def _beside(folder: str, entry: str, list_path: str) -> str:
    """The path, or URI, that a line of a list names."""
    if is_remote(entry) or not is_remote(folder):
        return entry if is_remote(entry) else os.path.join(folder, entry)
    if os.path.isabs(entry) or ".." in entry.split("/"):
        raise UsageError(f"{list_path}: it lies in a store, and {entry!r} leads out of its folder there")
    return f"{folder}/{entry.removeprefix('./')}"


def _check_names(files: Sequence[InputFile]) -> None:
    bad = [file for file in files if not file.name.isascii() and not _is_utf8(file.name)]
    if bad:
        shown = ", ".join(ascii(os.fsencode(file.path))[1:] for file in bad[:3])
        raise UsageError(
            f"{len(bad)} file name(s) are not UTF-8, so no manifest can hold them: {shown}; rename them "
            "(convmv does) and build again"
        )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_once(files: Sequence[InputFile], roots: Sequence[Root]) -> None:
    seen: dict[str, InputFile] = {}
    for file in files:
        other = seen.setdefault(file.path, file)
        if other is not file and (other.root != file.root or other.name == file.name):
            both = roots[other.root].given, roots[file.root].given
            where = f"by {both[0]!r} and {both[1]!r}" if other.root != file.root else f"twice by {both[0]!r}"
            raise UsageError(f"{file.path} is named {where}: its records would be there twice; leave one out")


def _hint(path: str) -> str:
    """What may have been meant: the nearest folder that exists."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return f" (in {folder or '.'})" if folder not in ("", "/") else ""
