"""`--transform-cache`: a build after one more file analyses that file only, and finds what one without a cache does."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformed_set import write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.base.errors import UsageError
from recordmill.pipelines import analysis_cache
from recordmill.pipelines.build import BuildResult, build
from recordmill.preprocessing.analysis_cache import framed, open_group, write_group
from recordmill.shards.manifest import TRANSFORM_FOLDER, load
from recordmill.sources.registry import KIND_NAMES
from recordmill.transforms.tft import analysis
from recordmill.transforms.tft.analysis import SketchCoder

SPLITS = "train=0.8,validation=0.2"
ROWS = 300
DECLARED: dict[str, Any] = {
    "age": "zscore",
    "miles": "minmax",
    "city": {"vocabulary": {"top_k": 5}},
    "age_group": {"from": "age", "bucketize": 4},
}


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder of three CSVs."""
    folder = tmp_path / "days"
    folder.mkdir()
    for day in range(3):
        write_csv(folder / f"day-{day}.csv", ROWS, seed=day)
    return folder


def cached(days: Path, name: str = "out", declared: Any = None, **options: Any) -> BuildResult:
    out = days.parent / name
    given = {"transform": declared or DECLARED, "splits": SPLITS, "overwrite": True, "num_shards": 1, **options}
    return build(days, out, kind="csv", transform_cache=days.parent / "cache", **given)


def analysed(done: BuildResult) -> tuple[int, int, int]:
    """(files analysed, their records, files that were known)."""
    (note,) = [note for note in done.notes if note.startswith("transform fitted")]
    counts = re.findall(r"\d[\d,]*", note)
    assert counts[0] == str(int(counts[1]) + int(counts[3]))
    return int(counts[1]), int(counts[2].replace(",", "")), int(counts[3])


def train_records(path: Path, days: Path) -> int:
    """How many records of a file are in the train split, by the keys alone."""
    alone = build(days, days.parent / "placed", kind="csv", splits=SPLITS, overwrite=True, num_shards=1)
    ids = recordmill.open(alone.out, split="train").to_table()
    lines = {line.split(",")[0] + line.split(",")[3] for line in path.read_text().splitlines()[1:]}
    return sum(
        f"{number}{miles:.3f}" in lines
        for number, miles in zip(ids["id"].to_pylist(), ids["miles"].to_pylist(), strict=True)
    )


def files_of(done: BuildResult) -> dict[str, bytes]:
    """The saved transform's vocabularies."""
    folder = done.out / load(done.out).parts[-1].folder / TRANSFORM_FOLDER / "transform_fn" / "assets"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_fit(days: Path, done: BuildResult, declared: Any = None) -> None:
    """It is what a build without a cache finds: exactly, but for the last bits of means and the sketch's bound."""
    plain = build(
        days, days.parent / "plain", kind="csv", transform=declared or DECLARED, splits=SPLITS, overwrite=True,
        num_shards=1,
    )  # fmt: skip
    here, there = load(done.out).transform, load(plain.out).transform
    assert {key: here[key] for key in ("inputs", "outputs", "kept", "needs", "raw_schema")} == {
        key: there[key] for key in ("inputs", "outputs", "kept", "needs", "raw_schema")
    }
    assert files_of(done) == files_of(plain)
    for name, expected in there["found"].items():
        found = here["found"][name]
        assert found.keys() == expected.keys()
        for what, value in expected.items():
            if what in ("mean", "variance"):
                assert found[what] == pytest.approx(value, rel=1e-12)
            elif what == "boundaries":
                assert len(found[what]) == len(value)
                np.testing.assert_allclose(found[what], value, atol=1)  # of whole years
            else:
                assert found[what] == value
    assert (
        here["digest"]
        == load(build(days, days.parent / "from", transform_from=done.out, splits=SPLITS).out).transform["digest"]
    )
    shutil.rmtree(days.parent / "from")
    assert recordmill.verify(done.out) == []


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files become several groups, as large ones do."""
    monkeypatch.setattr(analysis_cache, "_GROUP_BYTES", 1)


@pytest.mark.sweep
@pytest.mark.usefixtures("groups")
def test_one_more_file_is_all_that_is_analysed(days: Path) -> None:
    first = cached(days)
    assert analysed(first)[::2] == (3, 0)
    assert_same_fit(days, first)
    again = cached(days, "again")
    assert analysed(again) == (0, 0, 3)
    assert load(again.out).transform["found"] == load(first.out).transform["found"]
    write_csv(days / "day-3.csv", ROWS, seed=3)
    more = cached(days)
    assert analysed(more) == (1, train_records(days / "day-3.csv", days), 3)
    assert_same_fit(days, more)


class _Call:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_what_lies_in_a_cache_is_never_run(days: Path) -> None:
    """Sketches are kept as their own bytes; a pickle in their place is none."""
    declared = {"age": {"bucketize": 4}}
    cached(days, declared=declared)
    (path,) = (days.parent / "cache").iterdir()
    header = json.loads(path.read_bytes().split(b"\n")[1][8:].partition(b"]]}")[0] + b"]]}")
    group, made, parts = open_group(str(path), header["context"]), days.parent / "made", {}
    assert not [key for key in group.entries if any(b"tfx_bsl" in one for one in group.elements(key))]
    for number, key in enumerate(group.entries):
        (days.parent / f"part-{number}").write_bytes(framed(pickle.dumps(_Call(made))))
        parts[key] = [str(days.parent / f"part-{number}")]
    write_group(str(path.parent), header["context"], group.members, parts)
    again = cached(days, "again", declared)
    assert not made.exists()
    assert any("could not be used, and is replaced" in note for note in again.notes)
    assert analysed(again)[::2] == (3, 0)
    assert analysed(cached(days, "third", declared))[::2] == (0, 3)
    assert_same_fit(days, again, declared)


def test_graphs_that_are_made_here_keep_sketches_of_each_key_unpickled(tmp_path: Path) -> None:
    from tensorflow_transform import analyzer_nodes, analyzers

    evil = pickle.dumps(_Call(tmp_path / "made"))
    for inside in (True, False):
        with analysis._without_pickles() if inside else contextlib.nullcontext():
            combiner = analyzers.QuantilesCombiner(3, 0.1, np.float32)
            coder = analyzer_nodes.CacheableCombinePerKeyAccumulate(combiner).cache_coder
        with pytest.raises(RuntimeError) if inside else contextlib.nullcontext():
            coder.decode_cache(struct.pack("qq", 1, len(evil)) + b"k" + evil)
        assert (tmp_path / "made").exists() == (not inside)
    sketch = combiner.add_input(combiner.create_accumulator(), [np.array([[1.0, 2.0, 3.0]])])
    assert combiner.extract_output(SketchCoder().decode_cache(SketchCoder().encode_cache(sketch)))[0].tolist()


@pytest.mark.sweep
@pytest.mark.usefixtures("groups")
def test_a_repeated_bundle_changes_nothing_of_what_is_kept(days: Path) -> None:
    cached(days, beam_args=("--direct_runner_bundle_repeat=1",))
    repeated = {path.name: path.read_bytes() for path in (days.parent / "cache").iterdir()}
    shutil.rmtree(days.parent / "cache")
    cached(days)
    assert {path.name: path.read_bytes() for path in (days.parent / "cache").iterdir()} == repeated


@pytest.mark.sweep
@pytest.mark.usefixtures("groups")
def test_a_changed_file_and_a_missing_one_are_not_taken_for_what_they_were(days: Path) -> None:
    cached(days)
    write_csv(days / "day-1.csv", ROWS, seed=11)
    (days / "day-2.csv").unlink()
    done = cached(days)
    assert analysed(done)[0] in (1, 2)  # and day 0, if it was of one group with either
    assert_same_fit(days, done)


@pytest.mark.sweep
@pytest.mark.usefixtures("groups")
def test_what_is_damaged_is_analysed_anew_and_said(days: Path) -> None:
    cached(days)
    for path in (days.parent / "cache").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    count = len(list((days.parent / "cache").iterdir()))
    done = cached(days)
    assert analysed(done)[::2] == (3, 0)
    assert f"{count} files of transform_cache= are damaged, and were not used" in done.notes
    assert_same_fit(days, done)
    assert analysed(cached(days))[::2] == (0, 3)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options",
    [
        {"declared": {**DECLARED, "age_group": {"from": "age", "bucketize": 5}}},
        {"splits": "train=0.7,validation=0.3"},
        {"split_seed": 1},
        {"fit_on": "validation"},
        {"split_by": "city"},
        {"null_tokens": ("", "city 1")},
        {"dtypes": {"id": "string"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_another_transform_split_or_way_to_read_is_another_cache(days: Path, options: dict[str, Any]) -> None:
    cached(days)
    assert analysed(cached(days, **options))[::2] == (3, 0)
    assert analysed(cached(days, **options))[::2] == (0, 3)


@pytest.mark.sweep
def test_analysers_upon_what_others_found_read_all_again(days: Path) -> None:
    declared = {"fare": [{"impute": "mean"}, "zscore"], "age": "minmax"}
    assert analysed(cached(days, declared=declared))[::2] == (3, 0)
    done = cached(days, declared=declared)
    assert analysed(done)[::2] == (0, 3)
    assert sum("known from transform_cache= and read again, for analysers" in note for note in done.notes) == 1
    assert_same_fit(days, done, declared)


MODULE = """
import tensorflow_transform as tft
class Settings:
    buckets = 4
def helper(x):
    return tft.quantiles(x, Settings.buckets, epsilon=EPSILON)
def preprocessing_fn(inputs):
    return {"age": tft.apply_buckets(inputs["age"], helper(inputs["age"])), "miles": tft.scale_to_0_1(inputs["miles"])}
"""


@pytest.mark.sweep
def test_a_module_that_changed_in_what_no_graph_shows_is_another_transform(
    days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = days.parent / "transform.py"
    module.write_text(MODULE.replace("EPSILON", "0.01"))
    assert analysed(cached(days, declared=module))[::2] == (3, 0)
    (days.parent / "moved").mkdir()
    moved = module.rename(days.parent / "moved/transform.py")
    assert analysed(cached(days, declared=moved))[::2] == (0, 3)
    moved.write_text(MODULE.replace("EPSILON", "0.001"))
    assert analysed(cached(days, declared=moved))[::2] == (3, 0)


@pytest.mark.sweep
def test_a_file_without_a_record_in_the_split_is_known_too(days: Path) -> None:
    (days / "tiny.csv").write_text((days / "day-0.csv").read_text().splitlines()[0] + "\n1,30,,1.0,a,ok,cash,no\n")
    for _ in range(2):
        done = cached(days, splits="train=0.001,validation=0.999", max_rejects=0)
    assert analysed(done) == (0, 0, 4)


@pytest.mark.sweep
@pytest.mark.usefixtures("groups")
def test_images_of_folders_are_told_apart_by_what_the_folders_say(tmp_path: Path) -> None:
    from image_samples import encoded, picture

    for number in range(6):
        folder = tmp_path / "days" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encoded("JPEG", picture(size=(8 + number, 8), seed=number)))
    declared = {"width": "minmax", "class_name": "vocabulary"}

    def run() -> BuildResult:
        return build(
            tmp_path / "days", tmp_path / "out", transform=declared, transform_cache=tmp_path / "cache",
            overwrite=True,
        )  # fmt: skip

    assert analysed(run()) == (6, 6, 0)
    (tmp_path / "days/cat/1.jpg").rename(tmp_path / "days/dog/1.jpg")
    done = run()
    assert 1 <= analysed(done)[0] < 6
    found = load(done.out).transform["found"]
    assert found["width"] == {"min": 8.0, "max": 13.0}
    assert files_of(done).popitem()[1].decode().split() == ["dog", "cat"]


def test_a_folder_that_would_be_read_or_written_is_refused(days: Path, tmp_path: Path) -> None:
    for folder, message in (
        (tmp_path / "out", "lies in OUT"),
        (tmp_path / "out/cache", "lies in OUT"),
        (days, "holds the input day-0.csv"),
        (tmp_path, "holds the input day-0.csv"),
        (days / "day-0.csv/cache", "Not a directory"),
    ):
        with pytest.raises(UsageError, match=message):
            build(days, tmp_path / "out", transform=DECLARED, transform_cache=folder)
    with pytest.raises(UsageError, match="transform_cache= needs transform="):
        build(days, tmp_path / "out", transform_cache=tmp_path / "cache")
    assert not (tmp_path / "out").exists()


def test_each_kind_says_what_decides_how_it_is_read() -> None:
    """A field of a Source that is in neither list must not decide what its records hold."""
    import dataclasses
    from importlib import import_module

    # in the context, or of no effect
    told = {"schema", "files", "units", "digests", "notes", "plan_rejects", "kind", "statistics"}
    # from a file's content alone; `kept` are records as reading them gives them, `batch_bytes` how many come at once
    derived = {"segments", "first_batches", "kept", "batch_bytes"}
    classes = {
        "csv": "sources.csv.source:CsvSource", "images": "sources.images.source:ImageSource",
        "jsonl": "sources.jsonl.source:JsonlSource", "memory": "sources.arrow.memory:MemorySource",
        "parquet": "sources.arrow.parquet:ParquetSource", "text": "sources.text.source:TextSource",
        "tfrecord": "sources.tfrecord.source:TfrecordSource",
    }  # fmt: skip
    assert set(classes) == {*KIND_NAMES, "memory"}
    for kind, name in classes.items():
        module, _, source = name.partition(":")
        of_kind = getattr(import_module(f"recordmill.{module}"), source)
        fields = {field.name for field in dataclasses.fields(of_kind)}
        one = object.__new__(of_kind)
        for field in fields:
            object.__setattr__(one, field, field)
        assert {*one.read_settings} == fields - told - derived, kind
