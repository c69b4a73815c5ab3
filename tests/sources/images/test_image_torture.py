"""The structure check accepts images that Pillow decodes, except for listed files.

It refuses truncated images.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.storage.files import read_range

SUPPORTED_FORMATS = ("jpeg", "png", "gif", "bmp", "webp", "tiff")

# Pillow shows an image of these damaged files. It does not check the CRC of the last IDAT, and
# ignores a missing IEND and a missing last byte of a BMP.
PILLOW_FORGIVES = {
    "torture-pillow/mmap_error.bmp": "truncated",
    "torture-pillow/broken_data_stream.png": "crc",
    "torture-pillow/truncated_end_chunk.png": "truncated",
}
# Complete containers with pixels that only a decoder can check (`--check decode`).
STRUCTURE_CANNOT_TELL = {
    "torture-pillow/hopper_webp.tif",  # a TIFF with a WebP codec
    "torture-pillow/libtiff_segfault.tif",  # 65,535 samples per pixel
    # a text chunk above the limit of Pillow, but the image decodes
    "torture-pillow/png_decompression_dos.png",
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
    """Returns `ok`, or the reason of the reject."""
    try:
        check_structure(read_range(str(path)))
    except BadImage as error:
        return error.reason
    return "ok"


def test_structure_check_agrees_with_pillow_except_for_listed_files(
    truth: list[dict[str, Any]], shared_data: Path
) -> None:
    refused_only_here: dict[str, str] = {}
    accepted_only_here: set[str] = set()
    num_equal = Counter[bool]()
    for entry in truth:
        if entry["magic"] not in SUPPORTED_FORMATS:
            continue
        result = verdict(shared_data / "images" / entry["path"])
        is_decodable = entry["pil"] == "ok"
        if is_decodable and result != "ok":
            refused_only_here[entry["path"]] = result
        elif not is_decodable and result == "ok":
            accepted_only_here.add(entry["path"])
        else:
            num_equal[is_decodable] += 1
    assert refused_only_here == PILLOW_FORGIVES
    assert accepted_only_here - STRUCTURE_CANNOT_TELL == (
        {entry["path"] for entry in truth if entry["pil"].startswith("OSError: decoder error")}
        & accepted_only_here - STRUCTURE_CANNOT_TELL
    )
    assert accepted_only_here == STRUCTURE_CANNOT_TELL
    assert num_equal[True] > 1400
    assert num_equal[False] > 20


def test_image_sizes_equal_those_of_pillow(truth: list[dict[str, Any]], shared_data: Path) -> None:
    """Pillow applies the orientation tag of TIFF files when it loads them.

    The header has the stored width and height.
    """
    num_checked = 0
    for entry in truth:
        if (
            entry["magic"] not in SUPPORTED_FORMATS
            or entry["pil"] != "ok"
            or entry["path"] in PILLOW_FORGIVES
        ):
            continue
        header = check_structure(read_range(str(shared_data / "images" / entry["path"])))
        is_turned = entry["magic"] == "tiff" and (entry.get("orient") or 1) >= 5
        if "size" in entry and not is_turned:
            assert [header.width, header.height] == entry["size"], entry["path"]
        if (
            entry.get("mode") in PILLOW_CHANNELS
            and header.colour != "palette"
            and "extra_samples" not in entry["path"]
        ):
            assert header.channels == PILLOW_CHANNELS[entry["mode"]], entry["path"]
        num_checked += 1
    assert num_checked > 1400
