"""Pairs of files for one record: an image and its mask.

Both files have the same name, in two folders. The names of one folder may have a suffix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.storage.file_table import FileTable, InputFile

PARTNER_COLUMN = "partner"  # file table column: the index of the mask of each image


def pair_feature(pair: str) -> Feature:
    """Returns the feature for the files of the second folder. It has the name of this folder.

    >>> pair_feature("images,data/masks").name, pair_feature("images,data/masks/*_mask").name
    ('masks', 'masks')
    """
    folder, _ = _split_pair(pair)[-1]
    return Feature(folder.rpartition("/")[2], "bytes", required=True)


def _split_pair(pair: str) -> list[tuple[str, str]]:
    """Returns (folder, suffix of its file names without extensions) of each side of a pair."""
    parts = [side.partition("*") for side in pair.split(",")]
    return [(folder.strip("/ "), suffix.strip()) for folder, _, suffix in parts]


def pair_files(
    files: FileTable, pair: str, reserved_names: Sequence[str]
) -> tuple[FileTable, FileTable, list[Reject]]:
    """Pairs the files of two folders by their names.

    Args:
        files: The files of both folders.
        pair: `IMAGES,MASKS`, the names of the folders. They may occur anywhere in the paths. In
            `IMAGES,MASKS/*_mask`, the names of the masks end with `_mask`.
        reserved_names: Names of other features, which the second folder must not have.

    Returns:
        (images, partners, rejects). The images are the paired files of the first folder. Their
        PARTNER_COLUMN contains the index of the paired file in `partners`. Each file without a
        partner is a reject.

    Raises:
        UsageError: `pair` does not name two folders, a file belongs to neither of them, no file has
            a partner, or two files of a folder have the same name.
    """
    sides = _split_pair(pair)
    folders = [folder for folder, _ in sides]
    if len(set(folders)) != 2 or not all(folders) or len(folders) != 2:
        raise UsageError(
            "{pair}: write the names of two folders, as in images,masks", pair=option("pair", pair)
        )
    if (name := pair_feature(pair).name) in reserved_names:
        raise UsageError(
            "{pair}: records have a feature {name} already; rename that folder",
            pair=option("pair", pair),
            name=repr(name),
        )
    ordinals: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for ordinal, file in enumerate(files):
        folder_index, key = _pair_key(file, pair)
        if key in ordinals[folder_index]:
            duplicate = files[ordinals[folder_index][key]].name
            raise UsageError(
                "{pair}: {duplicate} and {file} have the same name, so it is unknown "
                "which one belongs to the image: rename one",
                pair=option("pair", pair),
                duplicate=duplicate,
                file=file.name,
            )
        ordinals[folder_index][key] = ordinal
    images, partners = ordinals
    rejects = [
        Reject(
            files[ordinal].name,
            "",
            "no file",
            f"no file in {folders[1 - folder_index]!r} has the same name",
        )
        for folder_index in (0, 1)
        for key, ordinal in ordinals[folder_index].items()
        if key not in ordinals[1 - folder_index]
    ]
    keys = [key for key in images if key in partners]
    if not keys:
        raise UsageError(
            "{pair}: no file in {folders} has the name of one in {folders2}{remedy}",
            pair=option("pair", pair),
            folders=repr(folders[0]),
            folders2=repr(folders[1]),
            remedy=_suffix_remedy(sides, images, partners),
        )
    first, second = (
        np.array([images[key] for key in keys]),
        np.array([partners[key] for key in keys]),
    )
    return (
        files.take_files(first).with_column(PARTNER_COLUMN, pa.array(np.arange(len(keys)))),
        files.take_files(second),
        rejects,
    )


def _pair_key(file: InputFile, pair: str) -> tuple[int, str]:
    """Returns (index of the folder, key of the file).

    The key is the path without the folder, the suffix and the extension. An image and its mask have
    the same key.
    """
    stem = file.path.rpartition(".")[0]
    for folder_index, (folder, suffix) in enumerate(_split_pair(pair)):
        # `//` replaces the name of the folder, so that an image and its mask have equal keys
        parent, separator, rest = stem.rpartition(f"/{folder}/")
        if separator and rest.endswith(suffix):
            return folder_index, f"{parent}//{rest.removesuffix(suffix)}"
    raise UsageError(
        "{file} belongs to neither folder of {pair}: leave it out",
        file=file.name,
        pair=option("pair", pair),
    )


def _suffix_remedy(
    sides: Sequence[tuple[str, str]], images: Collection[str], masks: Collection[str]
) -> Message | str:
    """Returns a hint about `pair` if names in one folder have a suffix.

    Without the suffix, they must be names in the other folder. Otherwise the hint is "".
    """
    values = [f"{folder}/*{suffix}" if suffix else folder for folder, suffix in sides]
    for index, (keys, shorter_keys) in enumerate(((images, masks), (masks, images))):
        key = min(keys, default="")
        cuts = (cut for cut in reversed(range(len(key))) if key[:cut] in shorter_keys)
        if (cut := next(cuts, None)) is not None:
            values[index] = f"{sides[index][0]}/*{key[cut:]}{sides[index][1]}"
            pair = option("pair", ",".join(values))
            return Message("; names with a suffix are paired by {pair}", pair=pair)
    return ""


def append_partners(files: FileTable, partners: FileTable | None) -> FileTable:
    """Returns the images, followed by their paired files, as one file table.

    `files` may lack images that were removed after `pair_files`. Their partners are then left out.

    Args:
        files: The images, with PARTNER_COLUMN.
        partners: The paired files, from `pair_files`. If None, the result is `files`.
    """
    if partners is None:
        return files
    partner_ids = files.column(PARTNER_COLUMN).to_numpy()
    return files.with_column(
        PARTNER_COLUMN, pa.array(np.arange(len(partner_ids)) + len(files))
    ).concat(partners.take_files(partner_ids))


def record_sizes(files: FileTable, partners: FileTable | None) -> npt.NDArray[np.int64]:
    """Returns the bytes of each image and its partner together, [images]."""
    if partners is None:
        return files.sizes
    return files.sizes + partners.sizes[files.column(PARTNER_COLUMN).to_numpy()]
