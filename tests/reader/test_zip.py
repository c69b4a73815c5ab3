"""`zip` joins data sets of the same records for every output.

It refuses data sets that do not fit.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kit.image_samples import encode_image

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset

ROWS = 500


def build(out: Path, columns: dict[str, object], **options: object) -> Dataset:
    recordmill.build(pa.table(columns), str(out), key="id", seed=5, **options)
    return recordmill.open(str(out), threads=2)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Two builds with the same key, but with different shards and compression."""
    folder, ids = tmp_path_factory.mktemp("sets"), np.arange(ROWS)
    left = {"id": ids, "maybe": [None if n % 3 == 0 else n / 4 for n in range(ROWS)], "y": ids % 2}
    right = {"id": ids, "double": ids * 2, "words": [list(range(n % 4)) for n in range(ROWS)]}
    left_set = build(folder / "left", left, label="y", num_shards=3)
    return [left_set, build(folder / "right", right, num_shards=2, compression="gzip").drop(["id"])]


@pytest.fixture(scope="module")
def zipped(sets: list[Dataset]) -> recordmill.reader.zip.Zip:
    return recordmill.zip(sets)


def test_zip_has_the_columns_of_all_data_sets(
    sets: list[Dataset], zipped: recordmill.reader.zip.Zip
) -> None:
    table = zipped.to_table()
    assert table.column_names == ["id", "maybe", "y", "double", "words"]
    for part in sets:
        assert table.select(part.columns).equals(part.to_table())
    assert len(zipped) == ROWS
    assert zipped["double"].tolist() == (2 * zipped["id"]).tolist()
    assert zipped[-1]["id"] == zipped.__getitems__([ROWS - 1])[0]["id"] == table["id"][-1].as_py()
    assert zipped[7]["double"] == 2 * zipped[7]["id"] == 2 * int(table["id"][7].as_py())
    assert zipped[5:9].equals(table.slice(5, 4))
    assert zipped[[9, 3, 9]].equals(table.take([9, 3, 9]))
    assert zipped[["double", "id"]].head(3).equals(table.select(["double", "id"]).slice(0, 3))


@pytest.mark.parametrize("shuffle", [False, "window", "global"])
def test_batches_of_a_zip_keep_records_together(
    sets: list[Dataset], zipped: recordmill.reader.zip.Zip, shuffle: str | bool
) -> None:
    options = {"shuffle": shuffle, "seed": 3, "collate": "padded"}
    batches = list(pickle.loads(pickle.dumps(zipped)).batches(64, **options))
    assert sorted(np.concatenate([batch["id"] for batch in batches]).tolist()) == list(range(ROWS))
    for batch in batches:
        assert batch["double"].tolist() == (2 * batch["id"]).tolist()
        assert (batch["words"].max(1) == np.maximum(batch["id"] % 4 - 1, 0)).all()
    run = zipped.batches(64, **options)
    next(run)
    resumed = next(zipped.batches(64, **options, state=run.state()))
    assert resumed["id"].tolist() == batches[1]["id"].tolist()
    bucketed = zipped.batches(50, shuffle=shuffle, collate={"words": recordmill.Bucketed()})
    assert sum(len(batch["id"]) for batch in bucketed) == ROWS


def test_to_tf_of_a_zip_keeps_records_together(zipped: recordmill.reader.zip.Zip) -> None:
    pytest.importorskip("tensorflow")
    for x, y in zipped.to_tf(64, seed=3, label=True):
        assert (x["double"].numpy() == 2 * x["id"].numpy()).all()
        assert (y.numpy() == x["id"].numpy() % 2).all()


def test_to_torch_of_a_zip_keeps_records_together(zipped: recordmill.reader.zip.Zip) -> None:
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(
        zipped[["id", "double"]].to_torch(64, seed=3), batch_size=None, num_workers=2
    )
    assert sum(int((batch["double"] == 2 * batch["id"]).sum()) for batch in loader) == ROWS


def test_data_sets_that_do_not_fit_are_not_zipped(
    tmp_path: Path, sets: list[Dataset], zipped: recordmill.reader.zip.Zip
) -> None:
    left, right = sets
    short_set = build(tmp_path / "short", {"id": np.arange(9), "z": np.arange(9)}).select(["z"])
    reordered_set = build(
        tmp_path / "other", {"id": np.arange(ROWS) + 1, "z": np.arange(ROWS)}
    ).select(["z"])
    for data_sets, message in [
        ([left], "two or more data sets"),
        ([left, zipped], "two or more data sets"),
        ([left, short_set], "data set 0 has 500 records, and data set 1 has 9"),
        (
            [left, right, reordered_set],
            "data sets 0 and 2 are not in the same order: record [0-9]+ has another key",
        ),
        ([left, left], "'id' is a feature of two data sets"),
        ([left, right.filter("double > 3")], "records of data set 1 were selected"),
    ]:
        with pytest.raises(UsageError, match=message):
            recordmill.zip(data_sets)
    with pytest.raises(UsageError, match="on_bad"):
        zipped.batches(64, on_bad="skip")
    with pytest.raises(UsageError, match="a mixture takes"):
        recordmill.mixture([(zipped, 1)])


def test_undecodable_image_of_a_zip_is_named_by_its_own_file(tmp_path: Path) -> None:
    images = [encode_image("PNG")] * 9 + [b"no image"]
    left = build(tmp_path / "left", {"id": range(10)}, num_shards=3)
    right = build(
        tmp_path / "right", {"id": range(10), "image": pa.array(images, pa.binary())}, num_shards=2
    )
    zipped = recordmill.zip([left, right.drop(["id"])])
    with pytest.raises(DataError, match="feature 'image'") as error:
        list(zipped.batches(4, shuffle=False, decode_images=(4, 4)))
    (file,) = [
        path for path in (tmp_path / "right").rglob("*.tfrecord") if str(path) == error.value.source
    ]
    records = list(recordmill.open([str(file)]).to_table()["image"].to_pylist())
    assert error.value.place == f"record {records.index(b'no image')}"
