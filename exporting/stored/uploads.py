"""What a read puts into its folder in a store: outputs that grow at their ends while they are made, and all others when
they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from recordmill.exporting.plan import ReadPlan, held_bytes
from recordmill.exporting.replacing import REJECTS
from recordmill.exporting.resume import Finished
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.shards.manifest import DATA_PREFIX
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import StoreRun, objects_of
from recordmill.storage.files import (
    GROWING_BYTES,
    GrowingFile,
    check_uploaded,
    listed_objects,
    remove_objects,
    stat,
    upload_all,
)
from recordmill.storage.folders import files_below, names_in

_GROWING = 8  # outputs that are put while they are made


class Uploads:
    """A context that holds a run in OUT from the first output on, and removes what was put where that was not
    committed.

    is_settled: whether it was, or that can't be known. folder: of the run, on this machine. at_once: how many outputs
    are put while they are made; 0: none. finished: what earlier processes of this read have.
    """

    is_settled = False

    def __init__(self, folder: RunFolder, out: str, finished: Finished | None, memory_bytes: int, at_once: int) -> None:
        self.folder, self.out, self._memory_bytes, self._at_once = folder, out, memory_bytes, at_once
        self.run, self.data = StoreRun(out, folder.id), f"{DATA_PREFIX}{folder.id}"
        self.finished = finished
        self._there: dict[str, int] = {}  # objects that an earlier process of this read has put, and their sizes
        self._growing: dict[str, tuple[GrowingFile, Future[bool]]] = {}
        self._may_be_there, self._files = finished is not None, dict[str, str]()

    def __enter__(self) -> Uploads:
        if self.finished is not None:
            self._there = self._left_there({account.output for account in self.finished.kept.values()})
        self._own = ThreadPoolExecutor(1, thread_name_prefix="recordmill-run")
        self._begun: Future[Any] = self._own.submit(self.run.__enter__)
        self._tidied = self._own.submit(self.run.remove_dead)
        self._pool = ThreadPoolExecutor(max(self._at_once, 1), thread_name_prefix="recordmill-upload")
        return self

    @contextlib.contextmanager
    def follow(self, path: Path, name: str) -> Iterator[None]:
        """Within it, the file at that path grows, and becomes the output of that name; an error within it: it doesn't.
        The file may have another path behind it.
        """
        if not self._at_once:
            yield
            return
        self._may_be_there = True
        key, growing = f"{self.data}/{name}", GrowingFile(str(path))
        self._growing[key] = growing, self._pool.submit(self._put, growing, f"{self.out}/{key}")
        try:
            yield
        except BaseException:
            growing.end(whole=False)
            raise
        growing.end(whole=True)

    def _put(self, growing: GrowingFile, uri: str) -> bool:
        self._begun.result()  # the lease is there before any object
        return growing.put(uri)

    def _left_there(self, outputs: Set[str]) -> dict[str, int]:
        """The objects of outputs that are kept, with their sizes; all others that an earlier process of this read has
        put are removed, before an output can be made that has the name of one.
        """
        found = {f"{self.data}/{item.name}": item for item in listed_objects(f"{self.out}/{self.data}")}
        kept = {key: item.size_bytes for key, item in found.items() if key.split("/")[1] in outputs}
        remove_objects(self.out, [key for key in objects_of(self.out, self.data) if key not in kept])
        return kept

    def put_all(self) -> tuple[list[str], list[str]]:
        """Put what neither this process nor an earlier one of this read has; gives the names below OUT of outputs and
        of rejects.

        Raises:
            OSError: a request failed, several times.
        """
        self._begun.result()
        self._may_be_there = True
        folder, data = self.folder, self.data
        names = [name for name in names_in(folder.data) if not name.startswith(".")]
        found = [name for name in names_in(folder.rejects) if not name.startswith(".")]
        made = {name: path for name, path in files_below(folder.data).items() if not name.startswith(".")}
        rejects = [f"{REJECTS}/{folder.id}.{name}" for name in found]
        self._files = {f"{data}/{name}": path for name, path in made.items()}
        self._files |= {key: str(folder.rejects / name) for key, name in zip(rejects, found, strict=True)}
        left = {key: path for key, path in self._files.items() if not self._is_put(key, path)}
        upload_all(self.out, left, self._memory_bytes)
        self._tidied.result()
        return [f"{data}/{name}" for name in names], rejects

    def check(self) -> None:
        """Hold what was put against the files.

        Raises:
            RecordmillError: an object is not there, or not as long as its file.
        """
        check_uploaded(self.out, self._files)

    def _is_put(self, key: str, path: str) -> bool:
        """Whether the object is there: put by an earlier process, or while its file grew; where that failed, the whole
        file is put anew.
        """
        if self._there.get(key) == stat(path).size_bytes:
            return True
        if key in self._growing:
            _, future = self._growing[key]
            with contextlib.suppress(OSError):
                return not future.cancel() and future.result()
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for growing, _ in self._growing.values():
            growing.end(whole=False)
        self._pool.shutdown(cancel_futures=True)
        self._tidied.cancel()
        self._own.shutdown()
        for growing, _ in self._growing.values():
            growing.close()
        if self._begun.exception() is None:
            if self._may_be_there and not self.is_settled:
                self.run.discard()
            self.run.__exit__(kind, error, trace)


def uploads_of(
    plan: ReadPlan, folder: RunFolder, out: str, finished: Finished | None, threads: int, memory_bytes: int
) -> Uploads:
    """Those of a read, by which as many outputs are put while they are made as fit into the memory that the read itself
    does not need.
    """
    left = memory_bytes - held_bytes(threads)
    if any(isinstance(step, DecodeImages) for step in plan.steps):  # which may take all
        left = 0
    return Uploads(folder, out, finished, memory_bytes, max(min(left // GROWING_BYTES, _GROWING), 0))
