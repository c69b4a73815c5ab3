"""Builders, readers and `verify` use one OUT at once: `crowd.py FOLDER ROUNDS`.

Each of them must see one complete data set.
"""

import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building.commit import CommitConflict

ROWS = 40


def build(root: Path, number: int) -> None:
    try:
        recordmill.build(str(root / f"{number}.csv"), str(root / "out"), overwrite=True, threads=1)
    except CommitConflict:
        return


def read(root: Path, number: int) -> None:
    values = recordmill.open(root / "out", threads=1).to_table().column("b").to_pylist()
    assert len(values) == ROWS, len(values)
    assert len({value[0] for value in values}) == 1, "records of two data sets"


def verify(root: Path, number: int) -> None:
    problems = recordmill.verify(root / "out", threads=1)
    assert not problems, [str(problem) for problem in problems[:3]]


def repeat_work(work: Callable[[Path, int], None], root: Path, number: int, rounds: int) -> None:
    for number_of_round in range(rounds):
        try:
            work(root, number)
        except RecordmillError as error:
            print(
                json.dumps({"who": work.__name__, "round": number_of_round, "error": str(error)}),
                flush=True,
            )
        except BaseException:
            print(
                json.dumps(
                    {
                        "who": work.__name__,
                        "round": number_of_round,
                        "crash": traceback.format_exc()[-1500:],
                    }
                ),
                flush=True,
            )


def main(folder: str, rounds: int) -> None:
    root = Path(folder)
    root.mkdir(parents=True)
    for number in range(4):
        (root / f"{number}.csv").write_text(
            "a,b\n" + "".join(f"{i},{'wxyz'[number]}{i}\n" for i in range(ROWS))
        )
    build(root, 0)
    context = multiprocessing.get_context("fork")
    tasks = [(work, number) for work in (build, read) for number in range(4)] + [(verify, 0)]
    processes = [
        context.Process(target=repeat_work, args=(work, root, number, rounds))
        for work, number in tasks
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    build(root, 0)
    temporary_names = [
        name.name for name in (root / "out").iterdir() if name.name.startswith(("_run-", "."))
    ]
    assert not temporary_names, temporary_names
    assert not recordmill.verify(root / "out")
    print(json.dumps({"rounds": rounds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
