"""Annotations of every tool become equal records.

Damaged annotations become a reject, a result or a readable error.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.annotated_images import HEADER, OBJECT, coco_document, edges_of, plan, read, save_image
from kit.annotation_exports import EXPORTS, Box, Scenes
from kit.files import write_file
from kit.source_reading import read_all
from PIL import Image

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.schemas.arrow import from_arrow_field
from recordmill.sources.images.box_columns import read_box_columns
from recordmill.storage.listing import list_inputs

PIXELS: list[Box] = [("dog", 10, 5, 40, 25), ("cat", 0, 0, 16, 16)]
# Functions that return the stored image of an upright image, by EXIF orientation.
TURNS: dict[int, Callable[[Image.Image], Image.Image]] = {
    1: lambda image: image,
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
}


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_exports_of_all_tools_are_read_as_equal_records(export: Any, tmp_path: Path) -> None:
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
    objects = {
        name: [*zip(record["image/object/class/text"], edges_of(record), strict=True)]
        for name, record in records.items()
    }
    dog, cat = ("dog", (0.1, 0.1, 0.4, 0.5)), ("cat", (0, 0, 0.16, 0.32))
    assert objects == {
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
    records, _, _ = read(tmp_path / "images", path, reencode="png")  # the image is upright again
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


def test_image_with_an_unreadable_annotation_file_is_a_reject(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "a.xml", "<annotation><object>")
    write_file(tmp_path / "boxes" / "b.xml", f"<annotation>{OBJECT.format('', 11)}</annotation>")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert "a.xml: is not XML" in str(reject)
    assert [*records] == ["b.png", "c.png"]


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


def test_error_about_a_table_among_images_names_the_options_that_read_it(
    tmp_path: Path,
) -> None:
    save_image(tmp_path / "set" / "a.png")
    write_file(tmp_path / "set" / "b.csv", HEADER + "a.png,10,5,40,25,x\n")
    with pytest.raises(
        RecordmillError, match=r"several kinds of data.*--labels \S*set or --boxes \S*set reads"
    ):
        recordmill.build(tmp_path / "set", tmp_path / "out")


def test_boxes_of_each_image_are_read(images: Path, tmp_path: Path) -> None:
    boxes = write_file(tmp_path / "b.csv", HEADER + "a.png,10,5,40,25,x\nc.png,0.5,1,2,3,y\n")
    rows, rejects = read_all(plan(images, boxes))
    assert not rejects
    assert [len(record["image/object/bbox/xmin"]) for _, _, record in rows] == [1, 0, 1]


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
        for path in folder.iterdir():
            path.unlink()
        (folder / name).write_bytes(data)
        if name == "data.yaml":
            (folder / "a.txt").write_text(SEEDS["a.txt"])
        try:
            result = read_box_columns(
                str(folder), files.files, files.roots, first_label=0, memory_bytes=1 << 24
            )
        except RecordmillError as error:
            message = str(error)
            assert "Error" not in message, (data, message)
            assert len(message) < 600, (data, message)
        else:
            for column, values in result.columns.items():
                from_arrow_field(_field(column, values))
                values.validate(full=True)
            edges = result.columns["image/object/bbox/xmin"].flatten().to_numpy()
            assert np.isfinite(edges).all(), data
            for reject in result.rejects:
                assert reject.message, data
                assert len(reject.message) < 300, data
                reject.message.encode()


def _field(name: str, values: Any) -> Any:
    import pyarrow as pa

    return pa.field(name, values.type)


def test_damaged_annotation_file_is_read_or_raises_one_sentence(
    images: Path, tmp_path: Path
) -> None:
    check_mutants(images, tmp_path / "boxes", 3000, seed=1)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_each_of_many_damaged_annotation_files_is_read_or_raises_one_sentence(
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
    label_map.unlink()  # an earlier release wrote no label map
    assert recordmill.verify(tmp_path / "out") == []
    crop = recordmill.Images(8, 8, crop="center")
    with pytest.raises(RecordmillError, match="does not move key points"):
        next(recordmill.open(tmp_path / "out").batches(2, decode_images=crop))
