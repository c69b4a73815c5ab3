"""Builds on an engine whose workers are processes that share only OUT."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import fault_proxy
from store_server import Store, of_s3, settings

beam = pytest.importorskip("apache_beam", reason="engines are reached through Apache Beam")

import recordmill  # noqa: E402
from recordmill.base.errors import RecordmillError, UsageError  # noqa: E402
from recordmill.pipelines import build as builds  # noqa: E402
from recordmill.sources.common.contract import Unit  # noqa: E402
from recordmill.storage.files import read_range  # noqa: E402
from recordmill.storage.folders import files_below, join  # noqa: E402
from recordmill.transforms import build_stages  # noqa: E402

HARNESS = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
FLAGS = ("--job_endpoint=embed", "--environment_type=beam:env:harness_subprocess_python:v1",
         f"--environment_config={HARNESS}")  # fmt: skip
ENGINE: dict[str, Any] = {"runner": "PortableRunner", "beam_args": FLAGS, "preflight": False}
OPTIONS: dict[str, Any] = {"num_shards": 3, "splits": "train=0.8,test=0.2", "max_rejects": 3, "name": "same"}


def of(build: recordmill.BuildResult) -> dict[str, bytes]:
    found = files_below(join(str(build.out), build.manifest.parts[0].folder))
    return {name: read_range(path).tobytes() for name, path in found.items()}


@pytest.mark.sweep
@pytest.mark.parametrize("removed", [False, True])
def test_a_job_that_fails_after_its_commit_has_built_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, removed: bool
) -> None:
    def lost(manifest: Any, plan: Any) -> Any:
        if removed:
            plan.job_folder.attach().clear()
        raise RecordmillError("a worker was lost")

    monkeypatch.setattr(build_stages, "release", lost)
    threads = {**ENGINE, "beam_args": ("--job_endpoint=embed", "--environment_type=beam:env:embedded_python:v1")}
    done = recordmill.build({"x": [1, 2, 3]}, tmp_path / "out", **threads)
    assert done.records == {"train": 3}
    assert "the data set is complete; its job failed after the commit: a worker was lost" in caplog.text
    assert recordmill.verify(done.out) == []
    assert not list((tmp_path / "out").glob("_run-*"))


@pytest.mark.sweep
def test_workers_that_are_processes_write_into_a_store_what_one_machine_writes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000)) + "x,y,z\n")
    monkeypatch.chdir(tmp_path)
    one = recordmill.build("in.csv", tmp_path / "one", **OPTIONS)
    far = recordmill.build("in.csv", f"{store.root}/far", runner="PortableRunner", beam_args=FLAGS, **OPTIONS)
    near = recordmill.build("in.csv", "near", **ENGINE, **OPTIONS)
    assert of(one) == of(far) == of(near)
    assert one.manifest.fingerprint == far.manifest.fingerprint == near.manifest.fingerprint
    for out in (far.out, near.out):
        assert not [name for name in files_below(str(out)) if name.startswith("_run-")]
        assert recordmill.verify(out) == []
        assert far.rejected == 1
    with fault_proxy(store.endpoint) as proxy, settings(**of_s3(proxy.url)):
        proxy.delay_sec = 0.01
        recordmill.build("in.csv", f"{store.root}/few", storage_requests=1, **ENGINE, **OPTIONS)
        assert proxy.most <= 2  # the driver and a worker, one each
    memory = recordmill.build({"x": list(range(50))}, f"{store.root}/memory", **ENGINE)
    assert sorted(recordmill.open(memory.out).to_numpy()["x"].tolist()) == list(range(50))
    with pytest.raises(RecordmillError, match="1 of 3001 records were rejected"):
        recordmill.build("in.csv", f"{store.root}/failed", **ENGINE)
    assert not files_below(f"{store.root}/failed")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("_run-")]


@pytest.mark.sweep
@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_workers_that_are_processes_write_the_files_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000)))
    monkeypatch.chdir(tmp_path)
    recordmill.build("in.csv", "data", splits="train=0.8,test=0.2", num_shards=2)
    one = recordmill.read("data", "one", to=to, file_size=20_000)
    # the input and OUT are named from here, and the workers stand elsewhere
    away = (
        "import os, runpy, sys; os.chdir('/'); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{away}" apache_beam.runners.worker.sdk_worker_main "$@"\n')
    worker.chmod(0o755)
    flags = (*FLAGS[:2], f"--environment_config={worker}")
    far = recordmill.read(
        "data", "far", to=to, file_size=20_000, runner="PortableRunner", beam_args=flags, preflight=False
    )
    assert (far.records, far.read) == (one.records, 3000)
    found = [
        {name: read_range(path).tobytes() for name, path in files_below(str(result.out)).items()}
        for result in (one, far)
    ]
    assert len(found[0]) > 4
    assert found[0] == found[1]
    assert not [name for name in os.listdir(far.out) if name.startswith("_run-")]


def each_file_alone(plan: Any) -> Any:
    """Plans in which each file is a group of its own, as if it were large."""

    def planned(*args: Any, **named: Any) -> Any:
        found = plan(*args, **named)
        files = enumerate(found.source.files)
        each = tuple(Unit(at, at + 1, size_bytes=file.stat.size_bytes) for at, file in files)
        source = replace(found.source, units=each)
        return replace(found, source=source, groups=tuple(range(at, at + 1) for at in range(len(each))))

    return planned


@pytest.mark.sweep
def test_a_transform_is_fitted_by_workers_that_share_only_a_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow_transform")
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = "".join(
            f"{at},{at / 7},word{at % 50},{'ab'[at % 2]}\n" for at in range(number * 700, number * 700 + 700)
        )
        (tmp_path / "in" / f"{number}.csv").write_text(f"id,x,name,kind\n{rows}")
    # as if each file were large
    monkeypatch.setattr(builds, "make_plan", each_file_alone(builds.make_plan))
    # of x one analyser needs what another finds
    declared = {
        "x": [{"impute": "mean"}, "zscore"],
        "id": {"bucketize": 4},
        "name": {"vocabulary": {"top_k": 20}},
        "kind": "keep",
    }
    source, options = tmp_path / "in", {"num_shards": 3, "splits": "train=0.8,test=0.2", "name": "same"}
    far = recordmill.build(source, f"{store.root}/fitted/far", transform=declared, **ENGINE, **options)
    local = recordmill.build(source, tmp_path / "local", transform=declared, **options)
    found, wanted = far.manifest.transform["found"], local.manifest.transform["found"]
    assert found["name"] == wanted["name"]
    assert found["id"] == wanted["id"]
    assert found["x"] == pytest.approx(wanted["x"], rel=1e-6)
    assert recordmill.verify(far.out) == []
    assert not [name for name in files_below(str(far.out)) if name.startswith("_run-")]

    # the saved transform decides every byte, on one machine and on the engine
    shards = {name: data for name, data in of(far).items() if not name.startswith("transform/")}
    for out, engine in ((tmp_path / "again", {}), (f"{store.root}/fitted/again", ENGINE)):
        again = recordmill.build(source, out, transform_from=far.out, **engine, **options)
        assert {name: data for name, data in of(again).items() if not name.startswith("transform/")} == shards
        assert again.manifest.fingerprint == far.manifest.fingerprint

    plain = recordmill.build(source, f"{store.root}/fitted/plain", transform={"x": "log1p"}, **ENGINE, **options)
    assert plain.manifest.transform["found"] == {}  # no analyser, and nothing found
    empty = {**options, "splits": "train=0.99999,test=0.00001"}
    with pytest.raises(RecordmillError, match="there is no record in it"):
        recordmill.build(source, f"{store.root}/fitted/none", transform=declared, fit_on="test", **ENGINE, **empty)
    assert not files_below(f"{store.root}/fitted/none")


@pytest.mark.sweep
@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_workers_that_are_processes_read_into_a_store(store: Store, tmp_path: Path, to: str) -> None:
    rows = "a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000))
    (tmp_path / "in.csv").write_text(rows)
    data = recordmill.build(tmp_path / "in.csv", f"{store.root}/{to}/data", splits="train=0.8,test=0.2", num_shards=2)
    damage(store, data)
    options: dict[str, Any] = {"to": to, "file_size": 20_000, "max_rejects": 3}
    one = recordmill.read(data.out, tmp_path / "one", **options)
    far = recordmill.read(
        data.out, f"{store.root}/{to}/far", runner="PortableRunner", beam_args=FLAGS, preflight=to == "npy", **options
    )
    assert (far.records, far.read, far.rejected) == (one.records, 3000, 1)
    assert content_of(far) == content_of(one)
    assert len(content_of(far)) > 4
    left = files_below(str(far.out))
    assert not [name for name in left if name.startswith("_run-")]
    summary = json.loads(read_range(left["_read.json"]).tobytes())
    assert {str(path).removeprefix(f"{far.out}/") for path in (*far.paths, *far.rejects)} == {*summary["files"]}
    with pytest.raises(UsageError, match="already holds the result of a read"):
        recordmill.read(data.out, far.out, **ENGINE, **options)
    again = recordmill.read(data.out, far.out, overwrite=True, **ENGINE, **options)
    assert content_of(again) == content_of(one)
    assert len(files_below(str(far.out))) == len(left) + 1  # and the number of the result before
    del options["max_rejects"]
    with pytest.raises(RecordmillError, match="CRC"):
        recordmill.read(data.out, f"{store.root}/{to}/failed", **ENGINE, **options)
    assert not files_below(f"{store.root}/{to}/failed")


def damage(store: Store, data: recordmill.BuildResult) -> None:
    """One record's payload is changed."""
    shard = str(data.shards[0])
    content = bytearray(read_range(shard).tobytes())
    content[1000] ^= 255
    store.put(shard.removeprefix(f"{store.root}/"), bytes(content))


def content_of(result: recordmill.ReadResult) -> dict[str, bytes]:
    """Split and place to the bytes of all that the read wrote."""
    found = {f"{split}-{at}": path for split, paths in result.files.items() for at, path in enumerate(paths)}
    found |= {f"rejects-{at}": path for at, path in enumerate(result.rejects)}
    each = {name: files_below(str(path)) or {"": str(path)} for name, path in found.items()}
    return {
        f"{name}/{part}": read_range(path).tobytes() for name, parts in each.items() for part, path in parts.items()
    }
