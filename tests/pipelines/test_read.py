"""`read` writes the same Parquet, NumPy and Arrow files from threads and Beam.

A read that fails leaves no files.
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.data_sets import FOLDER, MIXED, flip_record, mixed_rows, write_data_set
from kit.files import tfrecord_bytes
from kit.runs import WAYS_TO_READ, read_in_each_way, rejects_of

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.read import ReadResult, read
from recordmill.pipelines.read_options import make_settings
from recordmill.records.images.rewrite import RewriteRule
from recordmill.records.writers.npy import open_columns
from recordmill.records.writers.outputs import WriterSettings, find_output
from recordmill.schemas.arrow import from_arrow, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import load_manifest
from recordmill.shards.rejects import TooManyRejects
from recordmill.storage.codecs import SHARD_SUFFIXES

PIECE_BYTES = 10_000

TRAIN, TEST = mixed_rows(400), mixed_rows(30, 400)


@pytest.fixture(scope="module", params=list(SHARD_SUFFIXES))
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("ds") / "out",
        {"train": TRAIN, "test": TEST},
        shards=3,
        compression=request.param,
    )


def rows(result: ReadResult, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split as Python values, from Parquet or Arrow files."""
    tables = [
        pq.read_table(path) if result.to == "parquet" else pa.ipc.open_file(path).read_all()
        for path in result.files[split]
    ]
    return pa.concat_tables(tables).to_pylist()


@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_read_to_tables_holds_all_rows(out: Path, tmp_path: Path, to: str) -> None:
    result = read(out, tmp_path / "to", to=to, file_size=30_000)
    assert result.records == {"train": 400, "test": 30}
    assert (result.read, result.rejected, result.written) == (430, 0, 430)
    assert rows(result, "train") == TRAIN.to_pylist()
    assert rows(result, "test") == TEST.to_pylist()
    assert len(result.files["train"]) > 2
    assert result.files["train"][0].name == f"train-00000-of-{len(result.files['train']):05d}.{to}"
    assert result.schema == MIXED
    assert "train 400" in repr(result)
    names = {path.name for path in (tmp_path / "to").iterdir()}
    assert names == {path.name for path in result.paths} | {"_read.json"}
    if to == "parquet":
        assert from_arrow(pq.read_schema(result.paths[0])) == MIXED


def test_npz_holds_the_arrays_of_npy(out: Path, tmp_path: Path) -> None:
    assert read(out, tmp_path / "npy", to="npy", split="train").paths == (
        tmp_path / "npy" / "train",
    )
    result = read(out, tmp_path / "npz", to="npz", split="train")
    assert result.paths == (tmp_path / "npz" / "train.npz",)
    with np.load(result.paths[0]) as arrays:
        for name in arrays.files:
            assert (
                arrays[name].tobytes()
                == np.load(tmp_path / "npy" / "train" / f"{name}.npy").tobytes()
            )
        assert {f"{name}.npy" for name in arrays.files} == {
            path.name for path in (tmp_path / "npy" / "train").glob("*.npy")
        }


def test_npz_beyond_memory_is_refused(tmp_path: Path) -> None:
    schema = Schema((Feature("x", "float64"),))
    writer = find_output("npz").new_writer(
        tmp_path / "train.npz", schema, WriterSettings(None, "train", 4000)
    )
    writer.write(pa.record_batch({"x": np.zeros(1000)}, to_arrow(schema)))
    with pytest.raises(UsageError, match=r'train takes .*use to="npy"'):
        writer.close()
    writer.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["parquet", "npy", "npz", "arrow"])
def test_read_files_do_not_depend_on_threads_memory_and_runner(
    out: Path, tmp_path: Path, to: str
) -> None:
    repeated = {"runner": "DirectRunner", "beam_args": ["--direct_runner_bundle_repeat=1"]}
    read_in_each_way(out, tmp_path, [*WAYS_TO_READ, repeated], to=to, file_size=30_000)


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_limit_counts_bad_records_among_the_first_ones(
    tmp_path: Path, limit: int, compression: str
) -> None:
    """Streams are tested, too, because they deliver many records at once.

    Records 2, 5 and 6 don't match the schema.
    """
    good, bad = b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x01", b"\xff"
    records = [bad if number in (1, 4, 5) else good for number in range(9)]
    data = tfrecord_bytes(records)
    name = "a.tfrecord" if compression == "none" else "a.tfrecord.gz"
    (tmp_path / name).write_bytes(data if compression == "none" else gzip.compress(data))
    result = read(tmp_path / name, tmp_path / "out", limit=limit, max_rejects="100%")
    assert result.rejected == sum(number in (1, 4, 5) for number in range(limit))
    assert result.written == limit - result.rejected


def test_columns_split_and_limit_select_records(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "a", columns="label,id", split="train", limit=7)
    assert (
        pq.read_table(result.paths[0]).to_pylist()
        == TRAIN.select(["label", "id"]).slice(0, 7).to_pylist()
    )
    assert result.records == {"train": 7}
    assert read(out, tmp_path / "b", limit=150).records == {"train": 150, "test": 30}
    assert read(out, tmp_path / "c", limit=0, to="npy").records == {"train": 0, "test": 0}


def test_results_are_replaced_only_with_overwrite(out: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    read(out, to, to="npy")
    with pytest.raises(UsageError, match="overwrite=True"):
        read(out, to)
    result = read(out, to, split="test", overwrite=True)
    assert {path.name for path in to.iterdir()} == {"_read.json", "test-00000-of-00001.parquet"}
    assert result.written == 30
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty \(mine.txt\)"):
        read(out, tmp_path / "full", overwrite=True)
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    assert read(out, tmp_path / "mount").written == 430
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rejects").write_text("a file of the user")
    with pytest.raises(UsageError, match=r"is not empty \(rejects\)"):
        read(out, tmp_path / "other", overwrite=True)
    with pytest.raises(UsageError, match="holds a data set"):
        read(out, out, overwrite=True)


def test_damaged_record_ends_the_read_and_leaves_nothing(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": TRAIN}, shards=2)
    shard, offset = flip_record(out, 120)
    for runner in (None, "FnApiRunner"):
        with pytest.raises(
            DataError, match=rf"{shard}: record 120, byte {offset}: CRC of the data"
        ):
            read(out, tmp_path / "to", runner=runner)
        assert not (tmp_path / "to").exists()
    with pytest.raises(
        TooManyRejects, match=r"1 of 400 records was rejected \(reason: wrong checksum\)"
    ):
        read(out, tmp_path / "to", max_rejects="0.1%")
    assert not (tmp_path / "to").exists()
    for number, options in enumerate(
        [
            {"max_rejects": 1},
            {"max_rejects": "1%", "runner": "FnApiRunner"},
            {"max_rejects": 5, "to": "npy"},
        ]
    ):
        result = read(out, tmp_path / str(number), **options)
        assert (result.read, result.written, result.rejected) == (400, 399, 1)
        (reject,) = rejects_of(result)
        assert reject["source"] == f"{FOLDER}/{shard.name}"
        assert reject["place"] == f"record 120, byte {offset}"
        assert reject["reason"] == "crc"
    assert (
        rows(read(out, tmp_path / "to", max_rejects=1), "train")
        == TRAIN.take([i for i in range(400) if i != 320]).to_pylist()
    )


def test_read_of_no_records_writes_empty_files(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(0)}, shards=1)
    result = read(out, tmp_path / "a")
    assert pq.read_table(result.paths[0]).schema.names == list(MIXED.names)
    assert result.records == {"train": 0}
    assert read(out, tmp_path / "b", to="npy").records == {"train": 0}
    assert open_columns(tmp_path / "b" / "train")["matrix"].shape == (0, 2, 3)
    assert read(out, tmp_path / "c", to="jsonl").paths[0].read_bytes() == b""
    assert (
        read(out, tmp_path / "d", to="csv", columns="id,label").paths[0].read_text()
        == '"id","label"\n'
    )


def test_listed_inputs_leave_out_shards_of_earlier_generations(tmp_path: Path) -> None:
    for number in (1, 2):
        recordmill.build({"x": [number] * number}, tmp_path / "sets" / "a", overwrite=True)
    (tmp_path / "list.txt").write_text("sets/a\n")
    for number, inputs in enumerate(
        [tmp_path / "sets", f"@{tmp_path}/list.txt", f"{tmp_path}/sets/a/data-*/*.tfrecord"]
    ):
        result = recordmill.read(inputs, tmp_path / str(number))
        assert result.records == {"train": 2}
        assert "1 shard(s) of earlier generations of their data set were left out" in result.notes
    out = tmp_path / "sets" / "a"
    old, new = (
        out / load_manifest(out, generation).parts[0].folder / "train-00000-of-00001.tfrecord"
        for generation in (1, 2)
    )
    # Shards that are named one by one are read.
    assert recordmill.read([old, new], tmp_path / "both").records == {"train": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 1.5}, "limit is a whole number, not 1.5"),
        ({"limit": "3"}, "limit is a whole number, not '3'"),
        ({"threads": 1.5}, "threads is a whole number, not 1.5"),
        ({"sample": 0.5, "seed": "a"}, "seed is a whole number, not 'a'"),
        ({"sample": "x"}, 'sample="x": must be a share of the records, from 0 to 1'),
        ({"decode_images": 1}, "decode_images=1: give True, or the names of features"),
        *(
            ({"decode_images": True, "resize": size}, "resize=.*: write HEIGHTxWIDTH in pixels")
            for size in ((2,), (2, 3, 4), (1.5, 2), ("2", "3"), 5, "2", "9" * 5000 + "x1")
        ),
        (
            {"decode_images": True, "resize": (-2, -3)},
            "resize=.*: the size must be 1 to 16777216 pixels",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_read_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_settings(**options)
    if "resize" in options:
        with pytest.raises(UsageError, match="resize="):
            RewriteRule.from_options(options["resize"], "stretch", None)
