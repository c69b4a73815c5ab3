"""What a file is encoded and compressed with is told in one way for all kinds that are text."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from source_reading import input_files, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import in_flags
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.common.detect import detect_kind
from recordmill.sources.common.encoding import resolve_compression
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.jsonl.source import JsonlOptions, plan_jsonl
from recordmill.sources.text.source import TextOptions, plan_text
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
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "zstd-skippable": lambda data: SKIPPABLE + pa.compress(data, "zstd", asbytes=True),
}


def plan(kind: str, path: Path, encoding: str = "utf-8") -> Source:
    if kind == "csv":
        return plan_csv(input_files(path), CsvOptions(encoding=encoding), PlanOptions())
    if kind == "jsonl":
        return plan_jsonl(input_files(path), JsonlOptions(encoding=encoding), PlanOptions())
    mode = "documents" if kind == "documents" else "lines"
    return plan_text(list_inputs([str(path)]), TextOptions(mode=mode, encoding=encoding), PlanOptions())


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("kind", KINDS)
def test_marks_and_compressions_are_told(kind: str, packed: str, tmp_path: Path) -> None:
    path = tmp_path / f"in.{kind.replace('documents', 'txt').replace('text', 'txt')}"
    path.write_bytes(CONTENT[kind].encode())
    expected = values(read_all(plan(kind, path))[0])
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        path.write_bytes(PACKED[packed](CONTENT[kind].encode(encoding)))
        assert values(read_all(plan(kind, path))[0]) == expected, encoding
    assert detect_kind(list_inputs([str(path)]))[0] == ("text" if kind == "documents" else kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_a_mark_and_has_none(kind: str, tmp_path: Path) -> None:
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
        ("punycode", "is no encoding of text files; for example utf-8"),
        ("hex", "is no encoding of text files"),
        ("rot13", "is no encoding of text files"),
        ("undefined", "is no encoding of text files"),
    ],
)
def test_encodings_that_are_none(options: Callable[..., object], encoding: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options(encoding=encoding)


def test_texts_that_begin_like_zlib_are_texts() -> None:
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
def test_the_encodings_that_are_named_decode_all(kind: str, encoding: str, tmp_path: Path) -> None:
    first, second = TEXTS[encoding]
    content = CONTENT[kind].replace("東京", second).replace("größer", first)
    content += '{"a": 3, "b": "x"}\n' if kind == "jsonl" else ""
    path = tmp_path / "in.txt"
    path.write_bytes(content.encode(encoding))
    _, rejects = read_all(plan(kind, path))
    (said,) = {in_flags(reject.message).partition("declare the file's --encoding: ")[2] for reject in rejects}
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
        ("koi8_r", "Привет мир как дела"), ("iso8859_6", "مرحبا بالعالم"), ("iso8859_8", "שלום דודי"),
        ("cp1255", "שלום דודי"), ("cp1253", "αυτο ειναι"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_letters_of_one_byte_are_not_told_to_be_east_asian(kind: str, encoding: str, text: str, tmp_path: Path) -> None:
    """cp932 and others decode them, to nonsense: these are not the only answer."""
    content = CONTENT[kind].replace("größer", text).replace("東京", text)
    content += '{"a": 3, "b": "x"}\n' if kind == "jsonl" else ""
    path = tmp_path / "in.txt"
    path.write_bytes(content.encode(encoding))
    rejects = read_all(plan(kind, path))[1]
    assert rejects
    for reject in rejects:
        assert in_flags(reject.message).endswith(" and others of one byte a character decode all of it")


def test_a_file_that_is_mostly_utf_8_has_no_other_encoding_named(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("東京の天気は晴れです\n".encode() * 20 + b"caf\xe9\n")
    (reject,) = read_all(plan("text", path))[1]
    assert in_flags(reject.message).endswith("declare the file's --encoding")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "text"])
def test_an_encoding_that_does_not_decode_all_is_answered_by_some_that_do(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(CONTENT[kind].replace("größer", "東京").encode("euc_jp"))
    with pytest.raises(DataError, match=r"can't be decoded as ascii.*declare its --encoding: euc_jp.* all of it"):
        plan(kind, path, "ascii")
    assert read_all(plan(kind, path, "euc_jp"))[0]
