"""Images with annotation files, their plans and their boxes."""

from pathlib import Path
from typing import Any

from PIL import Image

from recordmill.base.errors import Reject
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import ImageSource, plan_images
from recordmill.storage.listing import list_inputs


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


OBJECT = "<object><name>x</name>{}<bndbox><xmin>{}</xmin><ymin>6</ymin><xmax>40</xmax><ymax>25</ymax></bndbox></object>"


def coco_document(**changes: Any) -> dict[str, Any]:
    """Returns a COCO document with a good annotation 1, and annotation 2 with changes."""
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 30, 20]}
    return {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [annotation, annotation | {"id": 2} | changes],
    }


HEADER = "image,xmin,ymin,xmax,ymax,class\n"
