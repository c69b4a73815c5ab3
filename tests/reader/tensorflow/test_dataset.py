"""`to_tf` follows the schema, also for ragged and missing values and damaged shards.

Dtypes, shapes, the order and the cardinality follow from the schema and the options.
"""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.batches import tensor_to_list
from kit.data_sets import FOLDER, MIXED, flip_record, mixed_rows, window_options, write_data_set
from kit.runs import run_python

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import open
from recordmill.records.example.encode import encode, encode_sequences
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

tf = pytest.importorskip("tensorflow")

ROWS = 300
TABLE = mixed_rows(ROWS)


@pytest.fixture(scope="module", params=["none", pytest.param("gzip", marks=pytest.mark.sweep)])
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("ds") / "out", {"train": TABLE}, shards=3, compression=request.param
    )


def expected(feature: Feature, table: pa.Table) -> list[Any]:
    column = table[feature.name].cast(pa.int64()) if feature.timestamp else table[feature.name]
    rows = column.to_pylist()
    if feature.dtype == "string":
        return [
            [v.encode() for v in row] if isinstance(row, list) else row.encode() for row in rows
        ]
    return (
        [np.array(row).reshape(2, 3).tolist() for row in rows] if feature.name == "matrix" else rows
    )


def test_to_tf_returns_every_feature_with_its_dtype_and_values(out: Path) -> None:
    ds = open(out).to_tf(64, shuffle=False, label=True)
    batches = list(ds)
    for feature in MIXED:
        if feature.name == "label":
            continue
        value = batches[0][0][feature.name]
        assert value.dtype == (
            "int64"
            if feature.timestamp
            else "string"
            if feature.dtype == "bytes"
            else feature.dtype
        )
        assert isinstance(value, tf.RaggedTensor) == bool(feature.ragged_rank)
        values = [row for x, _ in batches for row in tensor_to_list(x[feature.name])]
        expected_rows = expected(feature, TABLE)
        if feature.ragged_rank:
            expected_rows = [row or [] for row in expected_rows]
        elif not feature.required:
            valid = [row for x, _ in batches for row in tensor_to_list(x[f"{feature.name}/valid"])]
            assert valid == [row is not None for row in expected_rows]
            assert all(not row for row, is_valid in zip(values, valid, strict=True) if not is_valid)
            values = [
                row if is_valid else None for row, is_valid in zip(values, valid, strict=True)
            ]
        assert values == expected_rows, feature
    assert [row for _, y in batches for row in tensor_to_list(y)] == TABLE["label"].to_pylist()
    assert batches[0][0]["boxes"].shape.as_list() == [64, None, 4]
    assert ds.element_spec[0]["matrix"].shape.as_list() == [None, 2, 3]


def test_to_tf_decodes_types_that_tensorflow_cannot(tmp_path: Path) -> None:
    schema = Schema(
        (
            Feature("d", "float64", (None,)),
            Feature("dd", "float64", (None, None, 2), True),
            Feature("u", "uint64", (2,), True),
            Feature("u1", "uint64"),
            Feature("opt", "float64", (2,)),
            Feature("h", "float16", (2,)),
            Feature("b", "bfloat16", (), True),
            Feature("text", "string", (2,)),
        )
    )
    rows = {
        "d": [[1.5, 1e-300], None, []],
        "dd": [[[[1, 2]], []], [], [[[3, 4], [5, 6]]]],
        "u": [[2**64 - 1, 0]] * 3,
        "u1": [2**63 - 1, None, 1],
        "opt": [[1e300, 2], None, [3, 4]],
        "h": [np.float16([1, 2]), None, np.float16([3, 4])],
        "b": [1, 2, 3],
        "text": [["a", "b"], None, ["", "c"]],
    }
    ds = open(write_data_set(tmp_path / "out", {"train": rows}, schema, shards=1)).to_tf(
        2, shuffle=False
    )
    values: dict[str, list[Any]] = {}
    for x in ds:
        for name, value in x.items():
            values.setdefault(name, []).extend(tensor_to_list(value))
    assert values["d"] == [[1.5, 1e-300], [], []]
    assert values["dd"] == rows["dd"]
    assert values["u"] == rows["u"]
    assert values["u1"] == [2**63 - 1, 0, 1]
    assert values["opt"] == [[1e300, 2], [0, 0], [3, 4]]
    assert values["opt/valid"] == [True, False, True]
    assert values["h"] == [[1, 2], [0, 0], [3, 4]]
    assert values["b"] == [1, 2, 3]
    assert values["text"] == [[b"a", b"b"], [b"", b""], [b"", b"c"]]


def test_to_tf_returns_sequence_examples(tmp_path: Path) -> None:
    schema = Schema(
        (
            Feature("c", "int64"),
            Feature("s", "float32", (None, 2), per_step=True),
            Feature("t", "int64", (None, None), per_step=True),
        ),
        message="SequenceExample",
    )
    arrow = to_arrow(schema)
    rows = {"c": [1, None], "s": [[[1, 2], [3, 4]], [[5, 6]]], "t": [[[1], []], [[2, 3]]]}
    batch = pa.record_batch(
        [pa.array(rows[field.name], field.type) for field in arrow], schema=arrow
    )
    (tmp_path / "a.tfrecord").write_bytes(encode_sequences(batch, schema).data.tobytes())
    (x,) = open(tmp_path / "a.tfrecord", schema=schema).to_tf(8, shuffle=False)
    assert x["c"].numpy().tolist() == [1, 0]
    assert x["c/valid"].numpy().tolist() == [True, False]
    assert x["s"].to_list() == rows["s"]
    assert x["t"].to_list() == rows["t"]


def test_to_tf_returns_opaque_records(tmp_path: Path) -> None:
    schema = Schema((Feature("record", "bytes", (), True),), message="bytes")
    batch = pa.record_batch([pa.array([b"one", b""], pa.large_binary())], schema=to_arrow(schema))
    (tmp_path / "a.tfrecord").write_bytes(encode(batch, schema).data.tobytes())
    (x,) = open(tmp_path / "a.tfrecord", schema=schema).to_tf(8, shuffle=False)
    assert x["record"].numpy().tolist() == [b"one", b""]


def test_to_tf_knows_its_cardinality(out: Path) -> None:
    ds = open(out, columns=["matrix", "label"])
    assert ds.to_tf(64).cardinality().numpy() == 5
    assert ds.to_tf(64, drop_remainder=True).cardinality().numpy() == 4
    assert ds.to_tf(64, epochs=3).cardinality().numpy() == 15
    assert ds.to_tf(64, epochs=None).cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    assert ds.to_tf(None).cardinality().numpy() == ROWS
    x, y = next(iter(ds.to_tf(None, shuffle=False, label=True)))
    assert x.shape == (2, 3)
    assert y.numpy() == 0


def test_to_tf_separates_the_label_from_the_features(out: Path) -> None:
    x, y = next(iter(open(out, columns=["matrix", "label"]).to_tf(8, label=True)))
    assert x.shape == (8, 2, 3)
    x, y = next(iter(open(out).to_tf(8, label="exact", shuffle=False)))
    assert y.numpy().tolist() == TABLE["exact"].to_pylist()[:8]
    assert "label" in x
    assert isinstance(next(iter(open(out).to_tf(8, label=False))), dict)
    with pytest.raises(UsageError, match="label 'nope' is not a selected feature"):
        open(out).to_tf(label="nope")
    with pytest.raises(UsageError, match=r"no label 'maybe', .*defaults=\{'maybe': ...\}"):
        open(out).to_tf(8, label="maybe")
    _, y = next(iter(open(out).to_tf(8, label="maybe", defaults={"maybe": -1.0}, shuffle=False)))
    assert y.numpy().tolist() == [-1.0 if v is None else v for v in TABLE["maybe"].to_pylist()[:8]]


def test_to_tf_defaults_replace_masks(out: Path) -> None:
    defaults = {"maybe": -1.0, "flag": True, "payload": b"none", "when": 5}
    ds = open(out).to_tf(ROWS, shuffle=False, defaults=defaults, label=True)
    x, _ = next(iter(ds))
    assert x["maybe"].numpy().tolist() == [
        -1.0 if v is None else v for v in TABLE["maybe"].to_pylist()
    ]
    assert x["flag"].numpy().tolist() == [
        True if v is None else v for v in TABLE["flag"].to_pylist()
    ]
    assert x["payload"].numpy().tolist() == [
        b"none" if v is None else v for v in TABLE["payload"].to_pylist()
    ]
    assert not {"maybe/valid", "flag/valid", "payload/valid", "when/valid"} & set(x)
    with pytest.raises(UsageError, match="variable length"):
        open(out).to_tf(defaults={"tokens": 0})
    cases = (
        ({"mayb": 0}, "did you mean maybe"),
        ({"maybe": "x"}, "can't replace"),
        (["maybe"], "a value by feature"),
    )
    for invalid, message in cases:
        with pytest.raises(UsageError, match=message):
            open(out).to_tf(defaults=invalid)
    with pytest.raises(UsageError, match="start_step is a whole number"):
        open(out).to_tf(start_step=1.5)


def test_to_tf_reads_zstd_files(out: Path, tmp_path: Path) -> None:
    archive = tmp_path / "train.tfrecord.zst"
    files = sorted((out / FOLDER).glob("train-*"))
    shards = b"".join(
        gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for file in files
    )
    archive.write_bytes(pa.compress(shards, codec="zstd", asbytes=True))
    zstd_batches, original_batches = (
        list(open(path, columns=["id"]).to_tf(64, label=False, shuffle=False))
        for path in (archive, out)
    )
    assert [x["id"].numpy().tolist() for x in zstd_batches] == [
        x["id"].numpy().tolist() for x in original_batches
    ]


def test_to_tf_raises_on_shortened_or_damaged_shards(out: Path, tmp_path: Path) -> None:
    data = write_data_set(tmp_path / "out", {"train": TABLE}, shards=2)
    shard = sorted((data / FOLDER).glob("train-00001*"))[0]
    index = np.load(data / FOLDER / "index" / "train-00001.npy")
    content = shard.read_bytes()
    ds = open(data)
    dataset = ds.to_tf(64)
    # The file ends inside the last header. TensorFlow alone would treat this as the end of the
    # records.
    shard.write_bytes(content[: int(index["offset"][-1]) + 5])
    with pytest.raises(tf.errors.InvalidArgumentError, match=shard.name):
        list(dataset)
    with pytest.raises(DataError, match="has .* bytes"):  # noqa: RUF043
        open(data)
    shard.write_bytes(content)
    flip_record(data, 3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"record 3, byte \d+: CRC of the data"
    ):
        list(open(data).to_tf(64))


def test_to_tf_has_the_order_and_values_of_batches(out: Path) -> None:
    ds = open(out, columns=["id", "matrix"])
    for mode in ("window", "global"):
        for options in (
            {},
            {"drop_remainder": True},
            {"num_hosts": 2, "host_index": 1, "drop_remainder": True},
        ):
            tensors = ds.to_tf(
                32, shuffle=mode, seed=3, epochs=2, **window_options(mode, 20_000), **options
            )
            batches = ds.batches(
                32, shuffle=mode, seed=3, epochs=2, **window_options(mode, 20_000), **options
            )
            for x, batch in zip(tensors, batches, strict=True):
                assert x["id"].numpy().tolist() == batch["id"].tolist()
                assert x["matrix"].numpy().tolist() == batch["matrix"].tolist()


def test_to_tf_resumes_at_any_step(out: Path) -> None:
    ds = open(out, columns=["id"])

    def epochs(**options: Any) -> list[list[list[int]]]:
        dataset = ds.to_tf(64, seed=3, **options)
        return [[x["id"].numpy().tolist() for x in dataset] for _ in range(3)]

    orders = epochs()
    assert len({tuple(epoch[0]) for epoch in orders}) == 3
    for step in range(6):
        remaining = [batch for epoch in orders for batch in epoch][step:]
        resumed = [batch for epoch in epochs(start_step=step) for batch in epoch]
        assert resumed[: len(remaining)] == remaining
        assert (
            next(iter(ds.to_tf(64, seed=3, start_step=step, epochs=3)))["id"].numpy().tolist()
            == remaining[0]
        )
    iterator = ds.batches(64, shuffle=True, seed=3)
    next(iterator)
    tensors = ds.to_tf(64, seed=3, state=iterator.state())
    assert [x["id"].numpy().tolist() for x in tensors] == orders[0][1:]
    assert [x["id"].numpy().tolist() for x in tensors] == orders[1]
    iterator.close()


OPEN_ITERATOR_SCRIPT = """
import sys, time
import recordmill
from recordmill.reader.tensorflow import dataset as face
blocks = face._iter_flat_blocks
def slowly(*given, **more):
    for block in blocks(*given, **more):
        time.sleep(1)  # so that TensorFlow is fed while the process ends
        yield block
face._iter_flat_blocks = slowly
left = iter(recordmill.open(sys.argv[1]).to_tf(16, label=False, epochs=None))
next(left)
"""


@pytest.mark.sweep
def test_process_with_an_open_tf_iterator_ends(out: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN_ITERATOR_SCRIPT, str(out)], check=True, timeout=300)


@pytest.mark.parametrize("threads", [1, 2])
def test_process_with_open_batches_ends_without_output(out: Path, threads: int) -> None:
    script = f"import recordmill\nleft = iter(recordmill.open({str(out)!r}, threads={threads}).batches(16))\nnext(left)\n"
    process = run_python("-c", script, timeout=300)
    assert (process.stdout, process.stderr) == ("", "")


@pytest.fixture(scope="module")
def competition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that lacks the label `y` in split `test`, like a competition."""
    folder = tmp_path_factory.mktemp("competition")
    (folder / "in").mkdir()
    rows = "".join(f"{row}.5,{row % 2},{'' if row == 3 else row}\n" for row in range(20))
    (folder / "in" / "train.csv").write_text("a,y,z\n" + rows)
    (folder / "in" / "test.csv").write_text("a,z\n" + "".join(f"{row}.5,1\n" for row in range(6)))
    recordmill.build(folder / "in", folder / "out", label="y")
    return folder / "out"


def test_label_missing_only_in_another_split_is_accepted(competition: Path) -> None:
    train = open(competition, split="train", columns=["a", "y"])
    for batches in (
        train.to_keras(4),
        train.rename({"y": "target"}).to_tf(4, label="target"),
        train.filter("a > 3").to_keras(4),
        recordmill.mixture([(train, 1), (train.filter("a > 5"), 1)]).to_keras(4),
    ):
        assert {len(batch) for batch in batches} == {2}
    for split in ("test", None):
        with pytest.raises(UsageError, match=r"some records may have no label 'y'.*nulls=\"drop\""):
            open(competition, split=split).to_keras(4)


def test_filter_or_nulls_drop_leaves_out_records_without_a_label(
    competition: Path,
) -> None:
    ds = open(competition, columns=["a", "y"])
    expected_rows = sorted(open(competition, split="train")["a"].tolist())
    for batches in (
        ds.filter("y is not null").to_keras(4),
        ds.to_keras(4, nulls="drop"),
        ds.to_tf(4, nulls="drop", label=True),
        ds.filter("y is not null").batches(4, label=True),
        ds.batches(4, label=True, nulls="drop"),
    ):
        assert (
            sorted(value for x, _ in batches for value in np.asarray(x).tolist()) == expected_rows
        )


def test_nulls_drop_leaves_out_records_that_lack_any_read_feature(
    competition: Path,
) -> None:
    train = open(competition, split="train")
    batch = next(train.batches(64, nulls="drop", shuffle=False))
    assert {name: type(array) for name, array in batch.items()} == dict.fromkeys("ayz", np.ndarray)
    assert len(batch["a"]) == 19
    assert {*next(iter(train.to_tf(64, nulls="drop")))} == {*"ayz"}
    assert len(next(train[["a", "y"]].batches(64, nulls="drop"))["a"]) == 20
    mixture = recordmill.mixture([(train, 1), (train.filter("a > 5"), 1)])
    with pytest.raises(UsageError, match="mixed or zipped: filter each of them"):
        mixture.batches(4, nulls="drop")
    with pytest.raises(UsageError, match='nulls="masked": must be one of valid, drop'):
        train.to_tf(4, nulls="masked")
