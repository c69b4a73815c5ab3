"""Machine code gives what Numba gives, and what can't be called as machine code is left to Numba."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.caching import NullCache

from recordmill.base.compilation.machine_code import NOT_SERVED, CodeFiles, MachineCode, kinds_of, linked
from recordmill.base.compilation.numba_kernels import machine_code
from recordmill.base.kernels import Kernel, kernel


class Pair(NamedTuple):
    values: Any
    factor: int


def weighted(values: Any, weights: Any) -> Any:
    total = 0.0
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            total += values[row, column] * weights[column]
    return total


def filled(out: Any, value: Any, is_odd: bool) -> None:
    for index in range(len(out)):
        out[index] = value if not is_odd or index % 2 else 0


def several(a: Any, b: Any, c: Any, pair: Any) -> Any:
    return a, b, not c, pair.values[-1] * pair.factor, a > 2


def lasts(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any) -> Any:
    return a[-1], b[-1], c[-1], d[-1], e[-1], f[-1], g[-1], h[-1], i[-1], j[-1], k[-1]


GRID = np.arange(24, dtype=np.float64).reshape(4, 6)
DTYPES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
CALLS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (weighted, lambda: (GRID.copy(), np.arange(6))),
    (weighted, lambda: (np.asfortranarray(GRID), np.arange(12)[::2])),
    (weighted, lambda: (GRID[::-2, 1:4], np.frombuffer(b"\1\2\3", np.uint8))),
    (filled, lambda: (np.ones(7, np.int32), -5, True)),
    (filled, lambda: (np.ones(7, np.float32), np.float32(0.1), False)),
    (filled, lambda: (np.ones(0, np.int64), 1, False)),
    (several, lambda: (1, 2.5, True, Pair(np.arange(3), 4))),
    (several, lambda: (np.uint64(2**64 - 3), np.int16(-7), np.False_, Pair(np.arange(3, dtype=np.float32), -1))),
    (lasts, lambda: tuple(np.array([0, 1.7, 101.7]).astype(dtype) for dtype in DTYPES)),
]


def served(made: Kernel, args: tuple[Any, ...]) -> MachineCode:
    kinds = kinds_of(args)
    assert kinds is not None
    made.dispatcher._cache = NullCache()
    made.dispatcher.compile(tuple(map(made.dispatcher.typeof_pyval, args)))
    (compiled,) = made.dispatcher.overloads.values()
    code = machine_code(compiled, kinds)
    assert code is not None
    assert MachineCode.of_bytes(code.to_bytes("a"), "a") == code
    assert MachineCode.of_bytes(code.to_bytes("a"), "b") is None
    return code


@pytest.mark.parametrize("case", range(len(CALLS)))
def test_machine_code_gives_what_numba_and_python_give(case: int) -> None:
    function, args = CALLS[case]
    made = Kernel(function, {"_nrt": False})
    code = served(made, args())
    assert code.symbol
    call = linked(code, kinds_of(args()) or ())
    ours, numba_s, python_s = args(), args(), args()
    results = [call(*ours), made.dispatcher(*numba_s), function(*python_s)]
    assert repr(results[0]) == repr(results[1])
    np.testing.assert_array_equal(results[0], results[2])
    for one, other in zip(ours, python_s, strict=True):
        assert repr(one) == repr(other)


def raising(x: int) -> int:
    if x < 0:
        raise ValueError(x)
    return x


def making(x: int) -> int:
    return int(np.arange(x).sum())


def giving_an_array(x: int) -> Any:
    return np.zeros(x)


@pytest.mark.parametrize("function", [raising, making, giving_an_array])
def test_what_needs_numba_is_left_to_it(function: Callable[..., Any]) -> None:
    assert served(Kernel(function, {}), (3,)) == NOT_SERVED


@pytest.mark.parametrize(
    "args", [(2**63,), (None,), ("text",), (np.zeros(3, ">i4"),), (np.zeros(9, np.uint8)[1:].view(np.int32),)], ids=repr
)
def test_arguments_of_other_kinds_go_to_numba(args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    made = Kernel(lambda x: x, {})
    monkeypatch.setattr(made, "_numba", None)
    kinds = kinds_of(args)
    if kinds is not None:
        monkeypatch.setattr(CodeFiles, "find", lambda *given: NOT_SERVED)
    monkeypatch.setattr(Kernel, "dispatcher", lambda *given: "Numba")
    assert made(*args) == "Numba"


@pytest.mark.sweep
def test_a_damaged_file_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "from recordmill.base.kernels import kernel\n@kernel\ndef twice(x):\n    return 2 * x\n"
    )
    program = "import sys; from twice import twice; print(twice(21), 'numba' in sys.modules)"

    def run() -> str:
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run() == "42 True"
    (file,) = tmp_path.glob("__pycache__/*.code")
    kept = file.read_bytes()
    assert MachineCode.of_bytes(kept, file.name)
    flipped = kept[:99] + bytes([kept[99] ^ 1]) + kept[100:]
    for damaged in (kept[:-9], b"", bytes(4), bytes(99), flipped):
        assert MachineCode.of_bytes(damaged, file.name) is None
    file.write_bytes(flipped)
    assert run() == "42 True"
    assert run() == "42 False"


def test_a_user_without_a_home_has_what_the_package_can_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user nobody has entered anywhere."""

    def nobody(uid: int) -> Any:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    source = tmp_path / "twice.py"
    source.write_text("def twice(x):\n    return 2 * x\n")
    names: dict[str, Any] = {"__name__": "twice"}
    exec(compile(source.read_text(), str(source), "exec"), names)
    files, kinds, code = CodeFiles(names["twice"], {}), kinds_of((1,)), MachineCode("twice", ("i8",), False, b"code")
    (tmp_path / "__pycache__").write_text("a file, which stops root as well")
    assert kinds is not None
    files.keep(kinds, code)
    assert files.find(kinds) is None
    (tmp_path / "__pycache__").unlink()
    files.keep(kinds, code)
    assert files.find(kinds) == code


def test_after_many_calls_numba_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.base import kernels

    @kernel
    def added(x: int) -> int:
        return x + 1

    made: Kernel = added  # type: ignore[assignment]
    monkeypatch.setattr(CodeFiles, "find", lambda *given: MachineCode("added", ("i8",), False, b""))
    monkeypatch.setattr(kernels, "linked", lambda *given: lambda x: -x)
    monkeypatch.setattr(kernels, "_calls", iter(range(100)))
    monkeypatch.setattr(kernels, "_MANY_CALLS", 4)
    assert [made(1) for _ in range(8)] == [-1] * 5 + [2] * 3
