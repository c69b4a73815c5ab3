"""A folder, or a glob below it, to the files in it: `walk_disk` finds them, counts what it leaves out and refuses what
it can't answer for. The same rules hold for the objects below a name in a store, which lists all that lies there in one
answer: `walk_store`.

What builds and reads at work have written, or killed ones have left, is no file of any of these: `unfinished_in`.
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
from recordmill.base.option_names import option
from recordmill.storage.files import Stat, below, read_range, stat_of
from recordmill.storage.folders import join, names_if_there

HIDDEN, TEMPORARY, EMPTY_FILE, MARKER, SPECIAL = (
    "hidden",
    "temporary",
    "empty",
    "marker",
    "neither file nor folder",
)
LINKED_FOLDER, LOOP = "link to a folder that is walked anyway", "link to a folder around it"
RUN_FOLDER, UNFINISHED = "folder of a run", "unfinished result of a build or a read"
# OUT/_run-<id>/ is a run's own, OUT/data-<id>/ what it makes, which one of these names when the run has committed
RUN_PREFIX, DATA_PREFIX = "_run-", "data-"
MANIFESTS, RESULTS, SUMMARY_NAME = "_manifests", "_reads", "_read.json"

_MARKERS = frozenset(
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
_MARKER_STARTS = ("_committed_", "_started_")  # Spark's commit protocols leave them beside the data
_TEMPORARY_ENDS = ("~", ".tmp", ".temp", ".crc", ".part", ".partial", ".crdownload", ".swp")
_MAGIC = re.compile(r"[*?[]")
_RUN = re.compile(rf"{RUN_PREFIX}([0-9a-f]{{12}})")
_OF_RUN = re.compile(rf"(?:^|(?<=/))(?:{RUN_PREFIX}|{DATA_PREFIX})[0-9a-f]{{12}}(?=/|$)")
_NUMBERED = re.compile(r"[0-9]{8}\.json")
_NAMED = re.compile(rb'"folder": *"(data-[0-9a-f]{12})"')
_SHOWN = 3  # names of each reason, the first ones, whatever order the folders give


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file.

    Attributes:
        name: Its name relative to the walk's root, with `/`.
        path: Where to open it.
        stat: What it is now.
        target: The real path that it leads to, if it is a link.
    """

    name: str
    path: str
    stat: Stat
    target: str = ""


@dataclass
class Ignored:
    """The files that were left out.

    Attributes:
        data_extensions: An empty file of these is not left out.
        runs_in: Folders in which runs are at work, or may be; what they have made there is known to `unfinished_in`.
    """

    data_extensions: Collection[str] = ()
    runs_in: set[str] = field(default_factory=set)
    _found: dict[str, tuple[str, str]] = field(
        default_factory=dict, init=False
    )  # path to (reason, name)

    def add(self, reason: str, name: str, path: str) -> None:
        """Adds a name; where patterns overlap, it may come by more than once."""
        self._found[path] = reason, name

    @property
    def count(self) -> dict[str, int]:
        """How many, by reason."""
        return dict(Counter(reason for reason, _ in self._found.values()))

    def notes(self) -> list[str]:
        """A line for each reason, with the first names.

        >>> ignored = Ignored()
        >>> ignored.add("hidden", "a/.DS_Store", "/data/a/.DS_Store")
        >>> ignored.notes()
        ['ignored 1 hidden: a/.DS_Store']
        """
        found = []
        for reason, count in sorted(self.count.items()):
            names = heapq.nsmallest(
                _SHOWN, (name for why, name in self._found.values() if why == reason)
            )
            found.append(
                f"ignored {count} {reason}: {', '.join(names)}{', ...' if count > len(names) else ''}"
            )
        return found


def clutter(name: str) -> str | None:
    """Why a file or folder of this name holds no data, or None.

    >>> [clutter(name) for name in (".DS_Store", "a.txt~", "_SUCCESS", "_run-0123456789ab", "a.txt")]
    ['hidden', 'temporary', 'marker', 'folder of a run', None]
    """
    if name[0] == ".":
        return HIDDEN
    if _RUN.fullmatch(name) is not None:
        return RUN_FOLDER
    lower = name.lower()
    if lower.endswith(_TEMPORARY_ENDS):
        return TEMPORARY
    return MARKER if lower in _MARKERS or lower.startswith(_MARKER_STARTS) else None


def unfinished_in(folder: str) -> list[str]:
    """Returns what runs at work, or killed ones, have put into the folder of a disk or a store that is no result, as
    paths: the folder itself, where it holds none, else their own folders of data.
    """
    names = names_if_there(folder)
    runs = [match[1] for name in names if (match := _RUN.fullmatch(name))]
    if not runs:
        return []
    results = [
        join(folder, kind, name)
        for kind in {MANIFESTS, RESULTS} & {*names}
        for name in names_if_there(join(folder, kind))
        if _NUMBERED.fullmatch(name)
    ]
    if not results and SUMMARY_NAME not in names:
        return [folder]
    made = [name for name in names if name.removeprefix(DATA_PREFIX) in runs]
    committed = {name for path in results for name in _folders_of(path)} if made else set()
    return [join(folder, name) for name in made if name not in committed]


def _folders_of(result: str) -> list[str]:
    """The folders of data that a manifest, or what commits a read, names; none where it was removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return [name.decode() for name in _NAMED.findall(read_range(result).tobytes())]
    return []


def no_data_set(folder: str) -> UsageError:
    """The error of a folder that only runs have written to, or of what they have made."""
    return UsageError(
        f"{folder}: not a data set (a build or a read is at work there, or was killed: `recordmill status` says which, "
        "and the next one into the same folder, or `recordmill clean`, removes what a killed one left)"
    )


def look_for_runs(path: str, ignored: Ignored) -> None:
    """Note in which folders above a real path runs may be at work; UsageError where it lies in the folder of one."""
    for match in _OF_RUN.finditer(path):
        above = path[: match.start()].rstrip("/")
        if match[0].startswith(RUN_PREFIX):
            raise no_data_set(above)
        ignored.runs_in.add(above)


def file_extension(name: str) -> str:
    """In lower case, without the dot; of a name without a dot all of it."""
    return name.rpartition("/")[2].rpartition(".")[2].lower()


def has_magic(text: str) -> bool:
    """Returns whether the text would be a glob if no file had it as its own name."""
    return _MAGIC.search(text) is not None


@dataclass(frozen=True)
class _Folder:
    path: str  # real: no link in it
    prefix: str  # of the names in it, relative to the root, "" or with a closing /
    above: tuple[
        str, ...
    ] = ()  # the real paths of the linked folders it lies under, and of what holds those links


def walk_disk(
    root: str, pattern: str | None, follow_links: bool, ignored: Ignored
) -> Iterator[FileEntry]:
    """The files below a folder, or those that match, and all below the folders that match: `*`, `?`, `[a-z]` within a
    name, `**` any folders, by which a file may come twice.

    Raises:
        UsageError: A folder can't be listed, or links or special files were met that are not for it, after all files.
    """
    walk = _Walk(root, follow_links, ignored)
    top = _Folder(walk.root, "")
    yield from walk.descend(top) if pattern is None else walk.match(top, pattern.split("/"))
    if walk.problems:
        more = f" (and {len(walk.problems) - 3} more)" if len(walk.problems) > 3 else ""
        raise UsageError("; ".join(walk.problems[:3]) + more)


class _Walk:
    def __init__(self, root: str, follow_links: bool, ignored: Ignored) -> None:
        self.root, self.follow_links, self.ignored = os.path.realpath(root), follow_links, ignored
        self.problems: list[str] = []

    def descend(self, top: _Folder) -> Iterator[FileEntry]:
        pending = [top]
        while pending:
            folder = pending.pop()
            for entry in self._entries(folder):
                found = self._take(folder, entry)
                if isinstance(found, _Folder):
                    pending.append(found)
                elif found is not None:
                    yield found

    def match(self, top: _Folder, pattern: Sequence[str]) -> Iterator[FileEntry]:
        pending = [(top, pattern)]
        while pending:
            folder, parts = pending.pop()
            part, rest = parts[0], parts[1:]
            if part == "**":
                if not rest:
                    yield from self.descend(folder)
                    continue
                pending.append((folder, rest))
            matches = re.compile(fnmatch.translate("*" if part == "**" else part)).match
            for entry in self._entries(folder):
                if not matches(entry.name) or (entry.name[0] == "." and part[0] != "."):
                    continue
                found = self._take(folder, entry, keep_files=not rest, wanted=part[0] == ".")
                if isinstance(found, FileEntry):
                    yield found
                elif found is not None and rest:
                    pending.append((found, parts if part == "**" else rest))
                elif found is not None:
                    yield from self.descend(found)

    def _entries(self, folder: _Folder) -> Iterator[os.DirEntry[str]]:
        for entry in _entries(folder.path):
            if _RUN.fullmatch(entry.name) is not None:
                self.ignored.runs_in.add(folder.path)
            yield entry

    def _take(
        self,
        folder: _Folder,
        entry: os.DirEntry[str],
        *,
        keep_files: bool = True,
        wanted: bool = False,
    ) -> FileEntry | _Folder | None:
        """The file, or the folder to go on with; wanted: a hidden name that the pattern spells out."""
        name = folder.prefix + entry.name
        if (reason := clutter(entry.name)) is not None and not (wanted and reason == HIDDEN):
            if keep_files:
                self.ignored.add(reason, name, entry.path)
        elif entry.is_symlink():
            return self._take_link(folder, entry, name, keep_files)
        elif entry.is_dir():
            return _Folder(entry.path, name + "/", folder.above)
        elif keep_files:
            return self._take_file(name, entry.path, entry.stat())
        return None

    def _take_file(
        self, name: str, path: str, about: os.stat_result, target: str = ""
    ) -> FileEntry | None:
        if not modes.S_ISREG(about.st_mode):
            self.ignored.add(SPECIAL, name, path)
        elif about.st_size == 0 and file_extension(name) not in self.ignored.data_extensions:
            self.ignored.add(EMPTY_FILE, name, path)
        else:
            return FileEntry(name, path, stat_of(about), target)
        return None

    def _take_link(
        self, folder: _Folder, entry: os.DirEntry[str], name: str, keep_files: bool
    ) -> FileEntry | _Folder | None:
        target = os.path.realpath(entry.path)
        try:
            about = os.stat(entry.path)
        except OSError as error:
            where = f"{entry.path} is a link to {os.readlink(entry.path)}"
            self.problems.append(
                f"{where}, which can't be reached ({error.strerror}): remove the link or restore it"
            )
            return None
        look_for_runs(target, self.ignored)
        inside = within(target, self.root)
        if not inside and not self.follow_links:
            self.problems.append(
                f"{entry.path} is a link out of the folder, to {target}: {option('follow_links', True)} allows it in a "
                "build, and each command takes it by its own name"
            )
        elif not modes.S_ISDIR(about.st_mode):
            if keep_files:
                return self._take_file(name, entry.path, about, target)
        elif not self.follow_links:
            self.ignored.add(LINKED_FOLDER, name, entry.path)
        elif within(folder.path, target) or any(within(above, target) for above in folder.above):
            self.ignored.add(LOOP, name, entry.path)
        else:
            return _Folder(target, name + "/", (*folder.above, folder.path))
        return None


def within(path: str, folder: str) -> bool:
    """Returns whether the real path is the real folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError as error:
        raise UsageError(f"{path}: this folder can't be listed: {error.strerror}") from error


_TAKEN = ("", 0)
_Verdict = (
    tuple[str, int] | None
)  # (why it is left out, by which part); _TAKEN; None where it does not match


def walk_store(folder: str, pattern: str | None, ignored: Ignored) -> Iterator[FileEntry]:
    """The objects below the folder, or those of them that match and all below the folders that match, as they come.

    Raises:
        OSError: the store can't list them.
    """
    root = folder.rstrip("/")
    wanted = None if pattern is None else [(part, _regex(part)) for part in pattern.split("/")]
    for name, about in below(folder):
        parts = name.split("/")
        for place in (
            (place for place, part in enumerate(parts) if _RUN.fullmatch(part))
            if RUN_PREFIX in name
            else ()
        ):
            ignored.runs_in.add("/".join((root, *parts[:place])))
        verdict = _descend(parts, 0) if wanted is None else _match(parts, wanted)
        if verdict is None:
            continue
        if verdict != _TAKEN:
            left = "/".join(parts[: verdict[1] + 1])
            ignored.add(verdict[0], left, f"{root}/{left}")
        elif about.size_bytes == 0 and file_extension(name) not in ignored.data_extensions:
            ignored.add(EMPTY_FILE, name, f"{root}/{name}")
        else:
            yield FileEntry(name, f"{root}/{name}", about)


def _regex(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def _descend(parts: Sequence[str], at: int) -> _Verdict:
    """Everything is wanted from that part on."""
    for place in range(at, len(parts)):
        if (reason := clutter(parts[place])) is not None:
            return reason, place
    return _TAKEN


def _match(
    parts: Sequence[str], wanted: Sequence[tuple[str, re.Pattern[str]]], at: int = 0
) -> _Verdict:
    (part, regex), rest = wanted[0], wanted[1:]
    is_last, name = at == len(parts) - 1, parts[at]
    if part == "**":
        if not rest:
            return _descend(parts, at)
        if (verdict := _match(parts, rest, at)) is not None:
            return verdict
        return None if is_last or clutter(name) is not None else _match(parts, wanted, at + 1)
    if regex.match(name) is None or (name[0] == "." and part[0] != "."):
        return None
    reason = clutter(name)
    if reason is not None and not (part[0] == "." and reason == HIDDEN):
        return None if rest else (reason, at)
    if rest:
        return None if is_last else _match(parts, rest, at + 1)
    return _TAKEN if is_last else _descend(parts, at + 1)
