"""What NumPy batches can be given as: padded and dense lists, labels and weights, images of one size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import mixed_rows, write_data_set
from PIL import Image

from recordmill.base.errors import DataError, UsageError
from recordmill.reader import Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

ROWS = 50
TOKENS = [list(range(i % 4)) if i % 11 != 3 else [] for i in range(ROWS)]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open(write_data_set(tmp_path_factory.mktemp("forms") / "out", {"train": mixed_rows(ROWS)}, shards=2))


@pytest.mark.parametrize(
    ("how", "length"), [("padded", 3), (Padded(2, value=-1), 2), (Padded(multiple=8), 8), (Padded(5), 5)]
)
def test_lists_are_padded_and_their_true_lengths_told(ds: Dataset, how: Any, length: int) -> None:
    fill = how.value if isinstance(how, Padded) else 0
    at = 0
    for batch in ds.batches(20, shuffle=False, collate={"tokens": how}):
        rows = TOKENS[at : at + 20]
        at += 20
        assert batch["tokens"].tolist() == [(row + [fill] * length)[:length] for row in rows]
        assert batch["tokens/length"].tolist() == [len(row) for row in rows]


def test_lists_of_one_length_are_dense(ds: Dataset) -> None:
    for batch in ds.batches(1, shuffle=False, collate={"boxes": "dense", "tokens": "ragged"}):
        assert batch["boxes"].shape[0] == 1
        assert batch["boxes"].shape[2:] == (4,)
    with pytest.raises(DataError, match="'boxes' has rows of 0 to 2 items in one batch"):
        list(ds.batches(10, collate={"boxes": "dense"}))


def test_labels_and_weights_stand_beside_the_rest(ds: Dataset) -> None:
    x, y, weights = next(ds.batches(8, shuffle=False, label="label", weights="exact"))
    assert y.tolist() == [i % 3 for i in range(8)]
    assert weights.tolist() == [i + 1e-12 for i in range(8)]
    assert {"label", "exact"}.isdisjoint(x)
    x, y = next(Dataset(ds.catalog, ds.full_schema, ["matrix", "label"]).batches(8, shuffle=False, label="label"))
    assert x.shape == (8, 2, 3)
    with pytest.raises(DataError, match="maybe"):
        list(ds.batches(8, label="maybe"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "nope"}, "label 'nope' is no feature that is read"),
        ({"weights": "exact"}, "weights go with a label"),
        ({"collate": {"id": "padded"}}, "'id' is no list that is read; there are tokens, words, nested, boxes"),
        ({"collate": {"tokens": "packed"}}, "not 'packed'"),
        ({"decode_images": (0, 3)}, "at least 1"),
        ({"decode_images": (3, 3), "channels": 2}, "channels"),
        ({"decode_images": (3, 3)}, "no feature holds encoded images"),
    ],
)
def test_wrong_forms_are_named(ds: Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ds.batches(8, **options)


def test_padding_of_numbers_that_are_none() -> None:
    for options in ({"length": 0}, {"multiple": 0}, {"length": 3, "multiple": 2}):
        with pytest.raises(UsageError, match="Padded"):
            Padded(**options)


def picture(kind: str, pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def image_set(folder: Path, images: list[bytes | None]) -> Path:
    schema = Schema((Feature("image", "bytes"), Feature("n", "int64", (), True)))
    rows = [pa.array(images, pa.large_binary()), pa.array(range(len(images)))]
    return write_data_set(folder / "out", {"train": pa.table(rows, schema=to_arrow(schema))}, schema, shards=1)


def test_a_bad_image_is_an_error_that_says_where(tmp_path: Path) -> None:
    good = picture("PNG", np.zeros((4, 4, 3), np.uint8))
    out = image_set(tmp_path, [good] * 5 + [good[:50]] + [good] * 4)
    with pytest.raises(DataError, match=r"train-00000-of-00001.tfrecord: record 5: feature 'image': "):
        list(open(out).batches(3, shuffle="global", decode_images=(4, 4)))
