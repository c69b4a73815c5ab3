"""Pascal VOC files are read.

A bad object or a hostile document is refused, and its neighbours are still read.
"""

from pathlib import Path

import pytest
from kit.annotated_images import OBJECT, edges_of, plan, read
from kit.files import write_file

from recordmill.base.errors import RecordmillError


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (OBJECT.format("<difficult>Unspecified</difficult>", 11), "difficult is 'Unspecified'"),
        (OBJECT.format("", "left"), "xmin is 'left'"),
        (OBJECT.format("", 50), "xmax 40 is less than xmin 49"),
        ("<object><name>x</name></object>", "lacks 'bndbox'"),
        (
            "<object><name> </name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>",
            "has no class",
        ),
    ],
)
def test_one_bad_object_of_voc_is_one_reject(
    bad: str, message: str, images: Path, tmp_path: Path
) -> None:
    good = OBJECT.format("<difficult>0</difficult>", 11)
    write_file(tmp_path / "boxes" / "a.xml", f"<annotation>{good}{bad}</annotation>")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert (reject.source, reject.place) == ("a.xml", "object 2")
    assert message in reject.message
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
def test_xml_entities_are_refused_in_every_encoding(
    encoding: str, images: Path, tmp_path: Path
) -> None:
    text = f'<?xml version="1.0" encoding="{encoding[:6]}"?><!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>'
    if encoding == "utf-16-be":
        text = "\ufeff" + text
    write_file(tmp_path / "boxes" / "a.xml", text.encode(encoding))
    with pytest.raises(RecordmillError, match=r"^a\.xml: declares entities"):
        plan(images, tmp_path / "boxes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not XML"),
        ("<html><body>503</body></html>", "its root is <html>"),
        ("<dataset><images/></dataset>", "its root is <dataset>"),
        ('<annotations><track id="0" label="x"/></annotations>', "has tracks of a video"),
    ],
    ids=["empty", "page", "dlib", "video"],
)
def test_xml_without_annotations_of_images_is_a_reject(
    text: str, message: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "a.xml", f"<annotation>{OBJECT.format('', 11)}</annotation>")
    write_file(tmp_path / "boxes" / "b.xml", text)
    records, rejects, _ = read(images, tmp_path / "boxes")
    (reject,) = rejects
    assert message in reject.message
    assert "b.png" not in records


def test_lists_of_voc_make_splits_if_each_image_is_in_one(images: Path, tmp_path: Path) -> None:
    for stem in "abc":
        write_file(
            tmp_path / "Annotations" / f"{stem}.xml",
            f"<annotation>{OBJECT.format('', 11)}</annotation>",
        )
    lists = tmp_path / "ImageSets" / "Main"
    write_file(lists / "train.txt", "a\nb  1\n")
    write_file(lists / "trainval.txt", "a\nb\nc\n")
    source = plan(images, tmp_path / "Annotations")
    assert source.files.splits.to_pylist() == [None] * 3
    assert "ImageSets/Main has 2 of 3 images in exactly one list" in "".join(source.notes)
    write_file(lists / "val.txt", "c\n")
    source = plan(images, tmp_path / "Annotations")
    assert source.files.splits.to_pylist() == ["train", "train", "validation"]
    source = plan(images, tmp_path / "Annotations", split_from="none")
    assert source.files.splits.to_pylist() == [None] * 3
