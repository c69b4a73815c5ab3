"""Colour statistics equal the figures that NumPy computes from the pixels.

They do not depend on threads, shards or memory.
"""

import io
import json
import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import image_samples

import recordmill
from recordmill.commands.main import run
from recordmill.records.images.pixels import NUM_PIXEL_SUMS, sum_encoded_pixels
from recordmill.statistics import pixel_sketch
from recordmill.statistics.pixel_sketch import PixelSketch
from recordmill.statistics.value_sketch import hash_texts

SIDE = 9


def pixels_of(data: bytes) -> Any:
    """Returns RGB pixels [pixels, 3]. Of 16-bit values, it keeps the upper 8 bits."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        if image.mode.startswith("I"):
            image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.asarray(image.convert("RGB"), np.int64).reshape(-1, 3)


def sums_of(data: bytes) -> list[int]:
    pixels = pixels_of(data)
    return [len(pixels), *pixels.sum(0).tolist(), *(pixels**2).sum(0).tolist()]


def make_image(number: int) -> bytes:
    """Returns a small image. Eight consecutive numbers have different formats or colour modes."""
    random = np.random.default_rng(number)
    colours = PIL.Image.fromarray(
        random.integers(0, 256, (SIDE, SIDE + number % 3, 3)).astype(np.uint8)
    )
    wide_image = PIL.Image.fromarray(random.integers(0, 1 << 16, (SIDE, SIDE)).astype(np.uint16))
    kinds: list[tuple[PIL.Image.Image, str]] = [
        *((colours, name) for name in ("JPEG", "PNG", "WEBP")),
        (colours.convert("L"), "PNG"),
        (wide_image, "PNG"),
        (colours.convert("P"), "GIF"),
        (colours.convert("CMYK"), "JPEG"),
        (colours.convert("RGBA"), "PNG"),
    ]
    image, name = kinds[number % len(kinds)]
    return image_samples.encode_image(name, image)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 images. Some of them are equal."""
    images = tmp_path_factory.mktemp("images")
    for number in range(64):
        (images / f"class{number % 3}").mkdir(exist_ok=True)
        (images / f"class{number % 3}" / f"{number}.jpg").write_bytes(make_image(number % 50))
    return images


def expected(images: list[bytes]) -> tuple[Any, Any]:
    pixels = np.concatenate([pixels_of(data) for data in images])
    return pytest.approx(pixels.mean(0), rel=1e-13), pytest.approx(pixels.std(0), rel=1e-12)


def images_of(out: Path | str, split: str) -> list[bytes]:
    return recordmill.open(out, split).to_table().column("image").to_pylist()


@pytest.mark.parametrize("number", range(8))
def test_pixel_sums_of_an_image_equal_those_of_numpy(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_image(number)
    assert sum_encoded_pixels(np.frombuffer(data, np.uint8)).tolist() == sums_of(data)
    monkeypatch.setattr("recordmill.records.images.pixels._BAND_PIXELS", 20)
    assert sum_encoded_pixels(np.frombuffer(data, np.uint8)).tolist() == sums_of(data)


def test_invalid_or_too_large_image_has_no_pixel_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_sums = [0] * NUM_PIXEL_SUMS
    for data in (b"", b"no image", make_image(0)[:-200], b"\x89PNG\r\n\x1a\n" + bytes(50)):
        assert sum_encoded_pixels(np.frombuffer(data, np.uint8)).tolist() == no_sums
    monkeypatch.setattr("recordmill.records.images.pixels.MAX_DECODE_BYTES", SIDE * SIDE)
    assert sum_encoded_pixels(np.frombuffer(make_image(1), np.uint8)).tolist() == no_sums


def test_colours_cover_all_images_if_the_check_decodes_them(folder: Path, tmp_path: Path) -> None:
    recordmill.build(folder, tmp_path / "out", check="decode", splits="train=0.7,test=0.3")
    statistics = recordmill.open(tmp_path / "out").statistics
    for split in ("train", "test"):
        images = images_of(tmp_path / "out", split)
        colours = statistics[split]["image"].colours
        assert colours is not None
        assert (colours.images, colours.pixels) == (
            len(images),
            sum(len(pixels_of(image)) for image in images),
        )
        assert (colours.mean, colours.std_dev) == expected(images)


def test_colours_cover_a_sample_that_depends_on_the_images_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"splits": "train=0.7,test=0.3"}
    first = recordmill.build(folder, tmp_path / "0", threads=1, **options)
    expected_bytes = (tmp_path / "0" / "statistics.pb").read_bytes()
    # This build sorts the records.
    recordmill.build(folder, tmp_path / "1", threads=8, num_shards=2, compression="gzip", **options)
    monkeypatch.setattr("recordmill.statistics.pixel_sketch.MAX_PENDING_BYTES", 0)
    monkeypatch.setattr("recordmill.sources.images.reading.BATCH_FILES", 5)
    recordmill.build(folder, tmp_path / "2", **options)
    for number in (1, 2):
        assert (tmp_path / str(number) / "statistics.pb").read_bytes() == expected_bytes
    assert recordmill.stats(first.out, recount=True).to_bytes() == expected_bytes
    images = images_of(first.out, "train")
    colours = recordmill.open(first.out).statistics["train"]["image"].colours
    assert colours is not None
    counts = Counter(images)
    sampled_images = sorted(counts, key=_hash)[
        : max(sum(_hash(image) <= (1 << 64) // 256 for image in counts), 4)
    ]
    sample = [image for image in sampled_images for _ in range(counts[image])]
    assert 4 <= colours.images == len(sample) < len(images)
    assert (colours.mean, colours.std_dev) == expected(sample)
    # The commands and the report show the size of the sample.
    assert run(["stats", str(first.out), "--quiet"]) == 0
    assert f"colours of {colours.images} decoded" in capfd.readouterr().out
    assert run(["stats", str(first.out), "--quiet", "--json"]) == 0
    features = {
        image["name"]: image for image in json.loads(capfd.readouterr().out)["train"]["features"]
    }
    assert features["image"]["colours"]["mean"] == list(colours.mean)
    summary = first.manifest.statistics["splits"]["train"]["image"]
    assert summary["decoded_images"] == colours.images
    report = recordmill.open(first.out).report()
    assert f"red, green, blue of a sample of {colours.images} of" in str(
        getattr(report, "html", report)
    )


def test_normalization_of_images_has_mean_and_variance_per_channel(
    folder: Path, tmp_path: Path
) -> None:
    recordmill.build(folder, tmp_path / "out", check="decode")
    arguments = recordmill.open(tmp_path / "out").normalization("image")
    mean, deviation = expected(images_of(tmp_path / "out", "train"))
    assert arguments["axis"] == -1
    assert arguments["mean"] == mean
    assert [math.sqrt(variance) for variance in arguments["variance"]] == deviation


def _hash(data: bytes) -> int:
    return int(hash_texts(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))[0])


VALUES = [make_image(number) for number in range(20)] + [b"none", b"\x89PNG\r\n\x1a\n", b"GIF89a"]


def sketch_of(values: list[int], max_pending_bytes: int, batch_images: int) -> PixelSketch:
    sketch = PixelSketch(3, 8, max_pending_bytes)
    for start in range(0, len(values), batch_images):
        images = [VALUES[number] for number in values[start : start + batch_images]]
        ends = np.cumsum([len(image) for image in images])
        hashes = np.array([_hash(image) for image in images], np.uint64)
        sketch.add(
            hashes,
            np.frombuffer(b"".join(images), np.uint8),
            np.concatenate([[0], ends[:-1]]),
            ends,
        )
    return sketch


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, len(VALUES) - 1), max_size=60),
    st.integers(0, 60),
    st.integers(1, 20),
    st.sampled_from([0, 500, 1 << 20]),
    st.sampled_from([2, 6, 1 << 20]),
)
def test_merged_image_samples_equal_the_sample_of_all(
    values: list[int], cut: int, batch_images: int, max_pending_bytes: int, hash_divisor: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pixel_sketch, "_SAMPLE_HASH", np.uint64(((1 << 64) - 1) // hash_divisor))
        expected_sketch, first, second = (
            sketch_of(numbers, max_pending_bytes, batch_images)
            for numbers in (values, values[cut:], list(reversed(values[:cut])))
        )
        copied = pickle.loads(
            pickle.dumps(sketch_of(values[cut:], max_pending_bytes, batch_images))
        )
        copied.merge(sketch_of(values[:cut], max_pending_bytes, batch_images))
        first.merge(second)
        counts = Counter(_hash(VALUES[number]) for number in values)
        num_below_limit = sum(
            value_hash <= ((1 << 64) - 1) // hash_divisor for value_hash in counts
        )
        expected_hashes = sorted(counts)[: min(max(num_below_limit, 3), 8)]
        total = expected_sketch.total()
        for sketch in (expected_sketch, first, copied):
            assert sketch.total() == total
            assert {image_hash: image.count for image_hash, image in sketch._images.items()} == {
                image_hash: counts[image_hash] for image_hash in expected_hashes
            }
        sums = {
            _hash(value): sum_encoded_pixels(np.frombuffer(value, np.uint8)) for value in VALUES
        }
        pixels = sum(
            counts[image_hash] * int(sums[image_hash][0]) for image_hash in expected_hashes
        )
        assert pixels == (0 if total is None else total.pixels)
