"""`MachineCode`: a kernel's code for one processor and one kind of arguments, in a file that is called without Numba.

Also what kernels are called with and give, as machine code has them (numbers, arrays of numbers, tuples of those), and
`prune`, by which code goes that no process has used for long.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from recordmill.base.compilation.digest import DIGEST_CHARS, code_digest

# of an argument: "i8" (a number), ("<i8", 1, flags) (an array), ("module.NullTokens(field, ...)", kinds)
ArgumentKind = str | tuple[Any, ...]
CType = Any  # a class of ctypes

_ALIGNED, _FLAGS = 0x100, 0x503  # of an array: NumPy's number for aligned; those and for C, for Fortran, for writeable
_NUMBERS: dict[str, CType] = {
    "b1": ctypes.c_bool, "f4": ctypes.c_float, "f8": ctypes.c_double,
    "i1": ctypes.c_int8, "i2": ctypes.c_int16, "i4": ctypes.c_int32, "i8": ctypes.c_int64,
    "u1": ctypes.c_uint8, "u2": ctypes.c_uint16, "u4": ctypes.c_uint32, "u8": ctypes.c_uint64,
}  # fmt: skip
_KINDS: dict[type, str] = {bool: "b1", float: "f8"} | {np.dtype(name).type: name for name in _NUMBERS}


def kinds_of(values: Sequence[Any]) -> tuple[ArgumentKind, ...] | None:
    """Of a call's arguments; None if machine code can't take them."""
    found = tuple(map(_kind_of, values))
    return None if None in found else found  # type: ignore[return-value]


def _kind_of(value: Any) -> ArgumentKind | None:
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype.str, value.ndim, value.flags.num & _FLAGS
    if kind is int:
        return "i8" if -1 << 63 <= value < 1 << 63 else None
    if issubclass(kind, tuple):
        inner = kinds_of(value)
        return None if inner is None else (_tuple_name(kind), inner)
    return _KINDS.get(kind)


@functools.cache
def _tuple_name(kind: type) -> str:
    """A kernel reads a field by its name: where it lies is part of what its code was made for."""
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(getattr(kind, '_fields', ()))})"


def is_taken(kinds: Sequence[ArgumentKind]) -> bool:
    """Whether machine code takes these: aligned arrays of numbers in this machine's order of bytes."""
    return all(_is_taken(kind) for kind in kinds)


def _is_taken(kind: ArgumentKind) -> bool:
    if isinstance(kind, str):
        return True
    if len(kind) == 2:
        return is_taken(kind[1])
    return kind[0][0] in "<|" and kind[0][1:] in _NUMBERS and bool(kind[2] & _ALIGNED)


def declared(kinds: Sequence[ArgumentKind]) -> list[str]:
    """The arguments as LLVM has them.

    >>> declared(["b1", ("<i8", 1, _FLAGS)])
    ['i8', 'ptr', 'ptr', 'i64', 'i64', 'ptr', 'i64', 'i64']
    """
    names = {ctypes.c_void_p: "ptr", ctypes.c_bool: "i8", ctypes.c_float: "float", ctypes.c_double: "double"}
    return [names.get(each) or f"i{8 * ctypes.sizeof(each)}" for each in c_types(kinds)]


def c_types(kinds: Sequence[ArgumentKind]) -> list[CType]:
    """The arguments as C has them."""
    return [each for kind in kinds for each in _c_types(kind)]


def _c_types(kind: ArgumentKind) -> list[CType]:
    if isinstance(kind, str):
        return [_NUMBERS[kind]]
    if len(kind) == 2:
        return c_types(kind[1])
    address, number = ctypes.c_void_p, ctypes.c_int64
    return [address, address, number, number, address, *[number] * (2 * kind[1])]


def words(kinds: Sequence[ArgumentKind], values: Sequence[Any]) -> Iterator[Any]:
    """The arguments as they are given to a function of `c_types`."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, str):
            yield value
        elif len(kind) == 2:
            yield from words(kind[1], value)
        else:
            address = value.__array_interface__["data"][0]
            yield from (None, None, value.size, value.itemsize, address, *value.shape, *value.strides)


def result_class(kinds: Sequence[str]) -> CType:
    """The memory of what is given: of a number, or of several, one behind the other as a C compiler lays them."""
    fields = [(f"item{index}", _NUMBERS[kind]) for index, kind in enumerate(kinds)]
    return type("Result", (ctypes.Structure,), {"_fields_": fields})


TOUCH_SEC = 86400  # a day: use is noted no more often than that
_UNUSED_SEC = 14 * 86400  # two weeks: longer than a branch is left alone, short enough that the folder stays small
_FILE = re.compile(rf"(.+\.[0-9a-f]{{{DIGEST_CHARS}}})\.(nbi|[0-9]+\.nbc|[0-9a-f]+\.code)")

_pruned: set[str] = set()  # the folders that this process has tidied


def prune(folder: str) -> None:
    """Remove what no process has used for long, once in a process: code of kernels that have changed since, or are
    gone.
    """
    if folder in _pruned:
        return
    _pruned.add(folder)
    now = time.time()
    try:
        found = [(path, match[1]) for path in Path(folder).iterdir() if (match := _FILE.fullmatch(path.name))]
        used = {name for path, name in found if now - path.stat().st_mtime < _UNUSED_SEC}
        for path, name in found:
            if name not in used:
                path.unlink(missing_ok=True)
    except OSError:  # another process tidies the same folder, or it can't be written
        return


_lock = threading.RLock()


def _begin_child() -> None:
    """This process was forked: who had the lock in the other one does not give it back here."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_child)
_linked: list[Any] = []  # engines, which own the code that was linked


class MachineCode(NamedTuple):
    """An object file of one function."""

    symbol: str  # of the function; "" if Numba itself is to be asked
    gives: tuple[str, ...]  # the kinds of its results
    is_tuple: bool  # whether they are given as a tuple
    content: bytes

    def to_bytes(self, name: str) -> bytes:
        """For a file of that name: a line of JSON, the object file, and a digest of all three."""
        head = json.dumps({"symbol": self.symbol, "gives": self.gives, "tuple": self.is_tuple}).encode() + b"\n"
        return head + self.content + _file_digest(name, head + self.content)

    @classmethod
    def of_bytes(cls, data: bytes, name: str) -> MachineCode | None:
        """What a file of that name holds; None if it was cut short, damaged, or is another's."""
        if _file_digest(name, data[:-_DIGEST_BYTES]) != data[-_DIGEST_BYTES:]:
            return None
        head, content = data[:-_DIGEST_BYTES].split(b"\n", 1)
        said = json.loads(head)
        return cls(said["symbol"], tuple(said["gives"]), said["tuple"], content)


_DIGEST_BYTES = 32


def _file_digest(name: str, data: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


NOT_SERVED = MachineCode("", (), False, b"")


class CodeFiles:
    """The files of one kernel's machine code, one for each kind of arguments."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, bool]) -> None:
        self._function, self._options = function, options

    def find(self, kinds: Sequence[ArgumentKind]) -> MachineCode | None:
        """The code for these arguments; None if there is none yet."""
        if not is_usual():
            return None
        name = self._name(kinds)
        for folder in code_folders(self._source):
            with contextlib.suppress(OSError):
                if is_trusted(folder) and (data := _trusted_bytes(folder / name)) is not None:
                    found = MachineCode.of_bytes(data, name)
                    if found is not None:
                        _note_use(folder / name)
                        return found
        return None

    def keep(self, kinds: Sequence[ArgumentKind], code: MachineCode) -> None:
        """Write it into the first folder that is this user's and can be written; the next process finds it."""
        name = self._name(kinds)
        for folder in code_folders(self._source):
            temporary = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
            with contextlib.suppress(OSError):
                if not make_code_folder(folder):
                    continue
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, CODE_MODE), "wb") as file:
                    file.write(code.to_bytes(name))
                temporary.replace(folder / name)
                prune(str(folder))
                return

    @property
    def _source(self) -> Path:
        return Path(self._function.__code__.co_filename)

    def _name(self, kinds: Sequence[ArgumentKind]) -> str:
        of_kinds = hashlib.sha256(f"{_processor()} {tuple(kinds)}".encode()).hexdigest()[:16]
        return f"{self._source.stem}.{self._function.__qualname__}.{self._digest}.{of_kinds}.code"

    @functools.cached_property
    def _digest(self) -> str:
        return code_digest(self._function, self._options)


def code_folders(source: Path) -> Iterator[Path]:
    """Where compiled code may be, the first that is trusted and can be written."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / "recordmill"
        return
    if source.is_absolute():
        yield source.parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a container's user may have no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recordmill" / "kernels"


CODE_MODE = 0o644  # of files of compiled code, whatever the umask lets others do
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_code_folder(folder: Path) -> bool:
    """Make the folder, for this user alone to write to, if it is not there; whether code is loaded from it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o755 & ~_WRITTEN_BY_OTHERS)
    return is_trusted(folder) and os.access(folder, os.W_OK)


def is_trusted(path: str | os.PathLike[str]) -> bool:
    """Whether nobody can have put there what is run as code but those who could change the package itself: a folder or
    a file of this user's, of root's or of the package's owner, no link, and not to be written by others.
    """
    try:
        return _is_ours(os.lstat(path))
    except OSError:
        return False


def _is_ours(about: os.stat_result) -> bool:
    is_kind = stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)
    return is_kind and about.st_uid in _owners() and not about.st_mode & _WRITTEN_BY_OTHERS


@functools.cache
def _owners() -> frozenset[int]:
    return frozenset((os.geteuid(), 0, os.stat(__file__).st_uid))


def _trusted_bytes(path: Path) -> bytes | None:
    """What the file holds, if it is one to be trusted: a descriptor is looked at, since names may change."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read() if _is_ours(os.fstat(file.fileno())) else None


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


def linked(code: MachineCode, kinds: Sequence[ArgumentKind]) -> Callable[..., Any]:
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
