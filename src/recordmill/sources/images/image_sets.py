"""Splits of Pascal VOC: lists of image names in `ImageSets/Main`."""

from __future__ import annotations

import os.path

import pyarrow as pa

from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.storage.file_table import FileTable, encode_column
from recordmill.storage.files import read_range
from recordmill.storage.folders import is_file, join

_LISTS = ("train", "val", "test")  # trainval.txt has the names of two of them again
_FOLDER = ("ImageSets", "Main")
_MAX_LIST_BYTES = 256 << 20  # 256 MiB: more than 10^7 names


def read_image_set_splits(
    folder: str, files: FileTable
) -> tuple[pa.DictionaryArray | None, list[str]]:
    """Reads the split of each image from the lists of Pascal VOC.

    Args:
        folder: Folder of the annotations, which is next to `ImageSets`, or the folder above.
        files: The images.

    Returns:
        (split of each image, notes). The splits are None if there are no lists, or if some image is
        in none or in several of them.
    """
    above = folder.rstrip("/").rpartition("/")[0]
    lists = {
        name: path
        for parent in (folder, above)
        for name in _LISTS
        if parent and is_file(path := join(parent, *_FOLDER, f"{name}.txt"))
    }
    if not lists:
        return None, []
    splits: dict[str, set[str]] = {}
    for name, path in lists.items():
        for line in (
            read_range(path, max_bytes=_MAX_LIST_BYTES)
            .tobytes()
            .decode("utf-8", "replace")
            .splitlines()
        ):
            if words := line.split():
                splits.setdefault(words[0], set()).add(SPLIT_WORDS[name])
    stems = [os.path.splitext(name.rpartition("/")[2])[0] for name in files.names()]
    found = [splits.get(stem, set()) for stem in stems]
    single = sum(len(names) == 1 for names in found)
    if single < len(files):
        return None, [
            f"ImageSets/Main has {single:,} of {len(files):,} images in exactly one list, so it makes no splits"
        ]
    column = encode_column((min(names) for names in found), len(files))
    return column, ["splits by ImageSets/Main"]
