"""One set of images and boxes, in the formats that annotation tools export."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Class, left, top, right and bottom edge. The edges are in pixels of the exported size, from 0.
Box = tuple[str, float, float, float, float]
# By stem of the image's file name: the (width, height) of the image in the export, and its boxes.
Scenes = Mapping[str, tuple[tuple[int, int], Sequence[Box]]]
CLASSES = ("cat", "dog")


def coco_instances(folder: Path, scenes: Scenes) -> Path:
    """Writes COCO as its authors do: ids have gaps, and all optional fields exist."""
    return _coco(folder / "instances_all.json", scenes, lambda stem: f"{stem}.jpg", {})


def coco_roboflow(folder: Path, scenes: Scenes) -> Path:
    """Writes COCO as Roboflow does: a folder per split, next to a text file."""
    (folder / "train").mkdir()
    (folder / "README.dataset.txt").write_text("# A data set\n\nProvided by a user\n")
    return _coco(
        folder / "train" / "_annotations.coco.json", scenes, lambda stem: f"{stem}.jpg", {"a": 1}
    ).parents[1]


def coco_label_studio(folder: Path, scenes: Scenes) -> Path:
    """Writes COCO as Label Studio does: paths have backslashes and a prefix per upload."""
    return _coco(folder / "result.json", scenes, lambda stem: f"images\\/8f3b2c1d-{stem}.jpg", {})


def _coco(path: Path, scenes: Scenes, name: Callable[[str], str], extra: dict[str, int]) -> Path:
    images, annotations = [], []
    for number, (stem, ((width, height), boxes)) in enumerate(scenes.items()):
        images.append(
            {"id": 10 + number, "file_name": name(stem), "width": width, "height": height, **extra}
        )
        annotations += [
            {
                "id": 100 * number + index,
                "image_id": 10 + number,
                "category_id": 3 + 2 * CLASSES.index(kind),
                "bbox": [left, top, right - left, bottom - top],
            }
            for index, (kind, left, top, right, bottom) in enumerate(boxes)
        ]
    categories = [{"id": 3 + 2 * index, "name": kind} for index, kind in enumerate(CLASSES)]
    path.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return path


def voc_label_img(folder: Path, scenes: Scenes) -> Path:
    """Writes VOC as LabelImg does, with paths on another machine."""
    return _voc(folder, scenes, "<path>C:\\\\work\\\\{0}.jpg</path><filename>{0}.jpg</filename>")


def voc_devkit(folder: Path, scenes: Scenes) -> Path:
    """Writes VOC as the development kit does: file names without paths."""
    return _voc(folder, scenes, "<folder>VOC</folder><filename>{0}.jpg</filename>")


def _voc(folder: Path, scenes: Scenes, head: str) -> Path:
    for stem, ((width, height), boxes) in scenes.items():
        objects = "".join(
            f"<object><name>{kind}</name><pose>Left</pose><truncated>0</truncated><difficult>0</difficult>"
            f"<bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
            "</bndbox></object>"
            for kind, left, top, right, bottom in boxes
        )
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (folder / f"{stem}.xml").write_text(
            f"<annotation>{head.format(stem)}{size}{objects}</annotation>"
        )
    return folder


def yolo_ultralytics(folder: Path, scenes: Scenes) -> Path:
    """Writes YOLO as Ultralytics does: data.yaml in the folder above contains the names."""
    (folder / "data.yaml").write_text("names:\n  0: cat\n  1: dog\n")
    (folder / "labels").mkdir()
    _yolo(folder / "labels", scenes, "{} {!r} {!r} {!r} {!r}\n")
    return folder / "labels"


def yolo_predicted(folder: Path, scenes: Scenes) -> Path:
    """Writes YOLO predictions with a confidence.

    Classes are floats, the files have a BOM, and classes.txt contains the names.
    """
    (folder / "classes.txt").write_text("\ufeffcat\ndog\n", encoding="utf-8")
    _yolo(folder, scenes, "{}.0\t{!r} {!r} {!r} {!r} 0.5\r\n", "\ufeff")
    return folder


def _yolo(folder: Path, scenes: Scenes, line: str, head: str = "") -> None:
    for stem, ((width, height), boxes) in scenes.items():
        lines = [
            line.format(
                CLASSES.index(kind),
                (left + right) / 2 / width,
                (top + bottom) / 2 / height,
                (right - left) / width,
                (bottom - top) / height,
            )
            for kind, left, top, right, bottom in boxes
        ]
        (folder / f"{stem}.txt").write_text(head + "".join(lines), encoding="utf-8", newline="")


def csv_object_detection_api(folder: Path, scenes: Scenes) -> Path:
    """Writes CSV as xml_to_csv.py does, with the size of each image."""
    rows = [
        f"{stem}.jpg,{width},{height},{kind},{left},{top},{right},{bottom}"
        for stem, ((width, height), boxes) in scenes.items()
        for kind, left, top, right, bottom in boxes
    ]
    path = folder / "labels.csv"
    path.write_text("\n".join(["filename,width,height,class,xmin,ymin,xmax,ymax", *rows]) + "\n")
    return path


def csv_kaggle(folder: Path, scenes: Scenes) -> Path:
    """Writes CSV with an id, and with the box in one column."""
    rows = [
        f'{stem},{width},{height},"[{left}, {top}, {right - left}, {bottom - top}]",{kind}'
        for stem, ((width, height), boxes) in scenes.items()
        for kind, left, top, right, bottom in boxes
    ]
    path = folder / "train.csv"
    path.write_text("\n".join(["image_id,width,height,bbox,label", *rows]) + "\n")
    return path


def hugging_face_lists(folder: Path, scenes: Scenes) -> Path:
    """Writes metadata.jsonl of Hugging Face, with a list per column."""
    lines = [
        {
            "file_name": f"{stem}.jpg",
            "width": width,
            "height": height,
            "objects": {
                "bbox": [
                    [left, top, right - left, bottom - top] for _, left, top, right, bottom in boxes
                ],
                "categories": [kind for kind, *_ in boxes],
            },
        }
        for stem, ((width, height), boxes) in scenes.items()
    ]
    path = folder / "metadata.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def hugging_face_objects(folder: Path, scenes: Scenes) -> Path:
    """Writes metadata.jsonl of Hugging Face, with an object per box."""
    lines = [
        {
            "image": f"{stem}.jpg",
            "image_width": width,
            "image_height": height,
            "objects": [
                {"bbox": [left, top, right - left, bottom - top], "category": kind}
                for kind, left, top, right, bottom in boxes
            ],
        }
        for stem, ((width, height), boxes) in scenes.items()
    ]
    path = folder / "metadata.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


EXPORTS: Sequence[Callable[[Path, Scenes], Path]] = (
    coco_instances,
    coco_roboflow,
    coco_label_studio,
    voc_label_img,
    voc_devkit,
    yolo_ultralytics,
    yolo_predicted,
    csv_object_detection_api,
    csv_kaggle,
    hugging_face_lists,
    hugging_face_objects,
)
