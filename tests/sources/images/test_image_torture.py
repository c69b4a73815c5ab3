"""The structure check accepts images that Pillow decodes and refuses truncated ones; exceptions
are listed.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.storage.files import read_range

TAKEN = ("jpeg", "png", "gif", "bmp", "webp", "tiff")

# Damaged, although Pillow shows a picture of it: it does not check the CRC of the last IDAT, and
# does not miss IEND or the last byte of a BMP.
PILLOW_FORGIVES = {
    "torture-pillow/mmap_error.bmp": "truncated",
    "torture-pillow/broken_data_stream.png": "crc",
    "torture-pillow/truncated_end_chunk.png": "truncated",
}
# Whole containers whose pixels only a decoder can judge (--check decode).
STRUCTURE_CANNOT_TELL = {
    "torture-pillow/hopper_webp.tif",  # TIFF with a WebP codec
    "torture-pillow/libtiff_segfault.tif",  # 65,535 samples per pixel
    "torture-pillow/png_decompression_dos.png",  # a text chunk beyond Pillow's limit; the image decodes
    "torture-pillow/bmp/q/pal8oversizepal.bmp",
}
PILLOW_CHANNELS = {
    "1": 1,
    "L": 1,
    "I": 1,
    "I;16": 1,
    "I;16B": 1,
    "F": 1,
    "LA": 2,
    "RGB": 3,
    "RGBA": 4,
    "RGBX": 4,
    "CMYK": 4,
    "LAB": 3,
    "YCbCr": 3,
}


@pytest.fixture(scope="module")
def truth(shared_data: Path) -> list[dict[str, Any]]:
    with open(shared_data / "images" / "manifest.jsonl") as lines:
        return [json.loads(line) for line in lines]


def verdict(path: Path) -> str:
    """`ok`, or the reason of the reject."""
    try:
        check_structure(read_range(str(path)))
    except BadImage as error:
        return error.reason
    return "ok"


def test_structure_check_agrees_with_pillow_except_for_listed_files(
    truth: list[dict[str, Any]], shared_data: Path
) -> None:
    forgiven: dict[str, str] = {}
    unseen: set[str] = set()
    agreed = Counter[bool]()
    for about in truth:
        if about["magic"] not in TAKEN:
            continue
        found = verdict(shared_data / "images" / about["path"])
        decodes = about["pil"] == "ok"
        if decodes and found != "ok":
            forgiven[about["path"]] = found
        elif not decodes and found == "ok":
            unseen.add(about["path"])
        else:
            agreed[decodes] += 1
    assert forgiven == PILLOW_FORGIVES
    assert unseen - STRUCTURE_CANNOT_TELL == (
        {about["path"] for about in truth if about["pil"].startswith("OSError: decoder error")}
        & unseen - STRUCTURE_CANNOT_TELL
    )
    assert unseen == STRUCTURE_CANNOT_TELL
    assert agreed[True] > 1400
    assert agreed[False] > 20


def test_image_sizes_equal_those_of_pillow(truth: list[dict[str, Any]], shared_data: Path) -> None:
    """Pillow applies the orientation tag of TIFF files when it loads them; here, width and height
    are as stored.
    """
    checked = 0
    for about in truth:
        if about["magic"] not in TAKEN or about["pil"] != "ok" or about["path"] in PILLOW_FORGIVES:
            continue
        header = check_structure(read_range(str(shared_data / "images" / about["path"])))
        turned = about["magic"] == "tiff" and (about.get("orient") or 1) >= 5
        if "size" in about and not turned:
            assert [header.width, header.height] == about["size"], about["path"]
        if (
            about.get("mode") in PILLOW_CHANNELS
            and header.colour != "palette"
            and "extra_samples" not in about["path"]
        ):
            assert header.channels == PILLOW_CHANNELS[about["mode"]], about["path"]
        checked += 1
    assert checked > 1400
