"""COCO files are read, and one bad annotation is one reject."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.annotated_images import coco_document, edges_of, plan, read, save_image
from kit.files import write_file
from kit.runs import in_flags

from recordmill.base.errors import RecordmillError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import plan_images
from recordmill.storage.listing import list_inputs


@pytest.mark.parametrize(
    ("changes", "message"),
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
    changes: Any, message: str | None, images: Path, tmp_path: Path
) -> None:
    boxes = write_file(tmp_path / "c.json", json.dumps(coco_document(**changes)))
    records, rejects, _ = read(images, boxes)
    assert len(records) == 3
    if message is None:
        assert not rejects
        return
    (reject,) = rejects
    assert (reject.source, reject.place) == ("c.json", "annotation 2")
    assert message in reject.message
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_category_with_a_lone_surrogate_is_a_reject(images: Path, tmp_path: Path) -> None:
    document = coco_document()
    document["categories"] += [{"id": 2, "name": "\ud800"}]
    _, rejects, _ = read(images, write_file(tmp_path / "c.json", json.dumps(document)))
    assert "c.json: category 2: the class is '\\ud800'" in str(rejects[0])


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
    classes = {item["image/filename"]: item["image/object/class/label"] for item in records}
    assert classes == {"train/0.png": [0], "test/0.png": [7]}


NUMBERS = (0, 1, -1, 0.5, 1e-320, 1e9, -1e9, 1e300, 50, 100, 99, 2**53, None, "7", [], 10**400)


def hostile_coco(rng: random.Random) -> dict[str, Any]:
    """Returns a COCO document of two images with some extreme or wrong numbers."""

    def pick(*values: Any) -> Any:
        return rng.choice((*values, *values, rng.choice(NUMBERS)))

    shapes = ([], [[1, 2, 3, 4, 5, 6]], [[1, 2, 3]], {"counts": "x"}, [[pick(1), 1, 2, 3, 4, 5]])
    return {
        "images": [
            {"id": 1, "file_name": "a.png", "width": pick(100, 200), "height": pick(50, 100)},
            {"id": 2, "file_name": "b.jpg", "width": pick(100), "height": pick(50)},
        ],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [
            {
                "id": number,
                "image_id": pick(1, 2),
                "category_id": 1,
                "bbox": [pick(10), 5, pick(20), pick(9)],
                "area": pick(180),
                "keypoints": rng.choice(([], [pick(1), pick(2), 2], [1, 1, 0, pick(3), 2, 1])),
                "segmentation": rng.choice(shapes),
            }
            for number in range(3)
        ],
    }


def test_records_of_hostile_coco_numbers_are_finite(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.png")
    save_image(tmp_path / "images" / "b.jpg", (50, 100), 6)
    rng, num_built = random.Random(7), 0
    option_sets: list[dict[str, Any]] = [
        {},
        {"resize": "8x8", "resize_mode": "crop"},
        {"box_unit": "shares"},
    ]
    for _ in range(300):
        document = hostile_coco(rng)
        boxes = write_file(tmp_path / "c.json", json.dumps(document))
        try:
            records, _, _ = read(tmp_path / "images", boxes, **rng.choice(option_sets))
        except RecordmillError:
            continue
        num_built += 1
        for record in records.values():
            for name, values in record.items():
                if "/bbox/" in name:
                    assert all(0 <= value <= 1 for value in values), document
                if "/keypoint/" in name or name.endswith("/area"):
                    assert np.isfinite(values).all(), document
    assert num_built > 100


def test_coco_document_that_exceeds_memory_is_refused(images: Path, tmp_path: Path) -> None:
    boxes = write_file(tmp_path / "c.json", json.dumps(coco_document()) + " " * (1 << 20))
    size = boxes.stat().st_size
    common = PlanOptions(memory_bytes=1 << 20)
    with pytest.raises(RecordmillError) as error:
        plan_images(list_inputs([str(images)]), ImageOptions(boxes=str(boxes)), common)
    assert in_flags(error.value) == (
        f"c.json: parsing its {size:,} bytes may need more memory than --memory 1MiB allows; "
        "use --memory 9MiB"
    )
