"""What tests of several rooms do: bytes of folders, rejects, frames, tables of columns, and a job
in each way.
"""

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import recordmill
from recordmill.base.messages import render
from recordmill.options.flags import flag_spelling
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.records.tfrecord.frames import frame_payloads
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.storage.files import read_range
from recordmill.storage.folders import find_files, join


def in_flags(message: object, command: str = "build") -> str:
    """A message, an error or a reject as the command line prints it."""
    return render(message, flag_spelling(command))


WAYS_TO_READ: tuple[dict[str, Any], ...] = (
    {"threads": 1},
    {"threads": 8, "memory": "256MiB"},
    {"runner": "FnApiRunner", "threads": 2},
)
WAYS_TO_BUILD: tuple[dict[str, Any], ...] = (
    {"threads": 1},
    {"threads": 8},
    {"memory": "128MiB"},
    {"runner": "DirectRunner"},
    {"beam_args": ("--direct_runner_bundle_repeat=2",)},
)


def run_python(
    *words: object, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these words, and holds what it prints."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def files_in(out: str | Path, folder: str) -> dict[str, bytes]:
    """All files below a folder of OUT, on a disk or in a store, by their names."""
    found = find_files(join(str(out), folder))
    return {name: read_range(path).tobytes() for name, path in found.items()}


def npy(array: Any, **options: Any) -> bytes:
    """The content of a .npy file."""
    np.save(into := io.BytesIO(), array, **options)
    return into.getvalue()


def zstd(data: bytes) -> bytes:
    """One frame of Zstandard."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def flip(path: str | Path, at: int) -> None:
    """Flips the lowest bit of one byte of a file."""
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


def damaged(data: bytes, step: int = 1, cut_step: int | None = None) -> Iterator[bytes]:
    """Every so many bytes with one bit changed (another one each time), then with all of them; then
    each cut.
    """
    for at in range(0, len(data), step):
        for mask in (1 << at // step % 8, 0xFF):
            yield data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
    yield from (data[:size] for size in range(0, len(data), cut_step or step))


def at_once(work: Callable[..., object], *given: object) -> None:
    """Calls `work` with each of these in a thread of its own, and waits for all."""
    threads = [threading.Thread(target=work, args=(each,)) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answers requests on loopback by the handler, which logs nothing, in threads; gives the
    port.
    """
    handler.log_message = lambda *_: None  # type: ignore[assignment, method-assign]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def rejects_of(result: Any) -> list[dict[str, Any]]:
    """The lines of the files of rejects that a build or a read wrote."""
    return [
        json.loads(line)
        for path in result.rejects
        for line in Path(path).read_text("utf-8").splitlines()
    ]


def ids(batches: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """The feature `id` of each batch."""
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def plain(value: Any) -> Any:
    """A value of an array or of our columns in Python's own types: None for what is missing, times
    as numbers.
    """
    if isinstance(value, np.ma.MaskedArray) and value.size and np.ma.getmaskarray(value).all():
        return None
    if isinstance(value, list | tuple | Ragged | Strings) or (
        isinstance(value, np.ndarray) and value.ndim
    ):
        return [plain(item) for item in value]
    if isinstance(value, np.datetime64):
        return int(value.astype(np.int64))
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def framed(payloads: Iterable[bytes]) -> bytes:
    """A TFRecord file of these payloads."""
    payloads = list(payloads)
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int64)
    return frame_payloads(np.frombuffer(b"".join(payloads), np.uint8), ends).data.tobytes()


def write_rows(path: Path, columns: Mapping[str, Any]) -> Path:
    """Writes columns as CSV, JSON Lines or Parquet, as the name ends; what is missing is an empty
    field, or no key.
    """
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="needed"))
    elif path.suffix == ".jsonl":
        rows = (
            {name: value for name, value in row.items() if value is not None}
            for row in table.to_pylist()
        )
        path.write_text(
            "".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8"
        )
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=70)
    return path


def table_of(columns: Mapping[str, Any], schema: Schema) -> pa.Table:
    """The columns with the types and the metadata of a schema."""
    arrow = to_arrow(schema)
    return pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)


def read_in_each_way(
    source: Any, folder: Path, ways: Iterable[Mapping[str, Any]] = WAYS_TO_READ, **options: Any
) -> list[recordmill.ReadResult]:
    """Reads in each way, each into a folder of its own, and checks that all write the same
    files.
    """
    results = [
        recordmill.read(source, folder / f"{at}", **options, **way) for at, way in enumerate(ways)
    ]
    first, *others = (tree(folder / f"{at}") for at in range(len(results)))
    assert len(first) > 2
    for at, other in enumerate(others, 1):
        assert other == first, results[at]
    return results


def check_goes_on(
    begin: Callable[..., Any],
    shown: Callable[[Any], list[Any]],
    options: Mapping[str, Any],
    every: int = 1,
) -> list[Any]:
    """Checks that batches go on from the state after `every` so many steps and the last one; gives
    what all show.
    """
    whole, running = shown(begin(**options)), begin(**options)
    behind = shown(begin(**{**options, "epochs": 2 * options["epochs"]}))[len(whole) :]
    for step in range(len(whole) + 1):
        if step == len(whole):
            assert next(running, None) is None
        state = json.loads(json.dumps(running.state()))
        if step % every == 0 or step == len(whole):
            assert shown(begin(**options, state=state)) == (whole[step:] or behind)
        next(running, None)
    return whole


def build_in_each_way(
    data: Any, folder: Path, ways: Iterable[Mapping[str, Any]] = WAYS_TO_BUILD, **options: Any
) -> list[recordmill.BuildResult]:
    """Builds as by default and in each way, and checks that all write the same shards."""
    results = [
        recordmill.build(data, folder / f"{at}", **options, **way)
        for at, way in enumerate(({}, *ways))
    ]
    first, *others = (
        {path.name: path.read_bytes() for path in map(Path, result.shards)} for result in results
    )
    for at, other in enumerate(others, 1):
        assert other == first, results[at]
    return results
