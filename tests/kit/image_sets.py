"""Data sets of images with names and metadata."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from kit.batches import table_of
from kit.data_sets import write_data_set
from kit.files import tree
from recordmill.pipelines.read import ReadResult
from recordmill.schemas.feature import Feature, Schema

JPEG, PNG = b"\xff\xd8\xff\xe0 the rest of a JPEG", b"\x89PNG\r\n\x1a\n the rest of a PNG"


SCHEMA = Schema(
    (
        Feature("image", "bytes"),
        Feature("source", "string"),
        Feature("id", "int64", (), True),
        Feature("boxes", "float32", (None, 2)),
    )
)


def table(
    names: list[str | None], values: list[bytes | None] | None = None, schema: Schema = SCHEMA
) -> pa.Table:
    """Returns a row per name. Without `values`, each row has a different JPEG."""
    columns = {
        "image": values or [JPEG + str(row).encode() for row in range(len(names))],
        "source": names,
        "id": list(range(100, 100 + len(names))),
        "boxes": [[[row, 0.5]] * (row % 3) for row in range(len(names))],
    }
    return table_of(columns, schema)


def write_image_set(
    folder: Path,
    names: list[str | None],
    values: list[bytes | None] | None = None,
    split: str = "train",
) -> Path:
    return write_data_set(folder / "out", {split: table(names, values)}, SCHEMA, shards=2)


def metadata(result: ReadResult, split: str = "train") -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (result.files[split][0] / "metadata.jsonl").read_text().splitlines()
    ]


def check_image_files(result: ReadResult, rows: pa.Table, split: str = "train") -> list[str | None]:
    """Checks that a read wrote the images and metadata of these rows.

    There is a line per record, in order, a file for each record with an image, and no other file.

    Returns:
        The file name of each record.
    """
    folder = result.files[split][0]
    lines = metadata(result, split)
    assert [line["id"] for line in lines] == rows["id"].to_pylist()
    names = [line["file_name"] for line in lines]
    assert [next(iter(line)) for line in lines] == ["file_name"] * len(lines)
    files = tree(folder)
    assert files.pop("metadata.jsonl")
    assert files == {
        name: value
        for name, value in zip(names, rows["image"].to_pylist(), strict=True)
        if name is not None
    }
    assert len(files) == len(rows) - rows["image"].null_count
    assert [path.name for path in folder.parent.iterdir() if path.name != "_read.json"] == [split]
    return names


def write_images(folder: Path, names: list[str]) -> None:
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5 + seed % 7, 4), (seed % 256, 0, 99)).save(
            path, "PNG" if path.suffix == ".png" else "JPEG"
        )
