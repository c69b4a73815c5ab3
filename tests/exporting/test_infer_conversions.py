"""The sizes of decoded images are found in the records, or `resize` must set them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.decoded_sets import write, write_lists
from kit.image_samples import noise_image, pixels_of

from recordmill.base.errors import UsageError
from recordmill.pipelines.read import dry_run, read
from recordmill.records.writers.npy import open_columns


def test_images_of_one_size_become_one_array(tmp_path: Path) -> None:
    images = [
        noise_image((9, 7), seed, name)
        for seed, name in enumerate(["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"] * 5)
    ]
    out = write(tmp_path, [*images, None])
    assert dry_run(out, to="npy", decode_images=True).columns[0].shape == (31, 7, 9, 3)
    result = read(out, tmp_path / "to", to="npy", decode_images=True)
    columns = open_columns(result.paths[0])
    pixels = np.load(result.paths[0] / "image.npy", mmap_mode="r")
    assert (pixels.shape, pixels.dtype) == ((31, 7, 9, 3), np.uint8)
    assert np.array_equal(pixels[:30], [pixels_of(image) for image in images])
    assert columns["image"].mask[30].all()
    assert columns["label"].tolist() == list(range(31))
    assert columns["other"].to_list() == [b"\0no image"] * 31


def test_images_of_many_sizes_are_lists_in_tables_and_refused_as_npy(tmp_path: Path) -> None:
    images = [noise_image((3 + seed, 9 - seed % 4), seed) for seed in range(12)]
    out = write(tmp_path, [*images[:6], None, *images[6:]])
    for to in ("parquet", "arrow"):
        result = read(out, tmp_path / to, to=to, decode_images=True)
        assert result.schema["image"].describe() == "uint8 [?, ?, 3]"
        table = (
            pq.read_table(result.paths[0])
            if to == "parquet"
            else pa.ipc.open_file(result.paths[0]).read_all()
        )
        rows = table["image"].to_pylist()
        assert rows.pop(6) is None
        for row, image in zip(rows, images, strict=True):
            assert np.array_equal(np.array(row, np.uint8), pixels_of(image))
    with pytest.raises(
        UsageError,
        match=r"differ in size \(\d+ x \d+ and \d+ x \d+\).*use resize=.HxW.",
    ):
        read(out, tmp_path / "npy", to="npy", decode_images=True)
    assert not (tmp_path / "npy").exists()


def test_lists_of_images_of_many_sizes_need_a_size(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    images = [noise_image((3 + seed, 9), seed) for seed in range(4)]
    out = write_lists(tmp_path, [images[:3], images[3:]])
    for to in ("parquet", "npy"):
        with pytest.raises(UsageError, match=r"a list needs images of one size; use resize="):
            read(out, tmp_path / to, to=to, decode_images=True)
    result = read(out, tmp_path / "to", to="parquet", decode_images=True, resize="5x6")
    rows = pq.read_table(result.paths[0])["frames"].to_pylist()
    pixels = np.array(rows[0] + rows[1], np.uint8).reshape(4, 5, 6, 3)
    expected = [tf.image.resize(pixels_of(image), (5, 6), antialias=True) for image in images]
    assert np.array_equal(pixels, tf.round(expected).numpy())


def test_lists_without_any_image_need_a_size(tmp_path: Path) -> None:
    out = write_lists(tmp_path, [[], []])
    with pytest.raises(UsageError, match="no record has an image, so the size is unknown"):
        read(out, tmp_path / "to", to="npy", decode_images="frames")
    result = read(out, tmp_path / "to", to="parquet", decode_images="frames", resize="2x2")
    assert pq.read_table(result.paths[0])["frames"].to_pylist() == [[], []]
