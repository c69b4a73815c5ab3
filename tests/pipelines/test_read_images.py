"""A read decodes images to the same arrays as Pillow.

Missing images stay missing. Images that cannot be decoded are rejects.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.decoded_sets import write, write_lists
from kit.image_samples import noise_image, pixels_of
from kit.runs import read_in_each_way, rejects_of
from PIL import Image

from recordmill.__main__ import main
from recordmill.base.errors import DataError
from recordmill.exporting import records
from recordmill.pipelines.read import read
from recordmill.records.writers.npy import open_columns

PIECE_BYTES = 10_000


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images_are_resized_and_converted_like_tensorflow(
    tmp_path: Path, channels: int, mode: str
) -> None:
    tf = pytest.importorskip("tensorflow")
    images = [
        noise_image((5 + seed, 20 - seed), seed, mode=("RGB", "L", "P", "RGBA", "LA")[seed % 5])
        for seed in range(15)
    ]
    out, options = (
        write(tmp_path, list(images)),
        {"decode_images": "image", "resize": "8x6", "channels": channels},
    )
    for result in read_in_each_way(out, tmp_path, to="npy", **options):
        pixels = np.load(result.paths[0] / "image.npy")
        expected = [
            tf.image.resize(pixels_of(image, mode), (8, 6), antialias=True) for image in images
        ]
        assert np.array_equal(pixels, tf.round(expected).numpy())


def frame_rows(lengths: list[int | None]) -> list[list[bytes] | None]:
    return [
        None if length is None else [noise_image((9, 7), 10 * row + item) for item in range(length)]
        for row, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("names", [True, "frames"])
def test_lists_of_images_become_ragged_arrays(tmp_path: Path, names: bool | str) -> None:
    rows = frame_rows([2, 0, None, 3, 1])
    out = write_lists(tmp_path, rows)
    table = read(out, tmp_path / "parquet", to="parquet", decode_images=names)
    assert table.schema["frames"].describe() == "uint8 [?, 7, 9, 3]"
    lists = pq.read_table(table.paths[0])["frames"].to_pylist()
    arrays = read(out, tmp_path / "npy", to="npy", decode_images=names)
    ragged = open_columns(arrays.paths[0])["frames"]
    for row, images in enumerate(rows):
        if images is None:
            assert ragged[row] is None
            assert lists[row] is None
        else:
            expected = [pixels_of(image) for image in images]
            assert [pixels.tolist() for pixels in ragged[row]] == [
                pixels.tolist() for pixels in expected
            ]
            assert lists[row] == [pixels.ravel().tolist() for pixels in expected]


def test_list_with_a_bad_image_is_one_reject(tmp_path: Path) -> None:
    rows = frame_rows([2, 3, 1])
    assert rows[1] is not None
    rows[1][1] = rows[1][2] = b"GIF89a no image"
    out = write_lists(tmp_path, rows)
    with pytest.raises(DataError, match="feature 'frames': image 1 of its list: "):
        read(out, tmp_path / "to", decode_images=True)
    result = read(out, tmp_path / "to", decode_images=True, max_rejects=1)
    assert (result.read, result.written, result.reject_reasons) == (3, 2, {"convert": 1})
    table = pq.read_table(result.paths[0])
    assert [len(frames) for frames in table["frames"].to_pylist()] == [2, 1]


def test_images_that_cannot_be_decoded_are_rejects(tmp_path: Path) -> None:
    images = [noise_image((9, 7), seed, "JPEG") for seed in range(20)]
    images[3] = images[3][:-20]
    images[11] = b"GIF89a no image"
    images[12] = b"\0\1text"
    png = bytearray(noise_image((9, 7), 12))
    png[60] ^= 8
    images[15] = bytes(png)
    out = write(tmp_path, list(images))
    with pytest.raises(DataError, match=r"record 3, byte \d+: feature 'image': "):
        read(out, tmp_path / "to", decode_images=True)
    result = read(out, tmp_path / "to", decode_images=True, max_rejects=4, to="npy")
    assert (result.read, result.written, result.reject_reasons) == (20, 16, {"convert": 4})
    rejects = rejects_of(result)
    assert [reject["place"].split(",")[0] for reject in rejects] == [
        "record 3",
        "record 1",
        "record 2",
        "record 5",
    ]
    assert np.load(result.paths[0] / "image.npy").shape == (16, 7, 9, 3)


def test_image_that_memory_cannot_hold_is_an_error_with_its_place(tmp_path: Path) -> None:
    """The result must not depend on --memory, so no budget for rejects applies."""
    large = image_samples.encode_image("PNG", Image.new("RGB", (4000, 4000)))
    out = write(tmp_path, [noise_image((9, 7), 1), noise_image((8, 7), 2), large])
    message = r"record \d, byte \d+: feature 'image': an image takes \d+ MiB to decode.* memory=.230MiB. leaves"
    for number, extra in enumerate(
        [{"to": "npy", "resize": "2x2"}, {"to": "parquet"}, {"to": "arrow"}]
    ):
        options: dict[str, Any] = {"decode_images": "image", "columns": "image", **extra}
        with pytest.raises(DataError, match=message) as error:
            read(out, tmp_path / str(number), memory="230MiB", max_rejects="50%", **options)
        assert not list(tmp_path.glob(f"{number}/*"))
        assert ('to="arrow"' in str(error.value)) == (extra["to"] == "parquet")
        sufficient = str(error.value).split("; memory=")[1].split()[0].strip('"')
        assert read(out, tmp_path / f"{number} enough", memory=sufficient, **options).written == 3


@pytest.mark.sweep
def test_image_files_do_not_depend_on_memory_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of decoded images depend only on the images.

    Some batches have one image, and others have many. Some images are bad or missing.
    """
    monkeypatch.setattr(records, "_IMAGE_BATCH_BYTES", 3_000)
    images: list[bytes | None] = [
        noise_image((5 + 13 * (seed % 7), 4 + seed % 5), seed) for seed in range(60)
    ]
    images[7], images[20], images[41] = b"no image", None, noise_image((9, 9), 5)[:-20]
    out = write(tmp_path, images)
    for to in ("parquet", "arrow", "npy"):
        options = {
            "to": to,
            "decode_images": "image",
            "max_rejects": 9,
            "resize": "4x4" if to == "npy" else None,
        }
        for result in read_in_each_way(out, tmp_path / to, **options):
            assert (result.written, result.rejected) == (58, 2)
    table = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "parquet" / "0").glob("*.parquet"))]
    )
    for row, image in zip(table["label"].to_pylist(), table["image"], strict=True):
        expected = images[row]
        assert image.as_py() == (None if expected is None else pixels_of(expected).tolist())


def test_decode_images_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write(tmp_path, [noise_image((9, 7), seed) for seed in range(4)])
    options = ["--to", "npy", "--decode-images", "--resize", "2x4", "--channels", "1"]
    assert main(["read", str(out), "--out", str(tmp_path / "to"), *options]) == 0
    assert np.load(tmp_path / "to" / "train" / "image.npy").shape == (4, 2, 4, 1)
    for arguments, message in [
        (["--resize", "2x2"], "--resize needs --decode-images"),
        (["--decode-images", "--resize", "2"], "HEIGHTxWIDTH"),
        (["--decode-images", "--resize", "0x4"], "1 to"),
        (["--decode-images", "--channels", "2"], "--channels 2"),
        (["--decode-images", "nope"], "no such feature"),
        (["--decode-images", "label"], "only a single bytes value, or a list of them"),
        (
            ["--decode-images", "--columns", "other"],
            "no feature holds encoded images; the bytes features are other",
        ),
    ]:
        assert main(["read", str(out), "--out", str(tmp_path / "x"), *arguments]) == 2
        assert message in capsys.readouterr().err
