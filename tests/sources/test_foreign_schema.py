"""Class folders and a given schema: folders that it lacks, what it may say of a label, and files beside the folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import image_samples
import pytest
from source_reading import read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.images.source import ImageOptions, plan_images
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage.listing import list_inputs

LABELS = ["neg", "pos", "pos", "neg", "pos"]


def schema_of(classes: tuple[str, ...] | None, dtype: str = "int64") -> Schema:
    return Schema((Feature("label", dtype, (), False, classes),), "label")


def as_text(folder: Path, labels: list[str], common: PlanOptions, **options: Any) -> Any:
    for number, label in enumerate(labels):
        path = folder / "in" / label / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}")
    return plan_text(list_inputs([str(folder / "in")]), TextOptions(**options), common)


def as_images(folder: Path, labels: list[str], common: PlanOptions, **options: Any) -> Any:
    for number, label in enumerate(labels):
        path = folder / "in" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_samples.encoded("PNG"))
    return plan_images(list_inputs([str(folder / "in")]), ImageOptions(**options), common)


FOLDERS = {"text": as_text, "images": as_images}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_never_another_class(tmp_path: Path, kind: str) -> None:
    schema = Schema((*schema_of(("pos", "neg")), Feature("source", "string"), Feature("class_name", "string")), "label")
    for row in values(read_all(FOLDERS[kind](tmp_path, LABELS, PlanOptions(schema=schema)))[0]):
        assert row["source"].startswith(row["class_name"])
        assert ("pos", "neg")[row["label"]] == row["class_name"]


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_the_schema_lacks_is_an_error_or_a_reject(tmp_path: Path, kind: str) -> None:
    common = PlanOptions(schema=schema_of(("pos", "neg")))
    with pytest.raises(DataError, match=r"^odd/5\.\w+: the folder says class 'odd', which the schema does not name"):
        FOLDERS[kind](tmp_path, [*LABELS, "odd"], common)
    source = FOLDERS[kind](tmp_path, [*LABELS, "odd"], common, unknown_class="reject")
    assert [reject.reason for reject in source.plan_rejects] == ["class"]
    assert len(read_all(source)[0]) == 5


def test_a_label_of_text_may_be_a_name_and_no_number_of_its_own(tmp_path: Path) -> None:
    source = as_text(tmp_path, LABELS, PlanOptions(schema=schema_of(None, "string")))
    assert sorted(row["label"] for row in values(read_all(source)[0])) == sorted(LABELS)
    with pytest.raises(UsageError, match="does not name the classes of 'label'"):
        as_text(tmp_path, LABELS, PlanOptions(schema=schema_of(None)))
    with pytest.raises(UsageError, match="the schema says that 'label' is float32"):
        as_text(tmp_path, LABELS, PlanOptions(schema=schema_of(None, "float32")))
    with pytest.raises(UsageError, match="the schema says that 'text' is int64"):
        as_text(tmp_path, LABELS, PlanOptions(schema=Schema((Feature("text", "int64"),))))


@pytest.mark.parametrize("kind", FOLDERS)
def test_strays_beside_class_folders_are_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    FOLDERS[kind](tmp_path, LABELS, PlanOptions())
    (stray,) = (tmp_path / "in").glob("pos/1.*")
    (tmp_path / "in" / f"stray{stray.suffix}").write_bytes(stray.read_bytes())
    source = FOLDERS[kind](tmp_path, LABELS, PlanOptions())
    assert any(note.startswith("left out: 1 of 6 file(s) stand outside every class folder") for note in source.notes)
    assert source.schema["label"].required
    assert len(read_all(source)[0]) == 5
    kept = FOLDERS[kind](tmp_path, LABELS, PlanOptions(), unlabelled="keep")
    assert sorted(str(row["label"]) for row in values(read_all(kept)[0])) == ["0", "0", "1", "1", "1", "None"]
    with pytest.raises(UsageError, match="1 of 6 file"):
        FOLDERS[kind](tmp_path, LABELS, PlanOptions(), unlabelled="error")


def test_a_stray_that_is_kept_has_no_label_that_a_schema_requires(tmp_path: Path) -> None:
    as_text(tmp_path, LABELS, PlanOptions())
    (tmp_path / "in" / "stray.txt").write_text("a stray")
    required = Schema((Feature("label", "int64", (), True, ("neg", "pos")),), "label")
    with pytest.raises(DataError, match=r"^stray\.txt: is in no class folder, and the schema requires a label"):
        as_text(tmp_path, LABELS, PlanOptions(schema=required), unlabelled="keep")


def test_as_many_strays_as_files_of_classes_are_refused(tmp_path: Path) -> None:
    as_text(tmp_path, LABELS, PlanOptions())
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_text("stray")
    with pytest.raises(UsageError, match=r"5 of 10 file.*--unlabelled keep"):
        as_text(tmp_path, LABELS, PlanOptions())


def test_the_canonical_tree_of_reviews(tmp_path: Path) -> None:
    """train/{pos,neg,unsup}, test/{pos,neg}, and word lists, indices and bags of words beside them."""
    root = tmp_path / "aclImdb"
    for split, classes in (("train", ("pos", "neg", "unsup")), ("test", ("pos", "neg"))):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(20):
                (root / split / name / f"{number}_7.txt").write_text(f"A film, {number} hours long. I {name} it.")
            (root / split / f"urls_{name}.txt").write_text(
                "http://www.imdb.example/title/tt0064354/usercomments\n" * 20
            )
        (root / split / "labeledBow.feat").write_text("9 0:9 1:1 2:4 3:4 4:6\n" * 20)
    (root / "train" / "unsupBow.feat").write_text("0 0:8 1:6 3:5\n" * 20)
    (root / "imdb.vocab").write_text("the\nand\na\nof\n")
    (root / "imdbEr.txt").write_text("0.0490972013402\n0.201363575849\n")
    (root / "README").write_text("Large Movie Review Dataset v1.0\n")
    source = plan_text(list_inputs([str(root)]), TextOptions(), PlanOptions())
    rows, rejects = read_all(source)
    assert (len(rows), rejects, source.plan_rejects) == (100, [], ())
    assert source.schema["label"].classes == ("neg", "pos", "unsup")
    assert source.schema["label"].required
    assert [sum(file.split == split for file in source.files) for split in ("train", "test")] == [60, 40]
    told = "\n".join(source.notes)
    assert "classes that not every split has: 'unsup' (in train only)" in told
    assert "left out: " in told
