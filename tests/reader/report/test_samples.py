"""The report samples a few records of each kind, within its memory limit."""

import io
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from kit.data_sets import write_data_set
from kit.image_samples import encode_image, picture
from kit.report_pages import Page, open_column, page_of

import recordmill
from recordmill.reader.report.samples import read_sample, sample_images
from recordmill.schemas.feature import Feature, Schema


def test_unusual_images_come_first(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def photo(height: int, width: int, light: int, seed: int = 0) -> bytes:
        noise = np.random.default_rng(seed).integers(0, 256, (6, 6, 3)).astype(np.uint8)
        pixels = PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC)
        dark = PIL.Image.fromarray((np.asarray(pixels) * (light / 255)).astype(np.uint8))
        return encode_image("JPEG", dark, quality=90)

    plain = [photo(64, 64, 200, seed=10 + int(n)) for n in random.permutation(20)]
    odd = [photo(400, 300, 190, seed=90), photo(20, 20, 190, seed=91), photo(64, 64, 10, seed=92)]
    schema = Schema(
        (Feature("image", "bytes"), Feature("y", "int64", classes=("cat", "dog"))), label="y"
    )
    values = [*plain, *odd, b"\xff\xd8\xff no image"]
    rows = {"image": values, "y": [0] * 23 + [1]}
    ds = recordmill.open(write_data_set(tmp_path / "set", {"train": rows}, schema))
    sample = sample_images(ds.records, "image", ("cat", "dog"), np.arange(24))
    assert [record for record, _ in sample.damaged] == [23]
    ((label, images),) = sample.by_class()
    assert label == "cat"
    notes = {image.record: image.notes for image in images}
    assert notes[20] == ("largest",)
    assert notes[21] == ("smallest",)
    assert "darkest" in notes[22]
    assert len(images) == 8
    page = page_of(ds.report().html)
    assert {max(PIL.Image.open(io.BytesIO(image)).size) for image in page.images} <= {96, 64, 20}


def test_large_records_are_sampled_few_at_a_time(tmp_path: Path) -> None:
    ds = open_column(tmp_path, "bytes", [b"a" * (3 << 20)] * 12)
    row_counts = [table.num_rows for _, table in read_sample(ds.records, np.arange(12), 10 << 20)]
    assert row_counts == [2, 2]


def test_limit_of_thumbnails_is_shared_by_image_features(tmp_path: Path) -> None:
    images = [encode_image("PNG", picture(size=(8, 8), seed=seed)) for seed in range(100)]
    schema = Schema(
        (*(Feature(f"image{n}", "bytes") for n in range(3)), Feature("y", "int64")), label="y"
    )
    columns = {f"image{n}": images for n in range(3)} | {"y": list(range(100))}
    ds = recordmill.open(write_data_set(tmp_path / "set", {"train": columns}, schema))
    # The last 15 images are those of the sample records.
    assert len(page_of(ds.report().html).images) == 240 + 3 * 5


@pytest.mark.parametrize(
    ("orientation", "box"), [(1, "24.0 48.0 24.0 24.0"), (6, "24.0 24.0 24.0 24.0")]
)
def test_boxes_are_drawn_on_thumbnails_of_turned_images(
    tmp_path: Path, orientation: int, box: str
) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PIL.Image.new("RGB", (200, 200), "white").save(file, "JPEG", exif=exif)
    edges = {"xmin": [0.25, 0.5], "ymin": [0.5, 2.0], "xmax": [0.5, 0.75], "ymax": [0.75, 3.0]}
    rows = {"image/encoded": [file.getvalue()]} | {
        f"image/object/bbox/{edge}": [values] for edge, values in edges.items()
    }
    recordmill.build(rows, tmp_path / "out")
    html = recordmill.open(tmp_path / "out").report().html
    rectangles = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"', html)
    # One box is on the image of the sample record, and one is among the images.
    assert [" ".join(values) for values in rectangles] == [box, box]
    Page(html)


def test_invalid_boxes_are_not_drawn(tmp_path: Path) -> None:
    image = encode_image("PNG")
    edges = {"xmin": [[0.1], [0.1], []], "ymin": [[0.1, 0.2], [np.nan], []]}
    edges |= {"xmax": [[0.5], [0.5], []], "ymax": [[0.5], [0.5], []]}
    rows = {"image/encoded": [image] * 3} | {
        f"image/object/bbox/{edge}": values for edge, values in edges.items()
    }
    recordmill.build(rows, tmp_path / "out")
    assert "<rect" not in recordmill.open(tmp_path / "out").report().html
