"""Two appenders, four readers and `clean` at one OUT, where each reader sees whole generations:
`append_crowd.py FOLDER ROUNDS`.
"""

import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import recordmill
from recordmill.building.commit import CommitConflict

ROWS = 40


def append(root: Path, number: int, rounds: int, _: object) -> None:
    for done in range(rounds):
        path = root / f"{number}-{done}.csv"
        path.write_text("a,b\n" + "".join(f"{i},{number}-{done}\n" for i in range(ROWS)))
        while True:
            try:
                recordmill.build(str(path), str(root / "out"), append=True, threads=1)
                break
            except CommitConflict:
                continue


def read(root: Path, number: int, rounds: int, ended: object) -> None:
    before: list[str] = []
    while not ended.is_set():  # type: ignore[attr-defined]
        names = recordmill.open(root / "out", threads=1).to_table().column("b").to_pylist()
        counts = {name: names.count(name) for name in set(names)}
        assert set(counts.values()) == {ROWS}, counts
        assert names[: len(before)] == before, "records have other numbers"
        before = names


def clean(root: Path, number: int, rounds: int, ended: object) -> None:
    while not ended.is_set():  # type: ignore[attr-defined]
        recordmill.clean(root / "out")


def watched(work: Callable[..., None], *args: object) -> None:
    try:
        work(*args)
    except BaseException:
        crash = {"who": work.__name__, "crash": traceback.format_exc()[-1500:]}
        print(json.dumps(crash), flush=True)


def main(folder: str, rounds: int) -> None:
    root = Path(folder)
    root.mkdir(parents=True)
    (root / "first.csv").write_text("a,b\n" + "".join(f"{i},first\n" for i in range(ROWS)))
    recordmill.build(str(root / "first.csv"), str(root / "out"), append=True, threads=1)
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    appenders = [
        context.Process(target=watched, args=(append, root, number, rounds, ended))
        for number in range(2)
    ]
    others = [
        context.Process(target=watched, args=(work, root, number, rounds, ended))
        for work, number in [*((read, number) for number in range(4)), (clean, 0)]
    ]
    for process in (*appenders, *others):
        process.start()
    for process in appenders:
        process.join()
    ended.set()
    for process in others:
        process.join()
    left = [name.name for name in (root / "out").iterdir() if name.name.startswith(("_run-", "."))]
    assert not left, left
    assert not recordmill.verify(root / "out")
    dataset = recordmill.open(root / "out")
    print(json.dumps({"rounds": rounds, "records": len(dataset)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
