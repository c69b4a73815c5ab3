"""Annotations of every tool give equal records, and a damaged one is a reject, a result or one
sentence.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.annotation_exports import EXPORTS, Box, Scenes
from kit.files import write_file
from kit.runs import in_flags
from kit.source_reading import read_all
from PIL import Image

import recordmill
from recordmill.base.errors import RecordmillError, Reject
from recordmill.schemas.arrow import from_arrow_field
from recordmill.sources.common.content import detect_kind
from recordmill.sources.images.box_columns import read_box_columns
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import ImageSource, plan_images
from recordmill.storage.listing import list_inputs

PIXELS: list[Box] = [("dog", 10, 5, 40, 25), ("cat", 0, 0, 16, 16)]
TURNS: dict[int, Callable[[Image.Image], Image.Image]] = {  # the stored image of an upright one
    1: lambda image: image,
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
}


def save_image(path: Path, size: tuple[int, int] = (100, 50), orientation: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, (path.stem.__hash__() % 256, 80, 90)).save(path, exif=exif)


def plan(images: Path, boxes: Path, **options: Any) -> ImageSource:
    return plan_images(list_inputs([str(images)]), ImageOptions(boxes=str(boxes), **options))


def read(
    images: Path, boxes: Path, **options: Any
) -> tuple[dict[str, dict[str, Any]], list[Reject], str]:
    """Returns the records by file name, all rejects, and all notes."""
    source = plan(images, boxes, **options)
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    records = {
        record["image/filename"].rpartition("/")[2]: record
        for chunk in chunks
        for record in chunk.records.to_pylist()
    }
    rejects = [*source.plan_rejects, *(reject for chunk in chunks for reject in chunk.rejects)]
    counts = [f"{text}: {count}" for chunk in chunks for text, count in chunk.note_counts.items()]
    return records, rejects, "\n".join([*source.notes, *counts])


def edges_of(record: dict[str, Any]) -> list[tuple[float, ...]]:
    names = ("xmin", "ymin", "xmax", "ymax")
    columns = [record[f"image/object/bbox/{name}"] for name in names]
    return [tuple(round(edge, 6) for edge in box) for box in zip(*columns, strict=True)]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_exports_of_all_tools_give_equal_records(export: Any, tmp_path: Path) -> None:
    scenes: Scenes = {
        "a": ((100, 50), PIXELS),
        "b": ((100, 50), PIXELS[:1]),
        "scaled": ((200, 100), [("cat", 20, 10, 80, 50)]),
    }
    for stem in scenes:
        save_image(tmp_path / "images" / f"{stem}.jpg")
    (tmp_path / "boxes").mkdir()
    records, rejects, _ = read(tmp_path / "images", export(tmp_path / "boxes", scenes))
    assert not rejects
    found = {
        name: [*zip(record["image/object/class/text"], edges_of(record), strict=True)]
        for name, record in records.items()
    }
    dog, cat = ("dog", (0.1, 0.1, 0.4, 0.5)), ("cat", (0, 0, 0.16, 0.32))
    assert found == {
        "a.jpg": [dog, cat],
        "b.jpg": [dog],
        "scaled.jpg": [("cat", (0.1, 0.1, 0.4, 0.5))],
    }
    assert records["a.jpg"]["image/object/class/label"] == [1, 0]


@pytest.mark.parametrize("orientation", [6, 8, 5, 7])
@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_boxes_of_an_upright_image_move_to_the_stored_pixels(
    export: Any, orientation: int, tmp_path: Path
) -> None:
    if "yolo" in export.__name__:
        pytest.skip("YOLO states no size")
    upright = Image.new("L", (100, 50))
    upright.paste(255, (10, 5, 40, 25))
    box = TURNS[orientation](upright).getbbox()
    assert box is not None
    save_image(tmp_path / "images" / "a.jpg", (50, 100), orientation)
    (tmp_path / "boxes").mkdir()
    path = export(tmp_path / "boxes", {"a": ((100, 50), PIXELS[:1])})
    records, rejects, notes = read(tmp_path / "images", path)
    assert not rejects
    assert edges_of(records["a.jpg"]) == [
        pytest.approx([box[0] / 50, box[1] / 100, box[2] / 50, box[3] / 100])
    ]
    assert "images annotated upright, boxes turned to the stored pixels: 1" in notes
    records, _, _ = read(tmp_path / "images", path, reencode="png")  # upright again
    assert edges_of(records["a.jpg"]) == [pytest.approx((0.1, 0.1, 0.4, 0.5))]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_annotations_of_a_cropped_image_are_a_reject_with_both_sizes(
    export: Any, tmp_path: Path
) -> None:
    if "yolo" in export.__name__:
        pytest.skip("YOLO states no size")
    save_image(tmp_path / "images" / "a.jpg", (60, 50))
    save_image(tmp_path / "images" / "b.jpg", (100, 50))
    (tmp_path / "boxes").mkdir()
    scenes: Scenes = dict.fromkeys("ab", ((100, 50), PIXELS))
    records, rejects, _ = read(tmp_path / "images", export(tmp_path / "boxes", scenes))
    assert [*records] == ["b.jpg"]
    assert "states 100 x 50 pixels, and the image has 60 x 50" in str(rejects[0])


def test_polygons_and_areas_turn_and_scale_with_boxes(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.jpg", (50, 100), 6)
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 200, "height": 100}],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 1,
                "bbox": [20, 10, 60, 40],
                "area": 1200,
                "segmentation": [[20, 10, 80, 10, 80, 50]],
                "keypoints": [20, 10, 2, 80, 50, 1, 0, 0, 0],
            }
        ],
    }
    boxes = write_file(tmp_path / "c.json", json.dumps(document))
    record = read(tmp_path / "images", boxes)[0]["a.jpg"]
    assert edges_of(record) == [pytest.approx((0.1, 0.6, 0.5, 0.9))]
    assert json.loads(record["image/object/segmentation"][0]) == [[5, 90, 5, 60, 25, 60]]
    assert record["image/object/area"] == [300]
    assert record["image/object/keypoint/x"] == pytest.approx([0.1, 0.5, 0])
    assert record["image/object/keypoint/y"] == pytest.approx([0.9, 0.6, 0])
    assert record["image/object/keypoint/visibility"] == [2, 1, 0]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for stem in "abc":
        save_image(tmp_path / "images" / f"{stem}.png")
    return tmp_path / "images"


HEADER = "image,xmin,ymin,xmax,ymax,class\n"


def test_shares_slightly_outside_stay_shares_in_a_table(images: Path, tmp_path: Path) -> None:
    text = HEADER + "a.png,0.1,0.1,1.001,0.4,x\nb.png,-0.0005,0.1,0.2,0.4,x\n"
    records, rejects, notes = read(images, write_file(tmp_path / "b.csv", text))
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 1, 0.4)]
    assert edges_of(records["b.png"]) == [(0, 0.1, 0.2, 0.4)]
    assert "border, clipped: 2" in notes


def test_table_that_mixes_units_is_refused_with_the_row(images: Path, tmp_path: Path) -> None:
    rows = "a.png,0.1,0.1,0.5,0.4,x\nb.png,10,5,30,20,x\nc.png,10,5,30,20,x\n"
    boxes = write_file(tmp_path / "b.csv", HEADER + rows)
    with pytest.raises(RecordmillError, match=r"b.csv: line 2: \[0.1, .* --box-unit pixels"):
        plan(images, boxes)
    records, _, _ = read(images, boxes, box_unit="pixels")
    assert edges_of(records["a.png"]) == [(0.001, 0.002, 0.005, 0.008)]


def test_tables_have_a_unit_each(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "1.csv", HEADER + "a.png,0.1,0.1,0.5,0.4,x\n")
    write_file(tmp_path / "boxes" / "2.csv", HEADER + "b.png,10,5,50,20,x\n")
    records, _, _ = read(images, tmp_path / "boxes")
    assert edges_of(records["a.png"]) == edges_of(records["b.png"]) == [(0.1, 0.1, 0.5, 0.4)]


def coco_document(**changes: Any) -> dict[str, Any]:
    """Returns a COCO document with a good annotation 1, and annotation 2 with changes."""
    good = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 30, 20]}
    return {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [good, good | {"id": 2} | changes],
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bbox": None}, "bbox is null"),
        ({"bbox": [1, 2, 3, 4, 5]}, "bbox is 5 numbers"),
        ({"bbox": [1, 2, -3, 4]}, "negative size"),
        ({"bbox": [1, 2, float("nan"), 4]}, "not a finite number"),
        ({"bbox": [10**400, 2, 3, 4]}, "not a finite number"),
        ({"bbox": [1e300, 2, 3, 4]}, "four finite numbers"),
        ({"bbox": [1, 2, 0, 4]}, "has no area"),
        ({"bbox": [200, 2, 10, 4]}, "nothing of the box is inside the image 'a.png'"),
        ({"category_id": 9}, "no category with id 9"),
        ({"category_id": [1]}, "category_id is a list"),
        ({"image_id": 7}, "no image with id 7"),
        ({"iscrowd": 10**30}, "iscrowd is"),
        ({"area": 1e300}, "area is"),
        ({"segmentation": [[float("inf")]]}, "segmentation has a value"),
        ({"keypoints": [1, 2]}, "keypoints are not"),
        ({"id": 10**300}, None),
    ],
)
def test_one_bad_annotation_of_coco_is_one_reject(
    changes: Any, says: str | None, images: Path, tmp_path: Path
) -> None:
    boxes = write_file(tmp_path / "c.json", json.dumps(coco_document(**changes)))
    records, rejects, _ = read(images, boxes)
    assert len(records) == 3
    if says is None:
        assert not rejects
        return
    (reject,) = rejects
    assert (reject.source, reject.place) == ("c.json", "annotation 2")
    assert says in reject.message
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_category_with_a_lone_surrogate_is_a_reject(images: Path, tmp_path: Path) -> None:
    document = coco_document()
    document["categories"] += [{"id": 2, "name": "\ud800"}]
    _, rejects, _ = read(images, write_file(tmp_path / "c.json", json.dumps(document)))
    assert "c.json: category 2: the class is '\\ud800'" in str(rejects[0])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a.png,1,1,5,5,", "has no class"),
        ("a.png,9,1,5,5,x", "xmax 5 is less than xmin 9"),
        ("a.png,1,1,,5,x", "xmax is empty"),
        ("a.png,1,one,5,5,x", "'one', not a finite number"),
        (",1,1,5,5,x", "image is empty"),
        ("z.png,1,1,5,5,x", "'z.png' is not an image of this input; its 1 box(es) are left out"),
    ],
)
def test_one_bad_row_of_a_table_is_one_reject(
    row: str, says: str, images: Path, tmp_path: Path
) -> None:
    text = HEADER + f"b.png,10,5,40,25,x\n{row}\n"
    records, (reject,), _ = read(images, write_file(tmp_path / "b.csv", text))
    assert (reject.source, reject.place) == ("b.csv", "line 3")
    assert says in reject.message
    assert edges_of(records["b.png"]) == [(0.1, 0.1, 0.4, 0.5)]


OBJECT = "<object><name>x</name>{}<bndbox><xmin>{}</xmin><ymin>6</ymin><xmax>40</xmax><ymax>25</ymax></bndbox></object>"


@pytest.mark.parametrize(
    ("bad", "says"),
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
    bad: str, says: str, images: Path, tmp_path: Path
) -> None:
    good = OBJECT.format("<difficult>0</difficult>", 11)
    write_file(tmp_path / "boxes" / "a.xml", f"<annotation>{good}{bad}</annotation>")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert (reject.source, reject.place) == ("a.xml", "object 2")
    assert says in reject.message
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 50 25 30 20", "50 is not a share of the image; --box-unit pixels"),
        ("0 0.5 0.5 -0.1 0.2", "a negative size"),
        ("0 0.5 0.5 0.1", "3 numbers after class 0"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3 1", "7 numbers after class 0; key points need kpt_shape"),
        ("0.5 0.5 0.5 0.1 0.1", "the class is '0.5'"),
        ("9 0.5 0.5 0.1 0.1", "class 9 has no name in classes.txt"),
        ("cat 0.5 0.5 0.1 0.1", "the class is 'cat'"),
    ],
)
def test_one_bad_line_of_yolo_is_one_reject(
    line: str, says: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "classes.txt", "x\n")
    write_file(tmp_path / "boxes" / "a.txt", f"0 0.25 0.3 0.3 0.4\n{line}\n")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert (reject.source, reject.place) == ("a.txt", "line 2")
    assert says in str(reject)
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_image_with_an_unreadable_annotation_file_is_a_reject(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "a.xml", "<annotation><object>")
    write_file(tmp_path / "boxes" / "b.xml", f"<annotation>{OBJECT.format('', 11)}</annotation>")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert "a.xml: is not XML" in str(reject)
    assert [*records] == ["b.png", "c.png"]


def test_yolo_numbers_without_names_stay_numbers(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "labels" / "a.txt", "79 0.5 0.5 0.2 0.4\n3 0.1 0.1 0.1 0.1\n")
    record = read(images, tmp_path / "labels")[0]["a.png"]
    assert record["image/object/class/label"] == [79, 3]
    assert record["image/object/class/text"] == ["79", "3"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.yaml", "names: [x, y]\n"),
        ("coco8.yaml", "path: ../c # root\nnames:\n  0: x\n  1: y\n"),
        ("labels/classes.txt", "\ufeffx\ny\n"),
        ("obj.names", "x\ny\n"),
    ],
)
def test_yolo_names_come_from_the_files_of_each_tool(
    name: str, text: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "set" / name, text)
    write_file(tmp_path / "set" / "labels" / "a.txt", "1 0.5 0.5 0.2 0.4\n")
    write_file(tmp_path / "set" / "labels" / "README.roboflow.txt", "Made by Roboflow\n")
    records, rejects, _ = read(images, tmp_path / "set" / "labels")
    assert not rejects
    assert records["a.png"]["image/object/class/text"] == ["y"]


def test_yolo_file_with_a_huge_class_number_is_refused(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "data.yaml", "names: {0: a, 1000000000: b}\n")
    write_file(tmp_path / "boxes" / "a.txt", "0 0.5 0.5 0.2 0.4\n")
    with pytest.raises(RecordmillError, match="class numbers are less than 65,536"):
        plan(images, tmp_path / "boxes")


@pytest.mark.parametrize(
    ("shape", "line"), [("[2, 3]", "0.3 0.4 2 0.6 0.5 1"), ("[2, 2]", "0.3 0.4 0.6 0.5")]
)
def test_key_points_of_yolo_are_not_a_polygon(
    shape: str, line: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "data.yaml", f"names: [x]\nkpt_shape: {shape}\n")
    write_file(tmp_path / "boxes" / "a.txt", f"0 0.5 0.5 0.6 0.4 {line}\n")
    record = read(images, tmp_path / "boxes")[0]["a.png"]
    assert edges_of(record) == [pytest.approx((0.2, 0.3, 0.8, 0.7))]
    assert record["image/object/keypoint/x"] == pytest.approx([0.3, 0.6])
    assert record["image/object/keypoint/y"] == pytest.approx([0.4, 0.5])


def test_root_of_a_yolo_data_set_with_splits_is_read(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save_image(tmp_path / "images" / split / "0.jpg")
        write_file(tmp_path / "labels" / split / "0.txt", f"{split == 'val':d} 0.5 0.5 0.2 0.4\n")
    write_file(tmp_path / "labels" / "val" / "gone.txt", "0 0.5 0.5 0.2 0.4\n")
    save_image(tmp_path / "images" / "train" / "gone.jpg")
    write_file(tmp_path / "train.txt", "./images/train/0.jpg\n")
    source = plan(tmp_path / "images", tmp_path)
    (reject,) = source.plan_rejects
    assert "'gone' is not an image of this input" in reject.message  # not that of the other split
    labels = [
        label
        for unit in source.units
        for chunk in source.read(unit)
        for label in chunk.records["image/object/class/label"].to_pylist()
    ]
    assert labels == [[0], [], [1]]


def test_each_split_has_its_own_metadata(tmp_path: Path) -> None:
    for split, number in (("train", 0), ("test", 7)):
        save_image(tmp_path / split / "0.png")
        objects = {"bbox": [[10, 5, 30, 20]], "categories": [number]}
        line = json.dumps({"file_name": "0.png", "objects": objects})
        write_file(tmp_path / split / "metadata.jsonl", line + "\n")
    source = plan(tmp_path, tmp_path)
    assert not source.plan_rejects
    records = [
        record
        for unit in source.units
        for chunk in source.read(unit)
        for record in chunk.records.to_pylist()
    ]
    found = {one["image/filename"]: one["image/object/class/label"] for one in records}
    assert found == {"train/0.png": [0], "test/0.png": [7]}


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.png,10,5,40,25,x\nb.png,,,,,\n", None),
        ("TRAIN,gs://b/a.png,x,0.1,0.1,,,0.4,0.5,,\n", None),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\na,x,0.1,0.4,0.1,0.5\n", None),
        ("path,x,y,w,h,class\nk\\a.png,10,5,30,20,x\n", None),
        ('image_id,width,height,bbox,source\na,100,50,"[10, 5, 30, 20]",x\n', "Add a column"),
        (
            '#filename,region_shape_attributes,region_attributes\na.png,"{""name"":""rect"",""x"":10,""y"":5,'
            '""width"":30,""height"":20}","{""class"":""x""}"\n',
            None,
        ),
    ],
)
def test_table_of_another_tool_is_read_or_refused_with_a_remedy(
    text: str, says: str | None, images: Path, tmp_path: Path
) -> None:
    boxes = write_file(tmp_path / "b.csv", text)
    if says is not None:
        with pytest.raises(RecordmillError, match=says):
            plan(images, boxes)
        return
    records, rejects, _ = read(images, boxes)
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]
    assert records["a.png"]["image/object/class/text"] == ["x"]


def test_number_that_is_too_large_in_a_table_of_boxes_is_a_reject(
    images: Path, tmp_path: Path
) -> None:
    rows = ["filename,xmin,ymin,xmax,ymax,class", "a.png,10,5,1e400,25,x", "a.png,10,5,40.0,25,x"]
    write_file(tmp_path / "b.csv", "\n".join(rows))
    records, rejects, _ = read(images, tmp_path / "b.csv")
    assert [str(reject) for reject in rejects] == [
        "b.csv: line 2: xmax is '1e400', not a finite number (image 'a.png')"
    ]
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


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
    ("document", "says"),
    [
        ({"_via_img_metadata": {}}, "VGG Image Annotator"),
        ([{"image": "a.png", "annotations": []}], "CreateML"),
        ([{"data": {"image": "a.png"}, "annotations": []}], "Label Studio"),
        ({"images": [], "annotations": [{"caption": "x"}]}, "COCO's captions"),
    ],
)
def test_unsupported_annotation_format_is_refused_by_name(
    document: Any, says: str, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordmillError, match=f"{says}.*export COCO or YOLO"):
        plan(images, write_file(tmp_path / "c.json", json.dumps(document)))


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
    ("text", "says"),
    [
        ("", "is not XML"),
        ("<html><body>503</body></html>", "its root is <html>"),
        ("<dataset><images/></dataset>", "its root is <dataset>"),
        ('<annotations><track id="0" label="x"/></annotations>', "has tracks of a video"),
    ],
    ids=["empty", "page", "dlib", "video"],
)
def test_xml_without_annotations_of_images_is_a_reject(
    text: str, says: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "a.xml", f"<annotation>{OBJECT.format('', 11)}</annotation>")
    write_file(tmp_path / "boxes" / "b.xml", text)
    records, rejects, _ = read(images, tmp_path / "boxes")
    (reject,) = rejects
    assert says in reject.message
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


@pytest.mark.parametrize("count", [2, 5])
def test_labels_of_a_yolo_data_set_are_noted_with_their_option(count: int, tmp_path: Path) -> None:
    for number in range(count):
        save_image(tmp_path / "set" / "images" / "train" / f"{number}.jpg")
    for number in range(2):
        write_file(tmp_path / "set" / "labels" / "train" / f"{number}.txt", "0 0.5 0.5 0.2 0.4\n")
    listing = list_inputs([str(tmp_path / "set")])
    if count == 2:
        with pytest.raises(
            RecordmillError, match=r"data set of YOLO: .*set/images` with --boxes .*set/labels"
        ):
            detect_kind(listing)
    else:
        notes = [in_flags(note) for note in plan_images(listing).notes]
        assert any(f"--boxes {tmp_path}/set/labels" in note for note in notes)


@pytest.mark.parametrize("flat", [False, True], ids=["folders", "darknet"])
def test_the_root_of_a_yolo_data_set_is_named_though_most_files_are_text(
    flat: bool, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    for number in range(2):
        save_image(root / ("data" if flat else "images") / f"{number}.jpg")
        write_file(root / ("data" if flat else "labels") / f"{number}.txt", "0 0.5 0.5 0.2 0.4\n")
    for name in ("train.txt", "classes.txt", "more.txt"):
        write_file(root / name, "cat\ndog\n")
    images, boxes = (root, root) if flat else (root / "images", root / "labels")
    with pytest.raises(RecordmillError) as caught:
        detect_kind(list_inputs([str(root)]))
    assert f"build images {images}` with --boxes {boxes}" in str(caught.value)


@pytest.mark.parametrize("option", ["boxes", "labels"])
def test_options_of_images_choose_images_among_more_files_of_other_kinds(
    option: str, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    save_image(root / "a.png")
    table = write_file(root / "b.csv", HEADER + "a.png,10,5,40,25,x\n")
    for number in range(2):
        write_file(root / f"{number}.csv", "x,y\n1,2\n")
    recordmill.build(root, tmp_path / "out", **{option: table})
    assert len(recordmill.open(tmp_path / "out")) == 1
    assert recordmill.open(tmp_path / "out").columns[0] in ("image", "image/encoded")


def test_tables_beside_as_many_images_are_named_with_the_options_that_read_them(
    tmp_path: Path,
) -> None:
    save_image(tmp_path / "set" / "a.png")
    write_file(tmp_path / "set" / "b.csv", HEADER + "a.png,10,5,40,25,x\n")
    with pytest.raises(
        RecordmillError, match=r"several kinds of data.*--labels \S*set or --boxes \S*set reads"
    ):
        recordmill.build(tmp_path / "set", tmp_path / "out")


def test_columns_of_the_box_size_are_not_the_image_size(images: Path, tmp_path: Path) -> None:
    text = "image,xmin,ymin,xmax,ymax,width,height,class\na.png,10,5,40,25,30,20,x\n"
    records, rejects, _ = read(images, write_file(tmp_path / "b.csv", text))
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


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


def test_pickled_source_reads_the_same_boxes(images: Path, tmp_path: Path) -> None:
    boxes = write_file(tmp_path / "b.csv", HEADER + "a.png,10,5,40,25,x\nc.png,0.5,1,2,3,y\n")
    rows, rejects = read_all(plan(images, boxes))
    assert not rejects
    assert [len(row[2]["image/object/bbox/xmin"]) for row in rows] == [1, 0, 1]


SEEDS = {
    "c.json": json.dumps(coco_document(keypoints=[1, 2, 2], segmentation=[[1, 2, 3, 4, 5, 6]])),
    "a.xml": f"<annotation><size><width>100</width><height>50</height></size>{OBJECT.format('', 11)}</annotation>",
    "a.txt": "0 0.5 0.5 0.2 0.4\n1 0.5 0.5 0.2 0.4 0.3 0.1\n",
    "b.csv": HEADER + 'a.png,1,2,3,4,x\nb.png,5,6,7,8,"y"\n',
    "m.jsonl": '{"file_name": "a.png", "width": 100, "height": 50, "objects": {"bbox": [[1, 2, 3, 4]], "categories": ["x"]}}\n',
    "l.json": '{"imagePath": "a.png", "shapes": [{"label": "x", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}]}',
    "v.xml": '<annotations><image id="0" name="a.png" width="9" height="9"><box label="x" xtl="1" ytl="2" xbr="3" ybr="4"/></image></annotations>',
    "data.yaml": "names: {0: a, 1: b}\nkpt_shape: [2, 3]\n",
}
TOKENS = (
    b'null true -1 0 1e999 NaN -Infinity 99999999999999999999999 "" "\\ud800" [] {} [[]] {"a":1} \xff \x00 \xef\xbb\xbf , : " < > & '
    b"<object> </object> &amp; <!ENTITY \r\n \t 0.5 ../ // \\ a.png id bbox" + b" " + b"9" * 400
).split(b" ")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Returns data with a few bytes or tokens replaced, inserted, removed or repeated."""
    for _ in range(rng.randint(1, 3)):
        begin = rng.randrange(len(data) + 1)
        end = min(begin + rng.choice((0, 1, 1, 2, 5, 20)), len(data))
        middle = rng.choice(
            (b"", bytes([rng.randrange(256)]), rng.choice(TOKENS), data[begin:end] * 2)
        )
        data = data[:begin] + middle + data[end:]
    return data


def check_mutants(images: Path, folder: Path, count: int, seed: int) -> None:
    files, rng = list_inputs([str(images)]), random.Random(seed)
    names = [*SEEDS]
    for number in range(count):
        name = names[number % len(names)]
        data = mutate(SEEDS[name].encode(), rng)
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / name).write_bytes(data)
        if name == "data.yaml":
            (folder / "a.txt").write_text(SEEDS["a.txt"])
        try:
            found = read_box_columns(
                str(folder), files.files, files.roots, first_label=0, memory_bytes=1 << 24
            )
        except RecordmillError as error:
            message = str(error)
            assert "Error" not in message, (data, message)
            assert len(message) < 600, (data, message)
        else:
            for column, values in found.columns.items():
                from_arrow_field(_field(column, values))
                values.validate(full=True)
            edges = found.columns["image/object/bbox/xmin"].flatten().to_numpy()
            assert np.isfinite(edges).all(), data
            for reject in found.rejects:
                assert reject.message, data
                assert len(reject.message) < 300, data
                reject.message.encode()


def _field(name: str, values: Any) -> Any:
    import pyarrow as pa

    return pa.field(name, values.type)


def test_damaged_annotation_files_give_a_result_or_one_sentence(
    images: Path, tmp_path: Path
) -> None:
    check_mutants(images, tmp_path / "boxes", 3000, seed=1)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_many_damaged_annotation_files_give_a_result_or_one_sentence(
    seed: int, images: Path, tmp_path: Path
) -> None:
    check_mutants(images, tmp_path / "boxes", 10_000, seed=100 + seed)


def test_crop_that_cannot_move_key_points_is_refused(images: Path, tmp_path: Path) -> None:
    document = coco_document(keypoints=[20, 10, 2])
    boxes = write_file(tmp_path / "c.json", json.dumps(document))
    recordmill.build(images, tmp_path / "out", boxes=boxes)
    assert recordmill.verify(tmp_path / "out") == []
    label_map = tmp_path / "out" / "label_map.pbtxt"
    assert label_map.read_text() == 'item {\n  id: 0\n  name: "x"\n}\n'
    label_map.unlink()  # as in a data set of an earlier release
    assert recordmill.verify(tmp_path / "out") == []
    crop = recordmill.Images(8, 8, crop="center")
    with pytest.raises(RecordmillError, match="does not move key points"):
        next(recordmill.open(tmp_path / "out").batches(2, decode_images=crop))


NUMBERS = (0, 1, -1, 0.5, 1e-320, 1e9, -1e9, 1e300, 50, 100, 99, 2**53, None, "7", [], 10**400)


def hostile_coco(rng: random.Random) -> dict[str, Any]:
    """Returns a COCO document of two images with some extreme or wrong numbers."""

    def some(*values: Any) -> Any:
        return rng.choice((*values, *values, rng.choice(NUMBERS)))

    shapes = ([], [[1, 2, 3, 4, 5, 6]], [[1, 2, 3]], {"counts": "x"}, [[some(1), 1, 2, 3, 4, 5]])
    return {
        "images": [
            {"id": 1, "file_name": "a.png", "width": some(100, 200), "height": some(50, 100)},
            {"id": 2, "file_name": "b.jpg", "width": some(100), "height": some(50)},
        ],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [
            {
                "id": number,
                "image_id": some(1, 2),
                "category_id": 1,
                "bbox": [some(10), 5, some(20), some(9)],
                "area": some(180),
                "keypoints": rng.choice(([], [some(1), some(2), 2], [1, 1, 0, some(3), 2, 1])),
                "segmentation": rng.choice(shapes),
            }
            for number in range(3)
        ],
    }


def test_hostile_numbers_of_coco_give_finite_records(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.png")
    save_image(tmp_path / "images" / "b.jpg", (50, 100), 6)
    rng, built = random.Random(7), 0
    ways: list[dict[str, Any]] = [
        {},
        {"resize": "8x8", "resize_mode": "crop"},
        {"box_unit": "shares"},
    ]
    for _ in range(300):
        document = hostile_coco(rng)
        boxes = write_file(tmp_path / "c.json", json.dumps(document))
        try:
            records, _, _ = read(tmp_path / "images", boxes, **rng.choice(ways))
        except RecordmillError:
            continue
        built += 1
        for record in records.values():
            for name, values in record.items():
                if "/bbox/" in name:
                    assert all(0 <= value <= 1 for value in values), document
                if "/keypoint/" in name or name.endswith("/area"):
                    assert np.isfinite(values).all(), document
    assert built > 100
