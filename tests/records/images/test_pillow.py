"""Every reader returns pixels as stored, and ignores the orientation of the file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.data_sets import write_data_set
from kit.image_samples import encode_image, picture
from PIL import Image

import recordmill
from recordmill.reader.display import show_item
from recordmill.records.images.pillow import stored_size
from recordmill.schemas.feature import Feature, Schema

STORED = np.asarray(picture())  # [17, 23, 3]
LOSSLESS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ("PNG", {}),
    ("WebP", {"lossless": True, "exact": True}),
)


def encode_oriented(name: str, orientation: int, options: dict[str, Any]) -> bytes:
    if name == "TIFF":
        return encode_image(name, tiffinfo={0x0112: orientation}, **options)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode_image(name, exif=exif, **options)


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = [
        encode_oriented(name, number, options)
        for name, options in LOSSLESS
        for number in range(1, 9)
    ]
    schema = Schema((Feature("image", "bytes", required=True),))
    table = pa.table({"image": pa.array(images, pa.large_binary())})
    return write_data_set(tmp_path_factory.mktemp("oriented") / "set", {"train": table}, schema)


@pytest.mark.parametrize("reader", ["npy", "parquet", "tf"])
def test_pixels_are_decoded_as_stored(data_set: Path, tmp_path: Path, reader: str) -> None:
    if reader == "tf":
        pytest.importorskip("tensorflow")
        batches = recordmill.open(data_set, split="train").to_tf(
            8, decode_images=(17, 23), shuffle=False
        )
        pixels = np.concatenate([batch["image"].numpy() for batch in batches])
    else:
        size = {"npy": "17x23"}.get(reader)
        (path,) = recordmill.read(
            data_set, tmp_path / "out", to=reader, decode_images=True, resize=size
        ).paths
        table = None if size else pq.read_table(path)["image"].to_pylist()
        pixels = (
            np.load(path / "image.npy")
            if size
            else np.array(table, np.uint8).reshape(-1, *STORED.shape)
        )
    np.testing.assert_array_equal(pixels, [STORED] * 8 * len(LOSSLESS))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_image_size_is_that_of_the_stored_pixels(orientation: int) -> None:
    data = encode_oriented("TIFF", orientation, {})
    with Image.open(io.BytesIO(data)) as image:
        assert stored_size(image) == STORED.shape[:2]
    assert "17 x 23" in show_item(data, "bytes")
