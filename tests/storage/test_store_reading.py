"""Inputs and data sets in a store give the same bytes and records as on a disk."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.files import shard_bytes
from kit.image_samples import encode_image
from kit.store_server import (
    SECRET,
    Store,
    azure_server,
    s3_server,
)

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.building.plan import BuildPlan
from recordmill.pipelines import build_job
from recordmill.storage import files
from recordmill.storage.listing import list_inputs

STORES = (s3_server, azure_server)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for name in (
        "tables",
        "lines",
        "notes",
        "photos/cat",
        "photos/dog",
        "rows",
        "records",
        "arrays",
        "tars",
    ):
        (folder / name).mkdir(parents=True)
    for part in range(3):
        rows = range(part * 1000, part * 1000 + 1000)
        (folder / "tables" / f"t{part} ü.csv").write_text(
            "a,b\n" + "".join(f"{i},name {i}\n" for i in rows)
        )
        lines = "".join(json.dumps({"a": i, "b": [i, str(i)][:1]}) + "\n" for i in rows)
        (folder / "lines" / f"l{part}.jsonl").write_text(lines)
        (folder / "notes" / f"n{part}.txt").write_text("".join(f"line {i}\n" for i in rows))
        table = pa.table({"x": list(rows), "y": [i / 2 for i in rows]})
        save = np.savez if part else np.savez_compressed
        save(
            folder / "arrays" / f"n{part}.npz",
            x=np.arange(3000).reshape(-1, 3),
            f=np.ones((1000, 2), order="F" if part else "C"),
        )
        pq.write_table(table, folder / "rows" / f"r{part}.parquet", row_group_size=300)
    for at in range(6):
        (folder / "photos" / ("cat", "dog")[at % 2] / f"p{at}#%+.jpg").write_bytes(
            encode_image("JPEG", quality=60 + at)
        )
    (folder / "photos" / "cat" / ".hidden").write_bytes(b"x")
    names = "".join(f"photos/{('cat', 'dog')[at % 2]}/p{at}#%+.jpg,{at}\n" for at in range(6))
    (folder / "shop.csv").write_text(f"photo,n\n{names}photos/cat/none.jpg,6\n../no.jpg,7\n")
    write_data_set(
        folder / "set", {"train": mixed_rows(500), "test": mixed_rows(50, 500)}, shards=3
    )
    write_data_set(folder / "packed", {"train": mixed_rows(300)}, shards=2, compression="gzip")
    for path in (folder / "set").rglob("*.tfrecord"):
        (folder / "records" / path.name).write_bytes(path.read_bytes())
    for name, how in (
        ("photos", "zip"),
        ("photos", "tar"),
        ("tables", "gztar"),
        ("records", "zip"),
        ("set", "bztar"),
    ):
        shutil.make_archive(str(folder / "archives" / name), how, folder / name)
    for split in ("train", "test"):
        shutil.make_archive(str(folder / "tars" / split), "xztar", folder / "photos")
    for part in range(2):
        shutil.make_archive(str(folder / "zips" / f"part-{part}"), "zip", folder / "photos")
    table = pa.table({"id": np.arange(1000), "text": ["a", "bc"] * 500})
    (folder / "arrow").mkdir()
    feather.write_feather(table, str(folder / "arrow" / "a.feather"), chunksize=300)
    with pa.ipc.new_stream(str(folder / "arrow" / "b.arrow"), table.schema) as writer:
        writer.write_table(table, 300)
    return folder


@pytest.fixture(scope="module")
def remote(store: Store, disk: Path) -> str:
    return store.put_folder(disk, "in")


@pytest.mark.parametrize(
    "given",
    [
        "tables",
        "tables/*.csv",
        "lines",
        "notes/**",
        "photos",
        "rows",
        "records",
        "arrays",
        "set",
        "tars",
        "tars/*.tar.xz",
        "zips",
        "zips/*.zip",
        "arrow",
        "archives/photos.zip",
        "archives/photos.tar",
        "archives/tables.tar.gz",
        "archives/records.zip",
    ],
)
def test_build_from_a_store_equals_the_build_from_a_disk(
    remote: str, disk: Path, tmp_path: Path, given: str
) -> None:
    local = recordmill.build(str(disk / given), tmp_path / "local", num_shards=2, name="same")
    other = recordmill.build(f"{remote}/{given}", tmp_path / "other", num_shards=2, name="same")
    assert shard_bytes(tmp_path / "other") == shard_bytes(tmp_path / "local")
    assert sum(other.records.values()) > 5
    assert other.manifest.fingerprint == local.manifest.fingerprint
    assert [note.replace(remote, str(disk)) for note in other.notes] == list(local.notes)


def test_files_named_by_a_table_are_read_from_its_store(
    remote: str, disk: Path, tmp_path: Path
) -> None:
    told = {"file_columns": "photo", "name": "same", "max_rejects": 2}
    local = recordmill.build(str(disk / "shop.csv"), tmp_path / "local", **told)
    other = recordmill.build(f"{remote}/shop.csv", tmp_path / "other", **told)
    assert (local.read, local.rejected) == (other.read, other.rejected) == (8, 2)
    assert shard_bytes(tmp_path / "other") == shard_bytes(tmp_path / "local")


def test_labels_lists_and_schemas_may_be_in_a_store(
    store: Store, remote: str, disk: Path, tmp_path: Path
) -> None:
    labels = "file,weight\n" + "".join(
        f"{('cat', 'dog')[at % 2]}/p{at}#%+.jpg,{at}\n" for at in range(6)
    )
    store.put("in/photos/weights.csv", labels.encode())
    built = recordmill.build(
        f"{remote}/photos", tmp_path / "a", labels=f"{remote}/photos/weights.csv"
    )
    assert sorted(recordmill.open(built.out).to_numpy()["weight"].tolist()) == list(range(6))
    schema = store.put("in/own.pbtxt", (built.out / "schema.pbtxt").read_bytes())
    store.put("in/list.txt", b"tables/*.csv\nrows/../tables/none.csv\n")
    with pytest.raises(UsageError, match="leads out of its folder"):
        list_inputs([f"@{remote}/list.txt"])
    uri = store.put("in/list2.txt", f"tables/*.csv\n{remote}/lines/l0.jsonl\n".encode())
    assert len(list_inputs([f"@{uri}"]).files) == 4
    (tmp_path / "list").write_text(f"{remote}/tables/*.csv\n")
    assert recordmill.build(f"@{tmp_path}/list", tmp_path / "b").read == 3000
    with pytest.raises((UsageError, DataError)):
        recordmill.build(f"{remote}/tables", tmp_path / "c", schema=schema)


@pytest.mark.parametrize("name", ["set", "packed"])
def test_data_set_in_a_store_is_read_as_on_a_disk(
    remote: str, disk: Path, tmp_path: Path, name: str
) -> None:
    near, far = recordmill.open(str(disk / name)), recordmill.open(f"{remote}/{name}")
    assert len(far) == len(near)
    assert far.take([0, 7, 299]).equals(near.take([0, 7, 299]))
    assert str(far[7]) == str(near[7])
    for mode in (False, "global", "window"):
        mine, theirs = (one.batches(64, shuffle=mode, seed=3) for one in (near, far))
        for one, other in zip(mine, theirs, strict=True):
            assert one.keys() == other.keys()
            assert np.array_equal(one["id"], other["id"])
    assert far.to_table().equals(near.to_table())
    copy = pickle.dumps(far)
    assert SECRET.encode() not in copy
    assert len(pickle.loads(copy)) == len(near)


@pytest.mark.parametrize(
    "name", ["set", "packed", "records", "archives/records.zip", "archives/set.tar.bz2"]
)
def test_commands_print_the_same_for_a_store_and_a_disk(
    remote: str, disk: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["head"], ["inspect"], ["verify"]):
        said = []
        for folder in (str(disk), remote):
            code = main([*command, f"{folder}/{name}"])
            said.append((code, capsys.readouterr().out.replace(folder, "IN")))
        assert said[0] == said[1]
    for place, folder in ("near", str(disk)), ("far", remote):
        assert (
            main(
                [
                    "read",
                    f"{folder}/{name}",
                    "--out",
                    str(tmp_path / place),
                    "--to",
                    "parquet",
                    "--quiet",
                ]
            )
            == 0
        )
    near = {path.name: path.read_bytes() for path in (tmp_path / "near").rglob("*.parquet")}
    assert (
        near
        == {path.name: path.read_bytes() for path in (tmp_path / "far").rglob("*.parquet")}
        != {}
    )


@pytest.mark.parametrize("keeps", [False, True])
def test_input_that_changes_after_the_plan_is_refused_unless_it_was_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """What the plan has parsed and kept is the input as it was; what is read again is refused."""
    uri = store.put("changing.csv", b"a,b\n" + b"1,2\n" * 1000)
    run = build_job.run_job

    def changed(plan: BuildPlan, *args: object, **named: object) -> None:
        store.put("changing.csv", b"a,b\n" + b"3,4\n" * 1000)
        files._OBJECT_STORAGE._blocks._cached.clear()  # as in a worker, which has read nothing yet
        files._OBJECT_STORAGE._blocks._cached_bytes = 0
        run(plan if keeps else pickle.loads(pickle.dumps(plan)), *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(build_job, "run_job", changed)
    if keeps:
        recordmill.build(uri, tmp_path / "out")
        assert recordmill.open(tmp_path / "out").to_table().column("a").to_pylist() == [1] * 1000
        return
    with pytest.raises(DataError, match="changed while it was read"):
        recordmill.build(uri, tmp_path / "out")
    assert not (tmp_path / "out").exists()
