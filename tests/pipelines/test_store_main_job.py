"""The main job from store to store: the shards and what is read are a local build's; TensorFlow reads a copy."""

import json
from pathlib import Path

import pytest
from image_samples import encoded
from kit import tree
from store_server import Store
from transformed_set import DECLARED, write_csv

import recordmill
from recordmill.shards.manifest import load

pytestmark = pytest.mark.sweep


def fetch(store: Store, uri: str, into: Path) -> Path:
    """A plain copy of all objects below the URI."""
    for name, data in store.objects(uri).items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return into


@pytest.mark.parametrize("kind", ["csv", "images", "transform"])
def test_the_main_job_from_store_to_store_is_the_local_one(
    store: Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    given = tmp_path / "in"
    given.mkdir()
    if kind == "images":
        for at in range(40):
            (given / ("cat", "dog")[at % 2]).mkdir(exist_ok=True)
            (given / ("cat", "dog")[at % 2] / f"{at}.jpg").write_bytes(encoded("JPEG", quality=50 + at))
    else:
        write_csv(given / "rides.csv", 1000)
    if kind == "transform":
        pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")
    source, out = store.put_folder(given, f"{kind}/in"), f"{store.root}/{kind}/out"
    options = {"name": "same", "num_shards": 3, "splits": "train=0.9,test=0.1", "threads": 2}
    more = {"transform": DECLARED, "label": "label"} if kind == "transform" else {}
    far = recordmill.build(source, out, **options, **more)
    copy = fetch(store, out, tmp_path / "copy")
    again = {"transform_from": out, "label": "label"} if kind == "transform" else {}  # fitted once
    near = recordmill.build(str(given), tmp_path / "near", **options, **again)
    mine, theirs = copy / far.manifest.parts[0].folder, tmp_path / "near" / near.manifest.parts[0].folder
    here, there = (
        {name: data for name, data in tree(one).items() if name.endswith((".tfrecord", ".npy"))}
        for one in (mine, theirs)
    )
    assert here == there != {}
    assert near.manifest.fingerprint == far.manifest.fingerprint
    assert recordmill.verify(out) == recordmill.verify(copy) == []
    for to in ("parquet", "npy"):
        recordmill.read(out, f"{out}-{to}", to=to)
        recordmill.read(near.out, tmp_path / to, to=to)
        back = fetch(store, f"{out}-{to}", tmp_path / f"{to}-copy")
        folder = back / json.loads((back / "_read.json").read_text())["folder"]
        expected = tree(tmp_path / to)
        del expected["_read.json"]
        assert tree(folder) == expected != {}
    tensorflow = pytest.importorskip("tensorflow")
    shards = sorted(map(str, mine.glob("*.tfrecord")))
    assert len(list(tensorflow.data.TFRecordDataset(shards))) == sum(load(copy).records.values()) > 30
