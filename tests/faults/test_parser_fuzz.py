"""Each parser of foreign bytes, fed with damaged copies of what it takes: it gives something, or an error of our own.

A seed is cut, flipped, spliced with another one, or gets bytes that mean something in its format; hypothesis shrinks
what it finds. RECORDMILL_FUZZ says how many copies a parser gets; `.ci/fuzz HOURS` runs this for hours.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_samples import samples

from recordmill.base.errors import RecordmillError
from recordmill.images.check import check_structure
from recordmill.images.header import BadImage
from recordmill.records.tfrecord.frames import frame, scan
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.shards.index import INDEX_DTYPE, map_table
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.inputs.contract import PlanOptions
from recordmill.sources.jsonl.source import JsonlOptions, plan_jsonl
from recordmill.storage.listing import list_inputs

pytestmark = pytest.mark.sweep

EXAMPLES = int(os.environ.get("RECORDMILL_FUZZ", "150"))

SCHEMA = Schema(
    (Feature("id", "int64", (), True), Feature("x", "float32", (None, 2)), Feature("c", "int64", classes=("a", "b")))
)
SEEDS: dict[str, Sequence[bytes]] = {
    "image": [data for data, _ in samples().values()],
    "schema": [to_pbtxt(SCHEMA).encode()],
    "index": [b""],
    "frames": [frame(np.arange(60, dtype=np.uint8), np.array([0, 10, 10, 60])).data.tobytes()],
    "csv": [
        b'a,b,c\n1,2.5,"x ""y"""\n-7,,"two\nlines"\n',
        b"id;text\r\n1;\xc3\xa9\r\n2;'q'\r\n",
        b"\xef\xbb\xbfa\tb\n1\t2\n",
    ],
    "jsonl": [b'{"a": 1, "b": [1.5, -2e3], "c": {"d": null, "e": "\\u00e9\\ud83d\\ude00"}}\n{"a": 2, "b": []}\n'],
}
TOKENS = {
    "image": [b"\xff\xd8", b"\xff\xda", b"IHDR", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"II*\x00", b"VP8X"],
    "schema": [b"feature {", b"}", b'name: "id"', b"type: INT", b"size: -1", b"dim {", b'"', b"\\377", b"#"],
    "index": [b"\x93NUMPY", b"'<i8'", b"(1000000000000,)", b"\n"],
    "frames": [b"\xff" * 8, bytes(12), bytes(16)],
    "csv": [b'"', b'""', b"\r", b"\n", b",", b"\x00", b"\xff", b"1e999", b"9223372036854775808"],
    "jsonl": [b"{", b"}", b"[", b"]", b'"', b"\\u", b"\\ud800", b"\x00", b"\xff", b"1e999", b"-", b"[" * 200],
}  # fmt: skip


def parse_image(data: bytes) -> object:
    try:
        return check_structure(np.frombuffer(data, np.uint8))
    except BadImage as error:
        return error


def parse_frames(data: bytes) -> object:
    return scan(np.frombuffer(data, np.uint8), source="a", final=True)


def in_file(data: bytes, name: str, parse: Callable[[str], object]) -> object:
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


PARSERS: dict[str, Callable[[bytes], object]] = {
    "image": parse_image,
    "schema": lambda data: from_pbtxt(data.decode("utf-8", "replace")),
    "index": lambda data: in_file(data, "a.npy", lambda path: map_table(path, INDEX_DTYPE).tolist()),
    "frames": parse_frames,
    "csv": lambda data: in_file(data, "a.csv", parse_csv),
    "jsonl": lambda data: in_file(data, "a.jsonl", parse_jsonl),
}


def npy() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "a.npy"), np.zeros(3, INDEX_DTYPE))
        return Path(folder, "a.npy").read_bytes()


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> bytes:
    seeds = [npy()] if kind == "index" else SEEDS[kind]
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["flip", "cut", "token", "drop", "splice", "bytes"]))
        if how == "flip" and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del data[at:]
        elif how == "token":
            token = draw(st.sampled_from(TOKENS[kind]))
            data[at : at + draw(st.sampled_from([0, len(token)]))] = token
        elif how == "drop":
            del data[at : at + draw(st.integers(1, 20))]
        elif how == "splice":
            other = draw(st.sampled_from(seeds))
            data[at:] = other[draw(st.integers(0, len(other))) :]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


@pytest.mark.parametrize("kind", list(PARSERS))
def test_damaged_bytes_give_a_result_or_an_error_of_our_own(kind: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(kind))
    def run(data: bytes) -> None:
        try:
            PARSERS[kind](data)
        except RecordmillError as error:
            assert str(error).strip()  # noqa: PT017

    run()
