"""`MachineCode`: a kernel's code for one processor and one kind of arguments, in a file that is called without Numba.

To import Numba and to find a kernel in its own cache takes half a second, more than a small file is read in. So where
Numba compiled a kernel that Python calls, `extracting` takes the function out of it, and the next process links and
calls it here, with LLVM's linker alone. What is not served so (`allocating` kernels, errors that are raised, kinds of
arguments that `kinds` does not know) is noted in the file, too, and left to Numba.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from recordmill.base.compiled.digest import code_digest
from recordmill.base.compiled.kinds import Kind, c_types, result_class, words
from recordmill.base.compiled.pruning import TOUCH_SEC, prune

_lock = threading.RLock()
_linked: list[Any] = []  # engines, which own the code that was linked


class MachineCode(NamedTuple):
    """An object file of one function."""

    symbol: str  # of the function; "" if Numba itself is to be asked
    gives: tuple[str, ...]  # the kinds of its results
    is_tuple: bool  # whether they are given as a tuple
    content: bytes

    def to_bytes(self) -> bytes:
        """For a file: a line of JSON, the object file, and a sum of both."""
        head = json.dumps({"symbol": self.symbol, "gives": self.gives, "tuple": self.is_tuple}).encode() + b"\n"
        return head + self.content + zlib.crc32(head + self.content).to_bytes(4, "little")

    @classmethod
    def of_bytes(cls, data: bytes) -> MachineCode | None:
        """What a file holds; None if it was cut short or damaged."""
        if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
            return None
        head, content = data[:-4].split(b"\n", 1)
        said = json.loads(head)
        return cls(said["symbol"], tuple(said["gives"]), said["tuple"], content)


NOT_SERVED = MachineCode("", (), False, b"")


class CodeFiles:
    """The files of one kernel's machine code, one for each kind of arguments."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, bool]) -> None:
        self._function, self._options = function, options

    def find(self, kinds: Sequence[Kind]) -> MachineCode | None:
        """The code for these arguments; None if there is none yet."""
        if not is_usual():
            return None
        for path in self._paths(kinds):
            with contextlib.suppress(OSError):
                found = MachineCode.of_bytes(path.read_bytes())
                if found is not None:
                    _note_use(path)
                    return found
        return None

    def keep(self, kinds: Sequence[Kind], code: MachineCode) -> None:
        """Write it where the first folder can be written; the next process finds it."""
        for path in self._paths(kinds):
            temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(code.to_bytes())
                temporary.replace(path)
                prune(str(path.parent))
                return

    def _paths(self, kinds: Sequence[Kind]) -> Iterator[Path]:
        source = Path(self._function.__code__.co_filename)
        of_kinds = hashlib.sha256(f"{_processor()} {tuple(kinds)}".encode()).hexdigest()[:16]
        name = f"{source.stem}.{self._function.__qualname__}.{self._digest}.{of_kinds}.code"
        return (folder / name for folder in _folders(source))

    @functools.cached_property
    def _digest(self) -> str:
        return code_digest(self._function, self._options)


def _folders(source: Path) -> Iterator[Path]:
    """Where a file may be, the first that can be written."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / "recordmill"
        return
    yield source.parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a container's user may have no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recordmill" / "kernels"


def is_usual() -> bool:
    """Whether Numba would compile as it does unless it is told otherwise, by its variables or its file."""
    told = {name for name in os.environ if name.startswith("NUMBA_")} - {"NUMBA_CACHE_DIR"}
    return not told and not os.path.exists(".numba_config.yaml")


@functools.cache
def _processor() -> str:
    """For which processor code is made, and by which LLVM."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvmlite.__version__} {llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


def _note_use(path: Path) -> None:
    """Note that it is still in use."""
    if time.time() - path.stat().st_mtime > TOUCH_SEC:
        os.utime(path)


def linked(code: MachineCode, kinds: Sequence[Kind]) -> Callable[..., Any]:
    """The kernel as Python calls it with arguments of these kinds."""
    types = c_types(kinds)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)(_link(code))
    made = result_class(code.gives)
    error = ctypes.c_void_p()  # kernels that raise are not served

    def call(*values: Any) -> Any:
        result = made()
        status = function(ctypes.byref(result), ctypes.byref(error), *words(kinds, values))
        if status not in _GOOD:
            raise SystemError(f"{code.symbol}: status {status}")
        return take(result)

    take = _taker(code)
    return call


_GOOD = (0, -2)  # numba.core.callconv: RETCODE_OK, RETCODE_NONE


def _taker(code: MachineCode) -> Callable[[Any], Any]:
    """What makes Python's values of a result's memory."""
    names = [f"item{index}" for index in range(len(code.gives))]
    if code.is_tuple:
        return lambda result: tuple(getattr(result, name) for name in names)
    return (lambda result: result.item0) if names else lambda result: None


def _link(code: MachineCode) -> int:
    """The address of the function, linked into this process for its life."""
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
        engine.finalize_object()
        _linked.append(engine)
        return int(engine.get_function_address(code.symbol))
