"""`machine_code`: from what Numba compiled in this process, the one function that machine code is of."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from recordmill.base.compiled.kinds import Kind, declared, is_taken, result_class
from recordmill.base.compiled.machine_code import NOT_SERVED, MachineCode

_ERRORS = "picklebuf"  # in the names of Numba's constants: an error that is to be raised


@global_compiler_lock
def machine_code(compiled: Any, kinds: Sequence[Kind]) -> MachineCode | None:
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
