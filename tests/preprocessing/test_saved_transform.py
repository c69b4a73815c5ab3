"""A saved transform is used only if its files are those of the manifest."""

import shutil
from pathlib import Path

import pytest
from kit.transform_sets import folder_of
from kit.transformed_set import SPLITS

import recordmill
from recordmill.base.errors import DataError
from recordmill.pipelines.build import build
from recordmill.shards.manifest import load_manifest


def test_changed_file_of_a_transform_is_found_and_not_used(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.write_text(words_file.read_text().replace("city 1", "city 9"))
    (folder_of(copy) / "stray").write_text("")
    found = [str(problem) for problem in recordmill.verify(copy)]
    assert found == [
        f"{words_file}: SHA-256 differs",
        f"{folder_of(copy) / 'stray'}: is not part of the data set",
    ]
    with pytest.raises(
        DataError, match="differs from what the manifest says; the transform can't be used"
    ):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    assert not (tmp_path / "new").exists()


def test_link_in_place_of_a_file_of_a_transform_is_not_followed(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.rename(tmp_path / "elsewhere")
    words_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is missing; the transform can't be used"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    shutil.rmtree(folder_of(copy))
    with pytest.raises(DataError, match="transform: is missing; the manifest names it"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
