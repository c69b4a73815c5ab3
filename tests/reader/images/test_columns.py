"""Records with any number of images can be used for training.

An example is the frames of a robot's episode.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.data_sets import write_data_set
from kit.image_samples import encode_image, picture
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.reader import Images, RandomCrop
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.images.columns import estimate_row_bytes, resolve_image_targets
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Feature, Schema

LENGTHS = (3, 0, 2, 5, 1, 4)
SIZE = (12, 10)  # height, width


def frame(record: int, item: int, size: tuple[int, int] = SIZE) -> bytes:
    return encode_image("PNG", picture(size=(size[1], size[0]), seed=10 * record + item))


def frames() -> list[list[bytes]]:
    return [[frame(record, item) for item in range(n)] for record, n in enumerate(LENGTHS)]


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def make_set(folder: Path, images: list[list[bytes]], name: str = "frames") -> Dataset:
    schema = Schema((Feature(name, "bytes", (None,), True), Feature("n", "int64", (), True)))
    columns = {name: images, "n": range(len(images))}
    return open(write_data_set(folder / "out", {"train": columns}, schema))


@pytest.fixture
def episodes(tmp_path: Path) -> Dataset:
    return make_set(tmp_path, frames())


def check_lists(lists: Any, images: list[list[bytes]]) -> None:
    assert len(lists) == len(images)
    for record, expected in zip(lists, images, strict=True):
        assert record.shape == (len(expected), *SIZE, 3)
        for array, data in zip(record, expected, strict=True):
            assert np.array_equal(array, pixels(data))


@pytest.mark.parametrize("spec", [True, SIZE, {"frames": True}])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_have_ragged_images(tmp_path: Path, spec: Any, threads: int) -> None:
    make_set(tmp_path, frames())
    dataset = open(tmp_path / "out", threads=threads)
    images = frames()
    batches = list(dataset.batches(4, shuffle=False, epochs=1, decode_images=spec))
    assert [len(batch["n"]) for batch in batches] == [4, 2]
    for batch in batches:
        assert isinstance(batch["frames"], Ragged)
        check_lists(batch["frames"], [images[n] for n in batch["n"]])


def test_shuffled_images_stay_with_their_record(episodes: Dataset) -> None:
    images = frames()
    for batch in episodes.batches(2, shuffle=True, seed=3, epochs=2, decode_images=True):
        check_lists(batch["frames"], [images[n] for n in batch["n"]])


def test_padded_images_are_zero_after_the_last_one(episodes: Dataset) -> None:
    collate = {"frames": recordmill.Padded(lengths=True)}
    (batch,) = episodes.batches(6, shuffle=False, epochs=1, decode_images=True, collate=collate)
    assert batch["frames"].shape == (6, 5, *SIZE, 3)
    assert batch["frames"].dtype == np.uint8
    assert batch["frames/length"].tolist() == list(LENGTHS)
    for array, expected in zip(batch["frames"], frames(), strict=True):
        check_lists([array[: len(expected)]], [expected])
        assert not array[len(expected) :].any()


def test_bucketed_images_are_padded_in_their_step(episodes: Dataset) -> None:
    collate = {"frames": recordmill.Bucketed(steps=3)}
    images = frames()
    for batch in episodes.batches(2, shuffle=False, epochs=1, decode_images=True, collate=collate):
        for n, array in zip(batch["n"], batch["frames"], strict=True):
            check_lists([array[: LENGTHS[n]]], [images[n]])


@pytest.mark.parametrize("collate", [None, "padded"])
@pytest.mark.parametrize("batch_size", [4, 6])
def test_tensorflow_gets_the_images_of_numpy(
    episodes: Dataset, collate: str | None, batch_size: int
) -> None:
    tf = pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "decode_images": True}
    if collate is not None:
        options["collate"] = {"frames": collate}
    tensors = episodes.to_tf(batch_size, **options)
    shape = [None, None, *SIZE, 3]
    assert tensors.element_spec["frames"].shape.as_list() == shape
    assert tensors.element_spec["frames"].dtype == tf.uint8
    arrays = episodes.batches(batch_size, **options)
    for batch, expected in zip(tensors, arrays, strict=True):
        if collate is None:
            check_lists(
                [row.numpy() for row in batch["frames"]], [frames()[n] for n in batch["n"].numpy()]
            )
        else:
            assert np.array_equal(batch["frames"].numpy(), expected["frames"])


def test_keras_gets_padded_images(episodes: Dataset) -> None:
    pytest.importorskip("keras")
    data = episodes.to_keras(
        3, shuffle=False, label="n", decode_images=SIZE, collate={"frames": recordmill.Padded(5)}
    )
    x, _ = data[0] if hasattr(data, "__getitem__") else next(iter(data))
    assert tuple(x.shape) == (3, 5, *SIZE, 3)


@pytest.mark.parametrize("channels_first", [False, True])
def test_an_opened_data_set_has_the_shape_of_the_images(
    tmp_path: Path, channels_first: bool
) -> None:
    make_set(tmp_path, frames())
    target = Images(*SIZE, channels_first=channels_first)
    dataset = open(tmp_path / "out", decode_images=target)
    shape = (3, *SIZE) if channels_first else (*SIZE, 3)
    assert dataset.schema["frames"].describe() == f"uint8 [?, {', '.join(map(str, shape))}]"
    records = [dataset[number]["frames"] for number in range(len(dataset))]
    assert [record.shape for record in records] == [(n, *shape) for n in LENGTHS]
    table = dataset.take(list(range(len(LENGTHS))))["frames"].to_pylist()
    taken_rows = [np.array(row, np.uint8).reshape(-1, *shape) for row in table]
    for column in (dataset["frames"], taken_rows, records):
        rows = [np.moveaxis(row, 1, 3) if channels_first else row for row in column]
        check_lists(rows, frames())


def test_images_are_resized_like_single_ones(tmp_path: Path) -> None:
    images = [[frame(0, 0), frame(0, 1, (40, 20))], [frame(1, 0, (7, 9))]]
    dataset = make_set(tmp_path / "lists", images)
    schema = Schema((Feature("image", "bytes", (), True),))
    singles = open(
        write_data_set(tmp_path / "single", {"train": {"image": [*images[0], *images[1]]}}, schema)
    )
    target = Images(16, 8, antialias=True, scale=1 / 255, crop="center", shrink=True)
    (lists,) = dataset.batches(2, shuffle=False, epochs=1, decode_images=target)
    (expected,) = singles.batches(3, shuffle=False, epochs=1, decode_images=target)
    assert np.array_equal(lists["frames"].values, expected["image"])


def test_all_images_of_a_record_get_one_random_crop(tmp_path: Path) -> None:
    image = frame(0, 0, (64, 48))
    dataset = make_set(tmp_path, [[image] * 4, [image] * 4])
    target = Images(16, 16, crop=RandomCrop(), flip=True)
    (batch,) = dataset.batches(2, shuffle=False, epochs=1, decode_images=target)
    first, second = batch["frames"]
    assert all(np.array_equal(array, first[0]) for array in first)
    assert not np.array_equal(first[0], second[0])


def test_orientation_applies_to_each_image(tmp_path: Path) -> None:
    image = Image.open(io.BytesIO(frame(0, 0)))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    dataset = make_set(tmp_path, [[file.getvalue(), frame(0, 1)]])
    (batch,) = dataset.batches(1, shuffle=False, epochs=1, decode_images=Images(orientation=True))
    assert np.array_equal(batch["frames"][0][0], pixels(frame(0, 0)))
    assert np.array_equal(batch["frames"][0][1], pixels(frame(0, 1)))


def test_another_size_is_an_error_that_names_the_record_and_both_sizes(tmp_path: Path) -> None:
    images = frames()
    images[3][2] = frame(3, 2, (11, 10))
    dataset = make_set(tmp_path, images)
    message = "image 2 of its list: 11 x 10 pixels where the first image has 12 x 10"
    with pytest.raises(DataError, match=message) as error:
        list(dataset.batches(2, shuffle=False, epochs=1, decode_images=True))
    # This is the fourth record of the data set.
    assert error.value.source.endswith("train-00001-of-00002.tfrecord")
    assert error.value.place.startswith("record 0")
    with pytest.raises(DataError, match=message):
        _ = open(tmp_path / "out", decode_images=True)["frames"]


def test_a_damaged_image_is_an_error_that_names_its_record(tmp_path: Path) -> None:
    images = frames()
    images[2][1] = images[2][1][:-20]
    dataset = make_set(tmp_path, images)
    for load in (
        lambda: list(dataset.batches(3, shuffle=False, epochs=1, decode_images=SIZE)),
        lambda: open(tmp_path / "out", decode_images=SIZE)["frames"],
    ):
        with pytest.raises(DataError, match="'frames': image 1 of its list: ") as error:
            load()
        assert "record 2" in str(error.value)


def test_a_record_with_damaged_images_is_skipped_once(tmp_path: Path) -> None:
    images = frames()
    images[2] = [b"no image", images[2][1][:-20]]
    dataset = make_set(tmp_path, images)
    batches = dataset.batches(
        2, shuffle=False, epochs=1, decode_images=SIZE, on_bad="skip", drop_remainder=False
    )
    with pytest.warns(UserWarning, match="1 of 6 records was skipped"):
        result = list(batches)
    assert batches.skipped == 1
    assert [n for batch in result for n in batch["n"].tolist()] == [0, 1, 3, 4, 5]
    for batch in result:
        check_lists(batch["frames"], [frames()[n] for n in batch["n"]])


def test_size_is_that_of_the_first_image_if_the_first_records_have_no_image(
    tmp_path: Path,
) -> None:
    images = [[], [], [frame(2, 0)]]
    dataset = make_set(tmp_path, images)
    (batch,) = dataset.batches(3, shuffle=False, epochs=1, decode_images={"frames": True})
    check_lists(batch["frames"], images)


def test_a_size_is_needed_if_the_first_records_have_no_images(tmp_path: Path) -> None:
    images: list[list[bytes]] = [[] for _ in range(20)]
    dataset = make_set(tmp_path, images)
    with pytest.raises(UsageError, match=r"size of 'frames' is unknown.*give \(height, width\)"):
        dataset.batches(2, decode_images={"frames": True})
    batches = dataset.batches(
        20, shuffle=False, epochs=1, decode_images={"frames": SIZE}, collate="padded"
    )
    (batch,) = batches
    assert batch["frames"].shape == (20, 0, *SIZE, 3)


def test_the_memory_of_a_record_counts_all_of_its_images(episodes: Dataset) -> None:
    targets = resolve_image_targets(episodes.records, Images(100, 50))
    assert estimate_row_bytes(episodes.records, targets) == max(LENGTHS) * 100 * 50 * 3


def test_lists_of_fixed_length_are_refused(tmp_path: Path) -> None:
    schema = Schema((Feature("frames", "bytes", (2,), True),))
    columns = {"frames": [[frame(0, 0), frame(0, 1)]]}
    dataset = open(write_data_set(tmp_path / "out", {"train": columns}, schema))
    with pytest.raises(
        UsageError, match=r"is bytes \[2\], neither a single bytes value nor a list"
    ):
        dataset.batches(1, decode_images={"frames": True})


def test_boxes_do_not_move_with_a_list_of_images(tmp_path: Path) -> None:
    edges = [f"image/object/bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax")]
    schema = Schema(
        (
            Feature("image/encoded", "bytes", (None,), True),
            *(Feature(name, "float32", (None,)) for name in edges),
        )
    )
    columns = {"image/encoded": [[frame(0, 0)]]} | {name: [[0.5]] for name in edges}
    dataset = open(write_data_set(tmp_path / "out", {"train": columns}, schema))
    with pytest.raises(UsageError, match="boxes do not move with one of them"):
        dataset.batches(1, decode_images=Images(8, 8, crop="center"))
    assert next(dataset.batches(1, decode_images=SIZE))["image/encoded"].values.shape[0] == 1
