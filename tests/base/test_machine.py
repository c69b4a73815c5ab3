"""Processors are counted within the affinity mask and the container's CPU quota."""

import os
from pathlib import Path

import pytest

from recordmill.base import machine
from recordmill.exporting.plan import choose_threads
from recordmill.pipelines.build_options import make_options


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("max 100000\n", None),
        ("", None),
        ("1 0\n", None),
    ],
)
def test_cpu_quota_is_read_from_the_file_of_the_container(
    tmp_path: Path, text: str, quota: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert machine._read_cpu_quota(tmp_path / "cpu.max") == quota
    assert machine._read_cpu_quota(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("quota", "count"), [("100000 100000", 1), ("1600000 100000", 3), ("max 100000", 3)]
)
def test_core_count_and_threads_of_commands_respect_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "_CPU_QUOTA_FILE", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    machine.count_cores.cache_clear()
    try:
        assert machine.count_cores() == count
        assert make_options("out", memory="16GiB").threads == count
        assert choose_threads(0, 16 << 30) == count
    finally:
        machine.count_cores.cache_clear()
