"""Workers write sorted runs, and report a full disk or a different zlib."""

import resource
import socket
from pathlib import Path

import pytest
from kit.worker_steps import begin_steps

from recordmill.base.errors import RecordmillError


def test_worker_with_another_zlib_is_refused(
    source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gzip_steps, plain_steps = (
        begin_steps(source, f"{out}-{compression}", tmp_path, compression=compression)
        for compression in ("gzip", "none")
    )
    monkeypatch.setattr("zlib.ZLIB_RUNTIME_VERSION", "1.2.3.of-the-worker")
    with pytest.raises(
        RecordmillError, match=r"1\.2\.3\.of-the-worker, and .* compression=\"none\""
    ):
        gzip_steps.ingest(0)
    plain_steps.ingest(0)


def test_full_disk_of_a_worker_is_reported_with_its_host(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin_steps(source, out, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RecordmillError) as error:
            steps.ingest(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    folder = steps.job_folder.run_path() if "://" not in out else str(tmp_path / "temporary")
    assert str(error.value).startswith(folder)
    assert f" on {socket.gethostname()}: File too large; nothing was written" in str(error.value)
