"""What tests of several rooms do: bytes of folders, rejects, frames, tables of columns, and a job in each way."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import recordmill
from recordmill.records.tfrecord.frames import frame
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema

WAYS_TO_READ: tuple[dict[str, Any], ...] = (
    {"threads": 1}, {"threads": 8, "memory": "256MiB"}, {"runner": "FnApiRunner", "threads": 2},
)  # fmt: skip
WAYS_TO_BUILD: tuple[dict[str, Any], ...] = (
    {"threads": 1}, {"threads": 8}, {"memory": "128MiB"}, {"runner": "DirectRunner"},
    {"beam_args": ("--direct_runner_bundle_repeat=2",)},
)  # fmt: skip


def run_python(*words: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these words, and holds what it prints."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: str | Path, at: int) -> None:
    """Flips the lowest bit of one byte of a file."""
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


def at_once(work: Callable[..., object], *given: object) -> None:
    """Calls `work` with each of these in a thread of its own, and waits for all."""
    threads = [threading.Thread(target=work, args=(each,)) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rejects_of(result: Any) -> list[dict[str, Any]]:
    """The lines of the files of rejects that a build or a read wrote."""
    return [json.loads(line) for path in result.rejects for line in Path(path).read_text("utf-8").splitlines()]


def framed(payloads: Iterable[bytes]) -> bytes:
    """A TFRecord file of these payloads."""
    payloads = list(payloads)
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int64)
    return frame(np.frombuffer(b"".join(payloads), np.uint8), ends).data.tobytes()


def table_of(columns: Mapping[str, Any], schema: Schema) -> pa.Table:
    """The columns with the types and the metadata of a schema."""
    arrow = to_arrow(schema)
    return pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)


def read_in_each_way(
    source: Any, folder: Path, ways: Iterable[Mapping[str, Any]] = WAYS_TO_READ, **options: Any
) -> list[recordmill.ReadResult]:
    """Reads in each way, each into a folder of its own, and checks that all write the same files."""
    results = [recordmill.read(source, folder / f"{at}", **options, **way) for at, way in enumerate(ways)]
    first, *others = (tree(folder / f"{at}") for at in range(len(results)))
    assert len(first) > 2
    for at, other in enumerate(others, 1):
        assert other == first, results[at]
    return results


def check_goes_on(
    begin: Callable[..., Any], shown: Callable[[Any], list[Any]], options: Mapping[str, Any], every: int = 1
) -> list[Any]:
    """Checks that batches go on from the state after `every` so many steps and the last one; gives what all show."""
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
    results = [recordmill.build(data, folder / f"{at}", **options, **way) for at, way in enumerate(({}, *ways))]
    first, *others = ({path.name: path.read_bytes() for path in map(Path, result.shards)} for result in results)
    for at, other in enumerate(others, 1):
        assert other == first, results[at]
    return results
