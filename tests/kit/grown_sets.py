"""Data sets of several parts, made by appends."""

from pathlib import Path
from typing import Any

import recordmill
from kit.files import files_in
from recordmill.shards.manifest import load_manifest

KEYED: dict[str, Any] = {"key": "id", "splits": "train=0.8,test=0.2", "name": "same"}


def numbered_rows(begin: int, end: int) -> dict[str, Any]:
    return {
        "id": list(range(begin, end)),
        "text": [f"row {row} " + "x" * (row % 90) for row in range(begin, end)],
    }


def make_parts(out: Path, **options: Any) -> Path:
    """Builds a data set of three parts with 600 records."""
    options = {**KEYED, **options}
    recordmill.build(numbered_rows(0, 300), out, **options)
    recordmill.build(numbered_rows(300, 400), out, append=True)
    recordmill.build(numbered_rows(400, 600), out, append=True)
    return out


def shards_of_one_part(out: Path | str) -> dict[str, bytes]:
    """Returns the shards, indexes and statistics of a data set with one part."""
    (part,) = load_manifest(out).parts
    # Times of inputs differ. Without a shuffle, the keys in a sketch are those of each append.
    names = ("inputs.jsonl", "sketch.arrow")
    return {name: data for name, data in files_in(out, part.folder).items() if name not in names}
