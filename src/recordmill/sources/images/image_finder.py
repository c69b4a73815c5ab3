"""Images that annotation files name by paths, URLs, file names or ids."""

from __future__ import annotations

import os.path
import re
import unicodedata
from collections.abc import Callable, Sequence
from urllib.parse import unquote, urlsplit

from recordmill.records.images.header import FORMATS_BY_EXTENSION
from recordmill.schemas.splits import detect_split
from recordmill.storage.file_table import FileTable
from recordmill.storage.files import is_remote
from recordmill.storage.folders import join, real_path
from recordmill.storage.listing import InputRoot

UNKNOWN, AMBIGUOUS = -1, -2
# Folder names that only separate images from annotations, so they are ignored.
_KIND_FOLDERS = frozenset(
    [
        "images",
        "image",
        "img",
        "imgs",
        "jpegimages",
        "labels",
        "label",
        "annotations",
        "annotation",
        "xml",
        "xmls",
        "txt",
    ]
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-(?=.)")  # Label Studio puts it before stored file names


class ImageFinder:
    """Finds images by the names in annotation files.

    A name may be a path relative to the annotation file or to an input. If no image has this path,
    the file name decides. Among several images of one file name, the folders in the name choose.
    Leading folders of the name that no image has are ignored. Backslashes separate folders.

    Upper and lower case, and the Unicode forms NFC and NFD, are only distinguished if images differ
    by nothing else.

    Args:
        files: The images.
        roots: The inputs.
    """

    def __init__(self, files: FileTable, roots: Sequence[InputRoot]) -> None:
        self._roots = [root.path for root in roots]
        self._by_path: dict[str, int] = {}
        self._by_stem: dict[str, int | list[int]] = {}  # mostly one, which takes less memory
        self._bases: list[str] = []
        self._folders: list[tuple[str, ...]] = []
        tuples: dict[tuple[str, ...], tuple[str, ...]] = {}  # equal tuples are stored once
        for file_id, file in enumerate(files):
            base = unicodedata.normalize("NFC", file.path.rpartition("/")[2])
            folders = _folders(f"{roots[file.root].label}/{file.name}" if roots else file.name)
            self._by_path[file.path] = file_id
            self._bases.append(base)
            self._folders.append(tuples.setdefault(folders, folders))
            stem = _stem(base).casefold()
            ids = self._by_stem.setdefault(stem, file_id)
            if isinstance(ids, list):
                ids.append(file_id)
            elif ids != file_id:
                self._by_stem[stem] = [ids, file_id]
        self._last_folders = {folders[-1] for folders in tuples if folders}

    @property
    def example(self) -> str:
        """File name of the first image, for messages."""
        return self._bases[0] if self._bases else ""

    def find(self, name: str, folder: str, annotation: str, *, is_stem: bool = False) -> int:
        """Finds the image of a name.

        Args:
            name: The name in the annotation file.
            folder: Folder of the annotation file, for relative paths.
            annotation: Name of the annotation file. Its folders may name a split, like the folders
                of the image.
            is_stem: Whether the name is a file name without its extension.

        Returns:
            The index of the image, UNKNOWN, or AMBIGUOUS if several images have the name.
        """
        if not name or "\0" in name:
            return UNKNOWN
        if not is_stem and (file_id := self._find_path(name, folder)) is not None:
            return file_id
        if _URL.match(name):
            try:
                name = unquote(urlsplit(name).path)
            except ValueError:
                return UNKNOWN
        name = unicodedata.normalize("NFC", name.replace("\\", "/")).strip().rstrip("/")
        base = name.rpartition("/")[2]
        hints = _folders(f"{annotation.rpartition('/')[0]}/{name}")
        for candidate in (base, _UPLOAD_PREFIX.sub("", base)):
            same_names = self._same_names(candidate, is_stem)
            fitting = [file_id for file_id in same_names if self._fits(file_id, hints)]
            if fitting:
                return self._nearest(fitting, hints)
        return UNKNOWN

    def _find_path(self, name: str, folder: str) -> int | None:
        if name[0] == "/":  # links are resolved, as in the paths of the files
            name = os.path.join(real_path(os.path.dirname(name)), os.path.basename(name))
        for start in (folder, *self._roots):
            path = (
                join(start, name)
                if is_remote(start)
                else os.path.normpath(os.path.join(start, name))
            )
            if (file_id := self._by_path.get(path)) is not None:
                return file_id
        return self._by_path.get(name)

    def _same_names(self, base: str, is_stem: bool) -> list[int]:
        """Returns the images with the most similar file name.

        Equal names come first, then names that differ in case, then names without extension.
        """
        folded, stem = base.casefold(), _stem(base).casefold()
        candidates = list[int]()
        for key in dict.fromkeys((folded, stem)):
            ids = self._by_stem.get(key, [])
            candidates += ids if isinstance(ids, list) else [ids]
        own_format = _format(base)
        # a name with the extension of an image is not the name of an image in another format
        is_id = is_stem or own_format is None
        rules: list[Callable[[str], bool]] = [
            lambda own: own == base,
            lambda own: own.casefold() == folded,
            lambda own: is_id and _stem(own) == base,
            lambda own: is_id and _stem(own).casefold() == folded,
            lambda own: (
                _stem(own).casefold() == stem
                and (is_stem or _format(own) == own_format is not None)
            ),
        ]
        for rule in rules:
            if found := [file_id for file_id in candidates if rule(self._bases[file_id])]:
                return list(dict.fromkeys(found))
        return []

    def _fits(self, file_id: int, hints: Sequence[str]) -> bool:
        """Returns whether a name may mean an image, according to the folders of both.

        The result is False if the folders of the name contain another split or another class than
        the folders of the image.

        Args:
            file_id: Index of the image.
            hints: Folders of the annotation file and of the name.
        """
        own = self._folders[file_id]
        splits = [
            next(filter(None, map(detect_split, reversed(parts))), None) for parts in (own, hints)
        ]
        if None not in splits and splits[0] != splits[1]:
            return False
        return not (hints and hints[-1] in self._last_folders and hints[-1] not in own)

    def _nearest(self, candidates: Sequence[int], hints: Sequence[str]) -> int:
        """Returns the image that has the most trailing folders in common with `hints`.

        Returns AMBIGUOUS if several images have the same number of them.
        """
        scores = []
        for file_id in candidates:
            pairs = zip(reversed(self._folders[file_id]), reversed(hints), strict=False)
            scores.append(next((k for k, (a, b) in enumerate(pairs) if a != b), 1 << 30))
        best = max(scores)
        if scores.count(best) > 1:
            return AMBIGUOUS
        return candidates[scores.index(best)]


def _folders(name: str) -> tuple[str, ...]:
    """Returns the folders of a path that can distinguish images of one name.

    The folders are in lower case. Folders with names such as `images` or `labels` are left out.
    """
    parts = unicodedata.normalize("NFC", name).casefold().split("/")[:-1]
    return tuple(part for part in parts if part not in ("", ".", "..", *_KIND_FOLDERS))


def _format(base: str) -> str | None:
    """Returns the image format of an extension, or None.

    jpg and jpeg are the same.
    """
    return FORMATS_BY_EXTENSION.get(base.rpartition(".")[2].lower())


def _stem(base: str) -> str:
    return base.rpartition(".")[0] or base
