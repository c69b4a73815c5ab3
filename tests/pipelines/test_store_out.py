"""Builds into a store write the same bytes as local builds.

Generations follow each other, and a failed build leaves nothing.
"""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from kit.files import tree
from kit.store_builds import ROWS, build
from kit.store_server import BUCKET, SECRET, Store, azure_server, s3_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.shards import store_run
from recordmill.shards.manifest import list_generations, load_manifest

STORES = (s3_server, azure_server)


def test_build_into_a_store_equals_the_local_build(store: Store, out: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(
        "a,b\n" + "".join(f"{number},{number}\n" for number in range(500)) + "x\n"
    )
    source = store.put("main/in.csv", (tmp_path / "in.csv").read_bytes())
    options = {"name": "same", "num_shards": 3, "compression": "gzip", "max_rejects": 5}
    local_build = recordmill.build(str(tmp_path / "in.csv"), tmp_path / "near", **options)
    store_build = recordmill.build(source, out, **options)
    assert store_build.out == out
    objects, folder = store.objects(out), store_build.manifest.parts[0].folder
    local_files = tree(tmp_path / "near" / local_build.manifest.parts[0].folder)
    store_files = {
        name.removeprefix(f"{folder}/"): data
        for name, data in objects.items()
        if name.startswith(f"{folder}/")
    }
    (entry,) = map(json.loads, store_files.pop("inputs.jsonl").splitlines())
    assert (entry["name"], entry["bytes"]) == ("in.csv", len((tmp_path / "in.csv").read_bytes()))
    assert entry["etag"]  # local files have mtime_ns instead
    del local_files["inputs.jsonl"]
    assert local_files == store_files
    assert folder == f"data-{store_build.manifest.run['id']}"
    assert [path.read_bytes() for path in map(Path, local_build.rejects)] == [
        objects[name] for name in store_build.manifest.rejects["files"]
    ]
    assert not [name for name in objects if name.startswith("_run-")]
    assert SECRET.encode() not in b"".join(objects.values())
    assert recordmill.open(out).to_table().equals(recordmill.open(local_build.out).to_table())
    assert recordmill.verify(out) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("recordmill-")]
    # Nothing stays on this machine.
    assert not [path for path in tmp_path.glob("recordmill-*/*/*") if path.is_dir()]
    template = json.loads(objects["dataset_info.json"])["splits"][0]["filepathTemplate"]
    assert template.startswith(f"{folder}/")


def test_stratified_build_with_a_description_in_a_store_equals_the_local_build(
    store: Store, out: str, tmp_path: Path
) -> None:
    rows = {
        "x": list(range(100)),
        "y": ["rare" if number % 10 == 0 else "frequent" for number in range(100)],
    }
    description = {
        "url": "https://example.org",
        "creator": "me",
        "description": "rows",
        "license": "MIT",
    }
    local_build = build(tmp_path / "near", rows, stratify="y", **description)
    store_build = build(out, rows, stratify="y", **description)
    assert store_build.records == {"train": 80, "test": 20}
    objects = store.objects(out)
    assert [objects[str(path).removeprefix(f"{out}/")] for path in store_build.shards] == [
        Path(path).read_bytes() for path in local_build.shards
    ]
    content, local_content = (
        objects["croissant.json"].decode(),
        (tmp_path / "near" / "croissant.json").read_text(),
    )
    assert content.replace(store_build.manifest.parts[0].folder, "") == local_content.replace(
        local_build.manifest.parts[0].folder, ""
    )
    assert recordmill.verify(out) == []
    build(out, rows, overwrite=True)
    assert "croissant.json" not in store.objects(out)


def test_generations_in_a_store_follow_each_other(store: Store, out: str, tmp_path: Path) -> None:
    first = build(out)
    with pytest.raises(UsageError, match="already holds a data set"):
        build(out)
    second = build(out, overwrite=True)
    assert list_generations(out) == [1, 2]
    assert load_manifest(out, 1) == first.manifest
    assert first.manifest.parts[0].folder != second.manifest.parts[0].folder
    third = build(out, {"z": [1, 2, 3] * 50}, overwrite=True)
    assert list_generations(out) == [2, 3]
    folders = {name.split("/")[0] for name in store.objects(out) if name.startswith("data-")}
    assert folders == {second.manifest.parts[0].folder, third.manifest.parts[0].folder}
    assert recordmill.open(out).schema.names == ("z",) or list(
        recordmill.open(out).schema.names
    ) == ["z"]
    assert recordmill.verify(out) == []


def clean(out: str) -> None:
    """Removes what dead runs left. Every other run counts as dead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store_run, "LEASE_SEC", -1)
        recordmill.clean(out, remove=True)


@pytest.mark.parametrize("work", ["build", "read"])
@pytest.mark.parametrize("clean_time", ["before the put", "behind the put"])
def test_commit_delayed_while_others_clean_is_refused_or_complete(
    store: Store,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    clean_time: str,
) -> None:
    out = f"{out}-{work}-{clean_time[:6].strip()}"
    recordmill.build(ROWS, tmp_path / "set")
    put_if_absent = store_run.put_if_absent

    def run(limit: int) -> object:
        if work == "build":
            return build(
                out, {name: values[:limit] for name, values in ROWS.items()}, overwrite=True
            )
        return recordmill.read(tmp_path / "set", out, overwrite=True, limit=limit)

    def rows() -> int:
        return (
            len(recordmill.open(out))
            if work == "build"
            else recordmill.build(out, tmp_path / f"{uuid4()}").read
        )

    run(100)
    before = store.objects(out)

    def clean_and_put(uri: str, data: bytes) -> bool:
        monkeypatch.setattr(store_run, "put_if_absent", put_if_absent)
        if clean_time == "behind the put":
            assert put_if_absent(uri, data)
            clean(out)
            return True
        clean(out)
        return put_if_absent(uri, data)

    monkeypatch.setattr(store_run, "put_if_absent", clean_and_put)
    if clean_time == "behind the put":
        run(50)
        assert rows() == 50
    else:
        with pytest.raises(
            RecordmillError,
            match="another run treated this one as dead, because it gave no sign of life",
        ):
            run(50)
        assert rows() == 100
        clean(out)
        assert store.objects(out) == before
    run(40)
    assert rows() == 40


def test_prefix_with_other_objects_is_refused_as_out(
    store: Store, out: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.put(f"{out.partition(f'{BUCKET}/')[2]}/photo.jpg", b"x")
    (tmp_path / "a.csv").write_text("a\n1\n2\n")
    assert main(["build", str(tmp_path / "a.csv"), "--out", out]) == 2
    assert "is not empty (photo.jpg)" in capsys.readouterr().err
    assert main(["build", str(tmp_path / "a.csv"), "--out", store.root]) == 2
    assert "name a folder in the bucket" in capsys.readouterr().err
    assert main(["build", f"{store.root}/some", "--out", f"{store.root}/some/out"]) == 2
    assert set(store.objects(out)) == {"photo.jpg"}
