"""Pairs of files that make one record: an image, and the mask of the same name in the folder beside its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.storage.file_table import FileTable, InputFile

PARTNER = "partner"  # the column of images with the ordinal of the file that goes with each


def pair_feature(pair: str) -> Feature:
    """Returns the feature of the second files, which is called as their folder."""
    return Feature(pair.rpartition(",")[2].strip("/ ").rpartition("/")[2], "bytes", required=True)


def split_pairs(
    files: FileTable, pair: str, taken: Sequence[str]
) -> tuple[FileTable, FileTable, list[Reject]]:
    """Returns (the images, with PARTNER; the files that go with them; a reject for each file without a partner).

    Args:
        files: Of both folders.
        pair: `IMAGES,MASKS`: the folders' names, anywhere in the paths.
        taken: The names that features have already.

    Raises:
        UsageError: These are no two folders, files stand in neither, or two files of a folder have one name.
    """
    folders = [name.strip("/ ") for name in pair.split(",")]
    if len(set(folders)) != 2 or not all(folders) or len(folders) != 2:
        raise UsageError(f"{option('pair', pair)}: the names of two folders, as in images,masks")
    if (name := pair_feature(pair).name) in taken:
        raise UsageError(
            f"{option('pair', pair)}: records have a feature {name!r} already; rename that folder"
        )
    found: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for at, file in enumerate(files):
        which, key = _place(file, folders)
        if key in found[which]:
            other = files[found[which][key]].name
            raise UsageError(
                f"{option('pair', pair)}: {other} and {file.name} have one name: which goes with the image?"
            )
        found[which][key] = at
    images, partners = found
    rejects = [
        Reject(
            files[at].name, "", "no file", f"no file in {folders[1 - which]!r} has the same name"
        )
        for which in (0, 1)
        for key, at in found[which].items()
        if key not in found[1 - which]
    ]
    both = [key for key in images if key in partners]
    if not both:
        raise UsageError(
            f"{option('pair', pair)}: no file in {folders[0]!r} has the name of one in {folders[1]!r}"
        )
    first, second = (
        np.array([images[key] for key in both]),
        np.array([partners[key] for key in both]),
    )
    return (
        files.at(first).with_column(PARTNER, pa.array(np.arange(len(both)))),
        files.at(second),
        rejects,
    )


def _place(file: InputFile, folders: Sequence[str]) -> tuple[int, str]:
    """Returns (in which of the folders the file stands, its path without that and without its extension)."""
    stem = file.path.rpartition(".")[0]
    for which, folder in enumerate(folders):
        before, there, rest = stem.rpartition(f"/{folder}/")
        if there:
            return which, f"{before}//{rest}"
    raise UsageError(
        f"{file.name} stands in none of the folders of {option('pair', ','.join(folders))}: leave it out"
    )


def with_partners(files: FileTable, partners: FileTable | None) -> FileTable:
    """Returns the images, followed by the files that go with those that are left, if any do."""
    if partners is None:
        return files
    kept = files.column(PARTNER).to_numpy()
    return files.with_column(PARTNER, pa.array(np.arange(len(kept)) + len(files))).followed_by(
        partners.at(kept)
    )


def record_sizes(files: FileTable, partners: FileTable | None) -> npt.NDArray[np.int64]:
    """[images] the bytes of each, together with those of its partner."""
    if partners is None:
        return files.sizes
    sizes: npt.NDArray[np.int64] = files.sizes + partners.sizes[files.column(PARTNER).to_numpy()]
    return sizes
