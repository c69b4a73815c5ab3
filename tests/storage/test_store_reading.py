"""Inputs in a store have the same bytes and records as on a disk."""

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
    for number in range(6):
        (folder / "photos" / ("cat", "dog")[number % 2] / f"p{number}#%+.jpg").write_bytes(
            encode_image("JPEG", quality=60 + number)
        )
    (folder / "photos" / "cat" / ".hidden").write_bytes(b"x")
    names = "".join(
        f"photos/{('cat', 'dog')[number % 2]}/p{number}#%+.jpg,{number}\n" for number in range(6)
    )
    (folder / "shop.csv").write_text(f"photo,n\n{names}photos/cat/none.jpg,6\n../no.jpg,7\n")
    write_data_set(
        folder / "set", {"train": mixed_rows(500), "test": mixed_rows(50, 500)}, shards=3
    )
    write_data_set(folder / "packed", {"train": mixed_rows(300)}, shards=2, compression="gzip")
    for path in (folder / "set").rglob("*.tfrecord"):
        (folder / "records" / path.name).write_bytes(path.read_bytes())
    for name, form in (
        ("photos", "zip"),
        ("photos", "tar"),
        ("tables", "gztar"),
        ("records", "zip"),
        ("set", "bztar"),
    ):
        shutil.make_archive(str(folder / "archives" / name), form, folder / name)
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
    "source",
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
    remote: str, disk: Path, tmp_path: Path, source: str
) -> None:
    local_result = recordmill.build(
        str(disk / source), tmp_path / "local", num_shards=2, name="same"
    )
    remote_result = recordmill.build(
        f"{remote}/{source}", tmp_path / "other", num_shards=2, name="same"
    )
    assert shard_bytes(tmp_path / "other") == shard_bytes(tmp_path / "local")
    assert sum(remote_result.records.values()) > 5
    assert remote_result.manifest.fingerprint == local_result.manifest.fingerprint
    assert [note.replace(remote, str(disk)) for note in remote_result.notes] == list(
        local_result.notes
    )


def test_files_named_by_a_table_are_read_from_its_store(
    remote: str, disk: Path, tmp_path: Path
) -> None:
    options = {"file_columns": "photo", "name": "same", "max_rejects": 2}
    local_result = recordmill.build(str(disk / "shop.csv"), tmp_path / "local", **options)
    remote_result = recordmill.build(f"{remote}/shop.csv", tmp_path / "other", **options)
    assert (
        (local_result.read, local_result.rejected)
        == (remote_result.read, remote_result.rejected)
        == (8, 2)
    )
    assert shard_bytes(tmp_path / "other") == shard_bytes(tmp_path / "local")


def test_labels_lists_and_schemas_may_be_in_a_store(
    store: Store, remote: str, disk: Path, tmp_path: Path
) -> None:
    labels = "file,weight\n" + "".join(
        f"{('cat', 'dog')[number % 2]}/p{number}#%+.jpg,{number}\n" for number in range(6)
    )
    store.put("in/photos/weights.csv", labels.encode())
    result = recordmill.build(
        f"{remote}/photos", tmp_path / "a", labels=f"{remote}/photos/weights.csv"
    )
    assert sorted(recordmill.open(result.out).to_numpy()["weight"].tolist()) == list(range(6))
    schema = store.put("in/own.pbtxt", (result.out / "schema.pbtxt").read_bytes())
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
    local_set, remote_set = recordmill.open(str(disk / name)), recordmill.open(f"{remote}/{name}")
    assert len(remote_set) == len(local_set)
    assert remote_set.take([0, 7, 299]).equals(local_set.take([0, 7, 299]))
    assert str(remote_set[7]) == str(local_set[7])
    for mode in (False, "global", "window"):
        local_batches, remote_batches = (
            ds.batches(64, shuffle=mode, seed=3) for ds in (local_set, remote_set)
        )
        for local_batch, remote_batch in zip(local_batches, remote_batches, strict=True):
            assert local_batch.keys() == remote_batch.keys()
            assert np.array_equal(local_batch["id"], remote_batch["id"])
    assert remote_set.to_table().equals(local_set.to_table())
    pickled = pickle.dumps(remote_set)
    assert SECRET.encode() not in pickled
    assert len(pickle.loads(pickled)) == len(local_set)


@pytest.mark.parametrize(
    "name", ["set", "packed", "records", "archives/records.zip", "archives/set.tar.bz2"]
)
def test_commands_print_the_same_for_a_store_and_a_disk(
    remote: str, disk: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["head"], ["inspect"], ["verify"]):
        outputs = []
        for folder in (str(disk), remote):
            code = main([*command, f"{folder}/{name}"])
            outputs.append((code, capsys.readouterr().out.replace(folder, "IN")))
        assert outputs[0] == outputs[1]
    for target, folder in ("near", str(disk)), ("far", remote):
        assert (
            main(
                [
                    "read",
                    f"{folder}/{name}",
                    "--out",
                    str(tmp_path / target),
                    "--to",
                    "parquet",
                    "--quiet",
                ]
            )
            == 0
        )
    exported = {path.name: path.read_bytes() for path in (tmp_path / "near").rglob("*.parquet")}
    assert (
        exported
        == {path.name: path.read_bytes() for path in (tmp_path / "far").rglob("*.parquet")}
        != {}
    )


@pytest.mark.parametrize("is_kept", [False, True])
def test_input_that_changes_after_the_plan_is_refused_unless_it_was_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """A changed file is refused if a build reads it after the plan.

    Rows that the plan has kept in memory are not affected.
    """
    uri = store.put("changing.csv", b"a,b\n" + b"1,2\n" * 1000)
    run = build_job.run_job

    def change_and_run(plan: BuildPlan, *args: object, **options: object) -> None:
        store.put("changing.csv", b"a,b\n" + b"3,4\n" * 1000)
        files._OBJECT_STORAGE._blocks._cached.clear()  # a worker's cache is empty at first
        files._OBJECT_STORAGE._blocks._cached_bytes = 0
        run(plan if is_kept else pickle.loads(pickle.dumps(plan)), *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(build_job, "run_job", change_and_run)
    if is_kept:
        recordmill.build(uri, tmp_path / "out")
        assert recordmill.open(tmp_path / "out").to_table().column("a").to_pylist() == [1] * 1000
        return
    with pytest.raises(DataError, match="changed while it was read"):
        recordmill.build(uri, tmp_path / "out")
    assert not (tmp_path / "out").exists()
