"""A read into a store writes the same files as a local read.

It leaves one complete result, and nothing of a failed read.
"""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.files import flip, tree
from kit.image_samples import encode_image
from kit.store_server import BUCKET, KEY, SECRET, Store, azure_server, s3_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.exporting import store_publish
from recordmill.records.writers.outputs import OUTPUT_NAMES
from recordmill.storage.files import stat
from recordmill.storage.stores import uploads

STORES = (s3_server, azure_server)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("in") / "set"
    return str(
        write_data_set(folder, {"train": mixed_rows(120), "test": mixed_rows(20, 120)}, shards=2)
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of 24 MB that compresses badly."""
    texts = [
        base64.b64encode(np.random.default_rng(seed).bytes(450_000)).decode() for seed in range(40)
    ]
    return str(
        recordmill.build(
            {"text": texts}, tmp_path_factory.mktemp("large") / "set", num_shards=3
        ).out
    )


def read_result(store: Store, out: str) -> dict[str, bytes]:
    """Returns the contents of a result in a store, by local file name."""
    objects = store.objects(out)
    folder = json.loads(objects["_read.json"])["folder"]
    names = {
        name: name.removeprefix(f"{folder}/").replace(folder.removeprefix("data-") + ".", "")
        for name in objects
    }
    assert not [
        name
        for name in objects
        if name.startswith(("_run-", "data-")) and not name.startswith(folder)
    ]
    return {names[name]: data for name, data in objects.items() if not name.startswith("_read")}


def read_local(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if name != "_read.json"}


@pytest.mark.parametrize("to", [name for name in OUTPUT_NAMES if name != "files"])
def test_read_into_a_store_equals_the_local_read(
    store: Store, out: str, source: str, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"{out}-{to}"
    options = ["--to", to, *(["--columns", "id,name"] if to == "csv" else [])]
    assert main(["read", source, "--out", str(tmp_path / "near"), *options, "--quiet"]) == 0
    assert main(["read", source, "--out", out, *options, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert read_result(store, out) == read_local(tmp_path / "near") != {}
    assert output["out"] == out
    summary = json.loads(store.objects(out)["_read.json"])
    assert sorted(output["files"]) == [f"{out}/{name}" for name in summary["files"]]
    assert summary["records"] == output["records"] == {"train": 120, "test": 20}
    assert SECRET.encode() not in b"".join(store.objects(out).values())
    # Nothing stays on this machine.
    assert not [path for path in tmp_path.glob("recordmill-*/*/*") if path.is_dir()]
    if to == "npy":
        key = output["files"][output["files"].index(f"{out}/{summary['folder']}/train")].partition(
            f"{BUCKET}/"
        )[2]
        ids = np.load(io.BytesIO(store.objects(f"{store.root}/{key}")["id.npy"]))
        assert np.array_equal(ids, np.arange(120))


@pytest.mark.parametrize(
    "to",
    ["parquet", *(pytest.param(to, marks=pytest.mark.sweep) for to in ("arrow", "jsonl", "csv"))],
)
def test_files_uploaded_in_parts_equal_the_local_files(
    store: Store, out: str, large: str, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_PART_BYTES", 5 << 20)  # 5 MiB is the minimum of S3
    options = {"to": to, "file_size": "15MB"}
    recordmill.read(large, tmp_path / "near", **options)
    out = f"{out}-{to}"
    pending_uploads, put, upload_all = (
        list[object](),
        store_publish.Uploads.start_upload,
        store_publish.upload_all,
    )

    def put_at_once(self: store_publish.Uploads, path: Path, name: str) -> None:
        put(self, path, name)
        self._uploads_by_key[f"{self.data_name}/{name}"].exception(60)

    with monkeypatch.context() as context:
        context.setattr(store_publish.Uploads, "start_upload", put_at_once)
        context.setattr(
            store_publish,
            "upload_all",
            lambda *arguments: pending_uploads.append(arguments[1]) or upload_all(*arguments),
        )
        recordmill.read(large, out, storage_requests=64, **options)
    assert pending_uploads == [{}]
    assert read_result(store, out) == read_local(tmp_path / "near")
    # Failed uploads are repeated after all outputs are written.
    with monkeypatch.context() as context:
        context.setattr(store_publish, "upload_file", lambda *arguments: stat("/nowhere"))
        assert recordmill.read(large, f"{out}-1", storage_requests=1, **options).written == 40
    assert read_result(store, f"{out}-1") == read_result(store, out)
    shutil.copytree(large, tmp_path / "bad")
    flip(max((tmp_path / "bad").rglob("*.tfrecord")), -5)
    with pytest.raises(DataError, match="CRC of the data"):
        recordmill.read(tmp_path / "bad", f"{out}-2", **options)
    assert store.objects(f"{out}-2") == {}


def test_files_and_rejects_in_a_store_equal_the_local_ones(
    store: Store, out: str, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    for number in range(6):
        path = photos / ("cat", "dog ü")[number % 2] / f"p{number}#%+.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_image("JPEG", quality=60 + number))
    build_result = recordmill.build(str(photos), tmp_path / "set", shuffle=False)
    recordmill.read(build_result.out, tmp_path / "near", to="files")
    recordmill.read(build_result.out, out, to="files")
    assert read_result(store, out) == read_local(tmp_path / "near")
    flip(Path(build_result.shards[0]), -5)
    local_read = recordmill.read(build_result.out, tmp_path / "bad", max_rejects=1)
    store_read = recordmill.read(build_result.out, f"{out}-bad", max_rejects=1)
    assert read_result(store, f"{out}-bad") == read_local(tmp_path / "bad")
    assert local_read.rejected == store_read.rejected == 1
    (uri,) = store_read.rejects
    assert (
        store.objects(f"{out}-bad")[str(uri).removeprefix(f"{out}-bad/")]
        == Path(local_read.rejects[0]).read_bytes()
    )
    assert "in s3://" in repr(store_read) or "in az://" in repr(store_read)
    assert " KiB" in repr(store_read)


def test_view_is_written_to_one_object(store: Store, out: str, source: str, tmp_path: Path) -> None:
    view, uri = recordmill.open(source).filter("id > 5"), f"{out}/view.parquet"
    assert view.to_parquet(uri) == uri
    local_path = view.to_parquet(tmp_path / "view.parquet")
    assert store.objects(out) == {"view.parquet": Path(local_path).read_bytes()}
    with pytest.raises(UsageError, match="already exists; overwrite=True"):
        view.to_parquet(uri)
    view.select(["id"]).to_parquet(uri, overwrite=True)
    assert pq.read_table(io.BytesIO(store.objects(out)["view.parquet"])).column_names == ["id"]
    with pytest.raises(
        UsageError, match=r"memory maps.*recordmill.read\(..., to='npy'\) writes them to a store"
    ):
        view.to_npy(out)
    assert not list(tmp_path.glob("recordmill-*"))


def test_other_tools_read_a_result_in_a_store(store: Store, out: str, source: str) -> None:
    if not store.root.startswith("s3"):
        pytest.skip("pyarrow's S3")
    endpoint = store.endpoint.removeprefix("http://")
    files = pyarrow.fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
    )
    for limit in (None, 7):  # --overwrite leaves only the new result
        recordmill.read(source, out, overwrite=True, limit=limit, file_size="10KiB")
        table = pyarrow.dataset.dataset(
            out.removeprefix("s3://"), filesystem=files, format="parquet"
        ).to_table()
        assert table.num_rows == (140 if limit is None else 14)
    assert recordmill.read(source, f"{out}-json", to="jsonl").files["test"]


def test_result_in_a_store_is_replaced_in_one_step(
    store: Store, out: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each request that changes the store, `_read.json` names one complete result."""
    recordmill.read(source, out)
    old_objects = read_result(store, out)
    with pytest.raises(UsageError, match="already holds the result of a read"):
        recordmill.read(source, out)
    record_counts = []

    def watch(name: str) -> None:
        original = getattr(obstore, name)

        def call(*args: Any, **options: Any) -> Any:
            objects = store.objects(out)
            summary = json.loads(objects["_read.json"])
            assert all(any(name.startswith(file) for name in objects) for file in summary["files"])
            record_counts.append(sum(summary["records"].values()))
            return original(*args, **options)

        monkeypatch.setattr(obstore, name, call)

    watch("put")
    watch("delete")
    second = recordmill.read(source, out, overwrite=True, limit=9)
    monkeypatch.undo()
    assert set(record_counts) == {140, 18}
    assert record_counts == sorted(record_counts, reverse=True)
    assert second.written == 18
    assert read_result(store, out).keys() == old_objects.keys()
    assert read_result(store, out) != old_objects
    third = recordmill.read(source, out, overwrite=True, limit=3)
    assert sorted(name for name in store.objects(out) if name.startswith("_")) == [
        "_read.json",
        "_reads/00000002.json",
        "_reads/00000003.json",
    ]
    assert third.paths[0].startswith(f"{out}/data-")  # type: ignore[union-attr]


def test_location_with_other_content_is_refused_for_a_result(
    store: Store, out: str, source: str, tmp_path: Path
) -> None:
    recordmill.build({"x": [1, 2, 3]}, out)
    with pytest.raises(UsageError, match="holds a data set of recordmill"):
        recordmill.read(source, out, overwrite=True)
    recordmill.read(source, f"{out}-2")
    with pytest.raises(UsageError, match="is not empty"):
        recordmill.build({"x": [1, 2, 3]}, f"{out}-2", overwrite=True)
    store.put(f"{out.partition(f'{BUCKET}/')[2]}-3/photo.jpg", b"x")
    with pytest.raises(UsageError, match="is not empty"):
        recordmill.read(source, f"{out}-3")
    store.put(f"{out.partition(f'{BUCKET}/')[2]}-4/_reads/00000001.json", b'{"folder": "../out"}')
    with pytest.raises(UsageError, match="was not written by a read"):
        recordmill.read(source, f"{out}-4", overwrite=True)
    with pytest.raises(UsageError, match="holds a data set of recordmill"):
        recordmill.read(source, out, runner="FlinkRunner")
    assert set(store.objects(f"{out}-3")) == {"photo.jpg"}


def test_stopped_read_into_a_store_keeps_its_outputs(
    store: Store, out: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recordmill.pipelines.read.is_local", lambda runner: runner is None)
    monkeypatch.setattr("recordmill.pipelines.read.preflight", lambda *_: None)
    options: dict[str, Any] = {"runner": "FnApiRunner", "file_size": 1000}

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("recordmill.pipelines.read_beam.collect_outputs", stop)
        with pytest.raises(
            KeyboardInterrupt,
            match="finished outputs are kept: repeat the same command to continue",
        ):
            recordmill.read(source, out, **options)
    objects = store.objects(out)
    assert [name for name in objects if name.endswith("lease.json")]
    with pytest.raises(UsageError, match="not a data set"):
        recordmill.open(out)
    resumed = recordmill.read(source, out, **options)
    count = len(resumed.paths)
    assert count > 2
    assert f"resuming an earlier read: {count} of {count} outputs are finished" in resumed.notes
    assert not [name for name in store.objects(out) if name.startswith("_run-")]
    with monkeypatch.context() as context:
        context.setattr("recordmill.pipelines.read_beam.collect_outputs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # other errors keep nothing
            recordmill.read(source, f"{out}-failed", **options)
    assert store.objects(f"{out}-failed") == {}
