"""Compressed streams are read completely, and an error about a defect has its place.

Defects are truncation, damage, trailing bytes and decompression bombs.
"""

import bz2
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.compressed_files import CONTENT, PACKED, gzip_member, read_compressed
from kit.files import zstd

from recordmill.base.errors import DataError
from recordmill.storage.compression import detect_compression, open_blocks, open_stream

# Truncation at these bytes is not detected, because the remaining bytes are a complete file.
MEMBER_STARTS = {
    "gzip": {len(gzip_member(CONTENT[:2000])), len(gzip_member(CONTENT[:2000]) + gzip_member(b""))},
    "zlib": set(),
    "zstd": {len(zstd(CONTENT[:2000]))},
    "bz2": {len(bz2.compress(CONTENT[:2000]))},
    "xz": {len(lzma.compress(CONTENT[:2000]))},
}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("block_bytes", [1, 700, 3000, 1 << 20])
def test_every_format_is_read_in_blocks_of_any_size(
    tmp_path: Path, kind: str, block_bytes: int
) -> None:
    assert detect_compression(PACKED[kind][:4096]) == kind
    assert read_compressed(tmp_path / "f", PACKED[kind], block_bytes=block_bytes) == CONTENT
    assert read_compressed(tmp_path / "f", PACKED[kind], kind, block_bytes) == CONTENT


def test_plain_and_empty_files_are_read(tmp_path: Path) -> None:
    assert read_compressed(tmp_path / "f", CONTENT) == CONTENT
    assert read_compressed(tmp_path / "f", b"") == b""
    for kind in PACKED:
        with pytest.raises(DataError, match="name: byte 0 of the file: truncated"):
            read_compressed(tmp_path / "f", b"", kind)
    with pytest.raises(ValueError, match="compression 'lz4' is not one of"):
        open_stream("f", compression="lz4")


@pytest.mark.parametrize("kind", PACKED)
def test_truncation_at_every_byte_is_an_error(tmp_path: Path, kind: str) -> None:
    for size in range(1, len(PACKED[kind])):
        if size in MEMBER_STARTS[kind]:
            assert CONTENT.startswith(read_compressed(tmp_path / "f", PACKED[kind][:size], kind))
            continue
        with pytest.raises(
            DataError,
            match=f"^name: byte {size} of the file: truncated: the {kind} data that begins at byte",
        ):
            read_compressed(tmp_path / "f", PACKED[kind][:size], kind)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("garbage", [b"\0" * 600 + b"x", b"garbage", b"\x1f\x8c" + b"x" * 30])
def test_bytes_after_the_end_are_an_error(tmp_path: Path, kind: str, garbage: bytes) -> None:
    place = {
        "zstd": "before byte",
        "bz2": "byte",
        "xz": "byte",
        "zlib": f"byte {len(PACKED['zlib']) + garbage.count(0)} of",
        # Zeros after a member are padding, and an `x` may be the first byte of a header.
        "gzip": f"byte {len(PACKED['gzip']) + garbage.count(0)} of the file",
    }[kind]
    with pytest.raises(DataError, match=f"^name: .*{place}") as error:
        read_compressed(tmp_path / "f", PACKED[kind] + garbage, kind)
    assert len(str(error.value)) < 300


def test_content_before_the_damage_is_yielded_first(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(gzip_member(CONTENT) + gzip_member(CONTENT)[:-1])
    blocks = open_blocks(str(tmp_path / "f"), block_bytes=4000)
    contents = []
    with pytest.raises(DataError, match="truncated"):
        contents.extend(block.tobytes() for block in blocks)
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


@pytest.mark.parametrize("kind", ["gzip", "zlib", "bz2", "xz"])
@pytest.mark.parametrize("num_zeros", [1, 512, 3 << 20])
def test_zeros_after_a_stream_are_padding(tmp_path: Path, kind: str, num_zeros: int) -> None:
    """Tapes and block devices pad files with zeros."""
    assert read_compressed(tmp_path / "f", PACKED[kind] + bytes(num_zeros)) == CONTENT
    if kind != "zlib":  # a zlib file has only one stream
        assert read_compressed(tmp_path / "f", (PACKED[kind] + bytes(num_zeros)) * 2) == CONTENT * 2
    with pytest.raises(DataError):
        read_compressed(tmp_path / "f", PACKED[kind] + bytes(num_zeros) + b"x")
