"""Digests of files equal the output of b3sum and sha256sum."""

import hashlib
from pathlib import Path

import pytest
from blake3 import blake3

from recordmill.storage import digest
from recordmill.storage.digest import Digest, digest_file, sha256_file


def test_digest_of_no_bytes_is_the_published_one() -> None:
    text = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert Digest().text() == f"blake3:{text}"


@pytest.mark.parametrize("size_bytes", [0, 1, 99, 100, 101, 1000])
def test_digest_of_a_file_does_not_depend_on_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(digest, "_BLOCK_BYTES", 100)
    data = bytes(byte % 251 for byte in range(size_bytes))
    (tmp_path / "f").write_bytes(data)
    assert digest_file(str(tmp_path / "f")) == f"blake3:{blake3(data).hexdigest()}"
    assert sha256_file(str(tmp_path / "f")) == hashlib.sha256(data).hexdigest()
    parts = Digest()
    parts.update(data[:50])
    parts.update(memoryview(data)[50:])
    assert parts.text() == digest_file(str(tmp_path / "f"))
