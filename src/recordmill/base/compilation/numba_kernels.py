"""Kernels by Numba: its dispatchers and intrinsics, made where machine code of an earlier process does not do; the
files in which it keeps what it compiled; and the one function that machine code is of, taken out of what it compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import event
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    _CacheLocator,
)
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from recordmill.base.compilation.digest import code_digest
from recordmill.base.compilation.machine_code import (
    CODE_MODE,
    NOT_SERVED,
    TOUCH_SEC,
    ArgumentKind,
    CodeFiles,
    MachineCode,
    code_folders,
    declared,
    is_taken,
    is_trusted,
    is_usual,
    kinds_of,
    make_code_folder,
    prune,
    result_class,
)


class KernelCache:
    """What a Numba dispatcher asks of its cache. The folder is looked for at the first use, not on import; where none
    can be read or written, or no longer, code is compiled in memory, and `not_kept` is called.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, bool] | None = None,
        not_kept: Callable[[], None] = lambda: None,
    ) -> None:
        self._function, self._options = function, options or {}
        self._not_kept = not_kept
        self._made: Any = None
        self.is_asked = True  # False: what is there already can't be used

    @property
    def cache_path(self) -> Any:
        """The folder; None without one."""
        return self._cache().cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for these argument types; None if it is not there, or what is there can't be read."""
        try:
            return self._cache().load_overload(sig, target_context) if self.is_asked else None
        except OSError:
            return None
        except Exception:  # Numba's files are unchecked pickles: of a damaged one anything can come
            with contextlib.suppress(OSError):
                self._cache().flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code."""
        try:
            self._cache().save_overload(sig, data)
        except OSError:
            return
        except Exception:  # it reads the index first
            with contextlib.suppress(OSError):
                self._cache().flush()
            return
        if self.cache_path is not None:
            prune(self.cache_path)

    def flush(self) -> None:
        """Forget what was kept."""
        self._cache().flush()

    def _cache(self) -> Any:
        if self._made is None:
            self._made = _open(self._function, self._options, self._not_kept)
        return self._made


class _Folder(_CacheLocator):  # type: ignore[misc]
    """Where Numba has its files of a kernel: where machine code is."""

    def __init__(self, function: Callable[..., Any], file: str, folder: str) -> None:
        self._py_file, self._line, self._folder = file, function.__code__.co_firstlineno, folder

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Folder | None:
        for folder in code_folders(Path(py_file)):
            with contextlib.suppress(OSError):
                if make_code_folder(folder):
                    return cls(py_func, py_file, str(folder))
        return None

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return ""  # a digest of what is compiled takes its place

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Reducing(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Folder,)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """Pickles, which may run any code: those that others may have written are taken for none."""

    def _load_index(self) -> Any:
        return super()._load_index() if is_trusted(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not is_trusted(path := self._data_path(name)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super()._load_data(name)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        with super()._open_for_write(filepath) as file:
            os.fchmod(file.fileno(), CODE_MODE)
            yield file


class _KernelFunctionCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Reducing

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Numba tells named tuples apart by their class, whose fields may have changed places since."""
        fields = [
            (kind.instance_class.__qualname__, kind.fields)
            for kind in getattr(sig, "args", sig)
            if hasattr(kind, "instance_class")
        ]
        return *super()._index_key(sig, codegen), repr(fields)


def _open(function: Callable[..., Any], options: Mapping[str, bool], not_kept: Callable[[], None]) -> Any:
    try:
        cache = _KernelFunctionCache(function)
    except RuntimeError:  # numba: "no locator available": there is no folder that only this user can write to
        not_kept()
        return NullCache()
    digest = code_digest(function, options)
    files = _Files(cache.cache_path, f"{cache._impl.filename_base}.{digest}", digest)
    cache._cache_file = files
    try:  # note that it is still in use
        if time.time() - os.stat(files._index_path).st_mtime > TOUCH_SEC:
            os.utime(files._index_path)
    except OSError:
        pass
    return cache


_ERRORS = "picklebuf"  # in the names of Numba's constants: an error that is to be raised


@global_compiler_lock
def machine_code(compiled: Any, kinds: Sequence[ArgumentKind]) -> MachineCode | None:
    """Of a compile result of Numba, called with arguments of these kinds; NOT_SERVED where only Numba can call it; None
    if it was not compiled in this process, but came from Numba's cache, which keeps no module.
    """
    gives = _given(compiled.signature.return_type)
    if gives is None or not is_taken(kinds):
        return NOT_SERVED
    symbol = compiled.fndesc.llvm_func_name
    if not any(function.name == symbol for function in compiled.library._final_module.functions):
        return None
    machine = compiled.library.codegen._tm
    module = _alone(llvm.parse_bitcode(compiled.library._final_module.as_bitcode()), symbol, machine)
    takes = [str(argument.type) for argument in module.get_function(symbol).arguments]
    if takes != ["ptr", "ptr", *declared(kinds)] or not _is_alone(module) or not _is_as_c(compiled, *gives):
        return NOT_SERVED
    return MachineCode(symbol, *gives, machine.emit_object(module))


def _given(kind: Any) -> tuple[tuple[str, ...], bool] | None:
    """The kinds of what is returned, and whether that is a tuple; None if it is none of them."""
    if isinstance(kind, types.NoneType):
        return (), False
    is_tuple = isinstance(kind, types.BaseTuple) and not isinstance(kind, types.BaseNamedTuple)
    found = [_number(each) for each in (kind if is_tuple else [kind])]
    return None if None in found or not found else (tuple(map(str, found)), is_tuple)


def _number(kind: Any) -> str | None:
    if isinstance(kind, types.Boolean):
        return "b1"
    if isinstance(kind, types.Integer):
        return f"{'i' if kind.signed else 'u'}{kind.bitwidth // 8}"
    return f"f{kind.bitwidth // 8}" if isinstance(kind, types.Float) else None


def _alone(module: Any, symbol: str, machine: Any) -> Any:
    """The module without what the function does not need: how Python calls it, and what it inlined."""
    for named in (*module.functions, *module.global_variables):
        if not named.is_declaration and named.name != symbol:
            named.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))
    return module


def _is_alone(module: Any) -> bool:
    """Whether it needs nothing but what every process has, and raises nothing."""
    process = ctypes.CDLL(None)
    needed = [each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    outside = [each.name for each in module.global_variables if each.is_declaration]
    raised = [each.name for each in module.global_variables if _ERRORS in each.name]
    libc = all(not name.startswith(("NRT_", "Py", "_Py", "numba")) and hasattr(process, name) for name in needed)
    return libc and not outside and not raised


def _is_as_c(compiled: Any, gives: tuple[str, ...], is_tuple: bool) -> bool:
    """Whether the result's memory is as large as a C compiler would make it."""
    if not gives:
        return True
    target = compiled.target_context
    memory = target.get_return_type(compiled.signature.return_type)
    return bool(target.get_abi_sizeof(memory) == ctypes.sizeof(result_class(gives)))


_ATTEMPTS = 5  # at compiling one function, see _retrying


def dispatcher_of(
    function: Callable[..., Any], options: dict[str, bool], files: CodeFiles, not_kept: Callable[[], None]
) -> Any:
    """Numba's form of a kernel: compiled when it is called, or when another kernel that calls it is."""
    made = numba.njit(nogil=True, error_model="numpy", **options)(function)
    made._cache = KernelCache(function, options, not_kept)
    # Numba's dispatcher looks these up on itself when a call finds no compiled code.
    made._compile_for_args = _keeping(made, _retrying(made._compile_for_args), files)
    made.get_call_template = _of_values(made.get_call_template)
    return made


def type_of_intrinsic(definition: Callable[..., Any]) -> Any:
    """The type by which Numba knows an intrinsic in a kernel that it compiles."""
    made = intrinsic(definition)
    context = cpu_target.typing_context
    context.refresh()  # it was registered just now, perhaps while that kernel's types are inferred
    return made, context.resolve_value_type(made)


def tell_of_compiling(begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Have functions called when Numba compiles, which it does not when it finds compiled code in the cache."""

    class Told(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            begin()

        def on_end(self, event: object) -> None:
            end()

    event.register("numba:compile", Told())


def _keeping(made: Any, compile_for: Callable[..., Any], files: CodeFiles) -> Callable[..., Any]:
    """Keep machine code of what Python calls. What Numba kept before is compiled once more, since it can't be taken
    apart any longer.
    """

    def compile_and_keep(*args: Any, **kws: Any) -> Any:
        kinds = kinds_of(args)
        wanted = kinds if kinds is not None and is_usual() and files.find(kinds) is None else None
        made._cache.is_asked = wanted is None
        try:
            result = compile_for(*args, **kws)
        finally:
            made._cache.is_asked = True
        compiled = None if wanted is None else made.overloads.get(tuple(map(made.typeof_pyval, args)))
        if compiled is not None and wanted is not None and (code := machine_code(compiled, wanted)) is not None:
            files.keep(wanted, code)
        return result

    return compile_and_keep


def _of_values(template: Callable[..., Any]) -> Callable[..., Any]:
    """Take a constant that another kernel passes for a value like any other. Numba compiles a kernel anew for each of
    them (a sixth of what a small read compiles); where that makes faster code, LLVM inlines the kernel and finds out.
    """

    def template_of(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        plain = {name: numba.types.unliteral(kind) for name, kind in kws.items()}
        return template(tuple(map(numba.types.unliteral, args)), plain)

    return template_of


def _retrying(compile_for: Callable[..., Any]) -> Callable[..., Any]:
    """Compile again where CPython stumbled over itself.

    Numba parses the function's source with `ast.parse`, whose recursion check CPython 3.11 keeps in one place for all
    threads: a thread that parses at the same moment makes it raise `SystemError: AST constructor recursion depth
    mismatch`. Nothing is wrong with the function then.
    """

    def compile_again(*args: Any, **kws: Any) -> Any:
        for _ in range(_ATTEMPTS - 1):
            try:
                return compile_for(*args, **kws)
            except SystemError as error:
                if "recursion depth mismatch" not in str(error):
                    raise
        return compile_for(*args, **kws)

    return compile_again
