"""Boxes from COCO, Pascal VOC, YOLO and CSV become equal records.

Records have the layout of the Object Detection API.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit import image_samples
from kit.runs import in_flags
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError

Box = tuple[str, float, float, float, float]  # class, and edges in pixels that begin at 0
WIDTH, HEIGHT = image_samples.picture().size
BOXES: Mapping[str, list[Box]] = {
    "a": [("dog", 1, 2, 11, 8), ("cat", 0, 0, WIDTH, HEIGHT), ("dog", 3, 3, 4.5, 6)],
    "b": [("cat", 5, 1, 9, 3)],
    "c": [],
}
NAMES = ("cat", "dog")


def voc(root: Path, boxes: Mapping[str, Sequence[Box]], size: tuple[int, int]) -> Path:
    for stem, objects in boxes.items():
        objects_xml = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{right}</xmax>"
            f"<ymax>{bottom}</ymax></bndbox></object>"
            for name, x, y, right, bottom in objects
        )
        (root / f"{stem}.xml").write_text(
            f"<annotation><filename>{stem}.png</filename>{objects_xml}</annotation>"
        )
    return root


def coco(root: Path, boxes: Mapping[str, Sequence[Box]], size: tuple[int, int]) -> Path:
    stems = list(boxes)
    (root / "instances.json").write_text(
        json.dumps(
            {
                "images": [
                    {"id": 7 + index, "file_name": f"{stem}.png"}
                    for index, stem in enumerate(stems)
                ],
                "categories": [
                    {"id": 3 + index, "name": name} for index, name in enumerate(names_of(boxes))
                ],
                "annotations": [
                    {
                        "image_id": 7 + index,
                        "category_id": 3 + names_of(boxes).index(name),
                        "iscrowd": 1,
                        "bbox": [x, y, right - x, bottom - y],
                        "segmentation": [[x, y, right, bottom, x, bottom]],
                    }
                    for index, stem in enumerate(stems)
                    for name, x, y, right, bottom in boxes[stem]
                ],
            }
        )
    )
    return root / "instances.json"


def names_of(boxes: Mapping[str, Sequence[Box]]) -> list[str]:
    return sorted({box[0] for objects in boxes.values() for box in objects})


def yolo(root: Path, boxes: Mapping[str, Sequence[Box]], size: tuple[int, int]) -> Path:
    width, height = size
    (root / "classes.txt").write_text("\n".join(names_of(boxes)))
    for stem, objects in boxes.items():
        (root / f"{stem}.txt").write_text(
            "".join(
                f"{names_of(boxes).index(name)} {(x + right) / 2 / width!r} {(y + bottom) / 2 / height!r} "
                f"{(right - x) / width!r} {(bottom - y) / height!r}\n"
                for name, x, y, right, bottom in objects
            )
        )
    return root


def table(root: Path, boxes: Mapping[str, Sequence[Box]], size: tuple[int, int]) -> Path:
    rows = [
        f"{stem}.png,{','.join(map(str, box))}"
        for stem, objects in boxes.items()
        for box in objects
    ]
    (root / "boxes.csv").write_text("\n".join(["filename,class,xmin,ymin,xmax,ymax", *rows]) + "\n")
    return root / "boxes.csv"


FORMATS: list[Callable[[Path, Mapping[str, Sequence[Box]], tuple[int, int]], Path]] = [
    voc,
    coco,
    yolo,
    table,
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for stem in BOXES:
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{stem}.png").write_bytes(image_samples.encode_image("PNG"))
    return tmp_path / "images"


def build_table(images: Path, boxes: Path, out: Path, **options: Any) -> pa.Table:
    recordmill.build(images, out, boxes=boxes, shuffle=False, **options)
    assert recordmill.verify(out) == []
    return recordmill.open(out).to_table()


def write_annotations(
    write: Any,
    folder: Path,
    boxes: Mapping[str, Sequence[Box]],
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Path:
    folder.mkdir()
    path: Path = write(folder, boxes, size)
    return path


@pytest.mark.parametrize("write", FORMATS)
def test_boxes_of_each_format_become_the_same_features(
    write: Any, images: Path, tmp_path: Path
) -> None:
    result = build_table(
        images,
        write_annotations(write, tmp_path / "boxes", BOXES),
        tmp_path / "out",
        label_offset=1,
    )
    for row, objects in enumerate(BOXES.values()):
        edges = np.array([box[1:] for box in objects], np.float64).reshape(-1, 4) / (
            [WIDTH, HEIGHT] * 2
        )
        for index, edge in enumerate(("xmin", "ymin", "xmax", "ymax")):
            np.testing.assert_allclose(
                result[f"image/object/bbox/{edge}"][row].as_py(), edges[:, index], atol=2e-7
            )
        assert result["image/object/class/text"][row].as_py() == [box[0] for box in objects]
        assert result["image/object/class/label"][row].as_py() == [
            1 + NAMES.index(box[0]) for box in objects
        ]
    assert result["image/filename"].to_pylist() == ["a.png", "b.png", "c.png"]
    assert set(result["image/format"].to_pylist()) == {"png"}
    assert set(result["image/width"].to_pylist()) == {WIDTH}
    schema = recordmill.open(tmp_path / "out").schema
    assert schema["image/object/class/label"].classes == ("background", *NAMES)
    if write is coco:
        assert result["image/source_id"].to_pylist() == ["7", "8", "9"]
        assert result["image/object/is_crowd"].to_pylist() == [[1, 1, 1], [1], []]
        assert json.loads(result["image/object/segmentation"][1][0].as_py()) == [[5, 1, 9, 3, 5, 3]]


def test_unit_of_boxes_is_decided_over_all_tables(images: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    for name, row in {"a": f"a.png,cat,0,0,{WIDTH},{HEIGHT}", "b": "b.png,cat,0,0,1,1"}.items():
        (boxes / f"{name}.csv").write_text(f"filename,class,xmin,ymin,xmax,ymax\n{row}\n")
    result = build_table(images, boxes, tmp_path / "out")
    assert result["image/object/bbox/xmax"].to_pylist() == [[1], [np.float32(1 / WIDTH)], []]


ACROSS = {
    "a": [("cat", -2, 1, 6, HEIGHT + 5)],
    "b": [("cat", WIDTH + 1, 1, WIDTH + 4, 5), ("dog", 1, 1, 2, 2)],
    "c": [],
}


@pytest.mark.parametrize("write", FORMATS)
def test_boxes_across_the_border_are_clipped_and_noted(
    write: Any, images: Path, tmp_path: Path
) -> None:
    boxes = write_annotations(write, tmp_path / "boxes", ACROSS)
    with pytest.raises(RecordmillError, match=r"inside the image 'b.png'"):
        recordmill.build(images, tmp_path / "out", boxes=boxes)
    result = build_table(images, boxes, tmp_path / "out", max_rejects=1, overwrite=True)
    rows = dict(
        zip(
            result["image/filename"].to_pylist(),
            result["image/object/bbox/xmin"].to_pylist(),
            strict=True,
        )
    )
    right, bottom = (
        result["image/object/bbox/xmax"].to_pylist(),
        result["image/object/bbox/ymax"].to_pylist(),
    )
    assert [*rows] == ["a.png", "b.png", "c.png"]
    assert (rows["a.png"], bottom[0]) == ([0], [1])
    assert len(rows["b.png"]) == len(right[1]) == 1
    notes = recordmill.open(tmp_path / "out").records.catalog.manifest.statistics["notes"]
    assert any("boxes across the image's border, clipped: 1" in note for note in notes)


def test_annotation_without_its_image_is_a_reject(images: Path, tmp_path: Path) -> None:
    for write in FORMATS:
        boxes = write_annotations(
            write, tmp_path / f"boxes-{write.__name__}", {**BOXES, "lost": [("cat", 1, 1, 2, 2)]}
        )
        with pytest.raises(RecordmillError, match="lost"):
            recordmill.build(images, tmp_path / "out", boxes=boxes, overwrite=True)
        assert len(build_table(images, boxes, tmp_path / "out", max_rejects=1, overwrite=True)) == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.xml", "<annotation><object>", "is not XML"),
        (
            "a.xml",
            '<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>',
            "declares entities",
        ),
        (
            "a.xml",
            "<annotation><object><name>x</name></object></annotation>",
            "object 1: lacks 'bndbox'",
        ),
        ("a.json", "[1]", "not a COCO annotation file"),
        (
            "a.json",
            '{"images": [{"id": 1, "file_name": "a.png"}], "categories": []}',
            "lacks 'annotations'",
        ),
        (
            "a.json",
            '{"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "x"}], '
            '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3]}]}',
            "bbox is 3 numbers, not four",
        ),
        ("a.txt", "0 0.5 0.5 0.1\n", "a.txt: line 1: is not a box: 3 numbers"),
        (
            "a.txt",
            "\n0 0.5 0.5 nan 0.1\n",
            "a.txt: line 2: is not a box: a value is 'nan', not a finite number",
        ),
        ("b.csv", "filename,xmin,ymin,xmax,ymax\na.png,1,2,3,4\n", "no columns of a class"),
        ("b.csv", "filename,class,left\na.png,cat,3\n", "no columns of xmin, ymin"),
        (
            "b.csv",
            "filename,class,xmin,ymin,xmax,ymax\nz.png,cat,1,2,3,4\n",
            "no column holds paths of the images",
        ),
        ("a.md", "x", "a COCO .json, a .csv, or a folder"),
    ],
)
def test_invalid_annotation_file_is_refused(
    name: str, text: str, message: str, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / name).write_text(text)
    with pytest.raises((DataError, UsageError), match=message):
        recordmill.build(images, tmp_path / "out", boxes=tmp_path / "boxes")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds shards of twelve black images with three objects each.

    The objects are a red, a green and a blue rectangle.
    """
    folder = tmp_path_factory.mktemp("scenes")
    boxes: dict[str, list[Box]] = {}
    rng = np.random.default_rng(3)
    for number in range(12):
        pixels, stem = np.zeros((60, 80, 3), np.uint8), f"{number:02}"
        for channel in range(3):
            left, top = 27 * channel + int(rng.integers(8)), int(rng.integers(35))
            right, bottom = left + int(rng.integers(6, 18)), top + int(rng.integers(8, 24))
            pixels[top:bottom, left:right, channel] = 255
            boxes.setdefault(stem, []).append(("rgb"[channel], left, top, min(right, 80), bottom))
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "images" / f"{stem}.png")
    recordmill.build(
        folder / "images",
        folder / "out",
        boxes=write_annotations(table, folder / "boxes", boxes),
        shuffle=False,
    )
    return folder / "out"


@pytest.mark.parametrize(
    "image_options",
    [
        {"crop": "center"},
        {"flip": True},
        {"crop": recordmill.RandomCrop((0.2, 0.6))},
        {"crop": recordmill.RandomCrop((0.2, 0.6)), "flip": True, "shrink": True},
    ],
)
def test_boxes_follow_crops_and_flips(image_options: Any, scenes: Path) -> None:
    ds = recordmill.open(scenes)
    options = {
        "decode_images": recordmill.Images(120, 90, **image_options),
        "seed": 5,
        "shuffle": False,
        "epochs": 2,
        "collate": {
            name: recordmill.Padded(lengths=True) for name in ds.columns if "/object/" in name
        },
    }
    (first_epoch, second_epoch), (tf_batch, _) = ds.batches(12, **options), ds.to_tf(12, **options)
    edges = np.stack(
        [first_epoch[f"image/object/bbox/{edge}"] for edge in ("xmin", "xmax", "ymin", "ymax")], 2
    )
    counts, num_dropped, num_mirrored = first_epoch["image/object/bbox/xmin/length"], 0, 0
    for row, pixels in enumerate(first_epoch["image/encoded"].astype(int)):
        texts = [
            bytes(text) if isinstance(text, bytes) else text
            for text in first_epoch["image/object/class/text"][row]
        ]
        boxes = {str(text): edges[row, index] for index, text in enumerate(texts[: counts[row]])}
        left_edges = []
        for channel, text in enumerate("rgb"):
            pixel_rows, pixel_columns = np.nonzero(pixels[:, :, channel] > 127)
            if text not in boxes:
                num_dropped += 1
                assert len(pixel_rows) <= 120  # half of a source pixel at the border may remain
                continue
            visible_box = (
                (
                    pixel_columns.min() / 90,
                    (pixel_columns.max() + 1) / 90,
                    pixel_rows.min() / 120,
                    (pixel_rows.max() + 1) / 120,
                )
                if len(pixel_rows)
                else ()
            )
            np.testing.assert_allclose(boxes[text], visible_box or boxes[text], atol=0.04)
            left_edges.append(boxes[text][0])
        num_mirrored += left_edges != sorted(left_edges)
    assert bool(num_dropped) == ("crop" in image_options)
    assert (0 < num_mirrored < 12) == ("flip" in image_options)
    is_random = image_options != {"crop": "center"}
    assert (
        np.array_equal(first_epoch["image/encoded"], second_epoch["image/encoded"])
    ) != is_random
    for name in ("image/encoded", "image/object/bbox/xmin", "image/object/class/label"):
        np.testing.assert_array_equal(first_epoch[name], tf_batch[name].numpy())


def test_crop_that_cannot_move_the_boxes_is_refused(scenes: Path) -> None:
    images = recordmill.Images(8, 8, crop="center")
    partial = recordmill.open(scenes, columns=["image/encoded", "image/object/bbox/xmin"])
    with pytest.raises(UsageError, match="also select 'image/object/bbox/xmax'"):
        next(partial.batches(2, decode_images=images))
    dataset = recordmill.open(scenes, decode_images=images)
    assert next(dataset.batches(2))["image/encoded"].shape == (2, 8, 8, 3)
    with pytest.raises(
        UsageError,
        match="cropped or turned together with its boxes, which only batches, to_tf and to_torch can do",
    ):
        dataset.to_table()


def test_renamed_boxes_follow_the_crop(scenes: Path) -> None:
    ds, name = recordmill.open(scenes), "image/object/bbox/xmin"
    options: dict[str, Any] = {
        "decode_images": recordmill.Images(8, 8, crop="center"),
        "shuffle": False,
    }
    expected = next(ds.batches(12, **options))
    result = next(ds.rename({"image/encoded": "image", name: "left"}).batches(12, **options))
    np.testing.assert_array_equal(result["image"], expected["image/encoded"])
    np.testing.assert_array_equal(result["left"].values, expected[name].values)


@pytest.mark.parametrize(("write", "path"), [(coco, "/instances.json"), (voc, "")])
def test_annotations_next_to_images_are_noted_with_their_option(
    write: Any, path: str, images: Path, tmp_path: Path
) -> None:
    write(images, BOXES, (WIDTH, HEIGHT))
    result = recordmill.build(images, tmp_path / "out")
    (message,) = (in_flags(note) for note in result.notes if "boxes" in note)
    assert f"--boxes {images}{path} " in message
