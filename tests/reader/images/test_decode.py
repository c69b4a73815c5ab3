"""Images decode to the same pixels for every consumer and option.

TensorFlow and arithmetic confirm these pixels.
"""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.data_sets import on_one_thread, write_data_set
from kit.image_samples import encode_image, picture, samples
from PIL import Image, ImageOps

from recordmill.base.errors import DataError, MissingExtraError, UsageError
from recordmill.reader import Images, RandomCrop
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.images.columns import decode_image
from recordmill.records.images import decode
from recordmill.schemas.feature import Feature, Schema

# Height and width.
SIZES = (
    (40, 60),
    (61, 33),
    (24, 32),
    (10, 9),
    (200, 150),
    (97, 131),
    (48, 64),
    (1, 1),
)


def image_set(
    folder: Path, images: list[bytes | None], masks: list[bytes] | None = None
) -> Dataset:
    features = [
        Feature("image", "bytes"),
        Feature("n", "int64", (), True),
        Feature("mask", "bytes", (), True),
    ]
    schema = Schema(tuple(features[: 2 + (masks is not None)]))
    columns = {"image": images, "n": range(len(images)), "mask": masks}
    return open(write_data_set(folder / "out", {"train": columns}, schema))


def photographs(kind: str = "JPEG") -> list[bytes | None]:
    """Returns smooth pictures of several sizes. The fourth one is missing."""
    images: list[bytes | None] = [
        encode_image(
            kind, picture(size=(9, 7), seed=i).resize((width, height), Image.Resampling.BICUBIC)
        )
        for i, (height, width) in enumerate(SIZES)
    ]
    images[3] = None
    return images


@pytest.fixture(scope="module", params=["JPEG", "PNG"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return image_set(tmp_path_factory.mktemp("images"), photographs(request.param))


def decode_by_all_consumers(ds: Dataset, target: Any) -> list[np.ndarray]:
    """Returns the images in order, from `batches` and from `to_tf`."""
    (numpy_batch,) = ds.batches(100, shuffle=False, decode_images=target)
    (tensor_batch,) = ds.to_tf(100, shuffle=False, decode_images=target)
    return [numpy_batch["image"], tensor_batch["image"].numpy()]


def decode_by_tensorflow(image: bytes, channels: int = 3) -> np.ndarray:
    """Returns the pixels as TensorFlow decodes them.

    JPEG is decoded with accurate arithmetic. That is the default of every other library, but not of
    TensorFlow.
    """
    import tensorflow as tf

    if image[:2] == b"\xff\xd8":
        return tf.io.decode_jpeg(image, channels, dct_method="INTEGER_ACCURATE").numpy()  # type: ignore[no-any-return]
    return tf.io.decode_png(image, channels).numpy()  # type: ignore[no-any-return]


def test_channels_first_moves_the_channel_axis(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    ds = image_set(tmp_path, photographs())
    channels_last, _ = decode_by_all_consumers(ds, Images(24, 32, scale=1 / 255))
    for half in decode_by_all_consumers(ds, Images(24, 32, scale=1 / 255, dtype="float16")):
        assert half.dtype == np.float16
        assert np.abs(half - channels_last).max() <= 5e-4
    target = Images(24, 32, scale=1 / 255, channels_first=True)
    dataset = open(tmp_path / "out", decode_images=target)
    assert dataset.schema["image"].shape == (3, 24, 32)
    for images in (*decode_by_all_consumers(ds, target), np.asarray(dataset["image"])):
        assert images.flags.c_contiguous
        assert np.array_equal(np.moveaxis(images, 1, 3)[4:], channels_last[4:])


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("antialias", [False, True])
def test_pixels_equal_those_of_tensorflow_for_every_consumer(
    ds: Dataset, channels: int, antialias: bool
) -> None:
    tf = pytest.importorskip("tensorflow")
    arrays, tensors = decode_by_all_consumers(ds, Images(24, 32, channels, antialias=antialias))
    assert arrays.shape == (len(SIZES), 24, 32, channels)
    assert np.array_equal(arrays, tensors)
    for row, image in enumerate(ds["image"].tolist()):
        # TensorFlow computes grey from colours in another way.
        if image is not None and channels == 3:
            pixels = tf.image.resize(
                decode_by_tensorflow(image, channels), [24, 32], antialias=antialias
            )
            assert np.array_equal(arrays[row], tf.round(pixels).numpy())
    assert not arrays[3].any()
    assert arrays[2].any()


@pytest.mark.parametrize("antialias", [False, True])
def test_normalized_pixels_equal_those_of_tensorflow(ds: Dataset, antialias: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    for channels, mean, std in ((3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)), (1, 0.5, 2)):
        target = Images(24, 32, channels, antialias, scale=1 / 255, mean=mean, std=std)
        arrays, tensors = decode_by_all_consumers(ds, target)
        assert arrays.dtype == np.float32
        assert np.array_equal(arrays, tensors)
        for row, image in enumerate(ds["image"].tolist()):
            if image is not None and channels == 3:
                pixels = tf.image.resize(decode_by_tensorflow(image), [24, 32], antialias=antialias)
                expected = (pixels.numpy() / np.float32(255) - np.float32(mean)) / np.float32(std)
                # The error is absolute. The values are up to 7.
                assert np.abs(arrays[row] - expected).max() <= 1e-5
        assert np.allclose(
            arrays[3], -np.broadcast_to(mean, channels) / np.broadcast_to(std, channels)
        )


def test_image_of_the_requested_size_is_not_resampled() -> None:
    pixels = np.asarray(picture())
    assert np.array_equal(
        decode_image(np.frombuffer(encode_image("PNG"), np.uint8), Images(17, 23)), pixels
    )


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WebP", "TIFF"])
def test_images_are_turned_upright_by_every_consumer(tmp_path: Path, name: str) -> None:
    pytest.importorskip("tensorflow")
    files, upright = [], []
    smooth = picture(size=(5, 4)).resize((23, 17), Image.Resampling.BICUBIC)
    for orientation in range(10):  # 0 and 9 are not valid
        exif = Image.Exif()
        exif[0x0112] = orientation
        options: dict[str, Any] = (
            {"tiffinfo": {0x0112: orientation}} if name == "TIFF" else {"exif": exif}
        )
        if name == "WebP":
            options |= {"lossless": True}
        files.append(encode_image(name, smooth, **options))
        with Image.open(io.BytesIO(files[-1])) as image:
            # Pillow turns TIFF when it loads the file, and all other formats in exif_transpose.
            image.load()
            upright.append(np.asarray(ImageOps.exif_transpose(image)))
    for is_wide in (True, False):
        rows = [
            row for row, pixels in enumerate(upright) if (pixels.shape == (17, 23, 3)) == is_wide
        ]
        assert rows
        ds = image_set(tmp_path / str(is_wide), [files[row] for row in rows])
        for images in decode_by_all_consumers(
            ds, Images(*((17, 23) if is_wide else (23, 17)), orientation=True)
        ):
            for pixels, row in zip(images, rows, strict=True):
                assert np.array_equal(pixels, upright[row]), row


@pytest.mark.parametrize("crop", [None, "center", RandomCrop((0.5, 1.0))])
def test_mask_without_exif_turns_with_its_photo(tmp_path: Path, crop: Any) -> None:
    pixels = np.kron(np.arange(48, dtype=np.uint8).reshape(6, 8) * 5, np.ones((8, 8), np.uint8))
    photos, masks = [], []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo = encode_image("PNG", Image.fromarray(pixels), exif=exif)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(photo)))
        photos += [photo] * 2
        # The first mask fits the stored photo, and the second one fits the upright photo.
        masks += [encode_image("PNG", Image.fromarray(pixels)), encode_image("PNG", upright)]
    # If the orientation swaps the sides, a mask with another size than the photo is already
    # upright.
    rows = [row for row in range(16) if row % 2 == 0 or row >= 8]
    ds = image_set(tmp_path, [photos[row] for row in rows], [masks[row] for row in rows])
    targets = {
        "image": Images(24, 20, 1, orientation=True, crop=crop),
        "mask": Images(24, 20, mask=True, orientation=True, crop=crop),
    }
    (batch,) = ds.batches(100, shuffle=False, epochs=1, decode_images=targets)
    differences = np.abs(batch["image"].astype(int) - batch["mask"]).mean((1, 2, 3))
    assert differences.max() < 8  # the photo is interpolated, and the mask is not
    uncropped = {name: replace(target, crop=None) for name, target in targets.items()}
    with pytest.raises(UsageError, match="'mask' is turned with its photo, which only batches"):
        open(tmp_path / "out", decode_images=uncropped).to_table()


def test_center_crop_keeps_the_aspect_ratio(ds: Dataset) -> None:
    keras = pytest.importorskip("keras")
    arrays, tensors = decode_by_all_consumers(ds, Images(20, 30, crop="center"))
    assert np.array_equal(arrays, tensors)
    for row, image in enumerate(ds["image"].tolist()):
        if image is None or SIZES[row] == (1, 1):
            continue
        expected = keras.preprocessing.image.smart_resize(decode_by_tensorflow(image), (20, 30))
        assert np.abs(arrays[row] - np.rint(expected)).max() <= 1


def test_large_jpeg_is_decoded_at_a_reduced_size(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    sides = ((400, 300), (333, 517), (64, 100), (63, 100), (128, 128), (127, 900))
    files: list[bytes | None] = [
        encode_image(
            "JPEG",
            picture(size=(9, 7), seed=i).resize((w, h), Image.Resampling.BICUBIC),
            quality=95,
        )
        for i, (h, w) in enumerate(sides)
    ]
    ds = image_set(tmp_path, files)
    for crop in (None, "center"):
        reference, *_ = decode_by_all_consumers(ds, Images(32, 32, antialias=True, crop=crop))
        arrays, tensors = decode_by_all_consumers(ds, Images(32, 32, shrink=True, crop=crop))
        assert np.array_equal(arrays, tensors)
        assert not np.array_equal(arrays, reference)
        assert np.abs(arrays.astype(int) - reference).mean() < 4  # of 255: the same pictures


def test_pixels_are_the_same_with_and_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    files = [file for file in photographs("JPEG") if file is not None]
    files += [data for name, (data, _) in samples().items() if name.startswith("jpeg")]
    targets = [
        Images(20, 30, channels, shrink=shrink)
        for channels in (1, 3, 4)
        for shrink in (False, True)
    ]
    fast = [
        decode_image(np.frombuffer(file, np.uint8), target) for file in files for target in targets
    ]
    monkeypatch.setattr(decode, "_import_simplejpeg", lambda: None)
    slow = [
        decode_image(np.frombuffer(file, np.uint8), target) for file in files for target in targets
    ]
    assert all(np.array_equal(first, second) for first, second in zip(fast, slow, strict=True))


def test_fast_dct_gives_the_default_pixels_of_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("simplejpeg")
    files = [encode_image("JPEG", picture(size=(48, 32), seed=i), quality=60) for i in range(4)]
    ds = image_set(tmp_path, [*files])
    expected = np.stack([tf.io.decode_jpeg(file).numpy() for file in files])
    for pixels in decode_by_all_consumers(ds, Images(dct="fast")):
        assert np.array_equal(pixels, expected)
    assert not np.array_equal(decode_by_all_consumers(ds, Images())[0], expected)
    with pytest.raises(UsageError, match="mask=True keeps values as they are"):
        Images(mask=True, dct="fast")
    monkeypatch.setattr("recordmill.reader.options.images.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match='dct="fast" needs simplejpeg'):
        Images(dct="fast")


def test_random_crops_depend_on_seed_epoch_and_record_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    pixels = np.stack(np.meshgrid(np.arange(64), np.arange(48), [7]), -1)[:, :, 0].astype(np.uint8)
    file = encode_image("PNG", Image.fromarray(pixels))
    ds = image_set(tmp_path, [file] * 40, [file] * 40)
    target = Images(8, 8, crop=RandomCrop((0.2, 0.5), (0.5, 2.0)))

    def parts(shuffle: Any, **options: Any) -> dict[tuple[int, int], bytes]:
        """Returns the pixels by (epoch, record)."""
        pixels_by_record: dict[tuple[int, int], bytes] = {}
        for step, batch in enumerate(
            ds.batches(10, shuffle=shuffle, epochs=2, decode_images=target, **options)
        ):
            # Both images of a record get the same crop.
            assert np.array_equal(batch["image"], batch["mask"])
            pixels_by_record |= {
                (step // 4, int(n)): image.tobytes()
                for n, image in zip(batch["n"], batch["image"], strict=True)
            }
        return pixels_by_record

    expected = parts(False, seed=3)
    assert expected == parts("global", seed=3) == parts("window", seed=3, memory_bytes=1)
    assert len(set(expected.values())) > 70  # there are 80
    assert expected != parts(False, seed=4)
    tensors = list(ds.to_tf(10, shuffle=False, seed=3, epochs=2, decode_images=target))
    for step, batch in enumerate(tensors):
        for n, image in zip(batch["n"].numpy(), batch["image"].numpy(), strict=True):
            assert image.tobytes() == expected[step // 4, int(n)]


def test_random_crops_have_the_requested_areas_and_ratios() -> None:
    from recordmill.reader.images.decode import choose_box

    target = Images(8, 8, crop=RandomCrop((0.2, 0.5), (0.5, 2.0)))
    boxes = [choose_box(300, 400, target, 5, number) for number in range(2000)]
    areas = np.array([box.height * box.width for box in boxes]) / (300 * 400)
    ratios = np.array([box.width / box.height for box in boxes])
    assert 0.19 < areas.min() < 0.21
    assert 0.49 < areas.max() < 0.51
    assert 0.49 < ratios.min() < 0.55
    assert 1.8 < ratios.max() < 2.05
    assert all(
        0 <= box.top <= 300 - box.height and 0 <= box.left <= 400 - box.width for box in boxes
    )
    assert {box.top == 0 for box in boxes} == {True, False}
    assert boxes[:2] == [(84, 152, 193, 203), (23, 115, 194, 285)]  # saved runs rely on these boxes
    strip = choose_box(1, 400, Images(8, 8, crop=RandomCrop((0.9, 1.0), (1.0, 1.0))), 5, 0)
    assert strip == (0, 199, 1, 1)  # no random box fits


def test_each_image_feature_has_its_own_size(tmp_path: Path) -> None:
    ds = image_set(tmp_path, photographs(), [encode_image("PNG", picture("L"))] * len(SIZES))
    (batch,) = ds.batches(
        100, shuffle=False, decode_images={"image": (6, 7), "mask": Images(3, 4, 1)}
    )
    assert batch["image"].shape == (len(SIZES), 6, 7, 3)
    assert batch["mask"].shape == (len(SIZES), 3, 4, 1)
    (batch,) = ds.batches(100, shuffle=False, decode_images={"mask": (3, 4)})
    assert isinstance(batch["image"][0], bytes)


def test_default_image_replaces_a_missing_one(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    ds = image_set(tmp_path, photographs())
    default_image = encode_image("PNG", picture())
    (batch,) = ds.to_tf(
        100, shuffle=False, decode_images=(17, 23), defaults={"image": default_image}
    )
    assert np.array_equal(batch["image"].numpy()[3], np.asarray(picture()))
    assert set(batch) == {"image", "n"}


def test_pixels_are_the_same_with_little_memory_and_one_thread(tmp_path: Path) -> None:
    ds = image_set(tmp_path, photographs() * 4)
    (expected,) = ds.batches(100, shuffle=False, decode_images=(9, 9))
    small_set = on_one_thread(ds)
    for dataset, options in (
        (ds, {"memory_bytes": 1}),
        (small_set, {}),
        (small_set, {"memory_bytes": 1}),
    ):
        parts = [
            batch["image"]
            for batch in dataset.batches(5, shuffle=False, decode_images=(9, 9), **options)
        ]
        assert np.array_equal(np.concatenate(parts), expected["image"])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda ds: ds.batches(8, decode_images=(3,)), "decode_images is"),
        (
            lambda ds: ds.batches(8, decode_images={"n": (3, 3)}),
            "'n' is not a selected bytes feature; there",
        ),
        (lambda ds: ds.batches(8, decode_images={"image": "224"}), "decode_images is"),
        (lambda ds: ds.batches(8, decode_images=Images(3, 3), channels=1), "Images"),
        (lambda ds: Images(3, 3, crop="middle"), "crop is"),
        (lambda ds: Images(3, 3, dtype="int8"), "dtype is"),
        (lambda ds: Images(3, 3, dtype="uint8", scale=2), "leave dtype out"),
        (lambda ds: Images(3, 3, mean=(1, 2)), "mean is a number or one per channel"),
        (lambda ds: Images(3, 3, scale=(1, 2, 3)), "scale is a number"),
        (lambda ds: Images(3, 3, scale=float("nan")), "scale is a number"),
        (lambda ds: Images(3, 3, std=(1, 0, 1)), "std must not be 0"),
        (lambda ds: RandomCrop((0, 1)), "area"),
        (lambda ds: RandomCrop((0.5, 0.4)), "area"),
        (lambda ds: RandomCrop((0.5, 1.1)), "area"),
        (lambda ds: RandomCrop(ratio=(2, 1)), "ratio"),
    ],
)
def test_meaningless_image_option_is_refused_by_name(
    tmp_path: Path, use: Any, message: str
) -> None:
    ds = image_set(tmp_path, photographs())
    with pytest.raises(UsageError, match=message):
        use(ds)


def test_every_image_format_decodes_alike_by_every_consumer(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    for channels in (1, 3, 4):
        files = {name: data for name, (data, _) in samples().items()}
        ds = image_set(tmp_path / str(channels), list(files.values()))
        arrays, tensors = decode_by_all_consumers(ds, Images(17, 23, channels))
        assert np.array_equal(arrays, tensors)


def test_bad_image_is_an_error_with_its_place_for_every_consumer(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    good = encode_image("JPEG")
    for number, damaged in enumerate(
        (good[:200], b"", b"no image at all", encode_image("PNG")[:200])
    ):
        ds = image_set(tmp_path / str(number), [good] * 5 + [damaged] + [good] * 4)
        place = r"train-00001-of-00002.tfrecord: record 0: feature 'image': "
        with pytest.raises(DataError, match=place):
            list(ds.batches(3, shuffle="global", decode_images=(4, 4)))
        with pytest.raises(tf.errors.InvalidArgumentError, match=place):
            list(ds.to_tf(3, decode_images=(4, 4)))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_images_of_other_projects_decode_alike_or_are_skipped_by_every_consumer(
    shared_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow")
    # The files of Pillow, and files with all orientations.
    paths = sorted((shared_data / "images").glob("torture-[pe]*/**/*"))
    files = [
        path.read_bytes() for path in paths if path.is_file() and path.stat().st_size < 1 << 21
    ]
    ds = image_set(tmp_path, files)
    for target in (
        Images(24, 24, orientation=True),
        Images(24, 24, 1),
        Images(24, 24, 4, antialias=True),
    ):
        options: dict[str, Any] = {
            "decode_images": {"image": target},
            "on_bad": "skip",
            "shuffle": False,
        }
        (arrays,), (tensors,) = ds.batches(1000, **options), ds.to_tf(1000, **options)
        assert 300 < len(arrays["n"]) < len(files)
        assert np.array_equal(arrays["n"], tensors["n"])
        assert np.array_equal(arrays["image"], tensors["image"])
