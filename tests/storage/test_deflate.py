"""gzip and zlib files are read up to the damaged byte.

The gzip members of shards have fixed bytes.
"""

import gzip
import io
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.compressed_files import CONTENT, gzip_member

from recordmill.base.errors import DataError
from recordmill.storage import compression, deflate


def test_gzip_members_are_the_pinned_bytes_and_gzip_reads_them() -> None:
    # Runs must write identical shards, so a header has no time, no name and no operating system.
    assert gzip_member(b"").hex() == "1f8b08000000000000ff03000000000000000000"
    assert gzip.decompress(gzip_member(CONTENT) * 2) == CONTENT * 2
    assert (
        gzip_member(CONTENT)
        == gzip_member(np.frombuffer(CONTENT, np.uint8))
        == gzip_member(memoryview(CONTENT))
    )
    assert io.BytesIO(gzip_member(CONTENT)).read(10) == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def member(content: bytes, name: bytes, extra: bytes, has_crc: bool, level: int) -> bytes:
    """Returns a gzip member with the given parts in its header."""
    flags = 8 * bool(name) | 4 * bool(extra) | 2 * has_crc
    head = bytes([0x1F, 0x8B, 8, flags]) + bytes(5) + b"\xff"
    head += len(extra).to_bytes(2, "little") + extra if extra else b""
    head += name + b"\0" if name else b""
    head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little") if has_crc else b""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = deflater.compress(content) + deflater.flush()
    return (
        head + body + zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    )


def collect_pieces(pieces: Iterator[bytes]) -> tuple[bytes, str]:
    """Returns (the content, the message of the error or "")."""
    content = b""
    try:
        for piece in pieces:
            content += piece
    except DataError as error:
        return content, str(error)
    return content, ""


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    members=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 50, 3000, 20_000]),
            st.sampled_from([b"", b"a name"]),
            st.sampled_from([b"", b"extra"]),
            st.booleans(),
            st.sampled_from([0, 1, 9]),
            st.sampled_from([1, 4, 256]),
        ),
        min_size=1,
        max_size=4,
    ),
    damage=st.sampled_from(["none", "flip", "flip", "flip", "cut", "cut", "append", "zeros"]),
    piece_bytes=st.sampled_from([1 << 10, 1 << 20]),
    input_bytes=st.sampled_from([100, 4096, 1 << 20]),
    max_ratio=st.sampled_from([None, 3]),
)
def test_both_inflaters_return_the_same_bytes_and_errors(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    members: list[tuple[int, bytes, bytes, bool, int, int]],
    damage: str,
    piece_bytes: int,
    input_bytes: int,
    max_ratio: int | None,
) -> None:
    random_state = random.Random(seed)
    data = b"".join(
        member(
            bytes(random_state.randrange(num_letters) for _ in range(size)),
            name,
            extra,
            has_crc,
            level,
        )
        for size, name, extra, has_crc, level, num_letters in members
    )
    if damage == "flip":
        position = random_state.randrange(len(data))
        data = (
            data[:position]
            + bytes([data[position] ^ (1 << random_state.randrange(8))])
            + data[position + 1 :]
        )
    elif damage == "cut":
        data = data[: random_state.randrange(len(data))]
    elif damage in ("append", "zeros"):
        data += random_state.randbytes(20) if damage == "append" else bytes(20)
    path = tmp_path_factory.mktemp("inflate") / "file.gz"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deflate, "_OUTPUT_BYTES", piece_bytes)
        patch.setattr(deflate, "_INPUT_BYTES", input_bytes)
        patch.setattr(compression, "_MIN_SUSPICIOUS_BYTES", 2000)
        exact_result = collect_pieces(
            deflate._inflate_exactly(str(path), "file", "gzip", max_ratio)
        )
        fast_result = collect_pieces(deflate.Gzip().decompress_file(str(path), "file", max_ratio))
    assert fast_result[1] == exact_result[1]
    assert fast_result[0] == exact_result[0] or "above the limit" in exact_result[1]
    assert bool(exact_result[1]) or damage != "append"


@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize(
    "content", [random.Random(1).randbytes(3000), bytes(1898) + b"@" + bytes(1101)]
)
def test_gzip_headers_divided_between_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, has_crc: bool
) -> None:
    """ISA-L alone fails at a header with a CRC that a block divides."""
    monkeypatch.setattr(deflate, "_INPUT_BYTES", 100)
    monkeypatch.setattr(deflate, "_OUTPUT_BYTES", 1024)
    first, data = (
        member(b"", b"a name", b"extra", False, 0),
        member(content, b"", b"extra", has_crc, 0),
    )
    for num_members in range(20):
        (tmp_path / "file.gz").write_bytes(first * num_members + data)
        assert collect_pieces(
            deflate.Gzip().decompress_file(str(tmp_path / "file.gz"), "file", None)
        ) == (
            content,
            "",
        )


@pytest.mark.parametrize("size_change", [-1, 1])
def test_member_with_another_size_than_expected_is_an_error(size_change: int) -> None:
    packed = memoryview(gzip_member(CONTENT))
    assert deflate.Gzip().unpack(packed, len(CONTENT)) == CONTENT
    with pytest.raises(ValueError, match="does not end where the member table says"):
        deflate.Gzip().unpack(packed, len(CONTENT) + size_change)


def test_member_that_is_damaged_or_not_alone_is_an_error() -> None:
    packed = gzip_member(CONTENT)
    damaged = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]  # a byte of the CRC differs
    with pytest.raises(ValueError, match="is damaged: "):
        deflate.Gzip().unpack(memoryview(damaged), len(CONTENT))
    for data in (packed[:-1], packed + b"x", packed + gzip_member(b"")):
        with pytest.raises(ValueError, match="does not end where the member table says"):
            deflate.Gzip().unpack(memoryview(data), len(CONTENT))


def test_content_of_zeros_is_within_the_limit_of_the_ratio() -> None:
    packed = gzip_member(bytes(10 << 20))
    assert len(packed) * 1000 < 10 << 20 <= deflate.Gzip().max_content_bytes(len(packed))


@pytest.mark.parametrize("level", range(-1, 10))
def test_heads_of_all_zlib_levels_are_recognized(level: int) -> None:
    data = zlib.compress(CONTENT, level)
    assert deflate.Zlib().is_head(data)
    assert deflate.Zlib().is_head(data[:6])
    assert not deflate.Zlib().is_head(data[:5])


def test_text_with_the_magic_of_zlib_is_not_zlib() -> None:
    text = b"x^2 + y^2 = z^2, and more text"
    assert (text[0] << 8 | text[1]) % 31 == 0  # the first two bytes are a valid header
    assert not deflate.Zlib().is_head(text)
