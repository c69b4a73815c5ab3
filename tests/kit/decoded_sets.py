"""Data sets of images, and of lists of images."""

from pathlib import Path

from kit.batches import table_of
from kit.data_sets import write_data_set
from recordmill.schemas.feature import Feature, Schema

SCHEMA = Schema(
    (
        Feature("image", "bytes"),
        Feature("label", "int64", (), True),
        Feature("other", "bytes", (), True),
    )
)


def write(tmp_path: Path, images: list[bytes | None]) -> Path:
    columns = {"image": images, "label": range(len(images)), "other": [b"\0no image"] * len(images)}
    return write_data_set(tmp_path / "out", {"train": table_of(columns, SCHEMA)}, SCHEMA, shards=2)


LISTS = Schema((Feature("frames", "bytes", (None,)), Feature("n", "int64", (), True)))


def write_lists(tmp_path: Path, rows: list[list[bytes] | None]) -> Path:
    columns = {"frames": rows, "n": range(len(rows))}
    return write_data_set(tmp_path / "lists", {"train": table_of(columns, LISTS)}, LISTS, shards=2)
