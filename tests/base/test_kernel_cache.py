"""Compiled kernels on disk are never older than what is compiled into them, and do not pile up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from recordmill.base.compilation import machine_code, numba_kernels
from recordmill.base.compilation.digest import code_digest
from recordmill.base.kernels import kernel

OUTER = """
from recordmill.base.kernels import kernel
from inner import SHIFT, TABLE, added
@kernel
def outer(x):
    return added(x) + SHIFT + TABLE[1]
"""
INNER = """
import numpy as np
from recordmill.base.kernels import kernel
SHIFT = {shift}
TABLE = np.array([0, {entry}])
@kernel
def added(x):
    return x + {by}
"""
PROGRAM = """
from outer import outer
value = outer(0)
print(value, int(outer._numba is None or sum(outer.dispatcher.stats.cache_hits.values())))
"""
BY_NUMBA = {"NUMBA_OPT": "3"}  # what it does anyway; but told so it is asked itself


def run(folder: Path, by: int = 0, shift: int = 0, entry: int = 0, told: Mapping[str, str] | None = None) -> list[int]:
    """[what the kernel gives, whether it came from the disk], in a process of its own."""
    (folder / "outer.py").write_text(OUTER)
    (folder / "inner.py").write_text(INNER.format(by=by, shift=shift, entry=entry))
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", **(told or {})}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the files change within the second that a .pyc knows
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return [int(word) for word in result.stdout.split()]


@pytest.mark.parametrize("told", [{}, BY_NUMBA], ids=["machine code", "Numba's cache"])
def test_a_change_in_another_file_makes_the_kernel_new(tmp_path: Path, told: dict[str, str]) -> None:
    assert run(tmp_path, by=1, told=told) == [1, 0]
    assert run(tmp_path, by=1, told=told) == [1, 1]
    assert run(tmp_path, by=2, told=told) == [2, 0]
    assert run(tmp_path, by=2, shift=10, told=told) == [12, 0]
    assert run(tmp_path, by=2, shift=10, entry=100, told=told) == [112, 0]
    assert run(tmp_path, by=1, told=told) == [1, 1]  # the code before is still there


def test_what_is_not_used_for_long_is_removed(tmp_path: Path) -> None:
    run(tmp_path, by=1)
    cache = tmp_path / "__pycache__"
    (cache / "outer.outer-4.py311.nbi").write_text("not of this kind")
    before = {path.name for path in cache.glob("*.[nc][bo]*")}
    for path in cache.iterdir():
        os.utime(path, (time.time() - 20 * 86400,) * 2)
    assert run(tmp_path, by=2) == [2, 0]
    after = {path.name for path in cache.glob("*.[nc][bo]*")}
    assert before & after == {"outer.outer-4.py311.nbi"}
    assert len(after) == len(before)


def test_what_is_used_is_kept(tmp_path: Path) -> None:
    run(tmp_path, by=1)
    for path in (tmp_path / "__pycache__").iterdir():
        os.utime(path, (time.time() - 20 * 86400,) * 2)
    assert run(tmp_path, by=1) == [1, 1]
    assert run(tmp_path, by=2) == [2, 0]
    assert run(tmp_path, by=1)[0] == 1


def test_a_folder_that_goes_away_costs_only_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = numba_kernels.KernelCache(lambda x: x)

    class Gone:
        cache_path = str(tmp_path / "gone")

        def load_overload(self, sig: object, context: object) -> object:
            raise PermissionError(13, "Permission denied")

        def save_overload(self, sig: object, data: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(made, "_made", Gone())
    assert made.load_overload(None, None) is None
    made.save_overload(None, None)


def test_the_folder_is_not_looked_for_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_kernels, "_open", lambda *given: pytest.fail("on import"))
    monkeypatch.setattr(machine_code, "_folders", lambda source: pytest.fail("on import"))
    assert kernel(lambda x: x).dispatcher  # type: ignore[attr-defined]


def test_the_digest_is_the_same_in_every_process() -> None:
    program = (
        "from recordmill.base.compilation.digest import code_digest\n"
        "from recordmill.sources.csv import tokenize; from recordmill.records.tfrecord import crc32c\n"
        "print(*[code_digest(f) for f in (tokenize.tokenize, crc32c.extend_table)])"
    )
    made = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        made.add(
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
        )
    assert len(made) == 1


def test_digests_differ_by_closure_default_and_callee() -> None:
    def made(by: object, default: int = 0) -> object:
        def inner(x: int, y: int = default) -> object:
            return x + y if by is None else by

        return inner

    values = [made(None), made(1), made(2), made(1, 5), made(np.arange(2)), made(np.arange(3)), made(made(1))]
    assert len({code_digest(value) for value in values}) == len(values)  # type: ignore[arg-type]
    assert code_digest(made(made(2))) == code_digest(made(made(2)))  # type: ignore[arg-type]
