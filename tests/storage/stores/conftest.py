"""A web server of files, read in small blocks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.web_files import WebFiles, web_files

from recordmill.storage import archives, files
from recordmill.storage.stores import downloads, objects
from recordmill.storage.stores.objects import ObjectStorage


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "STORE_BLOCK_BYTES", 1000)
    monkeypatch.setattr(downloads, "DOWNLOAD_PART_BYTES", 3000)
    monkeypatch.setattr(objects, "_MAX_GAP_BYTES", 50)
    storage = ObjectStorage()
    monkeypatch.setattr(files, "_OBJECT_STORAGE", storage)
    monkeypatch.setattr(archives, "OBJECT_STORAGE", storage)


@pytest.fixture
def web(tmp_path: Path, small_blocks: None) -> Iterator[WebFiles]:
    data = np.random.default_rng(0).integers(0, 256, 60_000, dtype=np.uint8)
    (tmp_path / "a").write_bytes(data.tobytes())
    (tmp_path / "empty").write_bytes(b"")
    with web_files(tmp_path) as server:
        yield server
