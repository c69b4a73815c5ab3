"""Workers that share only OUT write the same bytes as one machine."""

from pathlib import Path
from typing import Any

import pytest
from kit.worker_steps import begin_steps, build_on_one_machine, check_same

from recordmill.storage.files import read_range
from recordmill.storage.folders import find_files, join


@pytest.mark.parametrize(
    "options", [{}, {"num_shards": None, "shard_size": 900, "compression": "gzip"}]
)
def test_workers_build_the_bytes_of_one_machine(
    source: str, out: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    out += f"-{options.get('compression')}"
    steps = begin_steps(source, out, tmp_path, **options)
    manifest = steps.run_all()
    expected = build_on_one_machine(source, tmp_path, **options)
    check_same(out, manifest, expected)
    assert (manifest.rejects["count"], len(manifest.rejects["files"])) == (1, 1)
    assert b"4 fields" in read_range(join(out, *manifest.rejects["files"][0].split("/"))).tobytes()
    steps.job_folder.open_run().remove_work_files()
    assert not [name for name in find_files(out) if name.startswith("_run-")]
    assert not list((tmp_path / "temporary").glob("work-*"))
