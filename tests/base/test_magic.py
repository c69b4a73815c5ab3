"""Formats are detected from the first bytes of a file.

Text is not mistaken for another format.
"""

import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.files import zstd
from kit.image_samples import samples

from recordmill.base.magic import (
    FORMAT_HEAD_BYTES,
    IMAGE_HEAD_BYTES,
    may_be_text,
    needs_random_access,
    sniff_file_format,
    sniff_image,
    sniff_unsupported_image,
)


def test_supported_images_are_detected_from_16_bytes() -> None:
    for name, (data, (image_format, *_)) in samples().items():
        assert (sniff_image(data[:IMAGE_HEAD_BYTES]) or "").upper() == image_format.upper(), name
        assert sniff_unsupported_image(data) is None, name
        assert needs_random_access(data[:FORMAT_HEAD_BYTES]), name


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\0\0\0\x20ftypavif\0\0", "AVIF"),
        (b"\0\0\0\x20ftypheic\0\0", "HEIC"),
        (b"\0\0\0\x20ftypisom\0\0", None),
        (b"8BPS\0\1", "PSD"),
        (b"P6\n640 480\n255\n\0\1", "PNM"),
        (b"P3 2 2\n1 2 3", "PNM"),
        (b"P1 # a comment\n", "PNM"),
        (b"P7\nWIDTH 4", "PNM"),
        (b"P1 40 60 total\n", None),
        (b"P1,P2,P3\n1,2,3\n", None),
        (b"P6 of the report\n", None),
    ],
)
def test_unsupported_images_are_named_and_text_is_not_an_image(
    head: bytes, name: str | None
) -> None:
    assert sniff_unsupported_image(head) == name
    assert sniff_image(head) is None


@pytest.mark.parametrize(
    "text",
    [
        b"BM,name\n1,a\n",
        b"ORC is a word\n",
        b"Obj\x01"[:3] + b"ect,value\n",
        b"ID3,ID4\n",
        b"MM\n",
        b"RIFFraff WAVE\n",
        b"fLaC,Ogg\n",
        "Über,ä\n".encode("latin-1"),
        b"",
    ],
)
def test_text_that_begins_like_a_format_is_text(text: bytes) -> None:
    assert sniff_image(text) is None
    assert sniff_file_format(text) is None
    assert may_be_text(text)
    assert not needs_random_access(text)


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"a")
    return file.getvalue()


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "name"),
    [(_npy(), "npy"), (_zip(), "zip"), (_parquet(), "Parquet"), (b"\0" * 257 + b"ustar\0", "tar")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_written_file_is_detected_and_has_a_remedy(data: bytes, name: str) -> None:
    file_format = sniff_file_format(data[:FORMAT_HEAD_BYTES])
    assert file_format is not None
    assert file_format.name == name
    assert file_format.description
    assert needs_random_access(data)


def test_compressed_files_are_read_from_start_to_end() -> None:
    file_format = sniff_file_format(zstd(b"a"))
    assert file_format is not None
    assert (file_format.name, file_format.description) == ("zstd", "")
    assert not needs_random_access(zstd(b"a"))
    assert not needs_random_access(bytes(40))


def test_magic_after_the_head_does_not_count() -> None:
    assert sniff_file_format(b"a" * FORMAT_HEAD_BYTES + b"\0") is None
    assert not may_be_text(b"a\0")
    assert may_be_text(b"a\t\r\n\f\x1a\x1b")
