"""Copies and removals of a folder never touch files outside it."""

from pathlib import Path

import pytest

from recordmill.storage.folders import copy_tree, find_files, remove, remove_file, scratch_folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a folder with files and links.

    One link leads to an outside file, and one to an outside folder.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("outside")
    tree = tmp_path / "tree"
    (tree / "inner" / "cache").mkdir(parents=True)
    for name in ("a", "inner/b", "inner/cache/c"):
        (tree / name).write_text(name)
    (tree / "link").symlink_to(outside / "file")
    (tree / "folder link").symlink_to(outside)
    return tree


def test_copy_of_a_tree_leaves_out_links_and_ignored_names(tree: Path, tmp_path: Path) -> None:
    copy_tree(tree, tmp_path / "copy", ignored_names=("cache",))
    assert {*find_files(tmp_path / "copy")} == {"a", "inner/b"}
    assert (tmp_path / "copy" / "inner" / "b").read_text() == "inner/b"


def test_copy_of_a_tree_replaces_no_file(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_tree(tree, tmp_path / "copy")
    assert (tmp_path / "copy" / "a").read_text() == "mine"


def test_removal_of_a_tree_follows_no_link(tree: Path, tmp_path: Path) -> None:
    remove(tree / "folder link")
    remove(tree)
    remove(tree)
    assert not tree.exists()
    assert (tmp_path / "outside" / "file").read_text() == "outside"


def test_scratch_folder_is_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), scratch_folder("x-", str(tmp_path)) as path:
        remove_file(Path(path, "missing"))
    assert not [*tmp_path.iterdir()]
