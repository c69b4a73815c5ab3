"""Emitted programs return the tensors of our Dataset.

They run unchanged, in a process of their own.
"""

import gzip
import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.data_sets import MIXED, mixed_rows, write_data_set
from kit.runs import run_python

from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.inspect.emit import emit, restore_typed_path
from recordmill.records.example.encode import encode
from recordmill.schemas import tfmd
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

# Runs each emitted program under its own name, and pickles the output of its dataset(). One process
# runs all programs, so that TensorFlow starts once.
_RUN = """
import pickle, runpy, sys
import tensorflow as tf

def plain(tensor):
    return tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()

found = []
for path in sys.argv[2:]:
    program = runpy.run_path(path)
    rows = {}
    for batch in program["dataset"](batch_size=7):
        for name, tensor in batch.items():
            rows.setdefault(name, []).extend(plain(tensor))
    found.append(rows)
pickle.dump(found, open(sys.argv[1], "wb"))
"""


def output_of(*arguments: object, cwd: Path | None = None) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = run_python(*arguments, check=False, env=environment, cwd=cwd)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def run_programs(tmp_path: Path, sources: Sequence[str]) -> list[dict[str, list[Any]]]:
    paths = []
    for number, source in enumerate(sources):
        compile(source, "emitted", "exec")
        paths.append(tmp_path / f"reader_{number}.py")
        paths[-1].write_text(source, encoding="utf-8")
    (tmp_path / "run.py").write_text(_RUN)
    output_of(tmp_path / "run.py", tmp_path / "found.pickle", *paths)
    return pickle.loads((tmp_path / "found.pickle").read_bytes())  # type: ignore[no-any-return]


def check_equal(output: dict[str, list[Any]], ds: Dataset) -> None:
    """Asserts that a program returns the tensors of `to_tf`.

    tests/reader/tensorflow/test_dataset.py compares these tensors with the columns.
    """
    import tensorflow as tf

    rows: dict[str, list[Any]] = {}
    for batch in ds.to_tf(100, shuffle=False, label=False):
        for name, tensor in batch.items():
            plain = (
                tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
            )
            rows.setdefault(name, []).extend(plain)
    np.testing.assert_equal(output, rows)


# The kinds of features that MIXED lacks.
MORE: list[tuple[Feature, list[Any]]] = [
    (Feature('odd "name"\n\'ü', "int64", (), True), [1, 2, 3]),
    (Feature("raw", "float64", (None,)), [[0.1], None, []]),
    (Feature("rows", "float64", (None, 2)), [[[1.5, 2.5]], [], [[3.0, 4.0], [5.0, 6.0]]]),
    (Feature("deep", "float64", (None, None)), [[[0.25], []], [[1.0, 2.0]], []]),
    (Feature("tensor", "uint64", (2,)), [[2**64 - 1, 0], None, [1, 2]]),
    (Feature("half", "float16", (3,)), [None, np.float16([1, 2, 3]), np.float16([4, 5, 6])]),
]


@pytest.mark.sweep
def test_emitted_readers_return_the_tensors_of_the_data_set(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    mixed = write_data_set(tmp_path / "ours", {"train": mixed_rows(40), "test": mixed_rows(3, 40)})
    schema, rows = (
        Schema(tuple(feature for feature, _ in MORE)),
        {feature.name: rows for feature, rows in MORE},
    )
    odd = write_data_set(tmp_path / "odd", {"train": rows}, schema, shards=1, compression="gzip")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    data = encode(mixed_rows(20).combine_chunks().to_batches()[0], MIXED).data.tobytes()
    (foreign / "a.tfrecord").write_bytes(data)
    (foreign / "b.tfrecord").write_bytes(gzip.compress(data))
    data_sets = [open(mixed), open(odd), open(foreign), open(mixed, "test", ["words", "maybe"])]
    for ds, output in zip(
        data_sets, run_programs(tmp_path, [emit("reader", ds) for ds in data_sets]), strict=True
    ):
        check_equal(output, ds)


def test_emitted_reader_of_zstd_files_is_refused(tmp_path: Path) -> None:
    data = encode(mixed_rows(4).combine_chunks().to_batches()[0], MIXED).data.tobytes()
    (tmp_path / "a.tfrecord.zst").write_bytes(pa.compress(data, codec="zstd", asbytes=True))
    with pytest.raises(UsageError, match="is compressed with zstd, which TensorFlow can't read"):
        emit("reader", open(tmp_path / "a.tfrecord.zst"))


@pytest.fixture(scope="module")
def foreign_sets(shared_data: Path) -> list[Dataset]:
    """Opens all shared files.

    Files with the same folder, message type and features are opened together.
    """
    groups: dict[tuple[Path, str, frozenset[str]], list[Path]] = {}
    for line in (shared_data / "tfrecord" / "manifest.jsonl").read_text().splitlines():
        path = shared_data / "tfrecord" / json.loads(line)["path"]
        schema = open(path).schema
        groups.setdefault((path.parent, schema.message, frozenset(schema.names)), []).append(path)
    assert sum(map(len, groups.values())) == 108
    return [open(paths) for paths in groups.values()]


@pytest.mark.sweep
def test_emitted_readers_read_files_of_other_systems(
    foreign_sets: list[Dataset], tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow")
    records = 0
    for ds, output in zip(
        foreign_sets,
        run_programs(tmp_path, [emit("reader", ds) for ds in foreign_sets]),
        strict=True,
    ):
        assert {len(values) for values in output.values()} == {len(ds)}
        check_equal(output, ds)
        records += len(ds)
    assert records == 23_558


@pytest.mark.sweep
def test_emitted_specifications_parse_files_of_other_systems(foreign_sets: list[Dataset]) -> None:
    tf = pytest.importorskip("tensorflow")
    count = 0
    for ds in foreign_sets:
        assert tfmd.from_pbtxt(emit("schema", ds)) == ds.schema
        if ds.schema.message == "bytes":
            with pytest.raises(UsageError, match="not Examples"):
                emit("parse-spec", ds)
            continue
        namespace: dict[str, Any] = {}
        exec(emit("parse-spec", ds), namespace)
        records = [
            record
            for file in ds.records.catalog.files
            for record in tf.data.TFRecordDataset(
                file.path, "" if file.compression == "none" else file.compression.upper()
            ).as_numpy_iterator()
        ]
        if ds.schema.message == "Example":
            features = tf.io.parse_example(records, namespace["FEATURES"])
            names = set(features)
        else:
            context, steps, _ = tf.io.parse_sequence_example(
                records, namespace["CONTEXT"] or None, namespace["FEATURE_LISTS"] or None
            )
            names = {*context, *steps}
        assert names == set(ds.schema.names)
        count += len(records)
    assert count > 22_000


@pytest.mark.sweep
def test_emitted_program_runs_in_its_folder_and_misses_no_record(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "in").mkdir()
    frames = encode(mixed_rows(9).combine_chunks().to_batches()[0], MIXED)
    file = tmp_path / "in" / "train-00000-of-00001.tfrecord"
    file.write_bytes(frames.data.tobytes())
    program = output_of(
        "-m", "recordmill", "inspect", "in/*.tfrecord", "--emit", "reader", cwd=tmp_path
    )
    assert '("in/train-00000-of-00001.tfrecord", "", 9),' in program
    (tmp_path / "reader.py").write_text(program, encoding="utf-8")
    assert "id int64 (9,)\n" in output_of("reader.py", cwd=tmp_path)
    file.write_bytes(frames.data.tobytes()[: int(frames.starts[8])])
    with pytest.raises(AssertionError, match="expected to contain 9 elements but contained only 8"):
        output_of("reader.py", cwd=tmp_path)


def test_emitted_specification_and_schema_describe_the_data_set(
    tmp_path: Path,
) -> None:
    tf = pytest.importorskip("tensorflow")
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(12)})
    namespace: dict[str, Any] = {}
    exec(emit("parse-spec", open(out)), namespace)
    records = tf.data.TFRecordDataset([file.path for file in open(out).records.catalog.files])
    features = tf.io.parse_example(list(records.as_numpy_iterator()), namespace["FEATURES"])
    assert features["id"].numpy().tolist() == list(range(12))
    assert features["boxes"].shape.as_list() == [12, None, 4]
    assert set(MIXED.names) == set(features)
    assert tfmd.from_pbtxt(emit("schema", open(out))) == MIXED


def test_unsupported_emit_is_refused(tmp_path: Path) -> None:
    plain = Schema((Feature("record", "bytes", (), True),), message="bytes")
    (tmp_path / "a.tfrecord").write_bytes(
        encode(
            pa.record_batch([pa.array([b"\xff\x00"], pa.large_binary())], schema=to_arrow(plain)),
            plain,
        ).data.tobytes()
    )
    ds = open(tmp_path / "a.tfrecord")
    with pytest.raises(UsageError, match="not Examples"):
        emit("parse-spec", ds)
    assert "FEATURES" not in emit("reader", ds)
    with pytest.raises(UsageError, match='emit="poem": must be one of schema, parse-spec, reader'):
        emit("poem", ds)


def test_emitted_paths_stay_as_they_were_typed(tmp_path: Path) -> None:
    real = os.path.realpath(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert restore_typed_path(f"{real}/in/a", [f"{tmp_path}/link"]) == f"{tmp_path}/link/a"
    assert restore_typed_path(f"{real}/in/a", [f"{tmp_path}/link/*"]) == f"{tmp_path}/link/a"
    assert restore_typed_path(f"{real}/in/a", ["@list.txt"]) == f"{real}/in/a"
    assert json.loads(json.dumps(restore_typed_path(f"{os.getcwd()}/x/a", ["*/a"]))) == "x/a"
