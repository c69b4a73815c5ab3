"""Builders, readers and `verify` at one OUT, where each sees one whole data set: `crowd.py FOLDER
ROUNDS`.
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
    found = recordmill.open(root / "out", threads=1).to_table().column("b").to_pylist()
    assert len(found) == ROWS, len(found)
    assert len({value[0] for value in found}) == 1, "records of two data sets"


def verify(root: Path, number: int) -> None:
    found = recordmill.verify(root / "out", threads=1)
    assert not found, [str(one) for one in found[:3]]


def repeated(work: Callable[[Path, int], None], root: Path, number: int, rounds: int) -> None:
    for done in range(rounds):
        try:
            work(root, number)
        except RecordmillError as error:
            print(
                json.dumps({"who": work.__name__, "round": done, "error": str(error)}), flush=True
            )
        except BaseException:
            print(
                json.dumps(
                    {"who": work.__name__, "round": done, "crash": traceback.format_exc()[-1500:]}
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
    people = [(work, number) for work in (build, read) for number in range(4)] + [(verify, 0)]
    processes = [
        context.Process(target=repeated, args=(work, root, number, rounds))
        for work, number in people
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    build(root, 0)
    left = [name.name for name in (root / "out").iterdir() if name.name.startswith(("_run-", "."))]
    assert not left, left
    assert not recordmill.verify(root / "out")
    print(json.dumps({"rounds": rounds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
