"""A manifest of very many shards names pages of their entries: the data set is the same as that of a manifest that has
them all, what is read of it is what is asked for, and nothing that a page or its name says leads elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards import manifest
from recordmill.shards.catalog import find
from recordmill.shards.manifest import Paged, load

OPTIONS: dict[str, Any] = {"name": "same", "num_shards": 10, "splits": "train=0.6,test=0.4", "threads": 1}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same records under a manifest that names its shards, and one that names pages of three."""
    root = tmp_path_factory.mktemp("sets")
    recordmill.build({"x": np.arange(4000.0)}, root / "whole", **OPTIONS)
    with pytest.MonkeyPatch.context() as patched:
        make_small(patched)
        recordmill.build({"x": np.arange(4000.0)}, root / "paged", **OPTIONS)
    return root / "whole", root / "paged"


def make_small(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(manifest, "MOST_NAMED", 19)
    patched.setattr(manifest, "PAGE_SHARDS", 3)


@pytest.fixture
def out(sets: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sets[1], tmp_path / "out"))


def test_the_data_set_is_that_of_a_manifest_that_names_its_shards(sets: tuple[Path, Path]) -> None:
    one, other = (load(path) for path in sets)
    assert (one.version, other.version) == ((2, 0), (3, 0))
    assert isinstance(other.parts[0].splits["train"], Paged)
    assert other.fingerprint == one.fingerprint
    assert (other.records, other.shard_counts, other.size_bytes) == (one.records, one.shard_counts, one.size_bytes)
    assert one.shard_counts == {"train": 10, "test": 10}
    shards = other.parts[0].splits["train"]
    assert shards == one.parts[0].splits["train"] != one.parts[0].splits["test"]
    named = one.parts[0].splits["train"]
    assert (shards[4], shards[-1], shards[2:5]) == (named[4], named[-1], named[2:5])
    assert [shard for *_, shard in other.shards()] == [shard for *_, shard in one.shards()]
    assert len((sets[1] / "manifest.json").read_text()) < len((sets[0] / "manifest.json").read_text()) * 2 / 3
    assert (sets[1] / "manifest.json").read_text() == other.to_json()
    described = [(path / "dataset_info.json").read_text() for path in sets]  # which names the folder of the run
    assert described[1].replace(other.parts[0].folder, one.parts[0].folder) == described[0]
    assert recordmill.verify(sets[1]) == []
    first, second = (recordmill.open(path, split="test") for path in sets)
    assert (second.fingerprint, second.to_table()) == (first.fingerprint, first.to_table())
    assert recordmill.status(sets[1]).records == one.records


def test_who_reads_one_split_holds_its_shards_and_totals_need_no_page(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {file.split for file in find(str(out), "test").files} == {"test"}
    manifest._read.cache_clear()
    shutil.rmtree(out / load(out).parts[0].folder / "pages")
    assert sum(recordmill.status(out).records.values()) == 4000
    assert load(out).to_json() == (out / "manifest.json").read_text()
    with pytest.raises(DataError, match=r"pages/train-00000\.json: is missing; the manifest names it"):
        recordmill.open(out)


def test_one_replaces_the_other_and_what_is_old_goes_with_its_pages(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = out / load(out).parts[0].folder
    recordmill.build({"x": np.arange(50.0)}, out, name="same", overwrite=True)
    assert (load(out).version, load(out, 1).version) == ((2, 0), (3, 0))
    assert len(list((folder / "pages").iterdir())) == 8
    with monkeypatch.context() as patched:
        make_small(patched)
        recordmill.build({"x": np.arange(4000.0)}, out, overwrite=True, **OPTIONS)
    assert recordmill.verify(out) == []
    assert not folder.exists()
    stray = out / load(out).parts[0].folder / "pages" / "train-00009.json"
    stray.write_text("{}")
    assert [(found.file, found.problem) for found in recordmill.verify(out)] == [
        (str(stray), "is no part of the data set")
    ]


def page_of(document: dict[str, Any]) -> dict[str, Any]:
    page: dict[str, Any] = document["parts"][0]["splits"]["train"]["pages"][0]
    return page


def of_page(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: page_of(document).update(fields)


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {  # what is changed, what is said
    "a page above": (of_page(name="../../../victim.json"), r"pages\[0\]\.name: is '\.\./"),
    "an absolute page": (of_page(name="/victim.json"), r"pages\[0\]\.name: is '/victim"),
    "another page": (of_page(name="train-00001.json"), "not train-00000.json"),
    "a page of a terabyte": (of_page(bytes=1 << 40), "not from 0 to 16777216"),
    "a page of no shards": (of_page(shards=0), "not from 1 to 16384"),
    "a page of a billion": (of_page(shards=10**9), "not from 1 to 16384"),
    "no digest": (of_page(digest="md5:00"), "not blake3, `:`"),
    "records of a page": (of_page(records=-1), "not from 0"),
    "records in all": (of_page(records=2**63 - 1), "records together"),
    "an entry in place of pages": (
        lambda document: document["parts"][0]["splits"].update(train=[]),
        r"splits\.train: is a list, not an object",
    ),
    "pages in version 2": (lambda document: document.update(version=[2, 0]), r"splits\.train: is a JSON object, not a"),
    "a version to come": (
        lambda document: document.update(version=[4, 0]),
        "has format version 4.*install a newer one",
    ),
    "a version of before": (
        lambda document: document.update(version=[1, 0]),
        "has format version 1.*build the data set anew",
    ),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_no_build_writes_is_refused(out: Path, case: str) -> None:
    change, said = MANIFESTS[case]
    path = out / "_manifests" / "00000001.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=rf"/out/_manifests/00000001\.json: .*{said}"):
        load(out)


def name_first(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["shards"][0].update(name=name)


PAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a shard above": (name_first("../../victim"), r"shards\[0\]\.name: is '\.\./\.\./victim', no shard"),
    "another's place": (name_first("train-00001-of-00010.tfrecord"), "whose place it has"),
    "of more": (name_first("train-00000-of-00011.tfrecord"), "whose place it has"),
    "of another split": (name_first("test-00000-of-00010.tfrecord"), "no shard of this split"),
    "fewer shards": (lambda document: document["shards"].pop(), "are 2 where the manifest says 3"),
    "other records": (lambda document: document["shards"][0].update(records=1), "other records or bytes"),
    "a count that is text": (lambda document: document["shards"][0].update(bytes="1"), r"shards\[0\]\.bytes: is '1'"),
    "a digest without its algorithm": (
        lambda document: document["shards"][0].update(digest="0" * 64),
        "not blake3, `:`",
    ),
    "another format": (lambda document: document.update(format="x"), "'recordmill page'"),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_page_that_no_build_writes_is_refused(out: Path, case: str) -> None:
    """Its digest is that of the manifest, whose author made both."""
    change, said = PAGES[case]
    path = out / load(out).parts[0].folder / "pages" / "train-00000.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"train-00000\.json: (is not what the manifest says it is|has .* allowed)"):
        recordmill.open(out)
    manifest = out / "_manifests" / "00000001.json"
    outer = json.loads(manifest.read_text())
    page_of(outer).update(bytes=path.stat().st_size, digest=f"blake3:{blake3(path.read_bytes()).hexdigest()}")
    manifest.write_text(json.dumps(outer))
    with pytest.raises(DataError, match=rf"pages/train-00000\.json: .*{said}"):
        recordmill.open(out)


def test_nothing_waits_for_a_pipe_and_every_flipped_byte_of_a_page_is_found(out: Path) -> None:
    path = out / load(out).parts[0].folder / "pages" / "test-00003.json"
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        manifest._read.cache_clear()
        with pytest.raises(DataError, match="size or its digest differs"):
            find(str(out))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="no regular file"):
        find(str(out))
