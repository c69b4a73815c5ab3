"""Unfinished output is neither a data set nor an input.

A run may be writing it, or a kill may have left it, on disk and in a store.
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

ROWS = {"x": list(range(300)), "y": [f"row {number}" for number in range(300)]}
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
    """Raised where a signal would end the process."""


@dataclass
class RunStopper:
    """Pauses a build or a read when it calls a function, and kills it there later."""

    monkeypatch: pytest.MonkeyPatch
    has_stopped: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def stop_at(
        self, owner: object, name: str, work: Callable[[], object]
    ) -> Iterator[Callable[[], None]]:
        """Starts `work` in a thread and pauses it when it calls `owner.name`.

        The `with` block runs during the pause. At the end of the block, the run is killed if the
        block has not killed it.

        Yields:
            A function that kills the run. The files that the run has written stay.
        """

        original = getattr(owner, name)

        def stop(*arguments: Any, **options: Any) -> Any:
            if self.has_stopped.is_set():  # another run calls it
                return original(*arguments, **options)
            self.has_stopped.set()
            self.may_end.wait(60)
            raise KilledError

        def run() -> None:
            with contextlib.suppress(BaseException):
                work()
            self.has_stopped.set()

        close = RunFolder.close
        with self.monkeypatch.context() as context:
            context.setattr(owner, name, stop)
            context.setattr(
                RunFolder,
                "close",
                lambda run: run.release() if threading.current_thread() is thread else close(run),
            )
            for method in ("discard", "remove_work_files"):
                context.setattr(StoreRun, method, lambda run: False)
            context.setattr(StoreRun, "__exit__", lambda run, *_: run._heartbeats.close())
            thread = threading.Thread(target=run)
            thread.start()
            self.has_stopped.wait(60)

            def kill() -> None:
                self.may_end.set()
                thread.join()

            try:
                yield kill
            finally:
                kill()


@pytest.fixture
def stopper(monkeypatch: pytest.MonkeyPatch) -> RunStopper:
    return RunStopper(monkeypatch)


def check_refused(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that every command and Python refuse to read a folder.

    This includes the files in it, its subfolders and the folder above it.
    """
    (tmp_path / "rows.csv").write_text("x\n1\n")
    values = {"new": str(tmp_path / "new"), "rows": str(tmp_path / "rows.csv")}
    files = find_files(folder).values()
    paths = [
        folder,
        folder.rpartition("/")[0],
        join(folder, "**"),
        *{path.rpartition("/")[0] for path in files},
    ]
    paths += [path for path in files if path.endswith(".tfrecord")]
    assert len(paths) > 4
    recordmill.build(ROWS, tmp_path / "whole", overwrite=True)
    for path in [folder, *(path for path in files if path.endswith("statistics.pb"))]:
        assert main(["check", str(tmp_path / "whole"), "--against", path]) == 2, path
        assert NOT_A_DATA_SET in capsys.readouterr().err
    for index, source in enumerate(paths):
        for name, command in COMMANDS.items():
            # The other commands find their files in the same way as these two.
            if index and name not in ("verify", "build of TFRecords"):
                continue
            assert main([word.format(source, **values) for word in command]) == 2, (name, source)
            captured = capsys.readouterr()
            assert (captured.out, NOT_A_DATA_SET in captured.err) == ("", True), (
                name,
                source,
                captured,
            )
        with pytest.raises(UsageError, match="not a data set"):
            recordmill.open(source)
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
            captured = capsys.readouterr()
            assert (captured.out, NOT_A_DATA_SET in captured.err) == ("", True), (
                target,
                command,
                captured,
            )


STEPS = {
    "shards are written": (building_commit, "publish_files"),
    "all but the manifest is there": (RunFolder, "commit"),
}


@pytest.mark.parametrize("step", STEPS)
def test_unfinished_first_build_on_a_disk_is_refused(
    stopper: RunStopper,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    out, (owner, name) = str(tmp_path / "above" / "set"), STEPS[step]
    monkeypatch.setattr(
        "recordmill.building.finish_build.publish_files",
        lambda *arguments: building_commit.publish_files(*arguments),
    )
    with stopper.stop_at(owner, name, lambda: recordmill.build(ROWS, out, num_shards=2)) as kill:
        check_refused(out, tmp_path, capsys)
        kill()
        check_refused(out, tmp_path, capsys)
    recordmill.build(ROWS, out, num_shards=2)
    assert len(recordmill.open(out)) == 300


def test_unfinished_first_build_in_a_store_is_refused(
    stopper: RunStopper, store: Store, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"{out}/set"
    with stopper.stop_at(
        StoreRun, "commit", lambda: recordmill.build(ROWS, out, num_shards=2)
    ) as kill:
        check_refused(out, tmp_path, capsys)
        kill()
        check_refused(out, tmp_path, capsys)
    recordmill.build(ROWS, out, num_shards=2)
    assert len(recordmill.open(out)) == 300


@pytest.mark.parametrize("storage", ["disk", "store"])
def test_unfinished_build_over_a_data_set_leaves_it_readable(
    stopper: RunStopper,
    store: Store,
    out: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    storage: str,
) -> None:
    parent = f"{out}-over" if storage == "store" else str(tmp_path / "above")
    target = join(parent, "set")
    old = recordmill.build(ROWS, target, num_shards=1)
    commit = StoreRun if storage == "store" else RunFolder
    with stopper.stop_at(
        commit, "commit", lambda: recordmill.build(ROWS, target, num_shards=3, overwrite=True)
    ) as kill:
        for is_killed in (False, True):
            if is_killed:
                kill()
            assert len(recordmill.open(target)) == 300
            assert recordmill.verify(target) == []
            shards = [path for path in find_files(target).values() if path.endswith("tfrecord")]
            new = [path for path in shards if path not in map(str, old.shards)]
            assert len(new) == 3
            for source in (parent, f"{parent}/**", f"{parent}/*/data-*/*.tfrecord"):
                ds = recordmill.open(source)
                assert [file.path for file in ds.records.catalog.files] == [*map(str, old.shards)]
                assert any(
                    "unfinished result of a build or a read" in note
                    for note in ds.records.catalog.notes
                )
            assert (
                recordmill.build(parent, tmp_path / f"of-{is_killed}", kind="tfrecord").read == 300
            )
            assert main(["head", new[0]]) == 2
            assert NOT_A_DATA_SET in capsys.readouterr().err


def test_build_killed_after_its_commit_is_a_data_set(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(RunFolder, "close", RunFolder.release)
    result = recordmill.build(ROWS, tmp_path / "out")
    assert list(tmp_path.glob("out/_run-*"))
    assert find_unfinished(str(tmp_path / "out")) == []
    assert (
        len(recordmill.open(tmp_path / "out")) == len(recordmill.open(str(result.shards[0]))) == 300
    )


def test_half_published_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordmill.build(ROWS, tmp_path / "set", splits="train=0.5,test=0.5")
    out, rename = tmp_path / "out", publish.rename
    out.mkdir()

    def fail(old: Path, new: Path) -> None:
        if new == out / "_read.json":
            raise OSError(5, "Input/output error")
        rename(old, new)

    with monkeypatch.context() as context:
        context.setattr(publish, "rename", fail)
        with pytest.raises(RecordmillError, match="not yet moved to its folder: the next read"):
            recordmill.read(tmp_path / "set", out)
    assert len(list(out.glob("*.parquet"))) == 2
    with pytest.raises(UsageError, match="not a data set"):
        recordmill.build(out, tmp_path / "new")
    with pytest.raises(UsageError, match="already holds the result of a read"):
        recordmill.read(tmp_path / "set", out)
    assert recordmill.build(out, tmp_path / "new").read == 300


def test_build_ignores_an_unfinished_read_over_another_in_a_store(
    stopper: RunStopper, store: Store, out: str, tmp_path: Path
) -> None:
    recordmill.build(ROWS, tmp_path / "set")
    recordmill.read(tmp_path / "set", out)
    with stopper.stop_at(
        StoreRun, "commit", lambda: recordmill.read(tmp_path / "set", out, overwrite=True)
    ):
        paths = [path for path in find_files(out).values() if path.endswith("parquet")]
        assert len(paths) == 2
        assert recordmill.build(out, tmp_path / "new").read == 300


def test_status_shows_when_a_run_last_renewed_its_lease(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{out.removeprefix(store.root)}/_run-0123456789ab/".lstrip("/")
    store.put(f"{key}lease.json", b"{}")
    store.put(f"{key}shared/plan", b"")

    def state() -> str:
        (run,) = recordmill.status(out).runs
        return run.state

    old_objects = store.objects(out)
    assert re.fullmatch(r"running: last sign of life \d+ s ago", state())
    current_time = time.time
    # The clock of this machine is slow.
    monkeypatch.setattr("time.time", lambda: current_time() - 60)
    assert state() == "running: last sign of life 0 s ago"
    monkeypatch.setattr("time.time", lambda: current_time() + 3 * 3600)
    assert state() == "no sign of life for 3.0 h: `recordmill clean` shows whether it is dead"
    assert store.objects(out) == old_objects
