"""INPUTs as a user types them (files, folders, globs, `@list.txt`) to a `Listing`: every file once, in one order, with
what was left out.

It looks at names and sizes only; `detect` looks inside, `layout` reads meaning into folders. What holds on a disk holds
in a store, which has no links.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat as modes
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.storage import archives, walk
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import (
    is_remote,
    parse_input_path,
    read_blocks,
    stat,
    stat_from_os,
    unquote_name,
)
from recordmill.storage.folders import is_folder, real_path

_MAX_MESSAGE_NAMES = 3  # names in a message
_SURROGATE = re.compile("[\ud800-\udfff]")  # what is no UTF-8 in the name of a file
_BLOCK_BYTES = 1 << 20  # of a list of names


@dataclass(frozen=True)
class InputRoot:
    """One INPUT. given: as typed. path: its names are relative to it. folder: it is itself a folder."""

    argument: str
    path: str
    is_folder: bool

    @property
    def label(self) -> str:
        """The folder's own name as typed (`data/cats/` is `cats`), which may name a class or a split."""
        return os.path.basename(os.path.abspath(self.argument)) if self.is_folder else ""


@dataclass(frozen=True)
class Listing:
    """The files of all INPUTs.

    files: sorted by (root, name as bytes). roots: the INPUTs, by ordinal. ignored: how many files per reason were left
    out. notes: the same in words, with names. named: the paths of files given by their own name; named_roots: of the
    INPUTs all of whose files were given so, the ordinals. See `is_named`. data_extensions: those that promise data.
    """

    files: FileTable
    roots: tuple[InputRoot, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explicit_paths: frozenset[str] = frozenset()
    explicit_roots: frozenset[int] = frozenset()
    data_extensions: Collection[str] = ()

    def is_explicit(self, file: InputFile) -> bool:
        """Returns whether the file was given by its own name, so that nothing may leave it out silently."""
        return file.root in self.explicit_roots or file.path in self.explicit_paths

    def explicit_mask(self, candidates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[files] which of some files were given by their own names."""
        mask = np.zeros(len(self.files), np.bool_)
        if self.explicit_paths or self.explicit_roots:
            for index in np.flatnonzero(candidates).tolist():
                mask[index] = self.is_explicit(self.files[index])
        return mask

    @property
    def size_bytes(self) -> int:
        return self.files.size_bytes


def list_inputs(
    inputs: Sequence[str], *, follow_links: bool = False, data_extensions: Collection[str] = ()
) -> Listing:
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
    - A file that two INPUTs name, by itself or by a symbolic link, is refused: its records would be there twice, under
      two identities.
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
    ignored = walk.IgnoredFiles(data_extensions)
    roots: list[InputRoot] = []
    explicit_paths, explicit_roots = set[str](), set[int]()
    files_by_root: list[
        list[walk.FileEntry]
    ] = []  # [INPUT], those of a list in the order of its lines
    for ordinal, argument in enumerate(map(os.fspath, inputs)):
        root, files, by_name = _resolve(argument, follow_links, ignored)
        roots.append(root)
        files_by_root.append(files)
        if by_name is None:
            explicit_roots.add(ordinal)
        else:
            explicit_paths.update(by_name)
    _remove_unfinished(files_by_root, ignored, explicit_paths, explicit_roots)
    for files in files_by_root:
        files.sort(key=lambda file: file.name)  # code points sort as their UTF-8 bytes do
    _check_names([file for files in files_by_root for file in files])
    if len(roots) > 1 or not roots[0].is_folder:  # else each name is a path of its own
        _check_duplicates(files_by_root, roots)
    inputs_files = (
        InputFile(root, entry.name, entry.path, entry.stat)
        for root, files in enumerate(files_by_root)
        for entry in files
    )
    return Listing(
        files=FileTable.from_files(inputs_files),
        roots=tuple(roots),
        ignored=ignored.counts,
        notes=tuple(ignored.notes()),
        explicit_paths=frozenset(explicit_paths),
        explicit_roots=frozenset(explicit_roots),
        data_extensions=data_extensions,
    )


def _remove_unfinished(
    files_by_root: list[list[walk.FileEntry]],
    ignored: walk.IgnoredFiles,
    explicit_paths: Collection[str],
    explicit_roots: Collection[int],
) -> None:
    """Takes out of the files of each INPUT what runs have put there that is no result, or not yet. UsageError: that is
    all of an INPUT, or a file that was given by its own name. named: paths of such files. all_named: numbers of INPUTs
    that are one.
    """
    unfinished = [
        path
        for folder in sorted(ignored.folders_with_runs)
        for path in walk.find_unfinished(folder)
    ]
    for folder in unfinished:
        ignored.add(walk.IGNORED_UNFINISHED, folder, folder)
    for root, files in enumerate(files_by_root) if unfinished else ():
        finished = []
        for file in files:
            path = real_path(file.path)
            folder = next(
                (
                    unfinished_folder
                    for unfinished_folder in unfinished
                    if path.startswith(f"{unfinished_folder}/")
                ),
                "",
            )
            if folder and (root in explicit_roots or file.path in explicit_paths):
                raise walk.no_data_set_error(folder)
            finished += [] if folder else [file]
        if not finished:
            raise walk.no_data_set_error(folder)
        files_by_root[root] = finished


def _resolve(
    argument: str, follow_links: bool, ignored: walk.IgnoredFiles
) -> tuple[InputRoot, list[walk.FileEntry], Iterable[str] | None]:
    """(the root, its files, which of them were given by their own names; None: all of them)."""
    path = parse_input_path(argument)
    if path[0] == "@" and not os.path.lexists(path):
        return _read_list(argument, parse_input_path(path[1:]), follow_links, ignored)
    base, files, is_single = _expand(path, argument, follow_links, ignored)
    is_folder_like = not is_single and (
        is_folder(path) or base.endswith(archives.MEMBER_SEPARATOR[0])
    )
    return InputRoot(argument, base, is_folder_like), files, None if is_single else ()


def _expand(
    path: str, argument: str, follow_links: bool, ignored: walk.IgnoredFiles
) -> tuple[str, list[walk.FileEntry], bool]:
    """(the real folder that names are relative to, the files, whether the path is that of the one file)."""
    walk.note_enclosing_runs(real_path(path), ignored)
    if is_remote(path):
        return _expand_in_store(path, argument, ignored)
    if archives.is_archive(path):
        return (
            f"{os.path.realpath(path)}{archives.MEMBER_SEPARATOR[0]}",
            _archive_files(path, argument, ignored),
            False,
        )
    if os.path.lexists(path) and not os.path.isdir(path):
        base, single = _stat_single_file(path)
        return base, [single], True
    root, pattern = path, None
    if not os.path.isdir(path):
        if not walk.has_wildcard(path):
            raise UsageError(f"{argument}: no such file or folder{_folder_hint(path)}")
        root, pattern = _split_glob(path)
        if not os.path.isdir(root):
            raise UsageError(f"{argument}: there is no folder {root}")
    files = {
        file.name: file for file in walk.walk_disk(root, pattern, follow_links, ignored)
    }  # by each way once
    if not files:
        raise _no_files_error(argument, pattern is not None, ignored)
    return os.path.realpath(root), _expand_tars(list(files.values()), argument, ignored), False


def _expand_tars(
    files: list[walk.FileEntry], argument: str, ignored: walk.IgnoredFiles
) -> list[walk.FileEntry]:
    """The files; if all are tars, their members, by the names that they have in a folder called as the tar."""
    if not all(archives.is_tar(file.name) and archives.is_archive(file.path) for file in files):
        return files
    return [
        replace(member, name=f"{archives.TAR_SUFFIX.sub('', file.name)}/{member.name}")
        for file in files
        for member in _archive_files(file.path, argument, ignored)
    ]


def _archive_files(path: str, argument: str, ignored: walk.IgnoredFiles) -> list[walk.FileEntry]:
    """The files in an archive that a folder with the same content would have."""
    path = real_path(path)
    members, start, files = (
        archives.read_members(path),
        f"{path}{archives.MEMBER_SEPARATOR}",
        list[walk.FileEntry](),
    )
    for ignored_reason, name in members.ignored:
        ignored.add(ignored_reason, name, start + name)
    for name, member in members.members.items():
        reason = next(
            (
                part_reason
                for part in name.split("/")
                if (part_reason := walk.ignore_reason(part)) is not None
            ),
            None,
        )
        if (
            reason is None
            and not member.size_bytes
            and walk.file_extension(name) not in ignored.data_extensions
        ):
            reason = walk.IGNORED_EMPTY
        if reason is not None or name.startswith("__MACOSX/"):
            ignored.add(reason or walk.IGNORED_HIDDEN, name, start + name)
        else:
            files.append(walk.FileEntry(name, start + name, stat(start + name)))
    if not files:
        raise _no_files_error(argument, False, ignored)
    return files


def _no_files_error(argument: str, is_glob: bool, ignored: walk.IgnoredFiles) -> UsageError:
    for folder in sorted(ignored.folders_with_runs):
        for unfinished in walk.find_unfinished(folder):
            return walk.no_data_set_error(unfinished)
    ignored_text = f" that holds data ({'; '.join(ignored.notes())})" if ignored.counts else ""
    return UsageError(
        f"{argument}: no file {'matches' if is_glob else 'in this folder'}{ignored_text}"
    )


def _expand_in_store(
    path: str, argument: str, ignored: walk.IgnoredFiles
) -> tuple[str, list[walk.FileEntry], bool]:
    path = path.rstrip("/")
    try:
        if archives.is_archive(path):
            return (
                f"{path}{archives.MEMBER_SEPARATOR[0]}",
                _archive_files(path, argument, ignored),
                False,
            )
        with contextlib.suppress(FileNotFoundError):
            object_stat, (base, _, name) = stat(path), path.rpartition("/")
            return base, [walk.FileEntry(unquote_name(name, path), path, object_stat)], True
        is_glob = walk.has_wildcard(path) and not is_folder(path)
        base, pattern = _split_glob(path) if is_glob else (path, None)
        files = list(walk.walk_store(base, pattern, ignored))
        expanded = _expand_tars(files, argument, ignored)
    except OSError as error:
        raise UsageError(f"{argument}: {error.strerror}") from error
    if not files:
        raise _no_files_error(argument, is_glob, ignored)
    return base, expanded, False


def _stat_single_file(path: str) -> tuple[str, walk.FileEntry]:
    folder, name = os.path.split(path)
    try:
        file_stat = os.stat(path)
    except OSError as error:
        target = f" to {os.readlink(path)}" if os.path.islink(path) else ""
        raise UsageError(
            f"{path}: {'link' + target + ': ' if target else ''}{error.strerror}"
        ) from error
    if not modes.S_ISREG(file_stat.st_mode):
        raise UsageError(
            f"{path}: neither a file nor a folder (a pipe or a device); write it to a file first"
        )
    base = os.path.realpath(folder or ".")
    path = os.path.join(base, name)
    return base, walk.FileEntry(
        name, path, stat_from_os(file_stat), os.path.realpath(path) if os.path.islink(path) else ""
    )


def _split_glob(path: str) -> tuple[str, str]:
    """Returns the folder before the first wildcard and the pattern below; an existing folder is no pattern."""
    parts = path.split("/")
    num_fixed = next(
        (
            index
            for index, part in enumerate(parts)
            if walk.has_wildcard(part) and not is_folder("/".join(parts[: index + 1]))
        ),
        len(parts) - 1,
    )
    fixed = "/".join(parts[:num_fixed])
    return fixed or ("/" if path.startswith("/") else "."), "/".join(
        part for part in parts[num_fixed:] if part
    )


def _read_list(
    argument: str, list_path: str, follow_links: bool, ignored: walk.IgnoredFiles
) -> tuple[InputRoot, list[walk.FileEntry], Iterable[str] | None]:
    """Resolves a list of paths as `_resolve` does. Names are relative to the list's folder, if all files lie there."""
    folder = real_path(os.path.dirname(list_path) or ".")
    all_files, explicit_paths, has_patterns = list[walk.FileEntry](), list[str](), False
    for number, line in enumerate(_read_lines(argument, list_path), 1):
        entry = os.fsdecode(line)
        if not entry.strip():
            continue
        path = _resolve_line(folder, parse_input_path(entry), list_path)
        try:
            _, files, is_single = _expand(path, entry, follow_links, ignored)
        except UsageError as error:
            raise UsageError(
                f"{list_path}, line {number}: {error} (paths are relative to the list's folder, {folder})"
            ) from error
        all_files += files
        explicit_paths += [files[0].path] if is_single else []
        has_patterns = has_patterns or not is_single
    if not all_files:
        raise UsageError(f"{argument}: the list is empty; it needs one path a line")
    if len({is_remote(file.path) for file in all_files}) > 1:
        raise UsageError(
            f"{argument}: some of its files are on a disk and others in a store; make a list of each"
        )
    base = folder
    if not all(walk.is_within(file.path, folder) for file in all_files):
        base = os.path.commonpath({os.path.dirname(file.path) for file in all_files})
    all_files = [
        replace(file, name=unquote_name(os.path.relpath(file.path, base), file.path))
        for file in all_files
    ]
    return InputRoot(argument, base, False), all_files, explicit_paths if has_patterns else None


def _read_lines(argument: str, list_path: str) -> Iterator[bytes]:
    rest = b""
    try:
        for number, block in enumerate(read_blocks(list_path, _BLOCK_BYTES)):
            data = block.tobytes()
            *lines, rest = (rest + (data if number else data.removeprefix(b"\xef\xbb\xbf"))).split(
                b"\n"
            )
            yield from (line.rstrip(b"\r") for line in lines)
    except OSError as error:
        raise UsageError(
            f"{argument}: the list {list_path!r} can't be read: {error.strerror}"
        ) from error
    yield rest.rstrip(b"\r")


def _resolve_line(folder: str, entry: str, list_path: str) -> str:
    """The path, or URI, that a line of a list names."""
    if is_remote(entry) or not is_remote(folder):
        return entry if is_remote(entry) else os.path.join(folder, entry)
    if os.path.isabs(entry) or ".." in entry.split("/"):
        raise UsageError(
            f"{list_path}: it lies in a store, and {entry!r} leads out of its folder there"
        )
    return f"{folder}/{entry.removeprefix('./')}"


def _check_names(files: Iterable[walk.FileEntry]) -> None:
    """Raises UsageError if names are not UTF-8."""
    invalid_paths = [
        file.path for file in files if not file.name.isascii() and _SURROGATE.search(file.name)
    ]
    if invalid_paths:
        examples = ", ".join(
            ascii(os.fsencode(path))[1:] for path in invalid_paths[:_MAX_MESSAGE_NAMES]
        )
        raise UsageError(
            f"{len(invalid_paths)} file name(s) are not UTF-8, so no manifest can hold them: {examples}; rename them "
            "(convmv does) and build again"
        )


def _check_duplicates(
    files_by_root: Sequence[Sequence[walk.FileEntry]], roots: Sequence[InputRoot]
) -> None:
    """Raises UsageError for a file that is named twice, but for links to a folder, or to the file, within a root."""
    owners: dict[str, tuple[int, walk.FileEntry]] = {}
    for root, files in enumerate(files_by_root):
        for file in files:
            for path in (file.path, file.target or file.path):
                first_root, other_file = owners.setdefault(path, (root, file))
                if other_file is not file and (first_root != root or other_file.name == file.name):
                    arguments = roots[first_root].argument, roots[root].argument
                    sources = (
                        f"by {arguments[0]!r} and {arguments[1]!r}"
                        if first_root != root
                        else f"twice by {arguments[0]!r}"
                    )
                    raise UsageError(
                        f"{path} is named {sources}: its records would be there twice; leave one out"
                    )


def _folder_hint(path: str) -> str:
    """Returns what may have been meant: the nearest folder that exists."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return f" (in {folder or '.'})" if folder not in ("", "/") else ""
