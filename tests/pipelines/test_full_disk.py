"""A disk that is full (here: a limit on a file's size): one line that names OUT, and nothing is left."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_server import s3_server

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.records.writers.outputs import OUTPUT_NAMES

pytest.importorskip("apache_beam")


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    # random, so that it stays large when compressed
    lines = (f"{number},{hash((number, 'x')) & (2**60 - 1):x}{'y' * 30}\n" for number in range(9000))
    (folder / "in.csv").write_text("a,b\n" + "".join(lines))
    return Path(recordmill.build(folder / "in.csv", folder / "set").out)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_a_build_says_where(data_set: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    out = tmp_path / "out"
    with files_of_at_most(30_000), pytest.raises(RecordmillError, match=f"^{out}: File too large; nothing was written"):
        recordmill.build(data_set.parent / "in.csv", out, **options)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("to", [name for name in OUTPUT_NAMES if name != "files"])
def test_a_read_says_where(data_set: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    with files_of_at_most(30_000), pytest.raises(RecordmillError, match=f"^{out}: File too large"):
        recordmill.read(data_set, out, to=to)
    assert not list(tmp_path.glob("out/*"))


def test_what_goes_to_a_store_says_where_it_is_prepared(
    data_set: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with s3_server(tmp_path_factory.mktemp("store")) as store:
        out = f"{store.root}/out"
        said = rf"^{tmp_path}.* \(where TMPDIR has what goes to {out} prepared\): File too large; nothing was written"
        with files_of_at_most(30_000), pytest.raises(RecordmillError, match=said):
            recordmill.build(data_set.parent / "in.csv", out)
        with files_of_at_most(30_000), pytest.raises(RecordmillError, match=said):
            recordmill.read(data_set, out, to="npy")
        assert store.keys() == []
    assert not list(tmp_path.glob("recordmill-*/*/*"))
