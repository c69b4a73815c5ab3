"""Images of a folder become records in order, with their options applied.

Bad files are rejects or errors.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit import image_samples
from kit.files import write_files
from kit.image_reading import GIF, JPEG, PNG, chunks, drain, plan
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.images import source as images


def test_sizes_of_chunks_and_units_do_not_change_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        tmp_path,
        {
            f"{number:03}.png": image_samples.encode_image(
                "PNG", image_samples.picture(seed=number)
            )
            for number in range(50)
        },
    )
    expected = drain(plan(tmp_path))
    monkeypatch.setattr(images, "IMAGE_UNIT_BYTES", 5_000)
    monkeypatch.setattr("recordmill.sources.images.reading.BATCH_BYTES", 2_500)
    source = plan(tmp_path)
    assert len(source.units) > 5
    assert max(unit.size_bytes for unit in source.units) <= 5_000
    assert len(chunks(source)) > 10
    assert drain(source) == expected
    monkeypatch.setattr(images, "IMAGE_UNIT_FILES", 3)
    assert max(unit.rows or 0 for unit in plan(tmp_path).units) == 3
    assert drain(plan(tmp_path)) == expected


def test_content_determines_the_image_format(tmp_path: Path) -> None:
    names = {
        "a.jpg": PNG,
        "b.jpg": JPEG,
        "noextension": GIF,
        "c.dat": PNG,
        "d.dat": b"what else",
        "e.jpeg": PNG,
    }
    source = plan(write_files(tmp_path, names))
    rows, rejects = drain(source)
    assert {row["source"]: row["format"] for row in rows} == {
        "a.jpg": "PNG",
        "b.jpg": "JPEG",
        "noextension": "GIF",
        "c.dat": "PNG",
        "e.jpeg": "PNG",
    }
    assert not rejects
    totals = sum((Counter(chunk.note_counts) for chunk in chunks(source)), Counter[str]())
    assert totals == {"PNG named .jpg": 1, "PNG named .jpeg": 1, "GIF with palette": 1}
    assert "ignored beside the images: 1 .dat" in source.notes


def test_image_that_is_named_as_an_input_may_have_any_extension(tmp_path: Path) -> None:
    write_files(tmp_path, {"picture.txt": PNG, "a.png": PNG})
    assert len(drain(plan(tmp_path / "picture.txt"))[0]) == 1
    assert len(drain(plan(tmp_path))[0]) == 1


def test_schema_that_images_cannot_meet_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.png": PNG})
    with pytest.raises(UsageError, match="'image' as uint8"):
        plan(tmp_path, common=PlanOptions(schema=Schema((Feature("image", "uint8", (28, 28)),))))
    with pytest.raises(DataError, match="requires 'weight'"):
        plan(
            tmp_path,
            common=PlanOptions(schema=Schema((Feature("weight", "float32", required=True),))),
        )
    with pytest.raises(UsageError, match="names no feature"):
        plan(tmp_path, common=PlanOptions(schema=Schema(())))
    with pytest.raises(
        UsageError, match="--dtype height: this feature comes from the image itself"
    ):
        plan(tmp_path, common=PlanOptions(dtypes={"height": "int32"}))
    schema = Schema((Feature("image", "bytes", required=True), Feature("weight", "float32")))
    assert drain(plan(tmp_path, common=PlanOptions(schema=schema)))[0] == [
        {"image": PNG, "weight": None}
    ]


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"a,b\n", "b.xml": b"<x/>", "c": b"?"})
    with pytest.raises(
        UsageError, match=r"no image among 3 file\(s\): 1 without extension, 1 \.csv, 1 \.xml"
    ):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": "full"}, "--check full: must be one of structure, decode"),
        ({"labels": "x.csv", "missing": "drop"}, "--missing drop: must be one of reject, ignore"),
        ({"class_from": "names"}, "--class-from names: must be one of"),
        ({"split_from": "x"}, "--split-from x: must be one of"),
        ({"max_pixels": 0}, "--max-pixels 0: must be at least 1"),
        ({"labels_path_column": "file"}, "--labels-path-column needs --labels"),
    ],
)
def test_invalid_image_option_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", {"a.png": b""})
    with pytest.raises(UsageError, match=message):
        recordmill.build(tmp_path / "in", tmp_path / "out", **options)


def test_label_of_images_needs_a_labels_file(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="--label breed: images have a label by their folders, or by a column of --labels FILE",
    ):
        plan(write_files(tmp_path, {"a.png": PNG}), common=PlanOptions(label="breed"))
    with pytest.raises(UsageError, match="--label label: images have a label by their folders"):
        plan(tmp_path, common=PlanOptions(label="label"))


@pytest.mark.parametrize(
    ("image_folder", "mask_folder"),
    [("images", "masks"), ("train/JPEGImages", "train/SegmentationClass")],
)
def test_folders_of_images_and_masks_are_not_treated_as_classes(
    tmp_path: Path, image_folder: str, mask_folder: str
) -> None:
    root = write_files(
        tmp_path / "in",
        {f"{folder}/{n}.png": PNG for folder in (image_folder, mask_folder) for n in range(3)},
    )
    with pytest.raises(UsageError, match="not like two classes") as error:
        plan(root)
    message = in_flags(error.value)
    assert "--class-from folders" in message
    assert len(plan(root, class_from="folders").files) == 6
    pair = plan(root, pair=message.split("--pair ")[1].split()[0])  # users copy this option
    assert [unit.rows for unit in pair.units] == [3]
    assert pair.schema.label is None


def test_unneeded_table_next_to_images_may_be_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "in", {"0.png": PNG, "labels.csv": b"file,label\n0.png,x\n"})
    original_read = images.read_range

    def read_images(path: str, *span: int) -> Any:
        if path.endswith(".csv"):
            raise PermissionError(13, "Permission denied", path)
        return original_read(path, *span)

    monkeypatch.setattr(images, "read_range", read_images)
    assert "ignored beside the images: 1 .csv" in plan(root, class_from="none").notes


def test_class_folders_named_like_masks_stay_classes(tmp_path: Path) -> None:
    for names in (("images", "drawings"), ("mask", "no_mask")):
        root = write_files(tmp_path / names[0], {f"{name}/0.png": PNG for name in names})
        assert plan(root).schema["label"].classes == tuple(sorted(names))


def test_table_that_names_images_is_noted_with_its_option(tmp_path: Path) -> None:
    files = {
        "0.png": PNG,
        "1.png": PNG,
        "other.csv": b"a,b\n1,2\n",
        "labels.csv": b"file,label\n0.png,x\n1.png,y\n",
    }
    coco = b'{"images": [{"file_name": "0.png"}], "annotations": [], "categories": []}'
    root = write_files(
        tmp_path / "in", {**files, "coco.json": coco, "about.json": b'{"annotations": []}'}
    )
    notes = list(map(in_flags, plan(root).notes))
    labels = f"{root}/labels.csv"
    assert f"labels.csv lists images but was not used. Add --labels {labels} (labels)" in notes
    assert [note.split()[0] for note in notes if "boxes" in note] == ["coco.json"]
    assert not [note for note in notes if "other.csv" in note]
    labelled_source = plan(root, labels=labels)
    assert labelled_source.schema["label"].classes == ("x", "y")
    assert not [note for note in labelled_source.notes if "lists images" in note]


@pytest.mark.parametrize("split", ["", "train/"])
def test_image_to_image_folders_are_refused_and_pair_reads_them(tmp_path: Path, split: str) -> None:
    names = ("0.png", "sub/1.png")
    source = write_files(
        tmp_path / "in", {f"{split}{side}/{n}": PNG for side in ("input", "target") for n in names}
    )
    with pytest.raises(UsageError) as error:
        recordmill.build(source, tmp_path / "out")
    assert "--pair input,target" in in_flags(error.value)
    assert recordmill.build(source, tmp_path / "out", pair="input,target").read == 2
    # If the names in the folders differ, the folders are two classes.
    write_files(source, {f"{split}target/2.png": PNG})
    assert recordmill.build(source, tmp_path / "classes").read == 5
