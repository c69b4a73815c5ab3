"""A manifest keeps its content in a round trip.

Only a manifest that a build could have written is loaded.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from kit.commits import SHARD, build

from recordmill.base.errors import DataError, UsageError
from recordmill.shards.manifest import (
    Manifest,
    ShardInfo,
    explain_missing,
    list_generations,
    load_generation,
    load_manifest,
    load_newest_manifest,
    parse_shard_name,
    read_statistics,
)


def test_manifest_survives_a_round_trip_and_later_formats_are_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"x", 0)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert (
        Manifest.from_json(text.replace('"run": {', '"added_by_a_minor": 1, "run": {')) == manifest
    )
    with pytest.raises(DataError, match="format version 4"):
        Manifest.from_json(text.replace('"version": [\n  2,', '"version": [\n  4,'))
    for invalid in (
        "",
        "[]",
        "{}",
        '{"format": "recordmill", "version": [2, 0]}',
        text.replace('"parts"', '"bits"'),
    ):
        with pytest.raises(DataError, match=r"^manifest: "):
            Manifest.from_json(invalid)
    with pytest.raises(DataError, match="holds no data set"):
        load_manifest(tmp_path / "nothing")


def test_shards_are_listed_split_by_split_in_the_order_of_parts(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"x", 0)
    (part,) = manifest.parts
    info = part.splits["train"][0]
    test = replace(info, name="test-00000-of-00001.tfrecord", records=3)
    parts = (
        replace(part, splits={"test": (test,), "train": (info,)}),
        replace(part, folder="data-2", splits={"train": (info,), "dev": ()}),
    )
    extended = replace(manifest, parts=parts)
    assert extended.splits == ("test", "train", "dev")
    assert [(split, part.folder) for split, part, _ in extended.shards()] == [
        ("test", parts[0].folder),
        ("train", parts[0].folder),
        ("train", "data-2"),
    ]
    assert extended.records == {"test": 3, "train": 2, "dev": 0}
    assert extended.shard_counts == {"test": 1, "train": 2, "dev": 0}
    assert extended.size_bytes == 3 * info.bytes
    assert (extended.transform_folder, extended.statistics_folder) == (parts[0].folder, "data-2")


def test_newest_generation_is_loaded_and_others_by_their_number(tmp_path: Path) -> None:
    manifests = [build(tmp_path, content, base) for base, content in enumerate((b"1", b"2", b"3"))]
    assert list_generations(tmp_path) == [2, 3]
    assert load_newest_manifest(tmp_path) == (3, manifests[2])
    assert load_manifest(tmp_path) == manifests[2]
    assert load_generation(tmp_path, 2) == manifests[1]
    with pytest.raises(UsageError, match=r"does not have generation 1 any more \(kept: 2, 3\)"):
        load_generation(tmp_path, 1)
    with pytest.raises(UsageError, match=r"has no generation 4 \(kept: 2, 3\)$"):
        load_generation(tmp_path, 4)


def test_outdated_listing_of_generations_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    for base in range(3):
        build(tmp_path, b"x", base)
    assert load_newest_manifest(tmp_path, [1])[0] == 3


def test_manifest_that_exists_and_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "_manifests").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "_manifests" / "00000001.json")
    with pytest.raises(DataError, match=r"00000001\.json: can't be opened"):
        load_newest_manifest(tmp_path)


def test_error_of_a_missing_file_reports_a_replaced_data_set(tmp_path: Path) -> None:
    old = build(tmp_path, b"1", 0).parts[0].folder
    new = build(tmp_path, b"2", 1).parts[0].folder
    with (
        pytest.raises(DataError, match="is missing; the manifest names it"),
        explain_missing(str(tmp_path / new / SHARD)),
    ):
        raise FileNotFoundError
    with (
        pytest.raises(DataError, match="is gone: the data set was replaced, by generation 2"),
        explain_missing(str(tmp_path / old / "index" / "train-00000.npy")),
    ):
        raise FileNotFoundError
    with (
        pytest.raises(DataError, match=r"a\.tfrecord: is missing$"),
        explain_missing(str(tmp_path / "a.tfrecord")),
    ):
        raise FileNotFoundError


def test_statistics_with_another_digest_than_in_the_manifest_are_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"1", 0)
    assert read_statistics(manifest, tmp_path) is None
    entry = {"name": "statistics.pb", "bytes": 3, "digest": f"blake3:{0:064x}"}
    changed_manifest = replace(manifest, statistics={"file": entry})
    with pytest.raises(DataError, match=r"statistics\.pb: is missing; the manifest names it"):
        read_statistics(changed_manifest, tmp_path)
    (tmp_path / manifest.statistics_folder / "statistics.pb").write_bytes(b"abc")
    with pytest.raises(DataError, match="differs from the manifest: it has another digest"):
        read_statistics(changed_manifest, tmp_path)


def _with_shard(manifest: Manifest, **fields: object) -> Manifest:
    (part,) = manifest.parts
    info = replace(part.splits["train"][0], **fields)  # type: ignore[arg-type]
    return replace(manifest, parts=(replace(part, splits={"train": (info,)}),))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"name": "test-00000-of-00001.tfrecord"}, "name: is 'test-00000"),
        ({"name": "train-00001-of-00001.tfrecord"}, "name: is 'train-00001"),
        ({"name": "train-00000-of-00001.tfrecord.gz"}, "name: is 'train-00000"),
        ({"name": "../train-00000-of-00001.tfrecord"}, "name: is '../train"),
        ({"framed_bytes": 17}, "framed_bytes: is 17, not from 0 to 16"),
        ({"records": 2}, "records: is 2, not from 0 to 1"),
        ({"digest": "md5:1"}, "digest: is"),
        ({"sum": "g" * 16}, "sum: is"),
        ({"bytes": -1}, "bytes: is"),
    ],
)
def test_impossible_field_of_a_shard_is_refused_with_its_place(
    tmp_path: Path, fields: dict[str, object], place: str
) -> None:
    manifest = build(tmp_path, b"x", 0)
    with pytest.raises(DataError) as error:
        Manifest.from_json(_with_shard(manifest, **fields).to_json())
    assert str(error.value).startswith(f"manifest: parts[0].splits.train[0].{place}")


def test_manifest_without_parts_or_with_a_repeated_folder_is_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"x", 0)
    with pytest.raises(DataError, match="parts: is empty"):
        Manifest.from_json(replace(manifest, parts=()).to_json())
    repeated = replace(manifest, parts=manifest.parts * 2)
    with pytest.raises(DataError, match=r"parts\[1\]\.folder: is .* which another part has"):
        Manifest.from_json(repeated.to_json())


def test_shard_name_that_no_build_writes_is_an_error() -> None:
    info = ShardInfo("photo.jpg", 1, 16, 16, "", "")
    with pytest.raises(DataError, match=r"'photo\.jpg' was not made by recordmill"):
        parse_shard_name(info)
