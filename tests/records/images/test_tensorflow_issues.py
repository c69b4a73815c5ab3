"""Headers show which images TensorFlow can't decode, in agreement with its decoder."""

import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import recordmill
from recordmill.reader.inspect.summary import inspect
from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.storage.files import read_range

# GIF files with blocks that TensorFlow can't read, which no header shows
UNDETECTED = {"hopper_zero_comment_subblocks.gif", "issue_2811.gif", "no_palette.gif"}


def jpeg() -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def change_frame_header(marker: int = 0xC0, bits: int = 8) -> bytes:
    """Returns the JPEG with another frame header.

    A decoder reads the pixels as noise, or does not support the header.
    """
    data = jpeg()
    begin = data.index(b"\xff\xc0")
    return (
        data[: begin + 1]
        + bytes([marker])
        + data[begin + 2 : begin + 4]
        + bytes([bits])
        + data[begin + 5 :]
    )


def make_jpeg_with_components(count: int) -> bytes:
    """Returns the JPEG with `count` components in its frame header and its scan."""
    data = jpeg()
    frame_begin, scan_begin = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    size = 2 + int.from_bytes(data[frame_begin + 2 : frame_begin + 4], "big")
    parts = b"".join(bytes([number + 1, 0x11, 0]) for number in range(count))
    frame = (
        b"\xff\xc0"
        + (8 + 3 * count).to_bytes(2, "big")
        + data[frame_begin + 4 : frame_begin + 9]
        + bytes([count])
        + parts
    )
    parts = b"".join(bytes([number + 1, 0]) for number in range(count))
    scan_header = (
        b"\xff\xda" + (6 + 2 * count).to_bytes(2, "big") + bytes([count]) + parts + b"\x00\x3f\x00"
    )
    scan_end = scan_begin + 2 + int.from_bytes(data[scan_begin + 2 : scan_begin + 4], "big")
    return (
        data[:frame_begin]
        + frame
        + data[frame_begin + size : scan_begin]
        + scan_header
        + data[scan_end:]
    )


CASES = [
    (change_frame_header(), ""),
    (change_frame_header(0xC1), ""),
    (change_frame_header(0xC9), ""),
    (change_frame_header(0xC3), "lossless"),
    (change_frame_header(0xC5), "hierarchical"),
    (change_frame_header(0xCB), "lossless"),
    (change_frame_header(bits=12), "12 bits"),
    (make_jpeg_with_components(2), "2 components"),
    (make_jpeg_with_components(5), "5 components"),
]


@pytest.mark.parametrize(("data", "issue"), CASES)
def test_tensorflow_issue_of_a_header_predicts_whether_tensorflow_decodes_it(
    data: bytes, issue: str
) -> None:
    assert check_structure(np.frombuffer(data, np.uint8)).tensorflow_issue == issue
    tf = pytest.importorskip("tensorflow")
    if issue:
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.io.decode_image(data)
    else:
        assert tf.io.decode_image(data).shape == (16, 24, 3)


def test_headers_of_real_files_agree_with_tensorflow(shared_data: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    differing, num_equal = set(), 0
    for line in (shared_data / "images" / "manifest.jsonl").read_text().splitlines():
        path = shared_data / "images" / json.loads(line)["path"]
        if not path.parts[len(shared_data.parts) + 1].startswith("torture"):
            continue
        try:
            header = check_structure(read_range(str(path)))
        except BadImage:
            continue
        try:
            tf.io.decode_image(path.read_bytes(), expand_animations=False)
            decodes = True
        except tf.errors.InvalidArgumentError:
            decodes = False
        if decodes == bool(header.tensorflow_issue):
            differing.add(path.name)
        else:
            num_equal += 1
    assert differing == UNDETECTED
    assert num_equal > 350


def test_inspect_counts_images_that_tensorflow_cannot_decode(tmp_path: Path) -> None:
    recordmill.build({"data": [make_jpeg_with_components(2), jpeg()]}, tmp_path / "out")
    (contents,) = (feature.contents for feature in inspect(tmp_path / "out").features.values())
    assert contents is not None
    assert contents.kinds == {"JPEG that TensorFlow can't decode (2 components)": 1, "JPEG": 1}


@pytest.mark.parametrize("count", [2, 5])
def test_jpeg_of_unusual_components_fails_the_decode_check(tmp_path: Path, count: int) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(make_jpeg_with_components(count))
    (tmp_path / "in" / "b.jpg").write_bytes(jpeg())
    result = recordmill.build(tmp_path / "in", tmp_path / "out", check="decode", max_rejects=1)
    assert result.rejected == 1


def test_build_notes_images_that_tensorflow_cannot_decode(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, (data, _) in enumerate(CASES):
        (folder / f"{number}.jpg").write_bytes(data)
    PIL.Image.new("RGB", (3, 2)).save(folder / "a.tiff")
    recordmill.build(folder, tmp_path / "out")
    notes = {note for note in inspect(tmp_path / "out").notes if "TensorFlow" in note}
    assert notes == {
        "JPEG that TensorFlow can't decode (lossless): 2",
        "JPEG that TensorFlow can't decode (hierarchical): 1",
        "JPEG that TensorFlow can't decode (12 bits): 1",
        "JPEG that TensorFlow can't decode (2 components): 1",
        "JPEG that TensorFlow can't decode (5 components): 1",
        "TIFF that TensorFlow can't decode (the format): 1",
    }
