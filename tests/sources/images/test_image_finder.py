"""The image of an annotation is found despite another spelling, folder or extension.

If nothing matches, the error shows a name of an image and of an annotation.
"""

import json
from pathlib import Path

import pytest
from kit.annotated_images import HEADER, coco_document, edges_of, plan, read, save_image
from kit.files import write_file

from recordmill.base.errors import RecordmillError
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import plan_images
from recordmill.storage.listing import list_inputs


@pytest.mark.parametrize(
    "name",
    [
        "a.png",
        "A.PNG",
        "a",
        "images\\a.png",
        "train2017/a.png",
        "https://example.org/img/a.png?size=1",
        "gs://bucket/images/a.png",
        "/home/other/images/a.png",
        "images/8f3b2c1d-a.png",
    ],
)
def test_name_in_another_spelling_finds_its_image(name: str, images: Path, tmp_path: Path) -> None:
    boxes = write_file(tmp_path / "b.csv", HEADER + f"{name},10,5,40,25,x\n")
    records, rejects, _ = read(images, boxes)
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_name_in_another_unicode_form_finds_its_image(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "caf\u00e9.png")
    boxes = write_file(tmp_path / "b.csv", HEADER + "cafe\u0301.png,10,5,40,25,x\n")
    records, rejects, _ = read(tmp_path / "images", boxes)
    assert not rejects
    assert len(edges_of(records["caf\u00e9.png"])) == 1


def test_folders_choose_among_images_of_one_name(tmp_path: Path) -> None:
    for kind in ("cats", "dogs"):
        save_image(tmp_path / "images" / kind / "0.png")
    text = HEADER + "old/dogs/0.png,10,5,40,25,x\n0.png,1,1,5,5,x\nbirds/0.png,1,1,5,5,x\n"
    source = plan(tmp_path / "images", write_file(tmp_path / "b.csv", text))
    assert [reject.place for reject in source.plan_rejects] == ["line 3", "line 4"]
    assert "'0.png' is the name of several images" in source.plan_rejects[0].message


def test_annotations_without_an_image_show_a_name_of_each_side(
    images: Path, tmp_path: Path
) -> None:
    for name, text in {
        "c.json": json.dumps(coco_document()).replace("a.png", "q.png").replace("b.png", "q.png"),
        "b.csv": HEADER + "q.png,1,1,5,5,x\n",
    }.items():
        with pytest.raises(RecordmillError, match=r"q\.png.*, and an image is 'a\.png'"):
            plan(images, write_file(tmp_path / name, text))


@pytest.mark.parametrize("name", ["a", "A.PNG", "/other/a.png", "x\\a.png", "a.png "])
def test_labels_find_images_by_the_rules_of_annotations(
    name: str, images: Path, tmp_path: Path
) -> None:
    labels = write_file(tmp_path / "l.csv", f"file,label\n{name},x\nb.png,y\nc.png,y\n")
    source = plan_images(list_inputs([str(images)]), ImageOptions(labels=str(labels)))
    assert not source.plan_rejects
    assert len(source.files) == 3


def test_jpg_and_jpeg_are_the_same_extension(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.jpg")
    boxes = write_file(tmp_path / "b.csv", HEADER + "a.jpeg,10,5,40,25,x\n")
    assert edges_of(read(tmp_path / "images", boxes)[0]["a.jpg"]) == [(0.1, 0.1, 0.4, 0.5)]
    with pytest.raises(RecordmillError, match=r"'a.png', and an image is 'a.jpg'"):
        plan(tmp_path / "images", write_file(tmp_path / "b.csv", HEADER + "a.png,10,5,40,25,x\n"))


def test_labels_without_an_image_show_a_name_of_each_side(images: Path, tmp_path: Path) -> None:
    labels = write_file(tmp_path / "l.csv", "file,label\nq.png,x\n")
    with pytest.raises(RecordmillError, match=r"file has 'q.png', and an image is 'a.png'"):
        plan_images(list_inputs([str(images)]), ImageOptions(labels=str(labels)))
