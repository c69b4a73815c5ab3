"""Compressed streams are read completely; truncation, damage, trailing bytes and bombs are
errors with their place.
"""

import bz2
import gzip
import io
import lzma
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.files import zstd

from recordmill.base.errors import DataError
from recordmill.storage import compression, deflate
from recordmill.storage.codecs import CODECS, find_codec
from recordmill.storage.compression import detect_compression, open_blocks, open_stream

CONTENT = np.random.default_rng(1).integers(0, 9, 3000, dtype=np.uint8).tobytes()


gzip_member = find_codec("gzip").pack


PACKED = {
    "gzip": gzip_member(CONTENT[:2000]) + gzip_member(b"") + gzip.compress(CONTENT[2000:]),
    "zlib": zlib.compress(CONTENT),
    "zstd": zstd(CONTENT[:2000]) + zstd(CONTENT[2000:]),
    "bz2": bz2.compress(CONTENT[:2000]) + bz2.compress(CONTENT[2000:]),
    "xz": lzma.compress(CONTENT[:2000]) + lzma.compress(CONTENT[2000:]),
}
MEMBER_STARTS = {  # where a cut can't be seen, since what is there is a whole file
    "gzip": {len(gzip_member(CONTENT[:2000])), len(gzip_member(CONTENT[:2000]) + gzip_member(b""))},
    "zlib": set(),
    "zstd": {len(zstd(CONTENT[:2000]))},
    "bz2": {len(bz2.compress(CONTENT[:2000]))},
    "xz": {len(lzma.compress(CONTENT[:2000]))},
}


def read(
    path: Path, data: bytes, kind: str = "auto", block_bytes: int = 700, **options: object
) -> bytes:
    path.write_bytes(data)
    blocks = list(
        open_blocks(str(path), block_bytes=block_bytes, compression=kind, source="name", **options)
    )  # type: ignore[arg-type]
    assert all(len(block) == block_bytes for block in blocks[:-1])
    assert all(0 < len(block) <= block_bytes for block in blocks)
    return b"".join(block.tobytes() for block in blocks)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("block_bytes", [1, 700, 3000, 1 << 20])
def test_every_format_is_read_in_blocks_of_any_size(
    tmp_path: Path, kind: str, block_bytes: int
) -> None:
    assert detect_compression(PACKED[kind][:4096]) == kind
    assert read(tmp_path / "f", PACKED[kind], block_bytes=block_bytes) == CONTENT
    assert read(tmp_path / "f", PACKED[kind], kind, block_bytes) == CONTENT


def test_plain_and_empty_files_are_read(tmp_path: Path) -> None:
    assert read(tmp_path / "f", CONTENT) == CONTENT
    assert read(tmp_path / "f", b"") == b""
    for kind in PACKED:
        with pytest.raises(DataError, match="name: byte 0 of the file: truncated"):
            read(tmp_path / "f", b"", kind)
    with pytest.raises(ValueError, match="compression 'lz4' is not one of"):
        open_stream("f", compression="lz4")


@pytest.mark.parametrize("kind", PACKED)
def test_truncation_at_every_byte_is_an_error(tmp_path: Path, kind: str) -> None:
    for cut in range(1, len(PACKED[kind])):
        if cut in MEMBER_STARTS[kind]:
            assert CONTENT.startswith(read(tmp_path / "f", PACKED[kind][:cut], kind))
            continue
        with pytest.raises(
            DataError,
            match=f"^name: byte {cut} of the file: truncated: the {kind} data that begins at byte",
        ):
            read(tmp_path / "f", PACKED[kind][:cut], kind)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("garbage", [b"\0" * 600 + b"x", b"garbage", b"\x1f\x8c" + b"x" * 30])
def test_bytes_after_the_end_are_an_error(tmp_path: Path, kind: str, garbage: bytes) -> None:
    place = {
        "zstd": "before byte",
        "bz2": "byte",
        "xz": "byte",
        "zlib": f"byte {len(PACKED['zlib']) + garbage.count(0)} of",
        "gzip": "",
    }[kind]
    with pytest.raises(DataError, match=f"^name: .*{place}") as caught:
        read(tmp_path / "f", PACKED[kind] + garbage, kind)
    if kind == "gzip":  # `x` may be the first byte of a header
        assert f"byte {len(PACKED['gzip'])} of the file" in str(caught.value) or "truncated" in str(
            caught.value
        )
    assert len(str(caught.value)) < 300


def test_content_before_the_damage_is_yielded_first(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(gzip_member(CONTENT) + gzip_member(CONTENT)[:-1])
    blocks = open_blocks(str(tmp_path / "f"), block_bytes=4000)
    got = []
    with pytest.raises(DataError, match="truncated"):
        got.extend(block.tobytes() for block in blocks)
    stream = open_blocks(str(tmp_path / "f"), block_bytes=4000)
    assert next(stream).tobytes() + next(stream).tobytes() == CONTENT * 2
    with pytest.raises(DataError, match="truncated"):
        next(stream)


def test_decompression_bomb_is_stopped_early(tmp_path: Path) -> None:
    bomb = zstd(bytes(100 << 20))
    (tmp_path / "f").write_bytes(bomb)

    def drain(**options: int | None) -> int:
        return sum(map(len, open_blocks(str(tmp_path / "f"), source="name", **options)))  # type: ignore[arg-type]

    with pytest.raises(
        DataError,
        match=r"name: byte \d+ of the file: \d+ compressed bytes have become \d+, above the limit of 1000 times",
    ):
        drain()
    assert drain(max_ratio=None) == 100 << 20
    (tmp_path / "f").write_bytes(gzip_member(bytes(80 << 20)))
    with pytest.raises(DataError, match="above the limit of 500 times"):
        drain(max_ratio=500)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "none"),
        (b"\x1f\x8b", "none"),
        (b"X\tcolumn\tanother column\n1\t2\t3\n", "none"),
        (b"x^2,y,and more columns\n1,2,3\n", "none"),
        (b"(\xb5/\xfd", "zstd"),
        (b"\x5a\x2a\x4d\x18\x04\0\0\0abcd", "zstd"),
        (zlib.compress(CONTENT, 1), "zlib"),
        (zlib.compress(b""), "zlib"),
        (bytes(4096), "none"),
    ],
)
def test_compression_is_detected_from_the_first_bytes(head: bytes, kind: str) -> None:
    assert detect_compression(head) == kind


def test_gzip_members_are_the_pinned_bytes_and_gzip_reads_them() -> None:
    # Shards are compared by their bytes across runs: no time, no name, no operating system.
    assert gzip_member(b"").hex() == "1f8b08000000000000ff03000000000000000000"
    assert gzip.decompress(gzip_member(CONTENT) * 2) == CONTENT * 2
    assert (
        gzip_member(CONTENT)
        == gzip_member(np.frombuffer(CONTENT, np.uint8))
        == gzip_member(memoryview(CONTENT))
    )
    assert io.BytesIO(gzip_member(CONTENT)).read(10) == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def test_codecs_are_distinguished_by_head_suffix_and_name() -> None:
    for name, data in PACKED.items():
        assert [
            codec.name
            for codec in CODECS
            if not codec.is_plain and codec.algorithm.is_head(data[:4096])
        ] == [name]
        assert find_codec(name).algorithm.decompress_head(data, 100)[0][:100] == CONTENT[:100]
        assert (
            find_codec(name).algorithm.decompress_head(data, 10_000)[0].startswith(CONTENT[:2000])
        )
        assert CONTENT.startswith(find_codec(name).algorithm.decompress_head(data[:300], 10_000)[0])
        assert find_codec(name).algorithm.decompress_head(b"garbage, garbage", 100) == (b"", False)
    for values in zip(
        *((codec.name, codec.shard_suffix, codec.magic) for codec in CODECS), strict=True
    ):
        told = [value for value in values if value]
        assert len(set(told)) == len(told)


def test_missing_file_raises_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(open_blocks(str(tmp_path / "no")))


def test_abandoned_stream_closes_its_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(PACKED["gzip"])
    blocks: Iterator[np.ndarray] = open_blocks(str(tmp_path / "f"), block_bytes=10)
    next(blocks)
    assert str(tmp_path / "f") in _open_files()
    blocks.close()  # type: ignore[attr-defined]
    assert str(tmp_path / "f") not in _open_files()


def _open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("no /proc to ask which files are open")
    return {str(link.resolve()) for link in folder.iterdir()}


def member(content: bytes, name: bytes, extra: bytes, checked: bool, level: int) -> bytes:
    """A gzip member with the parts that its header may have."""
    flags = 8 * bool(name) | 4 * bool(extra) | 2 * checked
    head = bytes([0x1F, 0x8B, 8, flags]) + bytes(5) + b"\xff"
    head += len(extra).to_bytes(2, "little") + extra if extra else b""
    head += name + b"\0" if name else b""
    head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little") if checked else b""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = deflater.compress(content) + deflater.flush()
    return (
        head + body + zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    )


def inflated(pieces: Iterator[bytes]) -> tuple[bytes, str]:
    """(what it gives, how it ends)."""
    given = b""
    try:
        for piece in pieces:
            given += piece
    except DataError as error:
        return given, str(error)
    return given, ""


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
    dice = random.Random(seed)
    data = b"".join(
        member(bytes(dice.randrange(letters) for _ in range(size)), name, extra, checked, level)
        for size, name, extra, checked, level, letters in members
    )
    if damage == "flip":
        at = dice.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]
    elif damage == "cut":
        data = data[: dice.randrange(len(data))]
    elif damage in ("append", "zeros"):
        data += dice.randbytes(20) if damage == "append" else bytes(20)
    path = tmp_path_factory.mktemp("inflate") / "file.gz"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deflate, "_OUTPUT_BYTES", piece_bytes)
        patched.setattr(deflate, "_INPUT_BYTES", input_bytes)
        patched.setattr(compression, "_MIN_SUSPICIOUS_BYTES", 2000)
        exact = inflated(deflate._inflate_exactly(str(path), "file", "gzip", max_ratio))
        fast = inflated(deflate.Gzip().decompress_file(str(path), "file", max_ratio))
    assert fast[1] == exact[1]
    assert fast[0] == exact[0] or "above the limit" in exact[1]
    assert bool(exact[1]) or damage != "append"


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    "content", [random.Random(1).randbytes(3000), bytes(1898) + b"@" + bytes(1101)]
)
def test_gzip_headers_divided_between_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, checked: bool
) -> None:
    """ISA-L alone loses its place in a header with a CRC that a block cuts."""
    monkeypatch.setattr(deflate, "_INPUT_BYTES", 100)
    monkeypatch.setattr(deflate, "_OUTPUT_BYTES", 1024)
    first, data = (
        member(b"", b"a name", b"extra", False, 0),
        member(content, b"", b"extra", checked, 0),
    )
    for members in range(20):
        (tmp_path / "file.gz").write_bytes(first * members + data)
        assert inflated(
            deflate.Gzip().decompress_file(str(tmp_path / "file.gz"), "file", None)
        ) == (
            content,
            "",
        )


def test_window_above_128_mib_is_refused_by_its_size(tmp_path: Path) -> None:
    """As `zstd --long=31` writes it."""
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")
    with pytest.raises(DataError, match="a window above 128 MiB"):
        list(open_blocks(str(tmp_path / "a.zst")))
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a", filters=filters))
    with pytest.raises(DataError, match="xz data of a window above 128 MiB"):
        list(open_blocks(str(tmp_path / "a.xz")))


@pytest.mark.parametrize("kind", ["gzip", "zlib", "bz2", "xz"])
@pytest.mark.parametrize("zeros", [1, 512, 3 << 20])
def test_zeros_after_a_stream_are_padding(tmp_path: Path, kind: str, zeros: int) -> None:
    """Tapes and block devices pad files with zeros."""
    assert read(tmp_path / "f", PACKED[kind] + bytes(zeros)) == CONTENT
    if kind != "zlib":  # which has only one stream
        assert read(tmp_path / "f", (PACKED[kind] + bytes(zeros)) * 2) == CONTENT * 2
    with pytest.raises(DataError):
        read(tmp_path / "f", PACKED[kind] + bytes(zeros) + b"x")


def test_zstd_with_zeros_after_its_end_is_an_error_as_for_its_own_tool(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zstd data is damaged, or something follows its end"):
        read(tmp_path / "f", PACKED["zstd"] + bytes(512))
