"""Records by number for loaders that have a sampler of their own: values, order of the sampler, images, workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from image_samples import encoded, picture
from kit import table_of
from made_data_set import mixed_rows, write_data_set

from recordmill.reader.dataset import Dataset, open
from recordmill.reader.options.collation import Padded
from recordmill.schemas.feature import Feature, Schema

torch = pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
from torch.utils.data import DataLoader  # noqa: E402

ROWS = 100


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": mixed_rows(ROWS)}, shards=3)
    return open(out, threads=2)


def test_a_record_has_its_values(ds: Dataset) -> None:
    records = ds.to_torch_map()
    assert len(records) == ROWS
    for number in (0, 7, 99, -1):
        found, truth = records[number], ds[number % ROWS]
        assert found["id"].item() == truth["id"]
        assert found["name"] == truth["name"]
        assert found["matrix"].tolist() == truth["matrix"].tolist()
        assert found["maybe/valid"].item() == (truth["maybe"] is not None)
        assert found["tokens"].tolist() == ([] if truth["tokens"] is None else truth["tokens"].tolist())
        assert found["words"] == list(truth["words"])
        assert [one.tolist() for one in found["nested"]] == [one.tolist() for one in truth["nested"] or []]
    with pytest.raises(IndexError, match="record 100 of 100"):
        records[100]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_s_sampler_chooses(ds: Dataset, workers: int) -> None:
    small = ds.select(["id", "name", "payload", "tokens", "label"])
    records = small.to_torch_map(label="label", collate={"tokens": Padded(4)})
    loader = DataLoader(records, batch_size=16, shuffle=True, num_workers=workers)
    seen = []
    for x, y in loader:
        assert x["tokens"].shape[1:] == (4,)
        assert x["name"] == [f"row {i} ü" for i in x["id"].tolist()]
        assert y.tolist() == [i % 3 for i in x["id"].tolist()]
        seen += x["id"].tolist()
    assert sorted(seen) == list(range(ROWS)) != seen


def test_records_of_a_condition_are_numbered_among_themselves(ds: Dataset) -> None:
    even = open([file.file.path for file in ds.files], schema=ds.full_schema, columns=["id"], where="id % 2 = 0")
    records = pickle.loads(pickle.dumps(even.to_torch_map()))
    assert [record["id"].item() for record in records.__getitems__([3, 0, -1])] == [6, 0, 98]


def test_images_are_decoded_as_batches_does(tmp_path: Path) -> None:
    schema = Schema((Feature("image", "bytes", (), True), Feature("label", "int64", (), True)), "label")
    images = [encoded("PNG", picture(size=(10 + seed, 12), seed=seed)) for seed in range(5)]
    table = table_of({"image": images, "label": range(5)}, schema)
    ds = open(write_data_set(tmp_path / "out", {"train": table}, schema, shards=1))
    (truth,) = ds.batches(5, shuffle=False, decode_images=(8, 6))
    (x, y) = next(iter(DataLoader(ds.to_torch_map(decode_images=(8, 6), label="label"), batch_size=5)))
    assert torch.equal(x, torch.from_numpy(truth["image"].copy()))
    assert y.tolist() == list(range(5))
    (batch,) = ds.to_torch(5, shuffle=False, decode_images=(8, 6))
    assert torch.equal(batch["image"], x)
