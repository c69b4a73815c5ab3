"""Compiled kernels on disk are never older than what is compiled into them, and do not pile up."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest

import recordmill
from recordmill.base.compilation import machine_code, numba_kernels
from recordmill.base.compilation.digest import code_digest
from recordmill.base.compilation.machine_code import CodeFiles, MachineCode, kinds_of
from recordmill.base.kernels import Intrinsic, Kernel, kernel

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


@pytest.mark.sweep
@pytest.mark.parametrize("told", [{}, BY_NUMBA], ids=["machine code", "Numba's cache"])
def test_a_change_in_another_file_makes_the_kernel_new(tmp_path: Path, told: dict[str, str]) -> None:
    assert run(tmp_path, by=1, told=told) == [1, 0]
    assert run(tmp_path, by=1, told=told) == [1, 1]
    assert run(tmp_path, by=2, told=told) == [2, 0]
    assert run(tmp_path, by=2, shift=10, told=told) == [12, 0]
    assert run(tmp_path, by=2, shift=10, entry=100, told=told) == [112, 0]
    assert run(tmp_path, by=1, told=told) == [1, 1]  # the code before is still there


@pytest.mark.sweep
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


@pytest.mark.sweep
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
    monkeypatch.setattr(machine_code, "code_folders", lambda source: pytest.fail("on import"))
    assert kernel(lambda x: x).dispatcher  # type: ignore[attr-defined]


def test_the_digest_is_the_same_in_every_process() -> None:
    program = (
        "from recordmill.base.compilation.digest import code_digest\n"
        "from recordmill.records.protobuf import wire\n"
        "print(*[code_digest(f) for f in (wire.any_varint, wire.short_varint)])"
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


def kernels() -> dict[str, FunctionType]:
    """Every function of the package that is compiled, by its name."""
    found, folder = {}, Path(recordmill.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if "recordmill.base.kernels import" in path.read_text():
            module = importlib.import_module(".".join(("recordmill", *path.relative_to(folder).with_suffix("").parts)))
            for value in vars(module).values():
                if isinstance(value, Kernel | Intrinsic):
                    function: Any = value.py_func if isinstance(value, Kernel) else value._defn
                    found[f"{function.__module__}.{function.__qualname__}"] = function
    return found


def renamed(code: CodeType) -> Iterator[CodeType]:
    """The code with one name changed: of what it calls, of an attribute, of a function that it has inside."""
    for at, name in enumerate(code.co_names):
        yield code.replace(co_names=(*code.co_names[:at], f"{name}_", *code.co_names[at + 1 :]))
    for at, inner in enumerate(code.co_consts):
        if isinstance(inner, CodeType):
            for other in renamed(inner):
                yield code.replace(co_consts=(*code.co_consts[:at], other, *code.co_consts[at + 1 :]))


def made_of(function: FunctionType, code: CodeType) -> FunctionType:
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


def test_every_name_in_every_kernel_is_part_of_its_digest() -> None:
    found = kernels()
    assert len(found) > 0
    for name, function in found.items():
        digest = code_digest(function)
        assert code_digest(made_of(function, function.__code__)) == digest
        for code in renamed(function.__code__):
            assert code_digest(made_of(function, code)) != digest, (name, code.co_names)


def test_digests_differ_by_builtin_attribute_and_the_order_of_fields() -> None:
    def digest(text: str, **names: Any) -> str:
        names["__name__"] = "made"
        exec(f"def made(x):\n    return {text}", names)
        return code_digest(names["made"])

    pair, swapped = (NamedTuple("Pair", [(name, int) for name in names]) for names in (("a", "b"), ("b", "a")))
    values = [digest(text, np=np) for text in ("min(x, 1)", "max(x, 1)", "np.floor(x)", "np.ceil(x)", "x.a", "x.b")]
    values += [digest("Pair(x, 1).a", Pair=kind) for kind in (pair, swapped)]
    values += [digest("PAIR.a", PAIR=kind(1, 2)) for kind in (pair, swapped)]
    assert len({*values}) == len(values)
    assert kinds_of((pair(1, 2),)) != kinds_of((swapped(1, 2),))


@pytest.mark.sweep
def test_files_that_were_emptied_are_made_anew(tmp_path: Path) -> None:
    assert run(tmp_path, by=1, told=BY_NUMBA) == [1, 0]
    files = list((tmp_path / "__pycache__").iterdir())
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    for path in files:
        path.write_bytes(b"")
    assert run(tmp_path, by=1, told=BY_NUMBA) == [1, 0]
    assert run(tmp_path, by=1, told=BY_NUMBA) == [1, 1]


class _Planted:
    """Unpickled, it ends the process."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (77,)


def test_no_code_is_loaded_from_a_folder_that_others_write_to(tmp_path: Path) -> None:
    """Neither machine code nor Numba's pickles; the next folder is taken, or none."""
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": ""}
    by_numba = {**home, **BY_NUMBA}
    assert run(tmp_path, by=1, told=by_numba) == [1, 0]
    cache = tmp_path / "__pycache__"
    for path in cache.glob("*.nb[ic]"):
        path.write_bytes(pickle.dumps(_Planted()))
    cache.chmod(0o777)
    assert run(tmp_path, by=1, told=by_numba) == [1, 0]
    assert run(tmp_path, by=1, told=home) == [1, 0]
    kept = tmp_path / "home" / ".cache" / "recordmill" / "kernels"
    assert {path.suffix for path in kept.iterdir()} == {".nbi", ".nbc", ".code"}
    assert not kept.stat().st_mode & 0o022
    kept.chmod(0o775)
    assert run(tmp_path, by=1, told=home) == [1, 0]


def test_a_file_is_loaded_only_as_its_owner_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    files, kinds, code = CodeFiles(lambda x: x, {}), kinds_of((1,)), MachineCode("f", ("i8",), False, b"code")
    assert kinds is not None
    files.keep(kinds, code)
    (path,) = (tmp_path / "recordmill").iterdir()
    assert files.find(kinds) == code
    path.chmod(0o666)
    assert files.find(kinds) is None
    path.chmod(0o644)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert files.find(kinds) is None
    path.unlink()
    os.mkfifo(path)
    assert files.find(kinds) is None
    path.unlink()
    other = CodeFiles(lambda x: -x, {})
    other.keep(kinds, code)
    (path,) = (tmp_path / "recordmill").iterdir()
    path.rename(path.with_name(files._name(kinds)))  # another kernel's
    assert files.find(kinds) is None
    files.keep(kinds, code)
    about = os.stat(path.parent)
    monkeypatch.setattr(machine_code, "_owners", lambda: frozenset({about.st_uid + 1}))
    assert files.find(kinds) is None
