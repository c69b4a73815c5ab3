"""The conversions of `open` apply to every consumer.

The conversions are `decode_raw`, `reshape`, `pad` and `decode_images`.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set
from kit.image_samples import encode_image, picture
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.mixture import mixture
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Feature, Schema

ROWS = 60
RNG = np.random.default_rng(5)
DEPTH = RNG.random((ROWS, 2, 3)).astype(np.float32)
BOXES = [RNG.integers(-9, 9, (i % 4, 4)).astype(np.int16) for i in range(ROWS)]
CONVERSIONS: dict[str, Any] = {
    "decode_raw": {"depth": ">float32[6]", "boxes": "int16[-1,4]"},
    "reshape": {"depth": [2, 3]},
}
CONVERSION_TEXTS: dict[str, Any] = {
    "decode_raw": ["depth=>float32[6]", "boxes=int16[-1,4]"],
    "reshape": "depth=[2,3]",
}
IMAGES = recordmill.Images(5, 7, scale=1 / 255)


def _png(row: int) -> bytes:
    return encode_image("PNG", picture(size=(11, 9), seed=row))


TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "depth": pa.array([array.astype(">f4").tobytes() for array in DEPTH], pa.binary()),
        "boxes": pa.array(
            [None if i == 3 else box.tobytes() for i, box in enumerate(BOXES)], pa.binary()
        ),
        "image": pa.array([_png(i) for i in range(ROWS)], pa.binary()),
    }
)
SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("depth", "bytes", (), True),
        Feature("boxes", "bytes"),
        Feature("image", "bytes", (), True),
    )
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("decoded") / "out", {"train": TABLE}, SCHEMA, shards=2
    )


def _check_boxes(boxes: Any, ids: list[int]) -> None:
    assert isinstance(boxes, Ragged)
    for box, row in zip(boxes, ids, strict=True):
        assert row == 3 or np.array_equal(box, BOXES[row])


@pytest.mark.parametrize("conversions", [CONVERSIONS, CONVERSION_TEXTS], ids=["mapping", "as read"])
def test_decoded_arrays_are_the_same_for_every_consumer(
    out: Path, tmp_path: Path, conversions: dict[str, Any]
) -> None:
    ds = recordmill.open(out, columns=["id", "depth", "boxes"], threads=2, **conversions)
    assert (ds.schema["depth"].describe(), ds.schema["boxes"].describe()) == (
        "float32 [2, 3]",
        "int16 [?, 4]",
    )
    assert ds.full_schema["depth"].describe() == "bytes"
    for view in (
        ds,
        pickle.loads(pickle.dumps(ds)),
        ds.filter("id % 3 = 0 and octet_length(depth) = 24"),
    ):
        ids = view["id"].tolist()
        columns = view.to_numpy()
        np.testing.assert_array_equal(columns["depth"], DEPTH[ids])
        np.testing.assert_array_equal(view["depth"], DEPTH[ids])
        _check_boxes(columns["boxes"], ids)
        np.testing.assert_array_equal(view[1]["depth"], DEPTH[ids[1]])
        np.testing.assert_array_equal(view.__getitems__([4, 2])[1]["depth"], DEPTH[ids[2]])
        assert view.take([4, 0]).equals(
            pa.concat_tables([view.to_table(4, 5), view.to_table(0, 1)])
        )
        assert view.head(3).equals(view[:3])
        assert sum(batch.num_rows for batch in view.to_batches(7)) == len(ids)
    np.testing.assert_array_equal(ds.rename({"depth": "d"}).select(["d"])["d"], DEPTH)
    np.testing.assert_array_equal(ds.filter([5, 7])["depth"], DEPTH[[5, 7]])
    np.testing.assert_array_equal(ds.to_npy(tmp_path / "npy")["depth"], DEPTH)
    assert pq.read_table(ds.to_parquet(tmp_path / "x.parquet")).num_rows == ROWS
    for batch in ds.batches(16, shuffle="global"):
        np.testing.assert_array_equal(batch["depth"], DEPTH[batch["id"]])
        _check_boxes(batch["boxes"], batch["id"].tolist())
    padded = next(
        ds.rename({"boxes": "b"}).batches(8, shuffle=False, collate={"b": recordmill.Padded(3)})
    )
    np.testing.assert_array_equal(padded["b"][2, :2], BOXES[2])


def test_lists_have_the_requested_form(tmp_path: Path) -> None:
    rows = mixed_rows(ROWS)
    out = write_data_set(tmp_path / "lists", {"train": rows}, shards=2)
    expected = [None if row is None else (row + [-1] * 3)[:3] for row in rows["tokens"].to_pylist()]
    for conversions in (
        {"pad": {"tokens": "3:-1"}, "ragged": ["id"]},
        {"pad": "tokens=3:-1", "ragged": "id"},
    ):
        ds = recordmill.open(out, columns="id,tokens", **conversions)
        assert (ds.schema["id"].describe(), ds.schema["tokens"].describe()) == (
            "int64 [?]",
            "int32 [3]",
        )
        assert ds.to_table()["tokens"].to_pylist() == expected
        assert ds[4]["id"].tolist() == [4]
        batch = next(ds.batches(8, shuffle=False))
        assert batch["id"].to_list() == [[row] for row in range(8)]
        assert batch["tokens"].tolist()[4:8] == expected[4:8]
    for conversions, message in [
        ({"pad": "tokens"}, "FEATURE=LENGTH:VALUE"),
        ({"pad": "tokens=3:0", "ragged": "tokens"}, "padded or made ragged twice"),
        ({"pad": "nested=3:0"}, "lists of lists"),
    ]:
        with pytest.raises(UsageError, match=message):
            recordmill.open(out, **conversions)
    with pytest.raises(DataError, match="3 items, more than the length of 2"):
        recordmill.open(out, pad="tokens=2:0").to_table()


def test_class_names_are_the_same_for_every_consumer(tmp_path: Path) -> None:
    names, labels = ("ash", "béech", "cedar"), [None if i == 3 else i % 3 for i in range(ROWS)]
    tags = [[2, 0][: i % 3] for i in range(ROWS)]
    table = pa.table(
        {"id": pa.array(range(ROWS)), "label": labels, "tags": pa.array(tags, pa.list_(pa.int64()))}
    )
    features = (Feature("id", "int64"), Feature("label", "int64", (), False, names))
    schema = Schema((*features, Feature("tags", "int64", (None,), True, names)), "label")
    out = write_data_set(tmp_path / "out", {"train": table}, schema, shards=2)
    label = [None if number is None else names[number] for number in labels]
    words = [[names[number] for number in row] for row in tags]
    ds = recordmill.open(out, class_names=True)
    assert [feature.describe() for feature in ds.schema] == ["int64", "string", "string [?]"]
    assert ds.to_table().to_pydict() == {"id": [*range(ROWS)], "label": label, "tags": words}
    for view in (pickle.loads(pickle.dumps(ds)), ds.rename({"label": "kind"}).filter("id > 9")):
        rows = [label[i] for i in view["id"]]
        assert view.select([view.schema.names[1]]).to_table().column(0).to_pylist() == rows
        assert view[2][view.schema.names[1]] == rows[2]
    batch = next(ds.batches(ROWS, shuffle=False, on_bad="skip"))
    assert batch["label"].tolist() == label
    assert [[*row] for row in batch["tags"].to_list()] == words
    batch = next(iter(ds.filter("id > 3").to_tf(8, shuffle=False)))
    assert [text.decode() for text in batch["label"].numpy()] == [
        label[i] for i in batch["id"].numpy()
    ]
    counts = {name: label.count(name) for name in names}
    assert ds.class_weights() == {name: (ROWS - 1) / (3 * count) for name, count in counts.items()}
    assert recordmill.read(out, tmp_path / "id", columns="id", class_names=True).schema.names == (
        "id",
    )
    recordmill.read(out, tmp_path / "table", class_names=True)
    assert pq.read_table(tmp_path / "table").to_pydict() == ds.to_table().to_pydict()
    assert recordmill.open(out).fingerprint != ds.fingerprint
    with pytest.raises(UsageError, match="class_names=: no feature of the schema has class names"):
        recordmill.open(
            write_data_set(tmp_path / "none", {"train": TABLE}, SCHEMA), class_names=True
        )
    short_schema = Schema(
        (*features[:1], Feature("label", "int64", (), False, names[:2]), schema["tags"]), "label"
    )
    with pytest.raises(DataError, match="no class has the number 2"):
        recordmill.open(out, schema=short_schema, class_names=True).to_table()


def test_conversions_are_part_of_fingerprint_and_state(out: Path) -> None:
    plain, raw = recordmill.open(out), recordmill.open(out, **CONVERSIONS)
    images, other_images = (
        recordmill.open(out, decode_images=(5, 7)),
        recordmill.open(out, decode_images=(5, 8)),
    )
    fingerprints = {dataset.fingerprint for dataset in (plain, raw, images, other_images)}
    assert len(fingerprints) == 4
    assert (
        raw.fingerprint
        == recordmill.open(out, **CONVERSION_TEXTS).fingerprint
        == raw.select(["id"]).fingerprint
    )
    for dataset in (raw, images):
        state = dataset.batches(8, shuffle=False).state()
        assert dataset.batches(8, shuffle=False, state=state).state() == state
        with pytest.raises(UsageError, match="another data set"):
            plain.batches(8, state=state)


def test_decoded_images_are_the_same_for_every_consumer(out: Path, tmp_path: Path) -> None:
    plain = recordmill.open(out, columns="id,image", threads=2)
    expected = np.concatenate(
        [batch["image"] for batch in plain.batches(ROWS, shuffle=False, decode_images=IMAGES)]
    )
    for option in (IMAGES, {"image": IMAGES}):
        ds = recordmill.open(out, columns="id,image", threads=2, decode_images=option)
        assert ds.schema["image"].describe() == "float32 [5, 7, 3]"
        for view in (
            ds,
            pickle.loads(pickle.dumps(ds)),
            ds.filter(pc.field("id") > 20),
            ds.filter(range(9)),
        ):
            ids = view["id"].tolist()
            np.testing.assert_array_equal(view["image"], expected[ids])
            np.testing.assert_array_equal(view[2]["image"], expected[ids[2]])
            assert view.take([3, 1]).equals(
                pa.concat_tables([view.to_table(3, 4), view.to_table(1, 2)])
            )
            for batch in view.batches(16, shuffle=True):
                np.testing.assert_array_equal(batch["image"], expected[batch["id"]])
    renamed = ds.rename({"image": "pixels"}).select(["pixels"])
    np.testing.assert_array_equal(next(renamed.batches(4, shuffle=False))["pixels"], expected[:4])
    np.testing.assert_array_equal(renamed.to_npy(tmp_path / "npy")["pixels"], expected)
    assert next(ds.batches(4, shuffle=False, decode_images=(3, 3)))["image"].shape == (4, 3, 3, 3)
    assert next(ds.select(["id"]).batches(4, shuffle=False)).keys() == {"id"}
    mix = mixture([(ds.filter(range(30)), 1), (ds.filter(range(30, 60)), 1)])
    batch = next(mix.batches(8, shuffle=False))
    np.testing.assert_array_equal(batch["image"], expected[batch["id"]])
    with pytest.raises(UsageError, match="different decode_images"):
        mixture(
            [
                (ds, 1),
                (
                    recordmill.open(
                        out, columns="id,image", decode_images=recordmill.Images(5, 7, scale=2)
                    ),
                    1,
                ),
            ]
        )
    cropped = recordmill.open(
        out, decode_images=recordmill.Images(5, 7, crop=recordmill.RandomCrop())
    )
    assert next(cropped.batches(4, shuffle=False))["image"].shape == (4, 5, 7, 3)
    with pytest.raises(UsageError, match="cropped or flipped at random"):
        cropped.head()
    assert cropped["id"].tolist() == list(range(ROWS))


def test_images_of_one_size_need_no_size(out: Path, tmp_path: Path) -> None:
    plain = recordmill.open(out, columns="id,image")
    (expected,) = plain.batches(ROWS, shuffle=False, decode_images=(9, 11))
    for option in (True, {"image": True}, recordmill.Images()):
        ds = recordmill.open(out, columns="id,image", decode_images=option)
        assert ds.schema["image"].describe() == "uint8 [9, 11, 3]"
        np.testing.assert_array_equal(ds["image"], expected["image"])
        (batch,) = plain.batches(ROWS, shuffle=False, decode_images=option)
        np.testing.assert_array_equal(batch["image"], expected["image"])
    assert (
        ds.fingerprint
        == recordmill.open(out, columns="id,image", decode_images=(9, 11)).fingerprint
    )
    assert next(plain.batches(4, decode_images=True, channels=1))["image"].shape == (4, 9, 11, 1)
    images = [*TABLE["image"].to_pylist()[1:], encode_image("PNG", Image.new("RGB", (4, 5)))]
    table = TABLE.set_column(3, "image", pa.array(images, pa.binary()))
    mixed_sizes = recordmill.open(
        write_data_set(tmp_path / "sizes", {"train": table}, SCHEMA, shards=2), columns="id,image"
    )
    with pytest.raises(DataError, match=r"'image'.* 5 x 4 pixels where the first image has 9 x 11"):
        list(mixed_sizes.batches(16, decode_images=True))
    with pytest.raises(UsageError, match="at least 1, not 0, 5"):
        recordmill.Images(0, 5)


def test_to_tf_applies_the_conversions_of_open(out: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    ds = recordmill.open(out, threads=2, decode_images={"image": (5, 7)}, **CONVERSIONS).rename(
        {"depth": "d"}
    )
    pixels = ds.to_numpy()["image"]
    count = 0
    for x in ds.to_tf(16, shuffle=False):
        ids = x["id"].numpy()
        np.testing.assert_array_equal(x["d"].numpy(), DEPTH[ids])
        assert x["boxes"].dtype == tf.int16
        for boxes, row in zip(x["boxes"], ids.tolist(), strict=True):
            np.testing.assert_array_equal(
                boxes.numpy(), BOXES[row] if row != 3 else np.empty((0, 4))
            )
        np.testing.assert_allclose(x["image"].numpy().astype(int), pixels[ids], atol=1)
        count += len(ids)
    assert count == ROWS
    lists = recordmill.open(
        out, decode_raw={"boxes": "int16[-1]"}, reshape={"boxes": [-1, 2, 2]}, columns=["boxes"]
    )
    assert next(iter(lists.to_tf(4, shuffle=False)))["boxes"][1].shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("conversions", "message"),
    [
        ({"decode_raw": {"depth": "floot32"}}, "decode_raw.*a dtype is one of bool.*float32"),
        ({"decode_raw": {"dpth": "float32[6]"}}, "no feature 'dpth' to convert.*did you mean"),
        ({"decode_raw": "id=float32"}, '^decode_raw="id": it is int64; only a single bytes value'),
        ({"decode_raw": ["depth=int8", "depth=int16"]}, "'depth' is to be decoded twice"),
        ({"decode_raw": {"depth": 4}}, "decode_raw.*a text such as"),
        ({"decode_raw": 5}, "decode_raw.*a list of them, or a dict of texts by feature, not 5"),
        ({"reshape": {"id": [2]}}, "^reshape.*id.*: it is int64, which does not fit"),
        ({"decode_images": {"id": (2, 2)}}, "'id' is not a selected bytes feature; there are"),
        ({"decode_images": "image"}, "decode_images is .height, width., True"),
        (
            {"decode_raw": "image=uint8[-1]", "decode_images": {"image": (2, 2)}},
            "'image' is uint8 ...; only a single",
        ),
    ],
)
def test_impossible_conversion_is_refused_by_open(
    out: Path, conversions: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.open(out, **conversions)


OUTPUTS: dict[str, Any] = {
    "to_numpy": lambda ds: ds.to_numpy(),
    "getitem": lambda ds: ds[41],
    "take": lambda ds: ds.take([41, 2]),
    "far": lambda ds: ds.take([0, 20, 41]),
    "filtered": lambda ds: ds.filter("id > 35").to_table(),
    "batches": lambda ds: list(ds.batches(8, shuffle=True)),
}


@pytest.mark.parametrize("consumer", OUTPUTS)
def test_value_that_does_not_fit_is_an_error_with_its_place(tmp_path: Path, consumer: str) -> None:
    raw = TABLE.column("depth").to_pylist()
    raw[41] = raw[41][:-1]
    table = TABLE.select(["id"]).append_column("depth", pa.array(raw, pa.binary()))
    out = write_data_set(tmp_path / "out", {"train": table}, Schema(SCHEMA.features[:2]), shards=1)
    shard = next((out / FOLDER).glob("train-*"))
    ds = recordmill.open(out, **{**CONVERSIONS, "decode_raw": {"depth": "float32[6]"}})
    with pytest.raises(
        DataError, match=r"feature 'depth': 23 bytes, which is not float32 \[6\]"
    ) as error:
        OUTPUTS[consumer](ds)
    assert shard.name in str(error.value)
    assert "record 41" in str(error.value)
    with pytest.warns(UserWarning, match="1 of 60 records was skipped"):
        record_ids = [
            i for batch in ds.batches(8, shuffle=False, on_bad="skip") for i in batch["id"].tolist()
        ]
    assert record_ids == [i for i in range(ROWS) if i != 41]


def test_condition_sees_values_before_they_are_decoded(tmp_path: Path) -> None:
    rows = pa.table({"raw": [np.arange(3, dtype=np.float32).tobytes()] * 4, "n": [1, 2, 3, 4]})
    recordmill.build(rows, tmp_path / "out", shuffle=False)
    pattern = (
        r"{}raw\[1\] > 3{}: .*[^.]\. Conditions use 'raw' as stored, not decoded\. "
        r"To .*ds\.filter\(record_numbers\)\."
    )
    with pytest.raises(UsageError, match=pattern.format('where="', '"')):
        recordmill.open(tmp_path / "out", decode_raw={"raw": "float32[3]"}, where="raw[1] > 3")
    ds = recordmill.open(tmp_path / "out", decode_raw={"raw": "float32[3]"})
    with pytest.raises(UsageError, match=pattern.format("filter: ", "")):
        len(ds.filter("raw[1] > 3"))
    view = ds.filter(np.flatnonzero(ds.to_numpy()["n"] > 2))
    assert view.to_numpy()["raw"].tolist() == [[0, 1, 2]] * 2
