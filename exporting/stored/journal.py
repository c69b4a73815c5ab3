"""Which objects of a read are in its store, noted in the run folder, so that the same command, after a kill, puts the
rest.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.manifest import DATA_PREFIX
from recordmill.shards.store_run import results
from recordmill.storage.files import replace_file, stat, write_all
from recordmill.storage.strict_json import Fields, parse, read_bounded

JOURNAL = "put.jsonl"  # in the run folder: the folder in the store, and each object that is there


class Journal:
    """A context that notes more objects. folder: where they lie in OUT. put: what earlier processes of this read noted,
    each object as what its file was.
    """

    def __init__(self, run: Path, out: str) -> None:
        self._path, self._lock = run / JOURNAL, threading.Lock()
        self.folder, self.put = f"{DATA_PREFIX}{uuid.uuid4().hex[:12]}", dict[str, tuple[int, int]]()
        with contextlib.suppress(OSError, DataError):
            first, *others = read_bounded(self._path).splitlines()
            folder = Fields(parse(first, JOURNAL), JOURNAL).text("folder", f"{DATA_PREFIX}[0-9a-f]{{12}}", "a folder")
            if folder not in results(out).values():  # else an earlier process has committed without hearing of it
                self.folder = folder
                self._load(others)

    def _load(self, lines: list[bytes]) -> None:
        for line in lines:
            about = Fields(parse(line, JOURNAL), JOURNAL)
            self.put[about.text("name")] = about.count("size_bytes"), about.count("mtime_ns")

    def __enter__(self) -> Journal:
        self._file = replace_file(self._path)
        self._write({"folder": self.folder})
        for name, (size_bytes, mtime_ns) in self.put.items():
            self._write({"name": name, "size_bytes": size_bytes, "mtime_ns": mtime_ns})
        return self

    def note(self, name: str, path: str) -> None:
        """The file is there under that name."""
        size_bytes, mtime_ns = _identity(path)
        self._write({"name": name, "size_bytes": size_bytes, "mtime_ns": mtime_ns})

    def is_put(self, name: str, path: str) -> bool:
        """Whether an earlier process has put that file, as it is."""
        return self.put.get(name) == _identity(path)

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
