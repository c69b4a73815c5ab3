"""Annotations of Label Me and CVAT are read, and errors name other formats."""

import json
from pathlib import Path
from typing import Any

import pytest
from kit.annotated_images import edges_of, plan, read
from kit.files import write_file

from recordmill.base.errors import RecordmillError


def test_label_me_and_cvat_are_read(images: Path, tmp_path: Path) -> None:
    shape = {"label": "x", "points": [[10, 5], [40, 25]], "shape_type": "rectangle"}
    document = {"imagePath": "..\\a.png", "imageWidth": 100, "imageHeight": 50, "shapes": [shape]}
    write_file(tmp_path / "labelme" / "a.json", json.dumps(document))
    write_file(
        tmp_path / "cvat" / "annotations.xml",
        '<annotations><image id="0" name="a.png" width="100" height="50">'
        '<box label="x" xtl="10" ytl="5" xbr="40" ybr="25"/></image></annotations>',
    )
    for folder, name in (("labelme", "LabelMe"), ("cvat", "CVAT")):
        records, rejects, notes = read(images, tmp_path / folder)
        assert not rejects
        assert f"boxes: 1 box in 1 class, read as {name}" in notes
        assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


@pytest.mark.parametrize(
    ("document", "tool"),
    [
        ({"_via_img_metadata": {}}, "VGG Image Annotator"),
        ([{"image": "a.png", "annotations": []}], "CreateML"),
        ([{"data": {"image": "a.png"}, "annotations": []}], "Label Studio"),
        ({"images": [], "annotations": [{"caption": "x"}]}, "COCO's captions"),
    ],
)
def test_unsupported_annotation_format_is_refused_by_name(
    document: Any, tool: str, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordmillError, match=f"{tool}.*export COCO or YOLO"):
        plan(images, write_file(tmp_path / "c.json", json.dumps(document)))
