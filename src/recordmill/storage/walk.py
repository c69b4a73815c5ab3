"""Walks over folders and globs that skip files without data.

`walk_disk` and `walk_store` follow the same rules. A store lists everything below a name at once,
so `walk_store` applies the rules to complete names. `find_unfinished` finds files of builds and
reads that run or were killed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import heapq
import os
import re
import stat as modes
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.storage.files import Stat, iter_object_stats, read_range, stat_from_os
from recordmill.storage.folders import join, list_names_if_present

# Reasons to ignore a file, as they appear in notes.
IGNORED_HIDDEN, IGNORED_TEMPORARY, IGNORED_EMPTY, IGNORED_MARKER, IGNORED_SPECIAL = (
    "hidden",
    "temporary",
    "empty",
    "marker",
    "neither file nor folder",
)
IGNORED_SYSTEM = "of the system"
IGNORED_LINKED_FOLDER, IGNORED_LOOP = (
    "link to a folder that is read anyway",
    "link to a folder around it",
)
IGNORED_RUN_FOLDER, IGNORED_UNFINISHED = "folder of a run", "unfinished result of a build or a read"
# OUT/_run-<id>/ belongs to a run, and OUT/data-<id>/ contains its results. When the run has
# committed, a file in one of the folders below, or the summary, names the data folder.
RUN_PREFIX, DATA_PREFIX = "_run-", "data-"
MANIFESTS_FOLDER, READS_FOLDER, READ_SUMMARY_NAME = "_manifests", "_reads", "_read.json"

_MARKER_NAMES = frozenset(
    {
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "__macosx",
        "_success",
        "_temporary",
        "_metadata",
        "_common_metadata",
    }
)
# Folders of file systems, Windows, network storage (Synology, QNAP) and Python.
_SYSTEM_NAMES = frozenset(
    {
        "lost+found",
        "$recycle.bin",
        "recycler",
        "system volume information",
        "found.000",
        "@eadir",
        "#recycle",
        "#snapshot",
        "@recycle",
        "@recently-snapshot",
        "__pycache__",
    }
)
# Spark's commit protocols leave such files next to the data.
_MARKER_PREFIXES = ("_committed_", "_started_")
_TEMPORARY_SUFFIXES = ("~", ".tmp", ".temp", ".crc", ".part", ".partial", ".crdownload", ".swp")
_WILDCARD = re.compile(r"[*?[]")
_RUN_FOLDER_NAME = re.compile(rf"{RUN_PREFIX}([0-9a-f]{{12}})")
_RUN_PATH_PART = re.compile(rf"(?:^|(?<=/))(?:{RUN_PREFIX}|{DATA_PREFIX})[0-9a-f]{{12}}(?=/|$)")
_NUMBERED_JSON = re.compile(r"([0-9]{8})\.json")
_DATA_FOLDER_FIELD = re.compile(rb'"folder": *"(data-[0-9a-f]{12})"')
_MAX_NOTE_NAMES = 3  # the first names of each reason, in sorted order


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file that a walk has found.

    Attributes:
        name: The path relative to the root of the walk, with `/`.
        path: The path or URI to open.
        stat: The current state of the file.
        target: The real path of the target if the file is a link, else "".
    """

    name: str
    path: str
    stat: Stat
    target: str = ""


@dataclass
class IgnoredFiles:
    """Files that a walk ignored, with the reasons.

    Attributes:
        data_extensions: Extensions in lower case. Empty files with one of these are not ignored.
        folders_with_runs: Folders that contain runs of builds or reads. `find_unfinished` finds
            their results.
    """

    data_extensions: Collection[str] = ()
    folders_with_runs: set[str] = field(default_factory=set)
    # path: (reason, name)
    _entries: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)

    def add(self, reason: str, name: str, path: str) -> None:
        """Adds a file. A repeated path counts once, since patterns may overlap."""
        self._entries[path] = reason, name

    @property
    def counts(self) -> dict[str, int]:
        """The number of ignored files by reason."""
        return dict(Counter(reason for reason, _ in self._entries.values()))

    def notes(self) -> list[str]:
        """Returns a line for each reason, with the first names.

        >>> ignored = IgnoredFiles()
        >>> ignored.add("hidden", "a/.DS_Store", "/data/a/.DS_Store")
        >>> ignored.notes()
        ['ignored 1 hidden: a/.DS_Store']
        """
        lines = []
        for reason, count in sorted(self.counts.items()):
            names = heapq.nsmallest(
                _MAX_NOTE_NAMES,
                (
                    name
                    for ignored_reason, name in self._entries.values()
                    if ignored_reason == reason
                ),
            )
            lines.append(
                f"ignored {count} {reason}: {', '.join(names)}{', ...' if count > len(names) else ''}"
            )
        return lines


def ignore_reason(name: str) -> str | None:
    """Returns why files or folders with this name are ignored, or None.

    >>> [ignore_reason(name) for name in (".DS_Store", "a.txt~", "_SUCCESS", "@eaDir", "a.txt")]
    ['hidden', 'temporary', 'marker', 'of the system', None]
    """
    if name[0] == ".":
        return IGNORED_HIDDEN
    if _RUN_FOLDER_NAME.fullmatch(name) is not None:
        return IGNORED_RUN_FOLDER
    lower = name.lower()
    if lower.endswith(_TEMPORARY_SUFFIXES):
        return IGNORED_TEMPORARY
    if lower in _SYSTEM_NAMES:
        return IGNORED_SYSTEM
    return IGNORED_MARKER if lower in _MARKER_NAMES or lower.startswith(_MARKER_PREFIXES) else None


def find_unfinished(folder: str) -> list[str]:
    """Returns the paths of unfinished results in a folder.

    The folder may be in a store. These are results of runs that are in progress or were killed. If
    the folder has no committed result, the folder itself is returned. Otherwise the data folders of
    these runs are returned.
    """
    names = list_names_if_present(folder)
    runs = [match[1] for name in names if (match := _RUN_FOLDER_NAME.fullmatch(name))]
    if not runs:
        return []
    results = [
        join(folder, kind, name)
        for kind in {MANIFESTS_FOLDER, READS_FOLDER} & {*names}
        for name in list_names_if_present(join(folder, kind))
        if _NUMBERED_JSON.fullmatch(name)
    ]
    if not results and READ_SUMMARY_NAME not in names:
        return [folder]
    data_folders = [name for name in names if name.removeprefix(DATA_PREFIX) in runs]
    committed = (
        {name for path in results for name in _committed_folders(path)} if data_folders else set()
    )
    return [join(folder, name) for name in data_folders if name not in committed]


def list_numbered_files(folder: str) -> list[int]:
    """Returns the numbers of files such as `00000003.json`, in ascending order.

    The result is empty if the folder does not exist.
    """
    names = list_names_if_present(folder)
    return sorted(int(match[1]) for name in names if (match := _NUMBERED_JSON.fullmatch(name)))


def _committed_folders(result: str) -> list[str]:
    """Returns the data folders that a manifest or a read's result names.

    Returns none if the file has been removed since it was listed.
    """
    with contextlib.suppress(FileNotFoundError):
        return [name.decode() for name in _DATA_FOLDER_FIELD.findall(read_range(result).tobytes())]
    return []


def no_data_set_error(folder: str) -> UsageError:
    """Returns the error for a folder that contains only unfinished results."""
    return UsageError(
        f"{folder}: not a data set: a build or a read is running there, or was "
        "killed. `recordmill status` shows which. The next run into this folder, or "
        "`recordmill clean`, removes the files of a killed run"
    )


def note_enclosing_runs(path: str, ignored: IgnoredFiles) -> None:
    """Adds each folder above a path that may contain runs to `ignored.folders_with_runs`.

    The names in the path show which folders these are.

    Args:
        path: A real path or a URI.
        ignored: Receives the folders.

    Raises:
        UsageError: The path is inside the folder of a run.
    """
    for match in _RUN_PATH_PART.finditer(path):
        folder = path[: match.start()].rstrip("/")
        if match[0].startswith(RUN_PREFIX):
            raise no_data_set_error(folder)
        ignored.folders_with_runs.add(folder)


def file_extension(name: str) -> str:
    """Returns the extension in lower case, without the dot.

    A name without a dot is its own extension.

    >>> [file_extension(name) for name in ("a/b.CSV", "a.tar.gz", "README")]
    ['csv', 'gz', 'readme']
    """
    return name.rpartition("/")[2].rpartition(".")[2].lower()


def has_wildcard(text: str) -> bool:
    """Returns whether a text has wildcards. It is a glob then, unless a file has this name."""
    return _WILDCARD.search(text) is not None


@dataclass(frozen=True)
class _Folder:
    path: str  # the real path
    prefix: str  # the prefix of names of its files, relative to the root: "" or with a final `/`
    # Real paths of the folders that contain the links that lead to this folder.
    ancestors: tuple[str, ...] = ()


def walk_disk(
    root: str, pattern: str | None, follow_links: bool, ignored: IgnoredFiles
) -> Iterator[FileEntry]:
    """Yields the files below a folder that match a glob.

    If the glob matches a folder, all files below it are yielded. `*`, `?` and `[a-z]` match within
    a name, and `**` matches any number of folders. With `**`, a file may be yielded twice.

    Args:
        root: The folder.
        pattern: A glob relative to the folder, or None for all files.
        follow_links: Whether links out of the folder and links to folders are followed.
        ignored: Collects the ignored files.

    Raises:
        UsageError: A folder can't be listed. Links that can't be followed are reported together,
            after all files have been yielded.
    """
    walk = _DiskWalk(root, follow_links, ignored)
    top = _Folder(walk.root, "")
    yield from walk.descend(top) if pattern is None else walk.match(top, pattern.split("/"))
    if walk.problems:
        suffix = f" (and {len(walk.problems) - 3} more)" if len(walk.problems) > 3 else ""
        raise UsageError("; ".join(walk.problems[:3]) + suffix)


class _DiskWalk:
    def __init__(self, root: str, follow_links: bool, ignored: IgnoredFiles) -> None:
        self.root, self.follow_links, self.ignored = os.path.realpath(root), follow_links, ignored
        self.problems: list[str] = []

    def descend(self, top: _Folder) -> Iterator[FileEntry]:
        pending = [top]
        while pending:
            folder = pending.pop()
            for entry in self._entries(folder):
                entry_result = self._visit(folder, entry)
                if isinstance(entry_result, _Folder):
                    pending.append(entry_result)
                elif entry_result is not None:
                    yield entry_result

    def match(self, top: _Folder, pattern: Sequence[str]) -> Iterator[FileEntry]:
        pending = [(top, pattern)]
        while pending:
            folder, parts = pending.pop()
            part, rest = parts[0], parts[1:]
            if part == "**":
                if not rest:
                    yield from self.descend(folder)
                    continue
                pending.append((folder, rest))  # `**` also matches no folder at all
            matches = re.compile(fnmatch.translate("*" if part == "**" else part)).match
            for entry in self._entries(folder):
                # As in a shell, wildcards do not match the dot of a hidden name.
                if not matches(entry.name) or (entry.name[0] == "." and part[0] != "."):
                    continue
                entry_result = self._visit(
                    folder, entry, keep_files=not rest, allow_hidden=part[0] == "."
                )
                if isinstance(entry_result, FileEntry):
                    yield entry_result
                elif entry_result is not None and rest:
                    pending.append((entry_result, parts if part == "**" else rest))
                elif entry_result is not None:
                    yield from self.descend(entry_result)

    def _entries(self, folder: _Folder) -> Iterator[os.DirEntry[str]]:
        for entry in _scan_folder(folder.path):
            if _RUN_FOLDER_NAME.fullmatch(entry.name) is not None:
                self.ignored.folders_with_runs.add(folder.path)
            yield entry

    def _visit(
        self,
        folder: _Folder,
        entry: os.DirEntry[str],
        *,
        keep_files: bool = True,
        allow_hidden: bool = False,
    ) -> FileEntry | _Folder | None:
        """Returns the file, the folder to walk, or None if the entry is ignored.

        Args:
            folder: The folder that is walked.
            entry: An entry of the folder.
            keep_files: Whether files can match. If not, they are ignored silently, because the
                pattern has more parts.
            allow_hidden: Whether the pattern names a hidden file explicitly.
        """
        name = folder.prefix + entry.name
        if (reason := ignore_reason(entry.name)) is not None and not (
            allow_hidden and reason == IGNORED_HIDDEN
        ):
            if keep_files:
                self.ignored.add(reason, name, entry.path)
        elif entry.is_symlink():
            return self._visit_link(folder, entry, name, keep_files)
        elif entry.is_dir():
            return _Folder(entry.path, name + "/", folder.ancestors)
        elif keep_files:
            return self._visit_file(name, entry.path, entry.stat())
        return None

    def _visit_file(
        self, name: str, path: str, file_stat: os.stat_result, target: str = ""
    ) -> FileEntry | None:
        if not modes.S_ISREG(file_stat.st_mode):
            self.ignored.add(IGNORED_SPECIAL, name, path)
        elif file_stat.st_size == 0 and file_extension(name) not in self.ignored.data_extensions:
            self.ignored.add(IGNORED_EMPTY, name, path)
        else:
            return FileEntry(name, path, stat_from_os(file_stat), target)
        return None

    def _visit_link(
        self, folder: _Folder, entry: os.DirEntry[str], name: str, keep_files: bool
    ) -> FileEntry | _Folder | None:
        target = os.path.realpath(entry.path)
        try:
            target_stat = os.stat(entry.path)
        except OSError as error:
            description = f"{entry.path} is a link to {os.readlink(entry.path)}"
            self.problems.append(
                f"{description}, which can't be reached ({error.strerror}): remove the link or restore it"
            )
            return None
        # A link may lead into the data of another build.
        note_enclosing_runs(target, self.ignored)
        is_inside = is_within(target, self.root)
        if not is_inside and not self.follow_links:
            self.problems.append(
                Message(
                    "{path} is a link out of the folder, to {target}: {follow_links} "
                    "allows it in a build; other commands accept the path of the link",
                    path=entry.path,
                    target=target,
                    follow_links=option("follow_links", True),
                )
            )
        elif not modes.S_ISDIR(target_stat.st_mode):
            if keep_files:
                return self._visit_file(name, entry.path, target_stat, target)
        elif not self.follow_links:
            self.ignored.add(IGNORED_LINKED_FOLDER, name, entry.path)
        elif is_within(folder.path, target) or any(
            is_within(ancestor, target) for ancestor in folder.ancestors
        ):
            self.ignored.add(IGNORED_LOOP, name, entry.path)
        else:
            return _Folder(target, name + "/", (*folder.ancestors, folder.path))
        return None


def is_within(path: str, folder: str) -> bool:
    """Returns whether a real path is the real folder, or below it.

    >>> is_within("/data/a", "/data"), is_within("/data2", "/data")
    (True, False)
    """
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _scan_folder(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError as error:
        raise UsageError(f"{path}: this folder can't be listed: {error.strerror}") from error


_INCLUDED = ("", 0)
# Result for the name of an object: (reason to ignore it, index of the part of its name that is the
# reason), or `_INCLUDED`. None if the name does not match the glob.
_Verdict = tuple[str, int] | None


def walk_store(folder: str, pattern: str | None, ignored: IgnoredFiles) -> Iterator[FileEntry]:
    """Yields the objects below a folder that match a glob.

    The objects are in the order of the store. See `walk_disk` for the rules and the arguments.

    Raises:
        OSError: The store can't list the objects.
    """
    root = folder.rstrip("/")
    pattern_parts = (
        None if pattern is None else [(part, _compile_part(part)) for part in pattern.split("/")]
    )
    for name, object_stat in iter_object_stats(folder):
        parts = name.split("/")
        for index in (
            (index for index, part in enumerate(parts) if _RUN_FOLDER_NAME.fullmatch(part))
            if RUN_PREFIX in name
            else ()
        ):
            ignored.folders_with_runs.add("/".join((root, *parts[:index])))
        verdict = (
            _check_descendants(parts, 0)
            if pattern_parts is None
            else _match_parts(parts, pattern_parts)
        )
        if verdict is None:
            continue
        if verdict != _INCLUDED:
            ignored_name = "/".join(parts[: verdict[1] + 1])
            ignored.add(verdict[0], ignored_name, f"{root}/{ignored_name}")
        elif object_stat.size_bytes == 0 and file_extension(name) not in ignored.data_extensions:
            ignored.add(IGNORED_EMPTY, name, f"{root}/{name}")
        else:
            yield FileEntry(name, f"{root}/{name}", object_stat)


def _compile_part(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def _check_descendants(parts: Sequence[str], begin: int) -> _Verdict:
    """Returns the result for an object that is below a match of the glob.

    Args:
        parts: The parts of its name.
        begin: Index of the first part below the match.
    """
    for index in range(begin, len(parts)):
        if (reason := ignore_reason(parts[index])) is not None:
            return reason, index
    return _INCLUDED


def _match_parts(
    parts: Sequence[str], pattern_parts: Sequence[tuple[str, re.Pattern[str]]], index: int = 0
) -> _Verdict:
    (part, regex), rest = pattern_parts[0], pattern_parts[1:]
    is_last, name = index == len(parts) - 1, parts[index]
    if part == "**":
        if not rest:
            return _check_descendants(parts, index)
        if (verdict := _match_parts(parts, rest, index)) is not None:  # `**` matches no folder
            return verdict
        return (
            None
            if is_last or ignore_reason(name) is not None
            else _match_parts(parts, pattern_parts, index + 1)
        )
    if regex.match(name) is None or (name[0] == "." and part[0] != "."):
        return None
    reason = ignore_reason(name)
    if reason is not None and not (part[0] == "." and reason == IGNORED_HIDDEN):
        return None if rest else (reason, index)
    if rest:
        return None if is_last else _match_parts(parts, rest, index + 1)
    return _INCLUDED if is_last else _check_descendants(parts, index + 1)
