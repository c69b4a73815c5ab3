"""Two appenders, four readers and `clean` use one OUT: `growing_crowd.py FOLDER ROUNDS`.

In each round, an appender adds its own file. It repeats the command if the other appender was
faster. A reader must see complete files only. The records that it saw before must keep their
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
    """Writes a CSV file with ROWS ids that no other file has."""
    path = folder / f"{number}.csv"
    path.write_text("id\n" + "".join(f"{number * ROWS + row}\n" for row in range(ROWS)))
    return str(path)


def append(root: Path, number: int, rounds: int, ended: Event) -> None:
    for number_of_round in range(rounds):
        path = write_file(root, 1 + number * rounds + number_of_round)
        is_appended = False
        while not is_appended:
            with contextlib.suppress(CommitConflict):
                recordmill.build(path, root / "out", append=True, threads=1)
                is_appended = True


def read(root: Path, number: int, rounds: int, ended: Event) -> None:
    known_ids: list[int] = []
    while not ended.is_set():
        try:
            dataset = recordmill.open(root / "out", threads=1)
            ids = dataset.to_numpy()["id"].tolist()
            # Single records are read in another way.
            assert dataset[len(ids) - 1]["id"] == ids[-1]
        except DataError as error:
            # More than two commits have happened since the data set was opened.
            if "is gone" not in str(error):
                raise
            continue
        assert len(ids) >= len(known_ids)
        assert ids[: len(known_ids)] == known_ids, "records have other numbers"
        files = {number_id // ROWS for number_id in ids}
        assert len(ids) == len(set(ids)) == ROWS * len(files), "half a file"
        known_ids = ids


def clean(root: Path, number: int, rounds: int, ended: Event) -> None:
    while not ended.is_set():
        assert recordmill.clean(root / "out", remove=True) == {}, "a living run counts as dead"
        time.sleep(0.01)


def run_and_report(work: Callable[..., None], root: Path, number: int, *arguments: object) -> None:
    try:
        work(root, number, *arguments)
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
            context.Process(target=run_and_report, args=(work, root, number, rounds, ended))
            for number in range(count)
        ]
        for work, count in ((append, APPENDERS), (read, READERS), (clean, 1))
    }
    for process in [member for group in processes.values() for member in group]:
        process.start()
    for process in processes[append]:
        process.join()
    ended.set()
    for process in [*processes[read], *processes[clean]]:
        process.join()
    ids = recordmill.open(root / "out").to_numpy()["id"].tolist()
    assert sorted(ids) == list(range(ROWS * (1 + APPENDERS * rounds))), len(ids)
    temporary_names = [
        name.name for name in (root / "out").iterdir() if name.name.startswith(("_run-", "."))
    ]
    assert not temporary_names, temporary_names
    assert recordmill.verify(root / "out") == []
    print(json.dumps({"rounds": rounds, "generation": recordmill.log(root / "out")[-1].generation}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
