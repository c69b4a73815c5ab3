"""zstd, bzip2 and xz files are detected, and decompressed within bounded memory."""

import bz2
import lzma
from pathlib import Path

import pytest
from kit.compressed_files import PACKED, read_compressed
from kit.files import zstd

from recordmill.base.errors import DataError
from recordmill.storage.codecs import find_codec
from recordmill.storage.compression import open_blocks


def test_window_above_128_mib_is_refused_by_its_size(tmp_path: Path) -> None:
    """`zstd --long=31` writes such a window."""
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")
    with pytest.raises(DataError, match="a window above 128 MiB"):
        list(open_blocks(str(tmp_path / "a.zst")))
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a", filters=filters))
    with pytest.raises(DataError, match="xz data of a window above 128 MiB"):
        list(open_blocks(str(tmp_path / "a.xz")))


def test_zeros_after_zstd_data_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zstd data is damaged, or something follows its end"):
        read_compressed(tmp_path / "f", PACKED["zstd"] + bytes(512))


@pytest.mark.parametrize("kind", ["zstd", "bz2", "xz"])
def test_start_of_a_file_is_decompressed_up_to_a_limit(kind: str) -> None:
    algorithm = find_codec(kind).algorithm
    content = bytes(range(256)) * 400
    data = {"zstd": zstd, "bz2": bz2.compress, "xz": lzma.compress}[kind](content)
    start, is_complete = algorithm.decompress_head(data, 5000)
    assert content.startswith(start)
    assert 5000 <= len(start) < 10_000
    assert not is_complete
    assert algorithm.decompress_head(data, 1 << 20) == (content, True)


@pytest.mark.parametrize("kind", ["bz2", "xz"])
def test_start_with_a_second_stream_is_not_the_complete_content(kind: str) -> None:
    compress = {"bz2": bz2.compress, "xz": lzma.compress}[kind]
    decompress_head = find_codec(kind).algorithm.decompress_head
    assert decompress_head(compress(b"a") + bytes(8), 100) == (b"a", True)
    assert decompress_head(compress(b"a") + compress(b"b"), 100) == (b"a", False)


@pytest.mark.parametrize("kind", ["zstd", "bz2", "xz"])
def test_blocks_of_the_content_have_at_most_1_mib(tmp_path: Path, kind: str) -> None:
    content = bytes(3 << 20)
    data = {"zstd": zstd, "bz2": bz2.compress, "xz": lzma.compress}[kind](content)
    (tmp_path / "f").write_bytes(data)
    blocks = list(find_codec(kind).algorithm.decompress_file(str(tmp_path / "f"), "name", None))
    assert b"".join(blocks) == content
    assert all(0 < len(block) <= 1 << 20 for block in blocks)


def test_text_that_begins_like_bzip2_is_not_bzip2() -> None:
    assert find_codec("bz2").algorithm.is_head(bz2.compress(b"")[:10])
    assert not find_codec("bz2").algorithm.is_head(b"BZh9 is a magic of bzip2")
