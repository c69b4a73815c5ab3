"""Makes a name that is safe to write below a folder of the name that a record gives for its file, or of the record's
number.

A name with a meaning outside that folder, or another one on another system, is not bent to fit: the record's number
takes its place.
"""

from __future__ import annotations

import re

from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image
from recordmill.records.images.header import EXTENSIONS
from recordmill.schemas.splits import SPLIT_WORDS, split_of

NAME_PART_BYTES = 255  # of a file or a folder: what ext4, XFS, APFS and NTFS allow
NAME_BYTES = 1023  # of all of it: macOS opens paths up to 1,024 bytes
FOLDER_FILES = 10_000  # numbered files in a folder: what file managers and `ls` still list at once

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^/|/$")
_DRIVE = re.compile(r"[A-Za-z]:")
_IMAGES = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "WebP": "webp", "TIFF": "tif"}


def safe_name(said: str, split: str | None = None) -> str | None:
    """Returns the name below the split's folder, or None where it can't be one.

    Left out are `.`, doubled slashes and, if split is given, the folder that says it, since the split has a folder of
    its own here. None for: nothing, an absolute path, a drive, `..`, a backslash, control characters, a folder's name,
    more than 255 bytes between slashes or 1,023 in all.

    >>> [safe_name(name, "validation") for name in ("3/0217.png", "val/cat/1.jpg", "./a//b", "../a", "C:x", "")]
    ['3/0217.png', 'cat/1.jpg', 'a/b', None, None, None]
    """
    if _UNSAFE.search(said):
        return None
    parts = [part for part in said.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    if split is not None and (at := _split_folder(parts[:-1], split)) is not None:
        del parts[at]
    name = "/".join(parts)
    if _DRIVE.match(name):  # asked of what is left: `./C:x` and `train/C:x` hide it
        return None
    sizes = [len(part.encode()) for part in parts]
    return name if max(sizes) <= NAME_PART_BYTES and sum(sizes) + len(parts) - 1 <= NAME_BYTES else None


def says_split(said: str, split: str) -> bool:
    """Returns whether a folder of the name says this split.

    >>> says_split("val/cat/1.jpg", "validation"), says_split("cat/val.jpg", "validation")
    (True, False)
    """
    return _split_folder(said.split("/")[:-1], split) is not None


def _split_folder(folders: list[str], split: str) -> int | None:
    """Returns which folder says the split, as `sources.common.layout` finds it: the outermost, and whole names before
    words in names.
    """
    for says in (lambda part: SPLIT_WORDS.get(part.lower(), part if part == split else None), split_of):
        for at, part in enumerate(folders):
            if (found := says(part)) is not None:
                return at if found == split else None
    return None


def numbered_name(number: int, extension: str) -> str:
    """Returns the name of a record that has none of its own.

    >>> numbered_name(42, "jpg"), numbered_name(1_230_042, "bin")
    ('00000042.jpg', '0123/01230042.bin')
    """
    folder = f"{number // FOLDER_FILES:04d}/" if number >= FOLDER_FILES else ""
    return f"{folder}{number:08d}.{extension}"


def another_name(name: str, number: int, attempt: int) -> str | None:
    """Another name where a file of this one is there already: the record's number tells them apart;
    None if it gets too long.

    >>> another_name("cat/1.jpg", 17, 0), another_name("cat/1.jpg", 17, 1)
    ('cat/1-17.jpg', 'cat/1-17-2.jpg')
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".") if "." in last[1:] else (last, "", "")
    suffix = f"-{number}" if attempt == 0 else f"-{number}-{attempt + 1}"
    last = f"{stem}{suffix}{dot}{extension}"
    fits = len(last.encode()) <= NAME_PART_BYTES and len(name.encode()) + len(suffix) <= NAME_BYTES
    return f"{folder}{slash}{last}" if fits else None


def extension_of(head: bytes, is_text: bool) -> str:
    """Returns the extension for content whose first HEAD_BYTES bytes these are: that of the image it is, `txt` for
    text, else `bin`.
    """
    image = sniff_image(head[:IMAGE_HEAD_BYTES])
    return _IMAGES[image] if image is not None else "txt" if is_text else "bin"


def with_extension(name: str, extension: str) -> str:
    """Returns the name with an extension that tells of its content: as it is where it has one, which of images must be
    an image's.

    >>> with_extension("a", "jpg"), with_extension("a.JPEG", "jpg")
    ('a.jpg', 'a.JPEG')
    >>> with_extension("scan.2", "png"), with_extension("scan.2", "bin")
    ('scan.2.png', 'scan.2')
    """
    last = name.rpartition("/")[2]
    has = last[1:].rpartition(".")[2].lower() if "." in last[1:] else ""
    is_image = extension in _IMAGES.values()
    return name if (has in EXTENSIONS if is_image else has) else f"{name}.{extension}"
