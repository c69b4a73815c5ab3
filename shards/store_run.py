"""A run (of a build, or a read) at work on an OUT in a store: its lease, `OUT/_run-<id>/lease.json`, what runs left
whose lease has run out, and which results reads committed; and `clean`, which is for any OUT.

A lease is an object that is written anew every RENEW_SEC while the run puts its objects there, by its driver or its
workers. Where nothing was put into the run's folder for LEASE_SEC, by the store's own clock, the run is dead: its
objects, which nothing committed names, may be removed. The lease goes last, so that a removal that is stopped is taken
up by the next. A run of which an engine's job is noted may wait for that engine without a word, and is dead after a
day; `clean` asks the engine. A build does not, since whoever can write to OUT may have written the note.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import both, thread_map
from recordmill.engines.note import JOB_NAME, RUNNING, UNHEARD_SEC, UNKNOWN, read_note, state_of
from recordmill.shards.dead_runs import claimed, clean_dead, loaded, machine
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, RUN_PREFIX, generations
from recordmill.storage.files import (
    bound_requests,
    is_remote,
    listed_objects,
    output_path,
    put_if_absent,
    put_object,
    remove_objects,
)
from recordmill.storage.folders import files_below, is_folder, join, names_if_there, paths_in, private_folder
from recordmill.storage.strict_json import load_fields

RENEW_SEC, LEASE_SEC = 60, 900  # a run that was not heard of for 15 minutes is dead
LEASE = "lease.json"
_AT_ONCE = 4  # requests that say what there is
RESULTS = "_reads"  # the results of reads: a file for each generation
_NUMBER = re.compile(r"([0-9]{8})\.json")

_log = logging.getLogger(__name__)


def check_store_out(out: str, overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to."""
    try:
        numbers = generations(out)
        if numbers and not overwrite:
            raise UsageError(
                f"{out} already holds a data set; {option('overwrite', True)} replaces it (the old one stays "
                "readable until the "
                "new one is complete)"
            )
        if numbers:
            loaded(out)
            return numbers[-1]
        strange = next((item.name for item in listed_objects(out) if not _is_ours(item.name)), None)
    except OSError as error:
        raise UsageError(f"{option('out', out)}: {error.strerror}") from None
    if strange is not None:
        raise UsageError(f"{out} is not empty ({strange}, ...) and holds no data set of recordmill; name a new folder")
    return 0


def _is_ours(name: str) -> bool:
    return name.startswith((RUN_PREFIX, DATA_PREFIX, "rejects/", f"{MANIFESTS}/"))


def work_folder(out: str) -> Path:
    """Where on this machine runs prepare what they put into that OUT; the same for each of them."""
    return Path(private_folder("recordmill"), hashlib.sha256(out.encode()).hexdigest()[:16])


def result_name(generation: int) -> str:
    """The name below OUT of what commits a read's result."""
    return f"{RESULTS}/{generation:08d}.json"


def results(out: str, known: Mapping[int, str] | None = None) -> dict[int, str]:
    """Number of each result of a read that OUT holds to its folder there, ascending; the last one is the result. known:
    what is known of them, so that it need not be asked.

    Raises:
        DataError: one of them is none that a read writes.
    """

    def folder_of(number: int) -> str:
        if known and number in known:
            return known[number]
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            fields = load_fields(join(out, result_name(number)))
            return fields.text("folder", f"{DATA_PREFIX}[0-9a-f]{{12}}", "the folder of a result")
        return ""

    numbers = result_numbers(out)
    found = zip(numbers, thread_map(folder_of, numbers, _AT_ONCE), strict=True)
    return {number: folder for number, folder in found if folder}


def result_numbers(out: str) -> list[int]:
    """The numbers of the results of reads that OUT holds, ascending."""
    names = names_if_there(join(out, RESULTS))
    return sorted(int(match[1]) for name in names if (match := _NUMBER.fullmatch(name)))


class StoreRun:
    """Holds the lease of a run, as a context; renewed by a thread of its own."""

    def __init__(self, out: str, identifier: str) -> None:
        self.out, self.id = out, identifier
        self._is_open = False  # whether it is unknown if the run has committed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="recordmill-lease", daemon=True)

    @property
    def _text(self) -> bytes:
        return json.dumps({"host": machine()["host"], "lease_sec": LEASE_SEC}).encode()

    def __enter__(self) -> StoreRun:
        put_object(f"{self.out}/{RUN_PREFIX}{self.id}/{LEASE}", self._text)
        self._thread.start()
        return self

    def may_commit(self, base: int, numbers_of: Callable[[str], Sequence[int]]) -> bool:
        """Whether generation `base` is still the newest that OUT holds by `numbers_of`, and nobody has taken this run
        for dead.
        """
        numbers, is_held = both(lambda: numbers_of(self.out), lambda: self.is_held)
        return max(numbers, default=0) == base and is_held

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SEC):
            try:
                put_object(f"{self.out}/{RUN_PREFIX}{self.id}/{LEASE}", self._text)
            except OSError as error:
                _log.warning("%s: the lease can't be renewed: %s", self.out, error.strerror)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_open:  # who finds the lease expired knows by then
            return
        try:
            remove_objects(self.out, [f"{RUN_PREFIX}{self.id}/{LEASE}"])
        except OSError as failure:
            _log.warning("%s: the lease of this run can't be removed: %s", self.out, failure.strerror)

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken this run for dead."""
        return any(item.name == LEASE for item in listed_objects(f"{self.out}/{RUN_PREFIX}{self.id}"))

    def commit(self, name: str, data: bytes) -> bool:
        """Create the object below OUT that makes what the run has put a data set, or a result, unless it is there; says
        whether this call did. Where it can't be known, nothing is removed, and the lease is left to run out.

        Raises:
            OSError: the put failed, or its result can't be known.
        """
        self._is_open = True
        done = put_if_absent(f"{self.out}/{name}", data)
        self._is_open = False
        return done

    def discard(self) -> None:
        """Remove this run's own objects; what can't be is left to the next run, which finds the lease."""
        try:
            remove_objects(self.out, objects_of(self.out, f"{DATA_PREFIX}{self.id}"))
        except OSError:
            self._is_open = True

    def remove_dead(self) -> None:
        """Remove what dead runs left."""
        for name, left in self.left_by_dead().items():
            _log.warning("%s: removing what the dead run %s left (%d objects)", self.out, name, len(left))
            _remove(self.out, left)

    def left_by_dead(self, *, asks: bool = False) -> dict[str, list[str]]:
        """Name of each dead run's folder to the names of what it left, the lease last. asks: engines, about the jobs
        that are noted.
        """
        runs: dict[str, list[str]] = {}
        seen: dict[str, float] = {}  # when something was put into the folder last: its lease, or what workers made
        for item in listed_objects(self.out):
            name, _, rest = item.name.partition("/")
            if rest and name.startswith(RUN_PREFIX):
                runs.setdefault(name, []).append(item.name)
                seen[name] = max(seen.get(name, item.changed_sec), item.changed_sec)
        now = seen.pop(f"{RUN_PREFIX}{self.id}")
        dead = {name for name, changed in seen.items() if now - changed > LEASE_SEC}
        kept = _committed(self.out) if dead else set()
        dead -= {
            name
            for name in dead
            if f"{name}/{JOB_NAME}" in runs[name]
            and _data_of(name) not in kept
            and self._may_be_at_work(name, now - seen[name], asks)
        }
        return {name: [*self._of(name, kept), *_lease_last(runs[name])] for name in sorted(dead)}

    def _may_be_at_work(self, name: str, silent_sec: float, asks: bool) -> bool:
        """Whether the engine's job that is noted there may still begin, or go on."""
        note = read_note(join(self.out, name))
        if note is None:
            return False
        state = state_of(note) if asks else UNKNOWN
        return state == RUNNING or (state == UNKNOWN and silent_sec <= UNHEARD_SEC)

    def _of(self, name: str, kept: set[str]) -> list[str]:
        return [] if _data_of(name) in kept else objects_of(self.out, _data_of(name))


def _data_of(name: str) -> str:
    return f"{DATA_PREFIX}{name.removeprefix(RUN_PREFIX)}"


def _committed(out: str) -> set[str]:
    """The folders that data sets and results consist of."""
    return {part.folder for manifest in loaded(out).values() for part in manifest.parts} | set(results(out).values())


def _remove(out: str, left: list[str]) -> None:
    """Remove what a dead run left, and when all of it is gone the last one, by which the run is found."""
    remove_objects(out, left[:-1])
    remove_objects(out, left[-1:])


def _lease_last(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: name.endswith(f"/{LEASE}"))


def objects_of(out: str, data: str) -> list[str]:
    """The names below OUT of all objects that belong to a data folder: its own, and its files of rejects."""
    prefixes = {data: "", "rejects": f"{data.removeprefix(DATA_PREFIX)}."}

    def below(folder: str) -> list[str]:
        names = (item.name for item in listed_objects(f"{out}/{folder}"))
        return [f"{folder}/{name}" for name in names if name.startswith(prefixes[folder])]

    return [name for found in thread_map(below, prefixes, len(prefixes)) for name in found]


def clean(
    out: str | os.PathLike[str], *, remove: bool = False, storage_requests: int | None = None
) -> Mapping[str, list[str]]:
    """Name of each dead run's folder in OUT to the paths of what it left, which no data set consists of.

    remove: remove it. A dead `read` that could go on is among them. On a disk a run is dead when no process of this
    machine holds its lock; in a store, when its lease was not renewed for 15 minutes. One that works on an engine is
    dead when the engine says so, or where that can't be asked a day after its last word. Of an OUT in a store, what its
    runs left among the temporary files of this machine is named, too, by its whole path.

    Raises:
        UsageError: there is no such folder.
    """
    place = output_path(out)
    bound_requests(storage_requests)
    if not is_remote(place):
        if not is_folder(place):
            raise UsageError(f"{place}: no such folder")
        return _on_disk(Path(place), remove)
    here = _on_disk(work_folder(place), remove)
    if not here and not is_folder(place):
        raise UsageError(f"{place}: no such folder")
    return {**_in_store(place, remove), **{join(str(work_folder(place)), name): left for name, left in here.items()}}


def _on_disk(place: Path, remove: bool) -> dict[str, list[str]]:
    if not is_folder(place):
        return {}
    folders = [*paths_in(place, f"{RUN_PREFIX}*"), *paths_in(place, f".{RUN_PREFIX}*")]
    with claimed(folders) as dead:
        names = [run.name for run in dead]
    found = {name: sorted(files_below(join(place, name)).values()) for name in names}
    if remove and found:
        removed = set(clean_dead(place))
        return {name: left for name, left in found.items() if name in removed}
    return found


def _in_store(out: str, remove: bool) -> dict[str, list[str]]:
    if not is_folder(out):
        return {}
    with StoreRun(out, uuid.uuid4().hex[:12]) as run:
        found = run.left_by_dead(asks=True)
        found |= {name: left for name in list(results(out).values())[:-1] if (left := objects_of(out, name))}
        for left in found.values() if remove else ():
            _remove(out, left)
    return {name: [join(out, one) for one in left] for name, left in found.items()}
