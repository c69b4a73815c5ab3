"""Image files are read in chunks of bounded size.

A bad image is a reject and leaves no gap.
"""

import io
import os
from pathlib import Path

import PIL.Image
import pyarrow as pa
import pytest
from kit import image_samples
from kit.files import write_files
from kit.image_reading import GIF, JPEG, PNG, chunks, drain, plan
from kit.runs import in_flags
from PIL.ImageFile import ImageFile

from recordmill.base.errors import DataError
from recordmill.sources.common import contract
from recordmill.sources.common.contract import BATCH_BYTES, PlanOptions
from recordmill.sources.images import source as images


def test_chunk_of_images_stays_within_its_size(tmp_path: Path) -> None:
    """Two files of 3 MiB are a chunk, which has at most 8 MiB.

    A file of 9 MiB is a chunk of its own.
    """
    padded = {
        f"{index}.png": PNG + bytes((9 << 20) if index == 2 else 3 << 20) for index in range(5)
    }
    source = plan(write_files(tmp_path, padded))
    sizes = [[len(image.as_py()) for image in chunk.records["image"]] for chunk in chunks(source)]
    assert [len(size) for size in sizes] == [2, 1, 2]
    assert all(len(size) == 1 or sum(size) <= BATCH_BYTES for size in sizes)


def test_rejected_images_leave_no_gap_in_a_chunk(tmp_path: Path) -> None:
    bad = {
        "b.jpg": JPEG[:-2],
        "c.png": PNG[:50] + b"?" + PNG[51:],
        "e.gif": b"no image at all",
        "g.webp": b"",
        "h.jpg": b"P6\n1 1\n255\n...",
    }
    good = {"a.png": PNG, "d.gif": GIF, "f.jpg": JPEG, "i.png": PNG}
    source = plan(write_files(tmp_path, {**bad, **good}))
    rows, rejects = drain(source)
    assert {row["source"]: row["image"] for row in rows} == good
    assert [(reject.source, reject.place, reject.reason) for reject in rejects] == [
        ("b.jpg", "", "truncated"),
        ("c.png", "", "crc"),
        ("e.gif", "", "format"),
        ("g.webp", "", "truncated"),
        ("h.jpg", "", "format"),
    ]
    files = [ordinal for chunk in chunks(source) for ordinal in chunk.file_ids.tolist()]
    assert [source.files[ordinal].name for ordinal in files] == sorted(good)


def test_unit_of_only_bad_images_still_yields_a_chunk(tmp_path: Path) -> None:
    rows, rejects = drain(plan(write_files(tmp_path, {"a.png": b"x", "b.png": b"y"})))
    assert (rows, len(rejects)) == ([], 2)


def test_decode_check_is_stricter_than_structure_check(tmp_path: Path) -> None:
    begin = GIF.rindex(b"\0;") - 40
    # The damage is inside the LZW data, so the blocks are complete.
    damaged = (
        GIF[:begin] + bytes(byte ^ 0xFF for byte in GIF[begin : begin + 30]) + GIF[begin + 30 :]
    )
    write_files(tmp_path, {"a.gif": damaged, "b.gif": GIF})
    assert len(drain(plan(tmp_path))[0]) == 2
    rows, rejects = drain(plan(tmp_path, check="decode"))
    assert [row["source"] for row in rows] == ["b.gif"]
    assert [(reject.source, reject.reason) for reject in rejects] == [("a.gif", "decode")]


@pytest.mark.parametrize("check", ["structure", "decode"])
def test_too_many_pixels_are_rejected_before_decoding(tmp_path: Path, check: str) -> None:
    width, height = image_samples.SIZE
    write_files(
        tmp_path,
        {
            "a.png": PNG,
            "b.png": image_samples.encode_image(
                "PNG", image_samples.picture(size=(width + 1, height))
            ),
        },
    )
    rows, rejects = drain(plan(tmp_path, check=check, max_pixels=width * height))
    assert [row["source"] for row in rows] == ["a.png"]
    assert [(reject.source, reject.reason) for reject in rejects] == [("b.png", "size")]


def test_pixel_limit_of_pillow_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """`max_pixels` is the only limit.

    The global limit of Pillow belongs to the user's own code.
    """
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    write_files(tmp_path, {"a.png": PNG, "b.gif": GIF, "c.jpg": JPEG})
    rows, rejects = drain(plan(tmp_path, check="decode"))
    assert (len(rows), rejects) == (3, [])
    assert not [
        warning
        for warning in recwarn
        if issubclass(warning.category, Image.DecompressionBombWarning)
    ]


def test_image_file_beyond_memory_is_a_reject(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.png": PNG, "b.png": PNG + bytes(5000)})
    source = plan(tmp_path, common=PlanOptions(memory_bytes=4 * 4000))
    assert [(reject.source, reject.reason) for reject in source.plan_rejects] == [("b.png", "size")]
    assert [row["source"] for row in drain(source)[0]] == ["a.png"]


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "remove"])
def test_image_that_changes_after_the_plan_is_an_error(tmp_path: Path, change: str) -> None:
    write_files(tmp_path, {"a.png": PNG, "b.png": PNG})
    source = plan(tmp_path)
    path = tmp_path / "b.png"
    if change == "grow":
        path.write_bytes(PNG + b"more")
    elif change == "shrink":
        path.write_bytes(PNG[:40])
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    with pytest.raises(
        DataError, match=r"b\.png: (changed while it was read|can't be read: No such file)"
    ):
        chunks(source)


def test_images_are_read_without_a_copy(tmp_path: Path) -> None:
    """The data buffer of the Arrow column is about as large as the files.

    Rejects use no space there, except at the end.
    """
    source = plan(write_files(tmp_path, {"a.png": PNG, "b.png": PNG[:-4], "c.png": PNG}))
    (chunk,) = chunks(source)
    column = chunk.records["image"]
    assert column.buffers()[2].size == 3 * len(PNG) - 4
    assert pa.compute.sum(pa.compute.binary_length(column)).as_py() == 2 * len(PNG)
    assert contract.BATCH_ROWS >= images.IMAGE_UNIT_FILES


def make_tiff(*sizes: tuple[int, int]) -> bytes:
    pages, buffer = [image_samples.picture(size=size) for size in sizes], io.BytesIO()
    pages[0].save(buffer, "TIFF", save_all=True, append_images=pages[1:])
    return buffer.getvalue()


def test_every_page_of_a_tiff_is_within_max_pixels(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.tif": make_tiff((8, 8), (4, 9)), "b.tif": make_tiff((8, 8), (9, 9))})
    rows, rejects = drain(plan(tmp_path, check="decode", max_pixels=64))
    assert [row["source"] for row in rows] == ["a.tif"]
    assert [(reject.source, in_flags(reject.message)) for reject in rejects] == [
        ("b.tif", "9 x 9 pixels are more than 64 (--max-pixels)")
    ]


@pytest.mark.parametrize("check", ["structure", "decode"])
def test_gif_frame_beyond_its_screen_is_within_max_pixels(tmp_path: Path, check: str) -> None:
    """Pillow enlarges the screen to the size of the frame."""
    image = bytearray(image_samples.encode_image("GIF", PIL.Image.new("L", (9, 12))))
    image[6:10] = bytes((8, 0, 8, 0))
    write_files(
        tmp_path,
        {
            "a.gif": bytes(image),
            "b.gif": image_samples.encode_image("GIF", PIL.Image.new("L", (8, 8))),
        },
    )
    rows, rejects = drain(plan(tmp_path, check=check, max_pixels=64))
    assert [row["source"] for row in rows] == ["b.gif"]
    assert [(reject.source, in_flags(reject.message)) for reject in rejects] == [
        ("a.gif", "12 x 9 pixels are more than 64 (--max-pixels)")
    ]


def test_image_appended_to_a_jpeg_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPO files of phones contain such images.

    They are not decoded, because only the size of the first image is checked.
    """
    buffer, sizes, load = io.BytesIO(), list[tuple[int, int]](), ImageFile.load
    PIL.Image.new("L", (8, 8)).save(
        buffer, "MPO", save_all=True, append_images=[PIL.Image.new("L", (900, 900))]
    )
    monkeypatch.setattr(ImageFile, "load", lambda image: (sizes.append(image.size), load(image))[1])
    write_files(tmp_path, {"a.jpg": buffer.getvalue()})
    rows, rejects = drain(plan(tmp_path, check="decode", max_pixels=64))
    assert (len(rows), rejects, set(sizes)) == (1, [], {(8, 8)})


def test_jpeg_of_very_many_scans_is_a_reject(tmp_path: Path) -> None:
    """Each scan passes over all pixels.

    20,000 scans in 513 kB took two minutes to decode.
    """
    buffer = io.BytesIO()
    image_samples.picture().save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last_scan = data.rindex(b"\xff\xda")
    write_files(
        tmp_path,
        {f"{count}.jpg": data[:-2] + data[last_scan:-2] * count + data[-2:] for count in (9, 600)},
    )
    rows, rejects = drain(plan(tmp_path))
    assert [row["source"] for row in rows] == ["9.jpg"]
    assert "scans; more than 500" in rejects[0].message


def test_image_whose_pixels_exceed_memory_is_a_reject(tmp_path: Path) -> None:
    image = PIL.Image.new("RGB", (600, 600))
    write_files(tmp_path, {"a.png": PNG, "b.png": image_samples.encode_image("PNG", image)})
    for memory, expected in ((1 << 20, ["a.png"]), (4 << 20, ["a.png", "b.png"])):
        rows, rejects = drain(
            plan(tmp_path, common=PlanOptions(memory_bytes=memory), check="decode")
        )
        assert [row["source"] for row in rows] == expected
    assert rejects == []
    (reject,) = drain(plan(tmp_path, common=PlanOptions(memory_bytes=1 << 20), check="decode"))[1]
    assert (
        in_flags(reject.message)
        == "takes 2 MiB to decode, more than --memory 1MiB leaves for it; use --memory 3MiB"
    )
