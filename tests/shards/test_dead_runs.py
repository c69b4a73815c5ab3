"""The removal of dead runs touches no folder of a live run.

It touches nothing outside OUT.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from recordmill.base.errors import UsageError
from recordmill.exporting.publish import begin_publication
from recordmill.shards.dead_runs import read_machine_id, remove_dead_runs
from recordmill.shards.run import RunFolder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    (folder / "data").mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    (folder / "lock").write_text(json.dumps({"machine": read_machine_id()}))
    (tmp_path / "out").mkdir()
    return folder


@pytest.fixture
def out(victim: Path) -> Path:
    return victim.with_name("out")


def make_dead_run(out: Path, name: str = "_run-q") -> Path:
    """Creates a folder like that of a killed run of this machine."""
    run = out / name
    for part in ("data", "runs", "rejects", "spool"):
        (run / part).mkdir(parents=True)
    (run / "lock").write_text(json.dumps({"machine": read_machine_id()}))
    return run


def is_intact(victim: Path) -> bool:
    return (victim / "thesis.tex").read_text() == "mine" and (victim / "data").is_dir()


def test_link_is_not_treated_as_a_run_folder(victim: Path, out: Path) -> None:
    (out / "_run-zz").symlink_to(victim)
    assert remove_dead_runs(out) == []
    assert RunFolder.take_over(out / "_run-zz") is None
    RunFolder.create(out).close()
    assert is_intact(victim)


@pytest.mark.parametrize("inner", ["data", "rejects", "anything"])
def test_link_in_a_dead_run_is_removed_and_its_target_stays(
    victim: Path, out: Path, inner: str
) -> None:
    run = make_dead_run(out)
    if inner != "anything":
        (run / inner).rmdir()
    (run / inner).symlink_to(victim)
    assert remove_dead_runs(out) == ["_run-q"]
    assert os.listdir(out) == []
    assert is_intact(victim)


def test_summary_of_a_dead_read_that_names_other_folders_is_refused(
    victim: Path, out: Path
) -> None:
    for names in (["../victim"], ["rejects/../../victim"], [str(victim)]):
        for name in ("data/_read.json", "replaced.json"):
            run = make_dead_run(out)
            (run / "data" / "_read.json").write_text('{"files": []}')
            (run / name).write_text(json.dumps({"files": names}))
            with pytest.raises(UsageError, match="was not written by a read"):
                begin_publication(out, False)
            assert is_intact(victim)
            shutil.rmtree(run)


def test_run_folder_of_a_killed_start_is_removed_later(out: Path) -> None:
    """The start was killed after its mkdir, before the lock named its owner."""
    (out / "_run-a").mkdir()
    (out / "_run-b").mkdir()
    (out / "_run-b" / "lock").touch()
    (out / "_run-mine").mkdir()
    (out / "_run-mine" / "thesis.tex").touch()
    RunFolder.create(out).close()
    # _run-b may be a live run of another machine.
    assert sorted(os.listdir(out)) == ["_run-b", "_run-mine"]
    os.utime(out / "_run-b" / "lock", (1, 1))
    assert remove_dead_runs(out) == ["_run-b"]


def test_lease_keeps_a_run_alive_between_two_processes(out: Path) -> None:
    folder = RunFolder.create(out, uses_engine=True)
    path = folder.path
    folder.release()
    assert remove_dead_runs(out) == []
    os.utime(path / "lock", (1, 1))
    assert remove_dead_runs(out) == [path.name]


def test_folder_that_another_process_made_is_not_removed(out: Path) -> None:
    folder = RunFolder.create(out)
    folder.path.rename(out / "moved")
    (folder.path / "data").mkdir(parents=True)
    folder.close()
    assert folder.path.exists()
    assert (out / "moved").exists()


def test_data_folder_of_a_dead_run_is_removed_with_it(out: Path) -> None:
    folder = RunFolder.create(out)
    folder.publish_data_folder()
    folder.release()
    assert os.listdir(out / folder.data_name) == ["index"]
    assert remove_dead_runs(out) == [folder.path.name]
    assert os.listdir(out) == []
    folder = RunFolder.create(out)
    folder.publish_data_folder()
    folder.release()
    begin_publication(out, False).close()
    assert os.listdir(out) == []


def test_data_folder_of_a_kept_run_is_removed_without_its_run_folder(out: Path) -> None:
    folder = RunFolder.create(out)
    folder.publish_data_folder()
    assert remove_dead_runs(out, keep=lambda run: True) == []
    assert (out / folder.data_name).exists()  # the run is alive
    folder.release()
    assert remove_dead_runs(out, keep=lambda run: True) == []
    assert os.listdir(out) == [folder.path.name]
