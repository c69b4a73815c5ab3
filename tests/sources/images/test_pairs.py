"""An image and its mask become one record."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from kit import image_samples
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, UsageError

SIZE = (31, 47)  # [height, width]


def make_image(mask: np.ndarray) -> Image.Image:
    """Returns an image of a mask. Class k has the gray 60 * k."""
    return Image.fromarray((60 * mask).astype(np.uint8)).convert("RGB")


def make_palette_image(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values.astype(np.uint8), "L").convert("P")
    image.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    image.putdata(values.reshape(-1).tolist())
    return image


def write(
    root: Path, folders: tuple[str, str] = ("images", "masks"), count: int = 6
) -> dict[str, np.ndarray]:
    """Writes images of large rectangles, and their palette masks."""
    rng, masks = np.random.default_rng(4), {}
    for number in range(count):
        mask = np.zeros(SIZE, np.int64)
        for value in (1, 2, 3):
            top, left = int(rng.integers(20)), int(rng.integers(36))
            mask[top : top + 9, left : left + 9] = value
        for folder, image, ending in (
            (folders[0], make_image(mask), "bmp"),
            (folders[1], make_palette_image(mask), "png"),
        ):
            (root / folder).mkdir(parents=True, exist_ok=True)
            image.save(root / folder / f"{number}.{ending}")
        masks[f"{number}"] = mask
    return masks


def index_by_stem(ds: Any) -> dict[str, dict[str, Any]]:
    return {Path(row["source"]).stem: row for row in ds}


@pytest.mark.parametrize(
    ("layout", "inputs", "pair"),
    [
        (("images", "masks"), ["."], "images,masks"),
        (("images", "masks"), ["images", "masks"], "images,masks"),
        (("images", "masks"), ["images/*", "masks/*"], "images/,/masks"),
        (("JPEGImages", "annotations/trimaps"), ["."], "JPEGImages,annotations/trimaps"),
    ],
)
def test_each_image_has_the_mask_of_its_name(
    layout: Any, inputs: list[str], pair: str, tmp_path: Path
) -> None:
    masks, folder = (
        write(tmp_path / "in", layout),
        pair.rpartition("/" if "/" in layout[1] else ",")[2].strip("/"),
    )
    recordmill.build(
        [str(tmp_path / "in" / pattern) for pattern in inputs], tmp_path / "out", pair=pair
    )
    ds = recordmill.open(tmp_path / "out")
    assert recordmill.verify(tmp_path / "out") == []
    assert [*ds.columns][:3] == ["image", folder, "format"]
    rows = index_by_stem(ds)
    assert sorted(rows) == sorted(masks)
    for stem, row in rows.items():
        for name, ending, folder_name in (("image", "bmp", layout[0]), (folder, "png", layout[1])):
            assert row[name] == (tmp_path / "in" / folder_name / f"{stem}.{ending}").read_bytes()
    (inputs_file,) = tmp_path.glob("out/**/inputs.jsonl")
    assert all(
        f"{stem}.{ending}" in inputs_file.read_text() for stem in masks for ending in ("bmp", "png")
    )


def test_masks_whose_names_have_a_suffix_are_paired_by_it(tmp_path: Path) -> None:
    masks = write(tmp_path / "in")
    for path in [*(tmp_path / "in/masks").iterdir()]:
        path.rename(path.with_name(f"{path.stem}_mask.png"))
    with pytest.raises(UsageError) as error:
        recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks")
    pair = "images,masks/*_mask"
    assert f"in 'masks'; names with a suffix are paired by --pair '{pair}'" in str(error.value)
    recordmill.build(tmp_path / "in", tmp_path / "out", pair=pair)
    rows = index_by_stem(recordmill.open(tmp_path / "out"))
    assert sorted(rows) == sorted(masks)
    for stem, row in rows.items():
        assert row["masks"] == (tmp_path / f"in/masks/{stem}_mask.png").read_bytes()
    (tmp_path / "in/masks/0.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"masks/0\.png belongs to neither folder of --pair"):
        recordmill.build(tmp_path / "in", tmp_path / "other", pair=pair)


def test_images_and_masks_with_a_suffix_each_are_paired(tmp_path: Path) -> None:
    masks = write(tmp_path / "in")
    for folder, suffix in (("images", "_leftImg8bit"), ("masks", "_labelIds")):
        for path in [*(tmp_path / "in" / folder).iterdir()]:
            path.rename(path.with_name(f"{path.stem}{suffix}{path.suffix}"))
    pair = "images/*_leftImg8bit,masks/*_labelIds"
    recordmill.build(tmp_path / "in", tmp_path / "out", pair=pair)
    assert len(recordmill.open(tmp_path / "out")) == len(masks)


def test_splits_of_pairs_come_from_the_outer_folders(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "in" / split, ("images", "masks"), 3)
    recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks")
    dataset = recordmill.open(tmp_path / "out", split="validation")
    assert len(dataset) == 3
    assert "label" not in dataset.schema


def test_image_or_mask_without_a_fitting_partner_is_a_reject(
    tmp_path: Path,
) -> None:
    write(tmp_path / "in")
    (tmp_path / "in/masks/0.png").unlink()
    (tmp_path / "in/images/1.bmp").unlink()
    make_palette_image(np.zeros((SIZE[1], SIZE[0]), np.int64)).save(tmp_path / "in/masks/2.png")
    (tmp_path / "in/masks/3.png").write_bytes((tmp_path / "in/masks/3.png").read_bytes()[:-20])
    (tmp_path / "in/images/4.bmp").write_bytes(b"BM")
    result = recordmill.build(
        tmp_path / "in", tmp_path / "out", pair="images,masks", max_rejects=5, check="decode"
    )
    assert [*index_by_stem(recordmill.open(tmp_path / "out"))] == ["5"]
    rejects = "".join(path.read_text() for path in (tmp_path / "out" / "rejects").iterdir())
    for message in (
        "no file in 'masks' has the same name",
        "no file in 'images' has the same name",
        f"{SIZE[1]} x {SIZE[0]} pixels, and the image {SIZE[0]} x {SIZE[1]}",
        "masks/3.png",
        "images/4.bmp",
    ):
        assert message in rejects
    assert result is not None


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("images", "the names of two folders"),
        ("images,images", "the names of two folders"),
        ("images,photos", "belongs to neither folder"),
        ("masks,images", None),
        ("images,image", "records have a feature 'image' already"),
    ],
)
def test_invalid_pair_is_refused(pair: str, message: str | None, tmp_path: Path) -> None:
    write(tmp_path / "in")
    if message is None:  # only the user can know which folder has the masks
        recordmill.build(tmp_path / "in", tmp_path / "out", pair=pair)
        assert "images" in recordmill.open(tmp_path / "out").columns
        return
    with pytest.raises(UsageError, match=message):
        recordmill.build(tmp_path / "in", tmp_path / "out", pair=pair)


def test_two_masks_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in")
    make_palette_image(np.zeros(SIZE, np.int64)).save(tmp_path / "in/masks/0.gif")
    with pytest.raises(
        UsageError, match=r"masks/0\.(gif|png) and masks/0\.(gif|png) have the same name"
    ):
        recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks")


@pytest.mark.parametrize(
    "image_options", [{"crop": "center"}, {"flip": True, "crop": recordmill.RandomCrop((0.3, 0.8))}]
)
def test_mask_follows_crops_and_flips_of_its_image(image_options: Any, tmp_path: Path) -> None:
    write(tmp_path / "in")
    recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks")
    images = {
        "image": recordmill.Images(62, 94, **image_options),
        "masks": recordmill.Images(62, 94, mask=True, **image_options),
    }
    ds = recordmill.open(tmp_path / "out")
    (batch,), (tf_batch,) = (
        read(6, decode_images=images, seed=2) for read in (ds.batches, ds.to_tf)
    )
    assert batch["masks"].dtype == np.uint8
    assert set(np.unique(batch["masks"])) <= {0, 1, 2, 3}
    classes = np.rint(batch["image"][..., :1] / 60)
    # edges differ, because they are blended in the image
    assert np.mean(classes == batch["masks"]) > 0.9
    np.testing.assert_array_equal(batch["masks"], tf_batch["masks"].numpy())


def test_masks_keep_their_stored_values(tmp_path: Path) -> None:
    values = np.arange(12 * 20).reshape(12, 20)
    stored = {
        "palette": (make_palette_image(values % 4), values % 4),
        "gray": (Image.fromarray(values.astype(np.uint8)), values),
        "bits": (Image.fromarray(values % 3 == 0), values % 3 == 0),
        "deep": (Image.fromarray((values * 250).astype(np.uint16)), values * 250),
    }
    for name, (image, _) in stored.items():
        for folder, stored_image in (
            ("images", image_samples.picture(size=(20, 12))),
            ("masks", image),
        ):
            (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
            stored_image.save(tmp_path / "in" / folder / f"{name}.png")
    recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks", shuffle=False)
    ds = recordmill.open(tmp_path / "out")
    for height, width in ((12, 20), (5, 7), (31, 33)):
        image_options = recordmill.Images(height, width, mask=True, dtype="int32")
        (batch,) = ds.batches(4, shuffle=False, decode_images={"masks": image_options})
        for row, source in enumerate(batch["source"]):
            mask = stored[Path(str(source)).stem][1].astype(np.int32)[:, :, None]
            expected = tf.image.resize(mask, (height, width), method="nearest").numpy()
            np.testing.assert_array_equal(batch["masks"][row], expected)
    with pytest.raises(DataError, match="beyond uint8: Images"):
        next(ds.batches(4, decode_images={"masks": recordmill.Images(12, 20, mask=True)}))
    table = recordmill.open(tmp_path / "out", decode_images={"masks": image_options}).to_numpy()
    assert (table["masks"].shape, table["masks"].dtype) == ((4, 31, 33, 1), np.int32)


@pytest.mark.parametrize(
    "options",
    [{"antialias": True}, {"scale": 1 / 255}, {"dtype": "float32"}, {"shrink": True}],
    ids=str,
)
def test_options_that_blend_a_mask_are_refused(options: Any) -> None:
    with pytest.raises(UsageError, match="mask=True keeps values as they are"):
        recordmill.Images(8, 8, mask=True, **options)


def test_colour_image_is_refused_as_a_mask(tmp_path: Path) -> None:
    write(tmp_path / "in")
    recordmill.build(tmp_path / "in", tmp_path / "out", pair="images,masks")
    with pytest.raises(DataError, match="pixels of RGB, and a mask has one number per pixel"):
        next(
            recordmill.open(tmp_path / "out").batches(
                2, decode_images={"image": recordmill.Images(8, 8, mask=True)}
            )
        )
