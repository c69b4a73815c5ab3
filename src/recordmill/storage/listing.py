"""Expansion of INPUTs (files, folders, globs, `@list.txt`) to a list of files.

Each file is listed once, in a fixed order, together with the files that were ignored. Only names
and sizes are inspected here: `content` looks into files, and `layout` interprets folder names. The
rules are the same on disks and in stores, which have no links.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat as modes
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.storage import archives, walk
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import (
    expand_home,
    is_remote,
    parse_input_path,
    read_blocks,
    stat,
    stat_from_os,
    unquote_name,
)
from recordmill.storage.folders import is_folder, real_path

_MAX_MESSAGE_NAMES = 3
# Python decodes bytes of a file name that are not UTF-8 to surrogates.
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLOCK_BYTES = 1 << 20  # 1 MiB: the part of a list in memory
# Names of files that describe the archives beside them, such as README.md and SHA256SUMS, and
# metadata.jsonl of Hugging Face.
_DESCRIPTION = re.compile(
    r"(?:readme|licen[cs]e|copying|notice|authors|changelog|citation|(?:md5|sha\d+)(?:sums?)?)(?:\.\w+)?"
    r"|.*\.(?:md|rst|html?|pdf|md5|sha\d+)|metadata\.(?:csv|jsonl)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class InputRoot:
    """One of the inputs that the user has named.

    Attributes:
        argument: The input as the user typed it, with the home folder instead of `~`.
        path: The folder or archive. The names of the files in this input are relative to it.
        is_folder: Whether the input itself is a folder or an archive.
        archives: Names of the archives in a folder, glob or list. The names of their members begin
            with one of them and a slash.
    """

    argument: str
    path: str
    is_folder: bool
    archives: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """Name of the folder or archive as typed, or "" for other INPUTs.

        For example, `data/cats/` and `cats.tar.gz` have the label `cats`. It may name a class or a
        split.
        """
        if not self.is_folder:
            return ""
        name = os.path.basename(os.path.abspath(self.argument))
        is_archive = self.path.endswith(archives.MEMBER_SEPARATOR[0])
        return archives.archive_name(name) if is_archive else name


@dataclass(frozen=True)
class Listing:
    """The files of all inputs.

    Attributes:
        files: The files, sorted by (root, UTF-8 bytes of the name).
        roots: The inputs, by ordinal.
        ignored: The number of ignored files by reason.
        notes: A readable line for each reason, with the first names.
        explicit_paths: Paths of files that the user has named one by one, in a list that also
            contains folders or patterns.
        explicit_roots: Ordinals of the inputs in which the user has named all files one by one.
            Such an input is a single file, or a list of files.
        data_extensions: Extensions of files that must contain data. Such a file is not ignored,
            even if it is empty.
    """

    files: FileTable
    roots: tuple[InputRoot, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explicit_paths: frozenset[str] = frozenset()
    explicit_roots: frozenset[int] = frozenset()
    data_extensions: Collection[str] = ()

    def is_explicit(self, file: InputFile) -> bool:
        """Returns whether the user named the file itself.

        Such a file must not be ignored silently.
        """
        return file.root in self.explicit_roots or file.path in self.explicit_paths

    def explicit_mask(self, candidates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the candidates that the user named themselves, [files].

        Args:
            candidates: [files] A mask of the files to test.
        """
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
    """Lists the files of the INPUTs.

    * A path that exists is used literally, even if it contains such characters as `*`. Any other
    path with `*`,
      `?`, `[a-z]` or `**` is a glob.
    * In folders, hidden, temporary and marker files are ignored. Empty files are ignored unless
      their extension is one of `data_extensions`.
    * `@list.txt` contains a path or glob in each line. They are relative to the folder of the list,
      never to the working directory. Blank lines are skipped. Names are relative to the list's
      folder, or to the deepest folder that contains all files if a file is outside of it.
    * A link that leads out of its root is followed only with `follow_links`. A link to a file
      inside the root counts as a file of its own. A link to a folder inside the root is followed
      only with `follow_links`, because the walk reaches that folder without the link.
    * A file that two INPUTs name, directly or by a symbolic link, is an error. Its records would
      appear twice, with two identities.
    * Unfinished results of builds and reads are ignored. It is an error if an INPUT has no other
      files, or if the user named such a file.

    Args:
        inputs: The INPUTs as typed.
        follow_links: Whether links out of a root and links to folders are followed.
        data_extensions: Extensions in lower case without the dot. Such files must contain data, so
            an empty one is not ignored.

    Raises:
        UsageError: A path does not exist or can't be read, a folder has no data, or a rule above is
            violated. Names that are not UTF-8, dangling links and unsupported URIs are errors, too.
            The message names the file and a remedy.
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [os.fspath(inputs)]
    if not inputs:
        raise UsageError("no INPUT: name files, folders, a quoted glob or @list.txt")
    ignored = walk.IgnoredFiles(data_extensions)
    roots: list[InputRoot] = []
    explicit_paths, explicit_roots = set[str](), set[int]()
    # [INPUT]. The files of a list are in the order of its lines.
    files_by_root: list[list[walk.FileEntry]] = []
    for ordinal, argument in enumerate(map(expand_home, inputs)):
        root, files, named_paths = _resolve(argument, follow_links, ignored)
        roots.append(root)
        files_by_root.append(files)
        if named_paths is None:
            explicit_roots.add(ordinal)
        else:
            explicit_paths.update(named_paths)
    _remove_unfinished(files_by_root, ignored, explicit_paths, explicit_roots)
    for files in files_by_root:
        files.sort(key=lambda file: file.name)  # code points sort in the order of UTF-8 bytes
    _check_names([file for files in files_by_root for file in files])
    # Within a single folder, each file has a path of its own.
    if len(roots) > 1 or not roots[0].is_folder:
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
    """Removes unfinished results of builds and reads from the lists of files.

    Args:
        files_by_root: The files of each INPUT, changed in place.
        ignored: Collects the unfinished results.
        explicit_paths: Paths of files that the user named.
        explicit_roots: Ordinals of INPUTs that are one such file.

    Raises:
        UsageError: An INPUT has no other files, or the user named such a file.
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
    """Returns (root, files, explicit paths) of an INPUT. None means that all paths are explicit."""
    path = parse_input_path(argument)
    # A file may have a name that begins with `@`.
    if path[0] == "@" and not os.path.lexists(path):
        return _read_list(argument, parse_input_path(path[1:]), follow_links, ignored)
    base, files, is_single = _expand(path, argument, follow_links, ignored)
    is_folder_like = not is_single and (
        is_folder(path) or base.endswith(archives.MEMBER_SEPARATOR[0])
    )
    archives_inside = frozenset[str]()
    if not base.endswith(archives.MEMBER_SEPARATOR[0]):
        archives_inside = _find_archives(files)
    root = InputRoot(argument, base, is_folder_like, archives_inside)
    return root, files, None if is_single else ()


def _find_archives(files: Iterable[walk.FileEntry]) -> frozenset[str]:
    """Returns `InputRoot.archives` of listed files."""
    names = set[str]()
    for file in files:
        if archive := archives.archive_path(file.path):
            # The name ends with the path of the member in the archive.
            member = file.path[len(archive) + len(archives.MEMBER_SEPARATOR) :]
            names.add(file.name.rsplit("/", member.count("/") + 1)[0])
    return frozenset(names)


def _expand(
    path: str, argument: str, follow_links: bool, ignored: walk.IgnoredFiles
) -> tuple[str, list[walk.FileEntry], bool]:
    """Returns (real folder that names are relative to, files, whether `path` is a single file)."""
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
    # By name, because `**` may reach a file in several ways.
    files = {file.name: file for file in walk.walk_disk(root, pattern, follow_links, ignored)}
    if not files:
        raise _no_files_error(argument, pattern is not None, ignored)
    return os.path.realpath(root), _expand_archives(list(files.values()), argument, ignored), False


def _expand_archives(
    files: list[walk.FileEntry], argument: str, ignored: walk.IgnoredFiles
) -> list[walk.FileEntry]:
    """Returns the members of the archives instead of the archives themselves.

    This is done only if all files except descriptions are archives. Otherwise the files are
    returned unchanged. The names of the members begin with a folder that is named like the archive.
    """
    is_description = [_DESCRIPTION.fullmatch(os.path.basename(file.name)) for file in files]
    if all(is_description) or not all(
        is_described or archives.is_archive(file.path)
        for file, is_described in zip(files, is_description, strict=True)
    ):
        return files
    counts = Counter(archives.archive_name(file.name) for file in files)
    expanded: list[walk.FileEntry] = []
    for file, is_described in zip(files, is_description, strict=True):
        if is_described:
            expanded.append(file)
            continue
        name = archives.archive_name(file.name)
        # `a.tar` and `a.zip` keep their extensions, so that no two files have one name.
        folder = name if counts[name] == 1 else file.name
        expanded += (
            replace(member, name=f"{folder}/{member.name}")
            for member in _archive_files(file.path, argument, ignored)
        )
    return expanded


def _archive_files(path: str, argument: str, ignored: walk.IgnoredFiles) -> list[walk.FileEntry]:
    """Returns the files of an archive, by the same rules as for a folder."""
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
        # macOS adds a `__MACOSX` folder with attributes of the files to its archives.
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
        # An object whose name looks like a glob is used literally.
        with contextlib.suppress(FileNotFoundError):
            object_stat, (base, _, name) = stat(path), path.rpartition("/")
            return base, [walk.FileEntry(unquote_name(name, path), path, object_stat)], True
        is_glob = walk.has_wildcard(path) and not is_folder(path)
        base, pattern = _split_glob(path) if is_glob else (path, None)
        files = list(walk.walk_store(base, pattern, ignored))
        expanded = _expand_archives(files, argument, ignored)
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
    """Returns the folder before the first wildcard, and the pattern after it.

    An existing folder is not a pattern, even if its name has a wildcard.
    """
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
    """Resolves a list of paths, and returns the result in the form of `_resolve`.

    Names are relative to the list's folder if all files are inside it.
    """
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
                "{list_path}, line {number}: {error} (paths are relative to the list's "
                "folder, {folder})",
                list_path=list_path,
                number=number,
                error=error,
                folder=folder,
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
    root = InputRoot(argument, base, False, _find_archives(all_files))
    return root, all_files, explicit_paths if has_patterns else None


def _read_lines(argument: str, list_path: str) -> Iterator[bytes]:
    rest = b""
    try:
        for number, block in enumerate(read_blocks(list_path, _BLOCK_BYTES)):
            data = block.tobytes()
            # The list may begin with a byte order mark.
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
    """Returns the path or URI that a line of a list names."""
    if is_remote(entry) or not is_remote(folder):
        return entry if is_remote(entry) else os.path.join(folder, entry)
    if os.path.isabs(entry) or ".." in entry.split("/"):
        raise UsageError(
            f"{list_path}: it is in a store, and {entry!r} leads out of its folder there"
        )
    return f"{folder}/{entry.removeprefix('./')}"


def _check_names(files: Iterable[walk.FileEntry]) -> None:
    """Raises UsageError if a name is not UTF-8."""
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
    """Raises UsageError if a file is listed twice.

    Links within a root, to a folder or to the file, are permitted.
    """
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
                        f"{path} is named {sources}: its records would occur twice; leave one out"
                    )


def _folder_hint(path: str) -> str:
    """Returns a hint for a wrong path: the nearest existing folder above it."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return f" (in {folder or '.'})" if folder not in ("", "/") else ""
