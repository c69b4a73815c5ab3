"""Numbers of records that a `dataset_info.json` lists for shards without a manifest.

TensorFlow Datasets writes this file next to its shards. Files that contradict it are read, and the
user gets a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.file_names import group_shards
from recordmill.storage.files import read_range
from recordmill.storage.folders import is_file
from recordmill.storage.json_fields import MAX_JSON_BYTES, parse_json

INFO_FILE = "dataset_info.json"
# Maximum number of folders in which the file is searched. Each costs a system call.
_MAX_FOLDERS = 1000


@dataclass(frozen=True)
class LengthProblem:
    """A difference between files and `dataset_info.json`, as a message.

    Attributes:
        path: The file.
        text: The difference, and its possible reasons.
    """

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


def read_lengths(splits: Mapping[str, str]) -> tuple[dict[str, int], list[LengthProblem]]:
    """Reads the numbers of records of shards from the `dataset_info.json` next to them.

    Args:
        splits: The split of each file, by path.

    Returns:
        The number of records of each file, by path. Then a problem for each set of shards, if the
        JSON lists another number of shards for it.
    """
    lengths, problems = dict[str, int](), list[LengthProblem]()
    sets = group_shards(splits)
    folders = list(dict.fromkeys(os.path.dirname(name.begin) for name in sets))
    files = {
        folder: _read_info(os.path.join(folder, INFO_FILE))
        for folder in (folders if len(folders) <= _MAX_FOLDERS else ())
    }
    for name, paths in sets.items():
        folder, split = os.path.dirname(name.begin), splits[next(iter(paths.values()))]
        shard_lengths = files.get(folder, {}).get(split)
        if shard_lengths is None:
            continue
        if len(shard_lengths) != name.num_shards:
            problems.append(
                LengthProblem(
                    os.path.join(folder, INFO_FILE),
                    f"lists {len(shard_lengths):,} shards of split {split!r}, and the names of the files say "
                    f"{name.num_shards:,}. The JSON or the files are of another version of the data set",
                )
            )
            continue
        lengths |= {
            path: shard_lengths[index]
            for index, path in paths.items()
            if index < len(shard_lengths)
        }
    return lengths, problems


def compare_length(path: str, records: int, stated: int | None) -> LengthProblem | None:
    """Returns a problem if a file has another number of records than stated.

    Args:
        path: The file.
        records: Number of records in the file.
        stated: Number in `dataset_info.json`, or None.
    """
    if stated is None or records == stated:
        return None
    return LengthProblem(
        path,
        f"has {records:,} records, but {INFO_FILE} lists {stated:,}. A file is cut or "
        "replaced, or the JSON is of another version of the data set",
    )


def _read_info(path: str) -> dict[str, list[int]]:
    """Returns the numbers of records of the shards of each split.

    Empty if the file does not exist or can't be used.
    """
    try:
        content: Any = (
            parse_json(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), path)
            if is_file(path)
            else {}
        )
        return {
            split["name"]: [int(length) for length in split["shardLengths"]]
            for split in content.get("splits", ())
            if split.get("shardLengths")
        }
    # The file may come from anywhere. If it is unusable, nothing is compared.
    except (OSError, DataError, KeyError, TypeError, AttributeError, ValueError):
        return {}
