"""Loads the native library and makes a Python function of each declaration in its header.

Its functions are called through `recordmill.base.native`. What may stand in the header is said at its head. No module
but this one knows an address.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FOLDER = Path(__file__).parent
BOUNDS = -(1 << 63)  # RM_BOUNDS

_NUMBERS: dict[str, tuple[Any, tuple[type, ...]]] = {  # of C: the type of ctypes, and NumPy's that go as arrays of it
    "uint8_t": (ctypes.c_uint8, (np.uint8, np.bool_)),
    "int8_t": (ctypes.c_int8, (np.int8,)),
    "uint16_t": (ctypes.c_uint16, (np.uint16,)),
    "int16_t": (ctypes.c_int16, (np.int16,)),
    "uint32_t": (ctypes.c_uint32, (np.uint32,)),
    "int32_t": (ctypes.c_int32, (np.int32,)),
    "uint64_t": (ctypes.c_uint64, (np.uint64,)),
    "int64_t": (ctypes.c_int64, (np.int64,)),
    "float": (ctypes.c_float, (np.float32,)),
    "double": (ctypes.c_double, (np.float64,)),
    "void": (None, ()),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function. kind: a number of C or the name of a struct; `is_array`: with its length after it;
    `is_list`: a sequence of arrays, by rm_bytes.
    """

    name: str
    kind: str
    is_array: bool
    is_struct: bool
    is_written: bool
    is_list: bool


@dataclass(frozen=True)
class NativeFunction:
    """A function of the header. name: without rm_. result: a number of C, or void."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Header:
    """What the header declares. structs: the fields of each, (name, number of C)."""

    constants: dict[str, int]
    structs: dict[str, list[tuple[str, str]]]
    functions: list[NativeFunction]


def read_header(text: str) -> Header:
    """Parses `recordmill.h`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    constants: dict[str, int] = {}
    for body in re.findall(r"enum\s+\w*\s*\{(.*?)\}", text, flags=re.S):
        value = -1
        for name, given in re.findall(r"(\w+)\s*(?:=\s*(-?\w+))?\s*(?:,|$)", body.strip()):
            value = int(given, 0) if given else value + 1
            constants[name.removeprefix("RM_")] = value
    structs = {
        name.removeprefix("rm_"): [
            (field.strip(), kind)
            for kind, names in re.findall(r"(\w+)\s+([\w\s,]+);", body)
            for field in names.split(",")
        ]
        for body, name in re.findall(r"typedef\s+struct\s+\w*\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S)
        if name != "rm_bytes"
    }
    functions = [
        NativeFunction(name, result, _parameters(arguments))
        for result, name, arguments in re.findall(r"^(\w+)\s+rm_(\w+)\(([^)]*)\);", text, flags=re.M)
    ]
    return Header(constants, structs, functions)


def _parameters(arguments: str) -> tuple[Parameter, ...]:
    parameters: list[Parameter] = []
    for argument in arguments.split(","):
        match = re.fullmatch(r"\s*(const\s+)?(\w+)\s+(\*?)(\w+)\s*", argument)
        if match is None:  # (void)
            continue
        constant, kind, pointer, name = match.groups()
        if parameters and name == f"{parameters[-1].name}_size" and not parameters[-1].is_struct:
            continue
        is_list, is_struct = kind == "rm_bytes", kind.startswith("rm_") and kind != "rm_bytes"
        is_array = bool(pointer) and not is_struct and not is_list
        parameters.append(Parameter(name, kind.removeprefix("rm_"), is_array, is_struct, not constant, is_list))
    return tuple(parameters)


def functions_of(library: ctypes.CDLL) -> dict[str, Any]:
    """What `recordmill.base.native` consists of: functions, structs (`struct_NAME`) and constants, by name."""
    library.rm_header.restype = ctypes.c_char_p  # its own text, compiled in: it can't be that of another build
    header = read_header(library.rm_header().decode())
    structs: dict[str, Any] = {}
    for name, fields in header.structs.items():
        structs[f"struct_{name}"] = type(
            f"struct_{name}", (ctypes.Structure,), {"_fields_": [(field, _NUMBERS[kind][0]) for field, kind in fields]}
        )
    functions = {declaration.name: _function(library, declaration) for declaration in header.functions}
    return {**header.constants, **structs, **functions}


def _function(library: ctypes.CDLL, declaration: NativeFunction) -> Callable[..., Any]:
    """A Python function that calls one of the library. The GIL is released during the call."""
    call = getattr(library, f"rm_{declaration.name}")
    call.restype = _NUMBERS[declaration.result][0]
    types: list[Any] = []
    for parameter in declaration.parameters:
        if parameter.is_array or parameter.is_list:
            types += [ctypes.c_void_p, ctypes.c_int64]
        else:
            types.append(ctypes.c_void_p if parameter.is_struct else _NUMBERS[parameter.kind][0])
    call.argtypes = types
    parameters = declaration.parameters
    may_fail = declaration.result == "int64_t"
    name = declaration.name

    def function(*values: Any) -> Any:
        if len(values) != len(parameters):
            raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(values)}")
        arguments: list[Any] = []
        held: list[Any] = []
        for parameter, value in zip(parameters, values, strict=True):
            if parameter.is_array:
                _put_array(arguments, parameter, value)
            elif parameter.is_list:
                blocks = np.array([_place_of(array) for array in value], np.int64).reshape(-1, 2)  # rm_bytes [n]
                held.append(blocks)
                arguments += (blocks.ctypes.data, len(blocks))
            else:
                arguments.append(ctypes.addressof(value) if parameter.is_struct else value)
        result = call(*arguments)
        if may_fail and result == BOUNDS:
            raise IndexError(f"{name}: lengths, offsets or indices do not fit the arrays")
        return result

    function.__name__ = function.__qualname__ = name
    return function


def _put_array(arguments: list[Any], parameter: Parameter, value: Any) -> None:
    """Appends address and length of an array."""
    if value is None:
        arguments += (None, 0)
        return
    interface = value.__array_interface__
    address, is_read_only = interface["data"]
    if interface["strides"] is not None or value.dtype.type not in _NUMBERS[parameter.kind][1]:
        raise TypeError(f"{parameter.name} is a C-contiguous array of {parameter.kind}, not {value.dtype}")
    if parameter.is_written and is_read_only:
        raise TypeError(f"{parameter.name} is written to, and this array is read-only")
    arguments += (address, value.size)


def _place_of(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Address and bytes of an array."""
    interface = array.__array_interface__
    if interface["strides"] is not None:
        raise TypeError("each array is C-contiguous")
    return interface["data"][0], array.nbytes


def library_file(level: int) -> Path:
    """Where the build put the library for an instruction set (0: any processor, 3: x86-64-v3)."""
    return _FOLDER / f"librecordmill{f'_v{level}' if level else ''}.so"


def load_library(level: int | None = None) -> dict[str, Any]:
    """Loads the fastest library that this processor runs, or the one of a level.

    The environment variable RECORDMILL_NATIVE_LEVEL names a level, for tests; RECORDMILL_NATIVE another library, for
    one that was built with a sanitizer.

    Raises:
        ImportError: the library is missing: the package was not installed by pip, or is for another system.
    """
    try:
        if path := os.environ.get("RECORDMILL_NATIVE"):
            return functions_of(ctypes.CDLL(path))
        if level is None and (given := os.environ.get("RECORDMILL_NATIVE_LEVEL")):
            level = int(given)
        library = ctypes.CDLL(str(library_file(0)))
        level = int(library.rm_machine_level()) if level is None else level
        if level > 0:
            library = ctypes.CDLL(str(library_file(level)))
    except OSError as error:
        raise ImportError(
            f"recordmill's native library can't be loaded: {error}. It is built when the package is installed: "
            "`pip install .` for a user, `pip install -e .` in a checkout, also after a change in native/."
        ) from error
    return functions_of(library)


def stub_of(header: Header) -> str:
    """The types of `recordmill.base.native`, for type checkers: native.pyi."""
    python = {"float": "float", "double": "float", "void": "None"}
    lines = [
        '"""Types of what native/recordmill.h declares. Made by `python native/make_stub.py`; not edited by hand."""',
        "",
        "from collections.abc import Sequence",
        "from typing import Any",
        "",
        "import numpy as np",
        "import numpy.typing as npt",
        "",
    ]
    lines += [f"{name}: int" for name in header.constants]
    for name, fields in header.structs.items():
        lines += ["", f"class struct_{name}:"]
        lines += [f"    {field}: {python.get(kind, 'int')}" for field, kind in fields]
        lines += ["    def __init__(self, *args: float, **fields: float) -> None: ..."]
    lines += [""] if header.structs or header.constants else []
    for function in header.functions:
        parameters = [f"{parameter.name}: {_python_type(parameter, python)}" for parameter in function.parameters]
        line = f"def {function.name}({', '.join(parameters)}) -> {python.get(function.result, 'int')}: ..."
        if len(line) > 120:
            line = "\n".join(
                [f"def {function.name}(", *(f"    {one}," for one in parameters), line[line.rindex(")") :]]
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def _python_type(parameter: Parameter, python: dict[str, str]) -> str:
    if parameter.is_list:
        return "Sequence[npt.NDArray[Any]]"
    if parameter.is_struct:
        return f"struct_{parameter.kind}"
    if not parameter.is_array:
        return python.get(parameter.kind, "int")
    names: Sequence[str] = [kind.__name__.rstrip("_") for kind in _NUMBERS[parameter.kind][1]]
    kinds = " | ".join(f"np.{'bool_' if name == 'bool' else name}" for name in names)
    return f"npt.NDArray[{kinds}] | None"
