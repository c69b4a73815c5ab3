"""Two appenders, four readers and `clean` at one OUT: `growing_crowd.py FOLDER ROUNDS`.

Each appender adds a file of its own in each round, and repeats the command if the other one was
faster. Every reader sees complete files only, and the records that it saw before keep their
numbers.
"""

import contextlib
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import recordmill
from recordmill.base.errors import DataError
from recordmill.building.commit import CommitConflict

ROWS = 20
APPENDERS, READERS = 2, 4


def write_file(folder: Path, number: int) -> str:
    """A CSV with ROWS ids that no other file has."""
    path = folder / f"{number}.csv"
    path.write_text("id\n" + "".join(f"{number * ROWS + row}\n" for row in range(ROWS)))
    return str(path)


def append(root: Path, number: int, rounds: int, ended: Event) -> None:
    for done in range(rounds):
        path = write_file(root, 1 + number * rounds + done)
        is_appended = False
        while not is_appended:
            with contextlib.suppress(CommitConflict):
                recordmill.build(path, root / "out", append=True, threads=1)
                is_appended = True


def read(root: Path, number: int, rounds: int, ended: Event) -> None:
    seen: list[int] = []
    while not ended.is_set():
        try:
            dataset = recordmill.open(root / "out", threads=1)
            ids = dataset.to_numpy()["id"].tolist()
            # Another way to the same records.
            assert dataset[len(ids) - 1]["id"] == ids[-1]
        except DataError as error:
            # More than two commits have happened since it was opened.
            if "is gone" not in str(error):
                raise
            continue
        assert len(ids) >= len(seen)
        assert ids[: len(seen)] == seen, "records have other numbers"
        files = {one // ROWS for one in ids}
        assert len(ids) == len(set(ids)) == ROWS * len(files), "half a file"
        seen = ids


def clean(root: Path, number: int, rounds: int, ended: Event) -> None:
    while not ended.is_set():
        assert recordmill.clean(root / "out", remove=True) == {}, "a living run counts as dead"
        time.sleep(0.01)


def observed(work: Callable[..., None], root: Path, number: int, *rest: object) -> None:
    try:
        work(root, number, *rest)
    except BaseException:
        crash = traceback.format_exc()[-1500:]
        print(json.dumps({"who": f"{work.__name__} {number}", "crash": crash}), flush=True)


def main(folder: str, rounds: int) -> None:
    root = Path(folder)
    root.mkdir(parents=True)
    recordmill.build(write_file(root, 0), root / "out", append=True, threads=1)
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    processes = {
        work: [
            context.Process(target=observed, args=(work, root, number, rounds, ended))
            for number in range(count)
        ]
        for work, count in ((append, APPENDERS), (read, READERS), (clean, 1))
    }
    for process in [one for group in processes.values() for one in group]:
        process.start()
    for process in processes[append]:
        process.join()
    ended.set()
    for process in [*processes[read], *processes[clean]]:
        process.join()
    ids = recordmill.open(root / "out").to_numpy()["id"].tolist()
    assert sorted(ids) == list(range(ROWS * (1 + APPENDERS * rounds))), len(ids)
    left = [name.name for name in (root / "out").iterdir() if name.name.startswith(("_run-", "."))]
    assert not left, left
    assert recordmill.verify(root / "out") == []
    print(json.dumps({"rounds": rounds, "generation": recordmill.log(root / "out")[-1].generation}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
