"""`Images(orientation=True)` turns boxes, key points and polygons together with the pixels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.options.images import Images, RandomCrop

EDGES = [f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax")]
LEFT, TOP, WIDTH, HEIGHT = 20, 30, 25, 40  # a white box in each image of 160 x 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds images of all orientations with a white box.

    The first corner of the box is a key point.
    """
    folder = tmp_path_factory.mktemp("turned")
    (folder / "images").mkdir()
    document: dict[str, list[Any]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 1, "name": "x", "keypoints": ["corner", "unseen"]}],
    }
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    for number in range(16):
        pixels = np.zeros((120, 160, 3), np.uint8)
        pixels[TOP:bottom, LEFT:right] = 255
        exif = Image.Exif()
        exif[0x0112] = number % 8 + 1
        name = f"{number}.{'png' if number < 8 else 'jpg'}"
        Image.fromarray(pixels).save(folder / "images" / name, exif=exif.tobytes())
        document["images"].append({"id": number, "file_name": name, "width": 160, "height": 120})
        document["annotations"].append(
            {
                "id": number,
                "image_id": number,
                "category_id": 1,
                "bbox": [LEFT, TOP, WIDTH, HEIGHT],
                "keypoints": [LEFT, TOP, 2, 0, 0, 0],
                "segmentation": [[LEFT, TOP, right, TOP, right, bottom, LEFT, bottom]],
            }
        )
    (folder / "coco.json").write_text(json.dumps(document))
    recordmill.build(
        folder / "images", folder / "out", kind="images", boxes=folder / "coco.json", shuffle=False
    )
    return folder / "out"


def white_box(pixels: Any) -> list[float]:
    """Returns the left, top, right and bottom edge of the white box.

    The edges are shares of the image.
    """
    rows, columns = np.nonzero(pixels[..., 0] > 127)
    height, width = pixels.shape[:2]
    ends = (columns.max() + 1) / width, (rows.max() + 1) / height
    return [columns.min() / width, rows.min() / height, *ends]


@pytest.mark.parametrize("orientation", [False, True])
@pytest.mark.parametrize("size", [(120, 160), (160, 120)])
def test_boxes_key_points_and_polygons_match_the_turned_pixels(
    folder: Path, orientation: bool, size: tuple[int, int]
) -> None:
    images = Images(*size, orientation=orientation)
    ds, count = recordmill.open(folder), 0
    for batch in ds.batches(4, shuffle=False, decode_images={"image/encoded": images}):
        for row, pixels in enumerate(batch["image/encoded"]):
            count += 1
            box = white_box(pixels)
            edges = [float(batch[name][row][0]) for name in EDGES]
            assert edges == pytest.approx(box, abs=0.02)
            x, y = (batch[f"image/object/keypoint/{axis}"][row].tolist() for axis in "xy")
            assert (x[1], y[1]) == (0, 0)
            assert min(abs(x[0] - edge) for edge in edges[::2]) < 1e-5
            assert min(abs(y[0] - edge) for edge in edges[1::2]) < 1e-5
            # The first corner of the polygon is the key point.
            (polygon,) = json.loads(batch["image/object/segmentation"][row][0])
            points = np.array(polygon).reshape(-1, 2)
            height, width = points.max(0)[1] / edges[3], points.max(0)[0] / edges[2]
            assert sorted([round(height), round(width)]) == [120, 160]
            points = points / [width, height]
            assert points[0] == pytest.approx([x[0], y[0]], abs=1e-4)
            extent = [*points.min(0), *points.max(0)]
            assert extent == pytest.approx(edges, abs=1e-4)
    assert count == 16


@pytest.mark.parametrize("crop", ["center", RandomCrop((0.6, 1.0))])
def test_boxes_of_turned_images_follow_crops_and_flips(folder: Path, crop: Any) -> None:
    images = Images(100, 100, orientation=True, crop=crop, flip=True)
    ds = recordmill.open(folder, columns=["image/encoded", *EDGES])
    for batch in ds.batches(4, epochs=4, decode_images={"image/encoded": images}):
        for row, pixels in enumerate(batch["image/encoded"]):
            edges = [batch[name][row] for name in EDGES]
            if len(edges[0]):
                assert [float(edge[0]) for edge in edges] == pytest.approx(
                    white_box(pixels), abs=0.03
                )


def test_objects_that_cannot_be_turned_are_refused(folder: Path, tmp_path: Path) -> None:
    images = {"image/encoded": Images(64, 64, orientation=True)}
    with pytest.raises(UsageError, match="turned together with its boxes, which only batches"):
        recordmill.open(folder, decode_images=images).to_table()
    incomplete_set = recordmill.open(folder, columns=["image/encoded", EDGES[0]])
    with pytest.raises(
        UsageError, match="orientation=True needs all edges of the boxes: also select"
    ):
        incomplete_set.batches(4, decode_images=images)
    table = recordmill.open(folder).to_table()
    name = "image/object/segmentation"
    texts = type(table[name].chunk(0)).from_arrays([*range(17)], ['{"counts": "abc"}'] * 16)
    table = table.set_column(table.schema.get_field_index(name), name, texts)
    recordmill.build(table, tmp_path / "out")
    with pytest.raises(DataError, match="is not a list of polygons"):
        list(recordmill.open(tmp_path / "out").batches(4, decode_images=images))
