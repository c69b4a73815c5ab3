"""`build --resize` and `--reencode` write the right pixels, masks and boxes.

The oracles are TensorFlow and Pillow.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import image_samples
from kit.runs import build_in_each_way, rejects_of
from PIL import Image, ImageOps

import recordmill
from recordmill.base.errors import UsageError

MODES = ("stretch", "crop", "pad")
HEIGHT, WIDTH = 90, 160  # size of the stored image
LEFT, TOP, RIGHT, BOTTOM = 60, 20, 110, 50  # edges of the object
TAG = 0x0112


def open_image(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(open_image(data))


def write_scene(folder: Path, orientations: Any = range(1, 9)) -> Path:
    """Writes a white object on black for each orientation.

    Also writes its mask, and its box and polygon in a COCO file.
    """
    object_mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    object_mask[TOP:BOTTOM, LEFT:RIGHT] = 1
    mask = Image.fromarray(object_mask).convert("P")
    mask.putpalette([9, 9, 9, 200, 0, 0])
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for value in orientations:
        exif = Image.Exif()
        exif[TAG] = value
        Image.fromarray(object_mask * 255).convert("RGB").save(
            folder / "images" / f"{value}.jpg", exif=exif, quality=98
        )
        mask.save(folder / "masks" / f"{value}.png")
    box = [LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP]
    corners = [LEFT, TOP, RIGHT, TOP, RIGHT, BOTTOM, LEFT, BOTTOM]
    annotation = {"category_id": 1, "bbox": box, "area": box[2] * box[3]}
    (folder / "instances.json").write_text(
        json.dumps(
            {
                "images": [
                    {"id": value, "file_name": f"images/{value}.jpg"} for value in orientations
                ],
                "categories": [{"id": 1, "name": "cat"}],
                "annotations": [
                    {"image_id": value, "segmentation": shape, **annotation}
                    for value in orientations
                    for shape in ([corners], {"counts": [0, 1], "size": [HEIGHT, WIDTH]})
                ],
            }
        )
    )
    return folder


def edges_of(pixels: np.ndarray) -> list[int]:
    """Returns the left, top, right and bottom edge of the visible pixels."""
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize("mode", [*MODES, None])
def test_masks_boxes_and_polygons_follow_the_pixels_at_every_orientation(
    mode: str | None, tmp_path: Path
) -> None:
    folder, size = write_scene(tmp_path / "in"), (64, 48)
    options: Mapping[str, Any] = (
        {"reencode": "png"} if mode is None else {"resize": size, "resize_mode": mode}
    )
    inputs = [folder / "images", folder / "masks"]
    result = recordmill.build(
        inputs, tmp_path / "out", pair="images,masks", boxes=folder / "instances.json", **options
    )
    assert recordmill.verify(tmp_path / "out") == []
    rows = [*recordmill.open(tmp_path / "out")]
    assert len(rows) == 8
    for row in rows:
        stem = Path(row["image/filename"]).stem
        is_white, mask = pixels(row["image/encoded"])[..., 0] > 127, pixels(row["masks"])
        upright = ImageOps.exif_transpose(Image.open(folder / "images" / f"{stem}.jpg"))
        assert is_white.shape == mask.shape == (size if mode else upright.size[::-1])
        assert (row["image/height"], row["image/width"]) == is_white.shape
        assert (
            row["image/format"]
            == open_image(row["image/encoded"]).format.lower()
            == ("jpeg" if mode else "png")
        )
        assert TAG not in open_image(row["image/encoded"]).getexif()
        assert set(np.unique(mask)) == {0, 1}
        assert open_image(row["masks"]).mode == "P"
        expected = edges_of(is_white)
        assert np.abs(np.subtract(edges_of(mask), expected)).max() <= 1
        boxes = np.array(
            [row[f"image/object/bbox/{edge}"] for edge in ("xmin", "ymin", "xmax", "ymax")]
        ).T
        assert np.abs(boxes * np.tile(is_white.shape[::-1], 2) - expected).max() <= 1
        polygons, run_lengths = map(json.loads, row["image/object/segmentation"])
        corners = np.array(polygons[0]).reshape(-1, 2)
        if mode != "crop":  # polygons may extend beyond the border
            assert np.abs([*corners.min(0), *corners.max(0)] - np.array(expected)).max() <= 1
            assert row["image/object/area"][0] == pytest.approx(np.ptp(corners, 0).prod(), rel=1e-3)
        assert run_lengths == (
            [] if mode or stem != "1" else {"counts": [0, 1], "size": [HEIGHT, WIDTH]}
        )
    assert "images turned upright, as their EXIF data says: 7" in " ".join(result.notes)


def test_box_outside_of_the_crop_is_left_out_and_noted(tmp_path: Path) -> None:
    folder = write_scene(tmp_path / "in", [1, 6])
    boxes = folder / "boxes.csv"
    boxes.write_text(
        "file,class,xmin,ymin,xmax,ymax\n"
        + "".join(
            f"{stem}.jpg,cat,{edges}\n"
            for stem in (1, 6)
            for edges in ("0,0,20,20", f"-9,0,{WIDTH},{HEIGHT}")
        )
    )
    result = recordmill.build(
        folder / "images", tmp_path / "out", boxes=boxes, resize="30x30", resize_mode="crop"
    )
    records = recordmill.open(tmp_path / "out").to_table()
    assert records["image/object/bbox/xmin"].to_pylist() == [[0.0]] * 2
    assert records["image/object/bbox/ymax"].to_pylist() == [[1.0]] * 2
    assert "2 boxes beyond the part that is kept, left out" in " ".join(result.notes)


@pytest.mark.parametrize(
    ("reencode", "kind"), [(None, ""), ("jpeg:90", "JPEG"), ("png", "PNG"), ("webp", "WebP")]
)
def test_every_format_is_resized_and_reencoded(
    reencode: str | None, kind: str, tmp_path: Path
) -> None:
    samples = image_samples.samples()
    for name, (data, _) in samples.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    recordmill.build(
        tmp_path / "in", tmp_path / "out", kind="images", resize="9x31", reencode=reencode
    )
    rows = {row["source"]: row for row in recordmill.open(tmp_path / "out")}
    assert rows.keys() == samples.keys()
    for name, row in rows.items():
        data, (own_format, channels, bits, colour, _) = samples[name]
        expected = kind or (own_format if own_format in ("JPEG", "PNG", "WebP") else "PNG")
        channels = 3 if colour == "cmyk" else channels
        channels = {"JPEG": {2: 1, 4: 3}, "PNG": {}, "WebP": {1: 3, 2: 4}}[expected].get(
            channels, channels
        )
        assert (row["format"], row["height"], row["width"], row["channels"]) == (
            expected,
            9,
            31,
            channels,
        ), name
        image = open_image(row["image"])
        assert (image.format.lower(), getattr(image, "n_frames", 1)) == (expected.lower(), 1), name
        assert not {"exif", "icc_profile", "dpi"} & image.info.keys()
        if expected == "PNG":
            mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
            stored = pixels(data) if bits == 16 else np.asarray(open_image(data).convert(mode))
            result = pixels(row["image"])
            if channels in (2, 4):
                resized = open_image(data).convert(mode).resize((31, 9), Image.Resampling.BILINEAR)
                check_colours_and_alpha(result, np.asarray(resized))
            else:
                assert np.array_equal(result, resize_by_tensorflow(stored)), name


def resize_by_tensorflow(stored: np.ndarray) -> np.ndarray:
    """Resizes gray or RGB pixels to 9 x 31 integers with `tf.image.resize`."""
    tf = pytest.importorskip("tensorflow")
    numbers = stored.reshape(*stored.shape[:2], -1)
    resized = tf.round(tf.image.resize(numbers, [9, 31], antialias=True)).numpy()
    return resized.astype(stored.dtype).reshape(9, 31, *stored.shape[2:])  # type: ignore[no-any-return]


def check_colours_and_alpha(result: np.ndarray, pillow_result: np.ndarray) -> None:
    """Compares pixels that have alpha with the result of Pillow.

    Pillow multiplies colours by alpha and rounds. The allowed errors are larger if alpha is small.
    """
    alpha = pillow_result[..., -1].astype(int)
    assert np.abs(result[..., -1] - alpha).max() <= 1
    errors = np.abs(result[..., :-1].astype(int) - pillow_result[..., :-1]).max(-1)
    assert (errors[alpha > 0] <= 2 + 3 * 255 / alpha[alpha > 0]).all()
    assert errors[alpha > 100].mean() < 1.5


def test_colours_of_transparent_pixels_do_not_bleed(tmp_path: Path) -> None:
    source_pixels = np.zeros((64, 64, 4), np.uint8)
    source_pixels[16:48, 16:48] = 255, 0, 0, 255
    source_pixels[..., 1] = np.where(source_pixels[..., 3] == 0, 255, 0)  # this green is invisible
    (tmp_path / "in").mkdir()
    Image.fromarray(source_pixels).save(tmp_path / "in" / "a.png")
    recordmill.build(tmp_path / "in", tmp_path / "out", kind="images", resize="9x9")
    (row,) = recordmill.open(tmp_path / "out")
    result = pixels(row["image"])
    assert len(np.unique(result[..., 3])) > 2
    assert (result[result[..., 3] > 0][:, :3] == (255, 0, 0)).all()
    assert not result[result[..., 3] == 0].any()


@pytest.mark.parametrize("orientation", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("mode", ["stretch", "crop"])
def test_jpeg_decoded_at_a_reduced_size_is_not_shifted(
    mode: str, orientation: int, tmp_path: Path
) -> None:
    """The sides are 8 n + 1 pixels.

    If they are reduced by 8, only an eighth of the last pixel belongs to the image.
    """
    height, width = 521, 777
    rows, columns = np.mgrid[0:height, 0:width]
    ramps = np.stack([rows / height, columns / width, (rows + columns) / (height + width)], -1)
    exif = Image.Exif()
    exif[TAG] = orientation
    image = Image.fromarray((ramps * 255).astype(np.uint8))
    results = []
    for name, options in (
        ("a.jpg", {"quality": 100, "subsampling": 0, "exif": exif}),
        ("b.png", {"exif": exif}),
    ):
        folder, out = tmp_path / name, tmp_path / f"{name}-out"
        folder.mkdir()
        image.save(folder / name, **options)
        recordmill.build(
            folder, out, kind="images", resize="30x30", resize_mode=mode, reencode="png"
        )
        (row,) = recordmill.open(out)
        results.append(pixels(row["image"]).astype(float))
    # A ramp rises by 8.5 per pixel of the result, so the shift is less than a tenth of a pixel.
    assert np.abs(results[0] - results[1]).max() <= 2
    assert np.abs((results[0] - results[1]).mean((0, 1))).max() < 0.4


MASKS = {
    "palette": image_samples.picture().quantize(7),
    "gray": image_samples.picture("L"),
    "deep": image_samples.picture("I;16"),
    "bits": image_samples.picture("1"),
    "colours": image_samples.picture("RGB"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", MASKS)
def test_masks_keep_exact_values(kind: str, mode: str, tmp_path: Path) -> None:
    for name, image in (("images", image_samples.picture()), ("masks", MASKS[kind])):
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "a.png")
    inputs, (width, height) = [tmp_path / "images", tmp_path / "masks"], image_samples.SIZE
    for name, options in (
        ("own", {}),
        ("out", {"resize": "40x12", "resize_mode": mode, "reencode": "jpeg"}),
    ):
        recordmill.build(inputs, tmp_path / name, pair="images,masks", **options)
    (row,) = recordmill.open(tmp_path / "out")
    assert open_image(row["masks"]).mode == MASKS[kind].mode
    mask = pixels(row["masks"])
    if kind == "colours":
        assert {*map(tuple, mask.reshape(-1, 3))} <= {
            (0, 0, 0),
            *map(tuple, np.asarray(MASKS[kind]).reshape(-1, 3)),
        }
        return
    top, mask_height = 0, 40
    if mode == "pad":
        mask_height = round(height * 12 / width)
        top = (40 - mask_height) // 2
        assert not mask[:top].any()
        assert not mask[top + mask_height :].any()
    image_options = recordmill.Images(
        mask_height, 12, mask=True, dtype="int32", crop="center" if mode == "crop" else None
    )
    (batch,) = recordmill.open(tmp_path / "own").batches(
        1, epochs=1, decode_images={"masks": image_options}
    )
    assert np.array_equal(mask[top : top + mask_height], batch["masks"][0, :, :, 0])


def test_palette_masks_of_two_bits_keep_their_values(tmp_path: Path) -> None:
    values = np.arange(16).reshape(4, 4) % 4
    image = Image.fromarray(values.astype(np.uint8)).convert("P")
    image.putpalette([0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255])
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "a.png", bits=2)
    recordmill.build(
        [tmp_path / "images", tmp_path / "masks"],
        tmp_path / "out",
        pair="images,masks",
        resize="8x8",
    )
    (row,) = recordmill.open(tmp_path / "out")
    assert np.array_equal(pixels(row["masks"]), values.repeat(2, 0).repeat(2, 1))


def test_resized_shards_do_not_depend_on_how_the_build_runs(tmp_path: Path) -> None:
    folder = write_scene(tmp_path / "in")
    for seed in range(70):
        name = folder / "images" / f"more{seed}.png"
        image_samples.picture(size=(40 + seed, 50), seed=seed).save(name)
        image_samples.picture("L", (40 + seed, 50), seed).save(folder / "masks" / name.name)
    (folder / "images" / "bad.jpg").write_bytes(
        (folder / "images" / "1.jpg").read_bytes()[:-400] + b"\xff\xd9"
    )
    (folder / "masks" / "bad.png").write_bytes((folder / "masks" / "1.png").read_bytes())
    inputs = [folder / "images", folder / "masks"]
    options: dict[str, Any] = {
        "resize": "24x32",
        "resize_mode": "pad",
        "max_rejects": "10%",
        "num_shards": 2,
    }
    options["pair"] = "images,masks"
    results = build_in_each_way(inputs, tmp_path, **options)
    assert {len(rejects_of(result)) for result in results} <= {0, 1}
    repeat_options = {"if_changed": True, "seed": 0, **options}
    assert recordmill.build(inputs, tmp_path / "0", **repeat_options).unchanged
    for change in ({"resize_mode": "crop"}, {"reencode": "png"}, {"resize": (32, 24)}, {}):
        assert not recordmill.build(inputs, tmp_path / "0", **repeat_options | change).unchanged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": "224"}, "--resize 224: write HEIGHTxWIDTH in pixels"),
        ({"resize": 224}, "224: write HEIGHTxWIDTH in pixels"),
        ({"resize": "0x5"}, r"--resize 0x5: the size must be 1 to \d+ pixels"),
        ({"resize": "99999x99999"}, "1 to 178956970 pixels"),
        ({"resize": "9x9", "resize_mode": "fit"}, "one of stretch, crop, pad"),
        ({"resize_mode": "crop"}, "--resize-mode needs --resize"),
        (
            {"reencode": "gif"},
            r"--reencode gif: write png, or jpeg or webp with a quality of 1 to 100",
        ),
        ({"reencode": "jpeg:0"}, "--reencode jpeg:0: write png"),
        ({"reencode": "png:9"}, "--reencode png:9: write png"),
    ],
)
def test_impossible_resize_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build(write_scene(tmp_path / "in", [1]) / "images", tmp_path / "out", **options)


def test_damaged_and_huge_images_are_rejects(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good = image_samples.encode_image("PNG", image_samples.picture(size=(200, 200)))
    (folder / "good.png").write_bytes(good)
    Image.new("RGB", (3000, 3000)).save(folder / "large.png")
    Image.new("RGB", (5000, 5000)).save(folder / "bomb.png")
    jpeg = bytearray(image_samples.encode_image("JPEG", image_samples.picture(size=(200, 200))))
    jpeg[300:320] = b"\xff\xd0" * 10
    begin = good.index(b"IDAT")
    length = int.from_bytes(good[begin - 4 : begin], "big")
    chunk = b"IDAT" + bytes(length)
    (folder / "pixels.png").write_bytes(
        good[:begin] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + good[begin + 8 + length :]
    )
    result = recordmill.build(
        folder,
        tmp_path / "out",
        resize="8x8",
        max_pixels=10_000_000,
        max_rejects=3,
        memory="128MiB",
    )
    rejects = {
        reject["source"]: (reject["reason"], reject["message"]) for reject in rejects_of(result)
    }
    assert rejects.keys() == {"large.png", "bomb.png", "pixels.png"}
    assert "max_pixels=" in rejects["bomb.png"][1]
    assert 'memory="' in rejects["large.png"][1]
    assert rejects["pixels.png"][0] == "decode"
    assert result.records == {"train": 1}
