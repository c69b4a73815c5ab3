"""Codecs are found by name, and files by their first bytes."""

import subprocess
import sys

import pytest
from kit.compressed_files import CONTENT, PACKED

from recordmill.storage.codecs import CODECS, SHARD_SUFFIXES, find_codec


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
        distinct = [value for value in values if value]
        assert len(set(distinct)) == len(distinct)


def test_unknown_codec_is_an_error_with_all_names() -> None:
    with pytest.raises(
        ValueError, match=r"compression 'lz4' is not one of none, gzip, zstd, bz2, xz, zlib"
    ):
        find_codec("lz4")


def test_codec_with_a_shard_suffix_writes_and_reads_members() -> None:
    for name in SHARD_SUFFIXES:
        codec = find_codec(name)
        if codec.is_plain:
            assert codec.max_content_bytes(77) == 77
            assert codec.library_version == ""
            continue
        packed = codec.pack(CONTENT)
        assert packed.startswith(codec.magic)
        assert codec.member_algorithm.unpack(memoryview(packed), len(CONTENT)) == CONTENT
        assert codec.max_content_bytes(len(packed)) >= len(CONTENT)
        assert codec.library_version.startswith("zlib ")


def test_module_of_a_codec_is_imported_at_its_first_use() -> None:
    program = (
        "import sys; from recordmill.storage.codecs import find_codec; codec = find_codec('xz');"
        "name = 'recordmill.storage.read_only_codecs'; before = name in sys.modules;"
        "codec.algorithm; sys.exit(before or name not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
