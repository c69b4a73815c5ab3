"""Parsers of foreign bytes return a result or raise our own error.

Each parser reads damaged copies of its valid inputs in SEEDS.
"""

import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.image_samples import samples

from recordmill.base.errors import RecordmillError, Reject
from recordmill.exporting.task import OutputCounts
from recordmill.reader.inspect.contents import Contents
from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.records.tfrecord.frames import frame_payloads, scan_frames
from recordmill.records.writers.npy_file import make_npy_header
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.shards.index import INDEX_DTYPE, MEMBERS_DTYPE, map_table
from recordmill.shards.loading.schema_hints import read_hint
from recordmill.shards.manifest import Manifest, Part, ShardInfo
from recordmill.shards.rejects import RejectSummary
from recordmill.sources.arrow.numpy_files import plan_numpy
from recordmill.sources.arrow.options import NumpyOptions
from recordmill.sources.arrow.parquet import plan_parquet
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import TableOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.storage.json_fields import load_json
from recordmill.storage.listing import list_inputs

pytestmark = pytest.mark.sweep

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 128 << 20
EXAMPLES = int(os.environ.get("RECORDMILL_FUZZ", "150"))


def table(dtype: np.dtype[np.void]) -> bytes:
    return make_npy_header(dtype, (3,)) + np.zeros(3, dtype).tobytes()


SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("x", "float32", (None, 2)),
        Feature("c", "int64", classes=("a", "b")),
    )
)
SHARD = ShardInfo("train-00000-of-00001.tfrecord", 2, 100, 100, f"blake3:{0:064x}", "0" * 16)
PART = Part("data-0123456789ab", "csv", {"train": (SHARD,)}, {"files": 1}, 2, 0)
MANIFEST = Manifest(
    "x", "none", {"seed": 0}, to_pbtxt(SCHEMA), (PART,), {"count": 0, "reasons": {}, "files": []}
)
FEATURES = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "image": {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": {"shape": {}},
            },
            "x": {
                "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
                "tensor": {
                    "shape": {"dimensions": ["2", "-1"]},
                    "dtype": "float32",
                    "encoding": "none",
                },
            },
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
                "classLabel": {"numClasses": "2"},
            },
        }
    },
}
ACCOUNT = OutputCounts(
    "train",
    "train-00000-of-00001.parquet",
    5,
    4,
    RejectSummary({"type": 1}, (Reject("a", "b", "type", "c"),)),
    0,
    ("n",),
)


def parquet_file(*fields: pa.Field) -> bytes:
    """Returns a Parquet file with two rows and these fields.

    The file stores the Arrow schema, including the metadata of the fields.
    """
    values = {pa.int64(): [0, 1], pa.string(): ["a", "b"], pa.list_(pa.float32()): [[1.5], []]}
    arrays = [pa.array(values.get(field.type, [None, None]), field.type) for field in fields]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), file)
    return file.getvalue()


def npz_file(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, x=np.arange(6.0).reshape(3, 2), y=np.array(["a", "é", ""]), n=7)
    return file.getvalue()


FIELDS = tuple(to_arrow(SCHEMA))
SEEDS: dict[str, Sequence[bytes]] = {
    "image": [data for data, _ in samples().values()],
    "schema": [to_pbtxt(SCHEMA).encode()],
    "index": [table(INDEX_DTYPE)],
    "members": [table(MEMBERS_DTYPE)],
    "manifest": [MANIFEST.to_json().encode()],
    "features": [json.dumps(FEATURES).encode()],
    "note": [json.dumps(asdict(ACCOUNT)).encode()],
    "value": [
        bytes.fromhex("08011208120208021202080322180000803f") + bytes(20),
        bytes.fromhex("0803120412020803380138023803"),
    ],
    "frames": [
        frame_payloads(np.arange(60, dtype=np.uint8), np.array([0, 10, 10, 60])).data.tobytes()
    ],
    "csv": [
        b'a,b,c\n1,2.5,"x ""y"""\n-7,,"two\nlines"\n',
        b"id;text\r\n1;\xc3\xa9\r\n2;'q'\r\n",
        b"\xef\xbb\xbfa\tb\n1\t2\n",
    ],
    "parquet": [
        parquet_file(*FIELDS),
        parquet_file(
            pa.field("a", pa.string()),
            pa.field("b", pa.list_(pa.float32())),
            pa.field("c", pa.int64()),
        ),
    ],
    "numpy": [npz_file(np.savez), npz_file(np.savez_compressed), table(MEMBERS_DTYPE)],
    "parquet field": [value for field in FIELDS for value in (field.metadata or {}).values()],
    "jsonl": [
        b'{"a": 1, "b": [1.5, -2e3], "c": {"d": null, "e": "\\u00e9\\ud83d\\ude00"}}\n{"a": 2, "b": []}\n'
    ],
}
_JSON = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"-1",
    b"1e400",
    b"9" * 40,
    b"../",
    b"[" * 2000,
    b"\\u0000",
]
TOKENS = {
    "image": [
        b"\xff\xd8",
        b"\xff\xda",
        b"IHDR",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"II*\x00",
        b"VP8X",
    ],
    "schema": [
        b"feature {",
        b"}",
        b'name: "id"',
        b"type: INT",
        b"size: -1",
        b"dim {",
        b'"',
        b"\\377",
        b"#",
    ],
    "index": [b"\x93NUMPY", b"'<i8'", b"(1000000000000,)", b"\n"],
    "members": [b"\x93NUMPY", b"\x02", b"'<u8'", b"(-1,)", b"}", b"\xff\xff"],
    "manifest": [*_JSON, b'"records": -1', b'"folder": "/x"', b'"splits": []'],
    "features": [*_JSON, b'"dimensions": [1]', b'"dtype": 1'],
    "note": _JSON,
    "value": [b"\x08", b"\x12", b"\x22", b"\xff" * 9, b"\xff" * 9 + b"\x01", b"\x7f"],
    "frames": [b"\xff" * 8, bytes(12), bytes(16)],
    "numpy": [
        b"\x93NUMPY",
        b"PK\1\2",
        b"PK\3\4",
        b"'|O'",
        b"(1000000000000,)",
        b"(-1,)",
        b"True",
        b"\xff" * 4,
    ],
    "parquet": [
        b"PAR1",
        b"\x15\xff\xff\xff\xff\x0f",
        b"\x00" * 4,
        b"\xff" * 8,
        b"ARROW:schema",
        b"recordmill",
    ],
    "parquet field": [*_JSON, b'"shape": [-1]', b'"dtype": 1', b'"classes": [1]'],
    "csv": [b'"', b'""', b"\r", b"\n", b",", b"\x00", b"\xff", b"1e999", b"9223372036854775808"],
    "jsonl": [
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\u",
        b"\\ud800",
        b"\x00",
        b"\xff",
        b"1e999",
        b"-",
        b"[" * 200,
    ],
}


def parse_image(data: bytes) -> object:
    try:
        return check_structure(np.frombuffer(data, np.uint8))
    except BadImage as error:
        return error


def parse_frames(data: bytes) -> object:
    return scan_frames(np.frombuffer(data, np.uint8), source="a", is_final=True)


def parse_as_file(data: bytes, name: str, parse: Callable[[str], object]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return parse(str(path))


def parse_csv(path: str) -> object:
    source = plan_csv(list_inputs([path]).files, CsvOptions(), PlanOptions())
    return [chunk.rows for unit in source.units for chunk in source.read(unit)]


def parse_jsonl(path: str) -> object:
    source = plan_jsonl(list_inputs([path]).files, JsonlOptions(), PlanOptions())
    return [chunk.rows for unit in source.units for chunk in source.read(unit)]


def parse_parquet(path: str) -> object:
    source = plan_parquet(
        list_inputs([path]).files, TableOptions(), PlanOptions(memory_bytes=MEMORY)
    )
    return [chunk.rows for unit in source.units for chunk in source.read(unit)]


def parse_numpy(path: str) -> object:
    source = plan_numpy(list_inputs([path]), NumpyOptions(), PlanOptions(memory_bytes=MEMORY))
    return [chunk.rows for unit in source.units for chunk in source.read(unit)]


def parse_parquet_field(data: bytes) -> object:
    fields = [field.with_metadata(dict.fromkeys(field.metadata or {}, data)) for field in FIELDS]
    return parse_as_file(parquet_file(*fields), "a.parquet", parse_parquet)


PARSERS: dict[str, Callable[[bytes], object]] = {
    "image": parse_image,
    "schema": lambda data: from_pbtxt(data.decode("utf-8", "replace")),
    "index": lambda data: parse_as_file(
        data, "a.npy", lambda path: map_table(path, INDEX_DTYPE).tolist()
    ),
    "members": lambda data: parse_as_file(
        data, "a.npy", lambda path: map_table(path, MEMBERS_DTYPE).tolist()
    ),
    "manifest": Manifest.from_json,
    "features": lambda data: parse_as_file(data, "features.json", read_hint),
    "note": lambda data: parse_as_file(data, "a.json", lambda path: load_json(OutputCounts, path)),
    "value": lambda data: Contents.count(pa.array([data], pa.binary())),
    "frames": parse_frames,
    "parquet": lambda data: parse_as_file(data, "a.parquet", parse_parquet),
    "numpy": lambda data: parse_as_file(data, "a.npz", parse_numpy),
    "parquet field": parse_parquet_field,
    "csv": lambda data: parse_as_file(data, "a.csv", parse_csv),
    "jsonl": lambda data: parse_as_file(data, "a.jsonl", parse_jsonl),
}


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> bytes:
    seeds = SEEDS[kind]
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 5))):
        position = draw(st.integers(0, len(data)))
        damage = draw(st.sampled_from(["flip", "cut", "token", "drop", "splice", "bytes"]))
        if damage == "flip" and position < len(data):
            data[position] ^= draw(st.integers(1, 255))
        elif damage == "cut":
            del data[position:]
        elif damage == "token":
            token = draw(st.sampled_from(TOKENS[kind]))
            data[position : position + draw(st.sampled_from([0, len(token)]))] = token
        elif damage == "drop":
            del data[position : position + draw(st.integers(1, 20))]
        elif damage == "splice":
            second_seed = draw(st.sampled_from(seeds))
            data[position:] = second_seed[draw(st.integers(0, len(second_seed))) :]
        else:
            data[position:position] = draw(st.binary(max_size=12))
    return bytes(data)


@pytest.mark.parametrize("kind", list(PARSERS))
def test_parser_of_damaged_bytes_returns_a_result_or_raises_our_error(kind: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(kind))
    def run(data: bytes) -> None:
        parse(kind, data)

    run()


def parse(kind: str, data: bytes) -> None:
    try:
        PARSERS[kind](data)
    except RecordmillError as error:
        assert str(error).strip()  # noqa: PT017


@pytest.mark.parametrize("kind", list(PARSERS))
def test_undamaged_seed_is_parsed(kind: str) -> None:
    for seed in SEEDS[kind]:
        PARSERS[kind](seed)


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_parser_of_a_kept_case_returns_a_result_or_raises_our_error(path: Path) -> None:
    parse(path.parent.name, path.read_bytes())
