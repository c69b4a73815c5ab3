"""`read --overwrite` leaves the complete old result or the complete new one.

This is true for every error that stops it.
"""

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.files import tree

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.exporting import publish


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """The data sets of the old result and of the new result."""
    return (
        write_data_set(tmp_path / "old", {"train": mixed_rows(5), "test": mixed_rows(2)}, shards=1),
        write_data_set(tmp_path / "new", {"train": mixed_rows(9)}, shards=1),
    )


def test_error_at_any_rename_leaves_a_result_that_is_complete_or_can_be_completed(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, rename, file_counts, countdown = tmp_path / "to", os.rename, set(), [0]
    recordmill.read(sets[1], tmp_path / "whole")

    def fail(*args: Any) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise OSError(errno.EIO, "Input/output error")
        rename(*args)

    for number in itertools.count(1):
        recordmill.read(sets[0], to, overwrite=True)
        expected, countdown[0] = tree(to), number
        with monkeypatch.context() as context:
            context.setattr(os, "rename", fail)
            try:
                recordmill.read(sets[1], to, overwrite=True)
            except (OSError, RecordmillError) as error:
                if "moves it" in str(error):
                    assert not (to / "_read.json").exists()
                    assert recordmill.clean(to, remove=True) == {}
                    expected = tree(tmp_path / "whole")
            else:
                expected = tree(tmp_path / "whole")
        if countdown[0] > 0:
            break
        with pytest.raises(UsageError, match="already holds the result of a read"):
            recordmill.read(sets[0], to)
        assert tree(to) == expected, number
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "to", "whole"]
        file_counts.add(len(expected))
    assert file_counts == {2, 3}
    assert tree(to) == tree(tmp_path / "whole")


def test_error_after_the_last_rename_reports_the_result_in_place(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, sync = tmp_path / "to", publish.sync_folder

    def fail(folder: Path) -> None:
        if (to / "_read.json").exists():
            raise OSError(errno.EIO, "Input/output error", str(folder))
        sync(folder)

    with monkeypatch.context() as context:
        context.setattr(publish, "sync_folder", fail)
        with pytest.raises(RecordmillError, match=r"Input/output error; .* in its place, but"):
            recordmill.read(sets[0], to)
    recordmill.read(sets[0], tmp_path / "whole")
    assert tree(to) == tree(tmp_path / "whole")


def test_file_of_the_user_is_not_replaced(sets: tuple[Path, Path], tmp_path: Path) -> None:
    to = tmp_path / "to"
    recordmill.read(sets[0], to)
    (to / "train").mkdir()
    (to / "train" / "mine.txt").write_text("mine")
    old_files = tree(to)
    with pytest.raises(
        OSError, match="is in the way, and does not belong to the old result; move it"
    ):
        recordmill.read(sets[1], to, to="npy", overwrite=True)
    assert tree(to) == old_files


def test_overwrite_keeps_other_files_in_the_output_folder(
    sets: tuple[Path, Path], tmp_path: Path
) -> None:
    to = tmp_path / "to"
    recordmill.read(sets[0], to)
    (to / "mine.txt").write_text("mine")
    recordmill.read(sets[1], to, overwrite=True)
    assert sorted(tree(to)) == ["_read.json", "mine.txt", "train-00000-of-00001.parquet"]


def test_overwrite_keeps_the_folder_itself(sets: tuple[Path, Path], tmp_path: Path) -> None:
    """The folder may be a mount point, and its mode belongs to the user."""
    to = tmp_path / "to"
    recordmill.read(sets[0], to)
    to.chmod(0o2750)
    old_stat = to.stat()
    recordmill.read(sets[1], to, overwrite=True)
    assert (to.stat().st_mode, to.stat().st_ino) == (old_stat.st_mode, old_stat.st_ino)


def test_link_to_a_result_stays_a_link(sets: tuple[Path, Path], tmp_path: Path) -> None:
    recordmill.read(sets[0], tmp_path / "real")
    (tmp_path / "to").symlink_to("real")
    recordmill.read(sets[1], tmp_path / "to", overwrite=True)
    assert (tmp_path / "to").is_symlink()
    assert sorted(tree(tmp_path / "real")) == ["_read.json", "train-00000-of-00001.parquet"]
