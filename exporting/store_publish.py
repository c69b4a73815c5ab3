"""The commit of a read to a store: the outputs, which the run made on this machine, become objects below `data-<id>/`,
and then `_reads/<generation>.json` is put, if no other read has put that one. `_read.json`, which people and other
tools look at, is a copy of it. What it replaces is removed behind that, since tools that list the folder would read
both.

What was put is noted in the run folder, so that the same command, after a kill, puts the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.threads import both
from recordmill.exporting.plan import SUMMARY_NAME
from recordmill.exporting.replacing import REJECTS
from recordmill.exporting.resume import is_resumable
from recordmill.shards.dead_runs import ABOUT_NAME
from recordmill.shards.manifest import DATA_PREFIX, RUN_PREFIX, is_data_set
from recordmill.shards.run_folder import RunFolder
from recordmill.shards.store_run import RESULTS, StoreRun, objects_of, result_name, result_numbers, results, work_folder
from recordmill.storage.files import (
    listed_objects,
    put_object,
    remove_objects,
    replace_file,
    stat,
    upload_all,
    write_all,
)
from recordmill.storage.folders import files_below, join, names_in, remove_file
from recordmill.storage.strict_json import Fields, parse, read_bounded

JOURNAL = "put.jsonl"  # in the run folder: the folder in the store, and each object that is there
_OURS = (RUN_PREFIX, DATA_PREFIX, f"{REJECTS}/", f"{RESULTS}/")

_log = logging.getLogger(__name__)


def begin_in_store(out: str, overwrite: bool) -> tuple[RunFolder, int]:
    """(a run folder on this machine, the generation that the read follows; 0: none).

    Raises:
        UsageError: OUT holds a data set, an earlier result (without overwrite), or anything else, or can't be reached.
    """
    try:
        is_taken, there = both(lambda: is_data_set(out), lambda: results(out))
        if is_taken:
            raise UsageError(f"{out} holds a data set of recordmill; name another folder for --out")
        if there:
            _finish(out, there)
            if not overwrite:
                raise UsageError(f"{out} already holds the result of a read; --overwrite replaces it")
        else:
            strange = next((item.name for item in listed_objects(out) if not item.name.startswith(_OURS)), None)
            if strange is not None:
                raise UsageError(f"{out} is not empty ({strange}, ...); name a new or an empty folder for --out")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    except DataError as error:
        raise UsageError(f"{error}: not what a read writes; remove it, or name another folder") from None
    return RunFolder.create(work_folder(out), keep=is_resumable, index=False), max(there, default=0)


def publish_in_store(
    folder: RunFolder, out: str, base: int, summary: Mapping[str, Any], memory_bytes: int
) -> tuple[str, tuple[str, ...]]:
    """Publish everything in the run's data folder as generation base + 1 of the results at OUT; gives the URIs of the
    folder of the outputs and of the files that list rejected records.

    Raises:
        RecordmillError: another read was first.
        OSError: a request failed, and nothing was committed, or it can't be known, and nothing was removed.
        KeyboardInterrupt: it says so if the result was complete already.
    """
    journal = _Journal(folder.path / JOURNAL, out)
    with journal, StoreRun(out, journal.folder.removeprefix(DATA_PREFIX)) as run:
        try:
            (outputs, rejects), _ = both(lambda: _put(folder, out, journal, memory_bytes), run.remove_dead)
            text = _text({**summary, "folder": journal.folder, "files": [*outputs, *rejects]})
            wanted = run.may_commit(base, result_numbers)
        except BaseException:
            run.discard()
            raise
        if not (wanted and run.commit(result_name(base + 1), text)):
            run.discard()
            raise _came_second(out)
        _tidy(folder, out, base + 1, text)
    return join(out, journal.folder), tuple(join(out, name) for name in rejects)


def publish_placed(
    run: StoreRun, folder: RunFolder, base: int, summary: Mapping[str, Any], files: Sequence[tuple[str, Sequence[str]]]
) -> tuple[str, tuple[str, ...]]:
    """As `publish_in_store`, of outputs that lie in the run's data folder in the store already. files: name of each
    output, and the URIs of its files of rejects.

    Raises:
        RecordmillError: another read was first. Nothing is removed here.
    """
    out, data = run.out, f"{DATA_PREFIX}{run.id}"
    rejects = [path for _, paths in files for path in paths]
    names = [f"{data}/{name}" for name, _ in files] + [path.removeprefix(f"{out}/") for path in rejects]
    text = _text({**summary, "folder": data, "files": names})
    if not (run.may_commit(base, result_numbers) and run.commit(result_name(base + 1), text)):
        raise _came_second(out)
    _tidy(folder, out, base + 1, text)
    return join(out, data), tuple(rejects)


def _came_second(out: str) -> RecordmillError:
    return RecordmillError(
        f"{out}: another read wrote its result there while this one ran; nothing of this one was kept"
    )


def _text(summary: Mapping[str, Any]) -> bytes:
    document = {"format": "recordmill read", "version": 1, **summary}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _put(folder: RunFolder, out: str, journal: _Journal, memory_bytes: int) -> tuple[list[str], list[str]]:
    """Put what an earlier process of this read has not; gives the names below OUT of outputs and of rejects."""
    names = [name for name in names_in(folder.data) if not name.startswith(".")]
    found = [name for name in names_in(folder.rejects) if not name.startswith(".")]
    made = {name: path for name, path in files_below(folder.data).items() if not name.startswith(".")}
    files = {f"{journal.folder}/{name}": path for name, path in made.items()}
    rejects = [f"{REJECTS}/{journal.folder.removeprefix(DATA_PREFIX)}.{name}" for name in found]
    files |= {key: str(folder.rejects / name) for key, name in zip(rejects, found, strict=True)}
    there = set(objects_of(out, journal.folder)) if journal.put else set()
    left = {key: path for key, path in files.items() if key not in there or journal.put.get(key) != _identity(path)}
    remove_objects(out, sorted(there - set(files)))  # of what was read anew under other names
    upload_all(out, left, memory_bytes, lambda key: journal.note(key, files[key]))
    return [f"{journal.folder}/{name}" for name in names], rejects


def _tidy(folder: RunFolder, out: str, generation: int, text: bytes) -> None:
    """What follows a commit and can't undo it."""
    try:
        with contextlib.suppress(OSError):
            remove_file(folder.path / ABOUT_NAME, missing_ok=True)  # nothing is left to go on with
        there = results(out)
        if max(there, default=0) == generation:  # else a later one does it
            _finish(out, there, text)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped, but {out} was complete already") from None
    except (OSError, RecordmillError) as error:
        _log.warning("%s: the result is complete, but tidying up after it failed (%s)", out, error)


def _finish(out: str, there: Mapping[int, str], text: bytes | None = None) -> None:
    """Make `_read.json` what the newest result's own file says, and remove what it replaced; the file of the generation
    before stays, so that no read which began before it can take its number. there: as `results` gives it. text: what
    the file says, if that is known, and that no read has finished it.
    """
    generation = max(there)
    if text is None:
        newest, said = both(lambda: read_bounded(join(out, result_name(generation))), lambda: _said(out))
        if said == newest and len(there) == 1:
            return
        text = newest
    put_object(join(out, SUMMARY_NAME), text)
    older = [(number, name) for number, name in there.items() if number < generation]
    remove_objects(out, [key for _, name in older for key in objects_of(out, name)])
    remove_objects(out, [result_name(number) for number, _ in older if number < generation - 1])


def _said(out: str) -> bytes:
    with contextlib.suppress(FileNotFoundError, DataError):
        return read_bounded(join(out, SUMMARY_NAME))
    return b""


class _Journal:
    """Which objects are in the store, as what; a context that notes more of them. folder: where they lie in OUT. put:
    what earlier processes of this read noted.
    """

    def __init__(self, path: Path, out: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self.folder, self.put = f"{DATA_PREFIX}{uuid.uuid4().hex[:12]}", dict[str, tuple[int, int]]()
        with contextlib.suppress(OSError, DataError):
            first, *others = read_bounded(path).splitlines()
            folder = Fields(parse(first, path.name), path.name).text(
                "folder", f"{DATA_PREFIX}[0-9a-f]{{12}}", "a folder"
            )
            if folder not in results(out).values():  # else an earlier process has committed without hearing of it
                self.folder = folder
                self._load(others)

    def _load(self, lines: list[bytes]) -> None:
        for line in lines:
            about = Fields(parse(line, self._path.name), self._path.name)
            self.put[about.text("name")] = about.count("size_bytes"), about.count("mtime_ns")

    def __enter__(self) -> _Journal:
        self._file = replace_file(self._path)
        self._write({"folder": self.folder})
        for name, (size_bytes, mtime_ns) in self.put.items():
            self._write({"name": name, "size_bytes": size_bytes, "mtime_ns": mtime_ns})
        return self

    def note(self, name: str, path: str) -> None:
        """The file is there under that name."""
        size_bytes, mtime_ns = _identity(path)
        self._write({"name": name, "size_bytes": size_bytes, "mtime_ns": mtime_ns})

    def _write(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            write_all(self._file, json.dumps(fields).encode() + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _identity(path: str) -> tuple[int, int]:
    about = stat(path)
    return about.size_bytes, about.mtime_ns
