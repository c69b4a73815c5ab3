"""Output that is being written, or was left by a kill, is neither a data set nor an input, on
disk and in a store.
"""

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.store_server import Store

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.building import commit as building_commit
from recordmill.exporting import publish
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import StoreRun
from recordmill.storage.folders import find_files, join
from recordmill.storage.walk import find_unfinished

ROWS = {"x": list(range(300)), "y": [f"row {at}" for at in range(300)]}
NOT_A_DATA_SET = "not a data set: a build or a read is running there, or was killed"
COMMANDS = {
    "head": ["head", "{}"],
    "inspect": ["inspect", "{}"],
    "read": ["read", "{}", "--out", "{new}"],
    "verify": ["verify", "{}"],
    "bench": ["bench", "{}"],
    "build": ["build", "{}", "--out", "{new}"],
    "build of TFRecords": ["build", "tfrecord", "{}", "--out", "{new}"],
    "transform": ["transform", "csv", "{rows}", "--with", "{}", "--out", "{new}"],
    "stats": ["stats", "{}"],
    "report": ["report", "{}", "--out", "{new}"],
    "check": ["check", "{}"],
}


class KilledError(BaseException):
    """In its place a signal would end the process."""


@dataclass
class Stopped:
    """Builds and reads that stop where a function is called that would bring them on, and are
    killed there at last.
    """

    monkeypatch: pytest.MonkeyPatch
    reached: threading.Event = field(default_factory=threading.Event)
    goes: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def at(
        self, owner: object, name: str, work: Callable[[], object]
    ) -> Iterator[Callable[[], None]]:
        """Within it the work is at work, until what this gives is called: then nobody is, and what
        it made is left.
        """

        original = getattr(owner, name)

        def stop(*given: Any, **options: Any) -> Any:
            if self.reached.is_set():  # others call it
                return original(*given, **options)
            self.reached.set()
            self.goes.wait(60)
            raise KilledError

        def run() -> None:
            with contextlib.suppress(BaseException):
                work()
            self.reached.set()

        close = RunFolder.close
        with self.monkeypatch.context() as patched:
            patched.setattr(owner, name, stop)
            patched.setattr(
                RunFolder,
                "close",
                lambda run: run.release() if threading.current_thread() is thread else close(run),
            )
            for method in ("discard", "remove_work_files"):
                patched.setattr(StoreRun, method, lambda run: False)
            patched.setattr(StoreRun, "__exit__", lambda run, *_: run._heartbeats.close())
            thread = threading.Thread(target=run)
            thread.start()
            self.reached.wait(60)

            def kill() -> None:
                self.goes.set()
                thread.join()

            try:
                yield kill
            finally:
                kill()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    return Stopped(monkeypatch)


def refused(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command, and Python, take the folder, what lies in it, and the one above it, for
    nothing to be read.
    """
    (tmp_path / "rows.csv").write_text("x\n1\n")
    words = {"new": str(tmp_path / "new"), "rows": str(tmp_path / "rows.csv")}
    files = find_files(folder).values()
    given = [
        folder,
        folder.rpartition("/")[0],
        join(folder, "**"),
        *{path.rpartition("/")[0] for path in files},
    ]
    given += [path for path in files if path.endswith(".tfrecord")]
    assert len(given) > 4
    recordmill.build(ROWS, tmp_path / "whole", overwrite=True)
    for path in [folder, *(path for path in files if path.endswith("statistics.pb"))]:
        assert main(["check", str(tmp_path / "whole"), "--against", path]) == 2, path
        assert NOT_A_DATA_SET in capsys.readouterr().err
    for at, one in enumerate(given):
        for name, command in COMMANDS.items():
            if at and name not in (
                "verify",
                "build of TFRecords",
            ):  # which find their files as the others do
                continue
            assert main([word.format(one, **words) for word in command]) == 2, (name, one)
            heard = capsys.readouterr()
            assert (heard.out, NOT_A_DATA_SET in heard.err) == ("", True), (name, one, heard)
        with pytest.raises(UsageError, match="not a data set"):
            recordmill.open(one)
    with pytest.raises(
        UsageError, match="not a data set" if folder.startswith("/") else "name a local folder"
    ):
        recordmill.serving_layer(folder)
    assert not list((tmp_path / "new").glob("*"))


def test_unfinished_output_is_refused_through_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recordmill.build(ROWS, tmp_path / "set", num_shards=1)
    (shard,) = tmp_path.glob("set/data-*/*.tfrecord")
    run = tmp_path / "set" / f"_run-{shard.parent.name.removeprefix('data-')}"
    run.mkdir()
    (run / "a.tfrecord").write_bytes(shard.read_bytes())
    shutil.rmtree(tmp_path / "set" / "_manifests")
    for number, target in enumerate(
        (shard, shard.parent, run, run / "a.tfrecord", tmp_path / "set")
    ):
        link = tmp_path / f"links-{number}" / ("a" if target.is_dir() else "a.tfrecord")
        link.parent.mkdir()
        link.symlink_to(target)
        for command in (
            ["head", str(link)],
            ["build", str(link.parent), "--follow-links", "--out", str(tmp_path / "new")],
        ):
            assert main(command) == 2
            heard = capsys.readouterr()
            assert (heard.out, NOT_A_DATA_SET in heard.err) == ("", True), (target, command, heard)


STEPS = {
    "shards are written": (building_commit, "publish_files"),
    "all but the manifest is there": (RunFolder, "commit"),
}


@pytest.mark.parametrize("step", STEPS)
def test_unfinished_first_build_on_a_disk_is_refused(
    stopped: Stopped,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    out, (owner, name) = str(tmp_path / "above" / "set"), STEPS[step]
    monkeypatch.setattr(
        "recordmill.building.finish_build.publish_files",
        lambda *given: building_commit.publish_files(*given),
    )
    with stopped.at(owner, name, lambda: recordmill.build(ROWS, out, num_shards=2)) as kill:
        refused(out, tmp_path, capsys)
        kill()
        refused(out, tmp_path, capsys)
    recordmill.build(ROWS, out, num_shards=2)
    assert len(recordmill.open(out)) == 300


def test_unfinished_first_build_in_a_store_is_refused(
    stopped: Stopped, store: Store, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"{out}/set"
    with stopped.at(StoreRun, "commit", lambda: recordmill.build(ROWS, out, num_shards=2)) as kill:
        refused(out, tmp_path, capsys)
        kill()
        refused(out, tmp_path, capsys)
    recordmill.build(ROWS, out, num_shards=2)
    assert len(recordmill.open(out)) == 300


@pytest.mark.parametrize("where", ["disk", "store"])
def test_unfinished_build_over_a_data_set_leaves_it_readable(
    stopped: Stopped,
    store: Store,
    out: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    where: str,
) -> None:
    above = f"{out}-over" if where == "store" else str(tmp_path / "above")
    one = join(above, "set")
    old = recordmill.build(ROWS, one, num_shards=1)
    commit = StoreRun if where == "store" else RunFolder
    with stopped.at(
        commit, "commit", lambda: recordmill.build(ROWS, one, num_shards=3, overwrite=True)
    ) as kill:
        for ended in (False, True):
            if ended:
                kill()
            assert len(recordmill.open(one)) == 300
            assert recordmill.verify(one) == []
            shards = [path for path in find_files(one).values() if path.endswith("tfrecord")]
            new = [path for path in shards if path not in map(str, old.shards)]
            assert len(new) == 3
            for given in (above, f"{above}/**", f"{above}/*/data-*/*.tfrecord"):
                ds = recordmill.open(given)
                assert [file.path for file in ds.records.catalog.files] == [*map(str, old.shards)]
                assert any(
                    "unfinished result of a build or a read" in note
                    for note in ds.records.catalog.notes
                )
            assert recordmill.build(above, tmp_path / f"of-{ended}", kind="tfrecord").read == 300
            assert main(["head", new[0]]) == 2
            assert NOT_A_DATA_SET in capsys.readouterr().err


def test_build_killed_after_its_commit_is_a_data_set(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(RunFolder, "close", RunFolder.release)
    built = recordmill.build(ROWS, tmp_path / "out")
    assert list(tmp_path.glob("out/_run-*"))
    assert find_unfinished(str(tmp_path / "out")) == []
    assert (
        len(recordmill.open(tmp_path / "out")) == len(recordmill.open(str(built.shards[0]))) == 300
    )


def test_half_published_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordmill.build(ROWS, tmp_path / "set", splits="train=0.5,test=0.5")
    out, rename = tmp_path / "out", publish.rename
    out.mkdir()

    def fail(old: Path, new: Path) -> None:
        if new == out / "_read.json":
            raise OSError(5, "Input/output error")
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(publish, "rename", fail)
        with pytest.raises(RecordmillError, match="not yet moved to its folder: the next read"):
            recordmill.read(tmp_path / "set", out)
    assert len(list(out.glob("*.parquet"))) == 2
    with pytest.raises(UsageError, match="not a data set"):
        recordmill.build(out, tmp_path / "new")
    with pytest.raises(UsageError, match="already holds the result of a read"):
        recordmill.read(tmp_path / "set", out)
    assert recordmill.build(out, tmp_path / "new").read == 300


def test_unfinished_read_over_another_in_a_store_is_no_input(
    stopped: Stopped, store: Store, out: str, tmp_path: Path
) -> None:
    recordmill.build(ROWS, tmp_path / "set")
    recordmill.read(tmp_path / "set", out)
    with stopped.at(
        StoreRun, "commit", lambda: recordmill.read(tmp_path / "set", out, overwrite=True)
    ):
        found = [path for path in find_files(out).values() if path.endswith("parquet")]
        assert len(found) == 2
        assert recordmill.build(out, tmp_path / "new").read == 300


def test_status_shows_when_a_run_last_renewed_its_lease(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{out.removeprefix(store.root)}/_run-0123456789ab/".lstrip("/")
    store.put(f"{key}lease.json", b"{}")
    store.put(f"{key}shared/plan", b"")

    def state() -> str:
        (found,) = recordmill.status(out).runs
        return found.state

    before = store.objects(out)
    assert re.fullmatch(r"running: last sign of life \d+ s ago", state())
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() - 60)  # a clock that is slow
    assert state() == "running: last sign of life 0 s ago"
    monkeypatch.setattr("time.time", lambda: now() + 3 * 3600)
    assert state() == "no sign of life for 3.0 h: `recordmill clean` shows whether it is dead"
    assert store.objects(out) == before
