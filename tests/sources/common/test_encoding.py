"""The encoding of a text is detected.

If it is wrong, the error lists encodings that decode the text.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kit.planning import KINDS, plan
from kit.runs import in_flags
from kit.source_reading import read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.common.content import detect_kind
from recordmill.sources.common.encoding import resolve_compression
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.text.options import TextOptions
from recordmill.storage.listing import list_inputs

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
    message = (
        "has no byte order mark, which utf-16 needs; declare --encoding utf-16-le or utf-16-be"
    )
    if kind == "documents":
        rows, rejects = read_all(plan(kind, path, "utf-16"))
        assert not rows
        assert [in_flags(reject.message) for reject in rejects] == [message]
        return
    with pytest.raises(DataError, match=message):
        plan(kind, path, "utf-16")


@pytest.mark.parametrize("options", [CsvOptions, JsonlOptions, TextOptions])
@pytest.mark.parametrize(
    ("encoding", "message"),
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
    options: Callable[..., object], encoding: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
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
    (answer,) = {
        in_flags(reject.message).partition("declare the file's --encoding: ")[2]
        for reject in rejects
    }
    names, _, suffix = answer.partition(" decode")
    assert suffix in (" all of it", "s all of it")
    encodings = names.replace(" and ", ", ").split(", ")
    assert encoding in encodings
    assert ("latin-1" in encodings) == (encoding == "latin-1")
    for name in encodings:
        rows, no_rejects = read_all(plan(kind, path, name))
        assert rows
        assert not no_rejects
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
    """Encodings such as cp932 decode them to nonsense, so others are suggested, too."""
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
