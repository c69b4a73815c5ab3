"""Encodings, compressions and declared values of text are treated alike for every kind of input."""

import bz2
import datetime
import gzip
import lzma
import math
import os
import pickle
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.image_samples import encoded
from kit.runs import in_flags
from kit.source_reading import input_files, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.base.local_value import LocalValue
from recordmill.building.plan import BuildPlan
from recordmill.building.sorted_run import KeyBuckets
from recordmill.sources.arrow.memory import plan_memory
from recordmill.sources.arrow.parquet import plan_parquet
from recordmill.sources.common.content import detect_kind
from recordmill.sources.common.contract import BATCH_FILES, PlanOptions, Source
from recordmill.sources.common.encoding import resolve_compression
from recordmill.sources.common.options import TableOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.source import plan_images
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import plan_text
from recordmill.storage.file_table import FileTable
from recordmill.storage.listing import list_inputs

KINDS = ("csv", "jsonl", "text", "documents")
CONTENT = {
    "csv": "a,b\n1,größer\n2,東京\n",
    "jsonl": '{"a": 1, "b": "größer"}\n{"a": 2, "b": "東京"}\n',
    "text": "größer\n東京\n",
    "documents": "größer\n東京\n",
}
SKIPPABLE = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"about"
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "zstd-skippable": lambda data: SKIPPABLE + pa.compress(data, "zstd", asbytes=True),
}


def plan(kind: str, path: Path, encoding: str = "utf-8") -> Source:
    listing, common = list_inputs([str(path)]), PlanOptions()
    if kind == "csv":
        return plan_csv(listing.files, CsvOptions(encoding=encoding), common)
    if kind == "jsonl":
        return plan_jsonl(listing.files, JsonlOptions(encoding=encoding), common)
    if kind == "parquet":
        return plan_parquet(listing.files, TableOptions(), common)
    if kind == "images":
        return plan_images(listing)
    return plan_text(
        listing, TextOptions(mode=kind.replace("text", "lines"), encoding=encoding), common
    )


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("kind", KINDS)
def test_byte_order_marks_and_compressions_are_detected(
    kind: str, packed: str, tmp_path: Path
) -> None:
    path = tmp_path / f"in.{kind.replace('documents', 'txt').replace('text', 'txt')}"
    content = CONTENT[kind] + {"csv": '5\n3,"x\n', "jsonl": '\n{\n{"a": 7, "b": "x"}\n'}.get(
        kind, ""
    )
    path.write_bytes(content.encode())
    expected = read_all(plan(kind, path))
    assert len(expected[1]) == {"csv": 2, "jsonl": 1}.get(kind, 0)
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        path.write_bytes(PACKED[packed](content.encode(encoding)))
        assert read_all(plan(kind, path)) == expected, encoding
    assert detect_kind(list_inputs([str(path)]))[0] == ("text" if kind == "documents" else kind)


@pytest.mark.parametrize("kind", KINDS)
def test_utf16_without_a_byte_order_mark_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(CONTENT[kind].encode("utf-16-le"))
    said = "has no byte order mark, which utf-16 needs; declare --encoding utf-16-le or utf-16-be"
    if kind == "documents":
        rows, rejects = read_all(plan(kind, path, "utf-16"))
        assert not rows
        assert [in_flags(reject.message) for reject in rejects] == [said]
        return
    with pytest.raises(DataError, match=said):
        plan(kind, path, "utf-16")


@pytest.mark.parametrize("options", [CsvOptions, JsonlOptions, TextOptions])
@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("klingon", "is unknown; for example utf-8"),
        ("a\0b", "is unknown; for example utf-8"),
        ("punycode", "is not an encoding of text; for example utf-8"),
        ("hex", "is not an encoding of text"),
        ("rot13", "is not an encoding of text"),
        ("undefined", "is not an encoding of text"),
    ],
)
def test_unknown_encoding_is_refused(
    options: Callable[..., object], encoding: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        options(encoding=encoding)


def test_text_that_begins_like_zlib_is_not_decompressed() -> None:
    for text in (b"x^2,y\n1,2\n", b"x\x01", b"x^", b"h\x81,b\n1,2\n", b"X\x85 and more of it\n"):
        assert resolve_compression(text) == "none"
    assert resolve_compression(zlib.compress(b"a,b\n")[:-1]) == "none"


TEXTS = {
    "euc_jp": ("東京の天気は晴れです", "大阪では雨が降っています"),
    "shift_jis": ("東京の天気は晴れです", "大阪では雨が降っています"),
    "big5": ("臺北今天的天氣很好", "歡迎光臨我們的網站"),
    "gb18030": ("北京今天的天气很好", "欢迎光临我们的网站"),
    "euc_kr": ("오늘 서울 날씨가 좋습니다", "우리 집에 오신 것을 환영합니다"),
    "latin-1": ("il était une fois à Orléans", "größer als die Straße ist schön"),
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_suggested_encodings_decode_the_complete_text(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    first, second = TEXTS[encoding]
    content = CONTENT[kind].replace("東京", second).replace("größer", first)
    content += '{"a": 3, "b": "x"}\n' if kind == "jsonl" else ""
    path = tmp_path / "in.txt"
    path.write_bytes(content.encode(encoding))
    _, rejects = read_all(plan(kind, path))
    (said,) = {
        in_flags(reject.message).partition("declare the file's --encoding: ")[2]
        for reject in rejects
    }
    names, _, rest = said.partition(" decode")
    assert rest in (" all of it", "s all of it")
    named = names.replace(" and ", ", ").split(", ")
    assert encoding in named
    assert ("latin-1" in named) == (encoding == "latin-1")
    for name in named:
        rows, none = read_all(plan(kind, path, name))
        assert rows
        assert not none
        texts = [text for row in values(rows) for text in row.values() if isinstance(text, str)]
        assert (name == encoding) <= any(first in text for text in texts)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("koi8_r", "Привет мир как дела"),
        ("iso8859_6", "مرحبا بالعالم"),
        ("iso8859_8", "שלום דודי"),
        ("cp1255", "שלום דודי"),
        ("cp1253", "αυτο ειναι"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_single_byte_encodings_are_suggested_for_single_byte_letters(
    kind: str, encoding: str, text: str, tmp_path: Path
) -> None:
    """cp932 and others decode them, to nonsense: these are not the only answer."""
    content = CONTENT[kind].replace("größer", text).replace("東京", text)
    content += '{"a": 3, "b": "x"}\n' if kind == "jsonl" else ""
    path = tmp_path / "in.txt"
    path.write_bytes(content.encode(encoding))
    rejects = read_all(plan(kind, path))[1]
    assert rejects
    for reject in rejects:
        assert in_flags(reject.message).endswith(
            " and others of one byte a character decode all of it"
        )


def test_no_encoding_is_suggested_for_a_file_that_is_mostly_utf8(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("東京の天気は晴れです\n".encode() * 20 + b"caf\xe9\n")
    (reject,) = read_all(plan("text", path))[1]
    assert in_flags(reject.message).endswith("declare the file's --encoding")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "text"])
def test_wrong_encoding_is_answered_with_encodings_that_decode_all(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(CONTENT[kind].replace("größer", "東京").encode("euc_jp"))
    with pytest.raises(
        DataError, match=r"can't be decoded as ascii.*declare its --encoding: euc_jp.* all of it"
    ):
        plan(kind, path, "ascii")
    assert read_all(plan(kind, path, "euc_jp"))[0]


# A text means the same wherever it stands
BAD = "a reject"
UTC = datetime.timezone.utc
MIDNIGHT = datetime.datetime(2020, 1, 1)
GRAMMAR: list[tuple[str, str, Any]] = [
    ("5", "int64", 5),
    ("+5", "int64", 5),
    ("007", "int64", 7),
    (" 5", "int64", BAD),
    ("5 ", "int64", BAD),
    ("0x10", "int64", BAD),
    ("1_000", "int64", BAD),
    ("5.0", "int64", 5),
    ("5.5", "int64", BAD),
    ("1e3", "int64", 1000),
    ("50e-1", "int64", 5),
    ("5e18", "int64", 5 * 10**18),
    ("-5e18", "int64", -5 * 10**18),
    ("9223372036854775807", "int64", 2**63 - 1),
    ("-9223372036854775808", "int64", -(2**63)),
    ("9223372036854775808", "int64", BAD),
    ("1e19", "int64", BAD),
    ("1e400", "int64", BAD),
    ("0e400", "int64", 0),
    ("nan", "int64", BAD),
    ("5e18", "uint64", 5 * 10**18),
    ("-1", "uint8", BAD),
    ("256", "uint8", BAD),
    ("1.5", "float64", 1.5),
    (".5", "float64", 0.5),
    ("5.", "float64", 5.0),
    ("+1.5", "float64", 1.5),
    ("NaN", "float64", math.nan),
    ("-INFINITY", "float64", -math.inf),
    ("inf", "float32", math.inf),
    ("+inf", "float64", BAD),
    ("1e400", "float64", BAD),
    ("1e39", "float32", BAD),
    ("16777217", "float32", BAD),
    ("33554432", "float32", 33554432.0),
    ("1,5", "float64", BAD),
    ("9007199254740993", "float64", BAD),
    ("100000000000000000000", "float64", 1e20),
    ("100000000000000000001", "float64", BAD),
    ("2049", "float16", BAD),
    ("65519.9", "float16", 65504.0),
    ("65520", "float16", BAD),
    ("65520.5", "float16", BAD),
    ("257", "bfloat16", BAD),
    ("3.4e38", "bfloat16", BAD),
    ("0.1", "bfloat16", 0.10009765625),
    ("true", "bool", True),
    ("False", "bool", False),
    ("TRUE", "bool", True),
    ("tRuE", "bool", BAD),
    ("1", "bool", True),
    ("0", "bool", False),
    ("yes", "bool", BAD),
    ("2020-01-01", "timestamp[s]", MIDNIGHT),
    ("2020-01-01 00:00", "timestamp[s]", MIDNIGHT),
    ("2020-01-01T00:00:00.5", "timestamp[ms]", MIDNIGHT.replace(microsecond=500_000)),
    ("0001-01-01", "timestamp[s]", datetime.datetime(1, 1, 1)),
    ("0001-01-01", "timestamp[ns]", BAD),
    ("2020-01-01T10", "timestamp[s]", BAD),
    ("2020-01-01T00:00:00.5", "timestamp[s]", BAD),
    ("2020-01-01T00:00:00.000", "timestamp[s]", MIDNIGHT),
    ("2020-01-01T00:00+0100", "timestamp[s, UTC]", BAD),
    ("2020-01-01T01:00+01:00", "timestamp[s, UTC]", MIDNIGHT.replace(tzinfo=UTC)),
    ("2020-01-01T00:00Z", "timestamp[s]", BAD),
    ("2020-01-01", "timestamp[s, UTC]", BAD),
    ("2020-02-30", "timestamp[s]", BAD),
]


def planned(kind: str, values: list[str], dtype: str | None, folder: Path) -> Source:
    """A source whose column x holds these texts, and y something."""
    common = PlanOptions(dtypes={} if dtype is None else {"x": dtype})
    path = folder / f"in.{kind}"
    table = {"x": values, "y": ["y"] * len(values)}
    if kind == "csv":
        path.write_text("x,y\n" + "".join(f'"{value}",y\n' for value in values))
        return plan_csv(input_files(path), CsvOptions(), common)
    if kind == "jsonl":
        path.write_text("".join(f'{{"x": "{value}", "y": "y"}}\n' for value in values))
        return plan_jsonl(input_files(path), JsonlOptions(), common)
    if kind == "parquet":
        pq.write_table(pa.table(table), path)
        return plan_parquet(input_files(path), TableOptions(), common)
    return plan_memory(table, folder, common)


def read(source: Source) -> tuple[str, list[Any]]:
    """(the dtype of x, its value per row)."""
    values: dict[int, Any] = {}
    for unit in source.units:
        for chunk in source.read(unit):
            assert isinstance(chunk.records, pa.RecordBatch)
            values.update(
                zip(chunk.positions.tolist(), chunk.records.column("x").to_pylist(), strict=True)
            )
    return source.schema["x"].dtype, [
        values.get(row, BAD) for row in range(max(values, default=-1) + 1)
    ]


def spelled(value: Any) -> str:
    """So that NaN equals itself, and UTC is UTC whoever says it."""
    return value.isoformat() if isinstance(value, datetime.datetime) else repr(value)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "memory"])
def test_text_of_a_declared_dtype_has_the_same_value_in_every_kind(
    kind: str, tmp_path: Path
) -> None:
    by_dtype: dict[str, list[tuple[str, Any]]] = {}
    for text, dtype, value in GRAMMAR:
        by_dtype.setdefault(dtype, []).append((text, value))
    for dtype, cases in by_dtype.items():
        last = "true" if dtype == "bool" else "2020-01-01" if dtype.startswith("timestamp") else "1"
        last = "2020-01-01T00:00Z" if "UTC" in dtype else last  # so that there is a row that fits
        found = read(planned(kind, [*(text for text, _ in cases), last], dtype, tmp_path))
        assert found[0] == dtype
        for (text, value), got in zip(cases, found[1], strict=False):
            assert spelled(got) == spelled(value), f"{text!r} as {dtype}"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_text_without_a_declared_dtype_stays_text(kind: str, tmp_path: Path) -> None:
    texts = ["5", "true", "2020-01-01", ""]
    assert read(planned(kind, texts, None, tmp_path)) == ("string", texts)


@pytest.mark.parametrize(
    ("literals", "dtype", "values"),
    [
        (["5e18", "1"], "int64", [5 * 10**18, 1]),
        (["-5e18", "1.0"], "int64", [-5 * 10**18, 1]),
        (["18446744073709551615", "1e19", "1.5", "3"], "int64", [BAD, BAD, BAD, 3]),
        (["9e18", "1"], "uint64", [9 * 10**18, 1]),
    ],
)
def test_whole_json_numbers_are_integers_in_any_notation(
    literals: list[str], dtype: str, values: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"x": {literal}}}\n' for literal in literals))
    assert read(
        plan_jsonl(input_files(path), JsonlOptions(), PlanOptions(dtypes={"x": dtype}))
    ) == (dtype, values)


# Inputs that are written to between plan and read, with their size as it was and their time set
# back
def content(kind: str, number: int, folder: Path) -> bytes:
    if kind == "parquet":
        pq.write_table(pa.table({"a": [number]}), folder / "made")
        return (folder / "made").read_bytes()
    texts = {"csv": f"a,b\n{number},2\n", "jsonl": f'{{"a": {number}}}\n', "images": ""}
    return texts.get(kind, f"text {number}\n").encode() or image_samples.encoded("PNG")


def rewrite(path: Path, data: bytes) -> None:
    """In place, as `rsync --inplace -t` does it."""
    before = path.stat()
    assert len(data) == before.st_size
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # a clock of some milliseconds
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("kind", [*KINDS, "images", "parquet"])
def test_file_rewritten_after_the_plan_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(content(kind, 1, tmp_path))
    source = plan(kind, path)
    rewrite(path, content(kind, 2, tmp_path))
    with pytest.raises(DataError, match=r"^in\.bin: changed while it was read"):
        _ = [chunk for unit in source.units for chunk in source.read(unit)]
    assert [
        chunk for unit in source.units for chunk in plan(kind, path).read(unit)
    ]  # the remedy: build again


def test_plan_for_other_hosts_holds_no_ctimes(tmp_path: Path) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(b"x")
    files = list_inputs([str(path)]).files
    assert files[0].stat.ctime_ns == path.stat().st_ctime_ns
    assert files.without_ctimes()[0].stat == replace(files[0].stat, ctime_ns=0)
    assert files.without_ctimes()[0].stat.ctime_ns == 0
    assert isinstance(files, FileTable)


# Inputs of many small files
FILES = 3 * BATCH_FILES + 10


@pytest.fixture(params=["documents", "images"])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    data, end = (
        (b"a few words\n", "txt") if request.param == "documents" else (encoded("PNG"), "png")
    )
    for number in range(FILES):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:06d}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return request.param, tmp_path / "data"


def test_chunk_of_small_files_holds_few_files(many: tuple[str, Path]) -> None:
    source = plan(*many)
    rows = [chunk.rows for unit in source.units for chunk in source.read(unit)]
    assert sum(rows) == FILES
    assert max(rows) <= BATCH_FILES


def test_plan_holds_less_than_512_bytes_per_file(many: tuple[str, Path]) -> None:
    plan(*many)
    tracemalloc.start(1)
    try:
        source = plan(*many)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.files) == FILES
    assert held < 512 * FILES + (128 << 10)


def test_plan_is_passed_within_a_process_without_pickling(tmp_path: Path) -> None:
    source = plan_text(list_inputs([__file__]), TextOptions(), PlanOptions())
    plan = BuildPlan(
        str(tmp_path), 0, source.schema, ("train",), KeyBuckets.for_shards(1, 2**64, 1), source
    )
    sent = pickle.dumps(LocalValue.of(plan))
    assert pickle.loads(sent).load() is plan
    assert len(sent) < 500
    assert list(tmp_path.iterdir()) == []
