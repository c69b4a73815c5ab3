"""Loader of the native C++ library, and the Python types of its functions.

The types follow from the text of the C++ header. Other modules call the functions through
`recordmill.base.native`, and pass arrays. Only this module handles addresses. The comment at the
start of native/recordmill.h lists the allowed declarations.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LIBRARY_FOLDER = Path(__file__).parent
# `BOUNDS` of the header: the result of a function if its arguments do not fit the arrays
BOUNDS = -(1 << 63)

# C type to its ctypes type and the NumPy dtypes that may be passed as its arrays
_C_TYPES: dict[str, tuple[Any, tuple[type, ...]]] = {
    "uint8_t": (ctypes.c_uint8, (np.uint8, np.bool_)),
    "uint16_t": (ctypes.c_uint16, (np.uint16,)),
    "uint32_t": (ctypes.c_uint32, (np.uint32,)),
    "int32_t": (ctypes.c_int32, (np.int32,)),
    "uint64_t": (ctypes.c_uint64, (np.uint64,)),
    "int64_t": (ctypes.c_int64, (np.int64,)),
    "float": (ctypes.c_float, (np.float32,)),
    "double": (ctypes.c_double, (np.float64,)),
    "void": (None, ()),
}


class _Span(ctypes.Structure):
    """An array as native functions receive it: an address and a number of elements.

    Each array parameter has a subclass. `ctypes` calls its `from_param` to convert an argument.
    """

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64))


def _data_address(array: npt.NDArray[Any]) -> int:
    # `array.ctypes` takes three times as long, so it is used only if a buffer can't be exported:
    # `from_buffer` refuses read-only and empty arrays.
    if array.flags.writeable and array.size:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    return array.ctypes.data


def _make_array_span(
    name: str, dtypes: tuple[np.dtype[Any], ...], item_bytes: int, is_written: bool
) -> type[_Span]:
    """Creates the `ctypes` type of a parameter that takes arrays of some dtypes.

    Args:
        name: The parameter, for error messages.
        dtypes: The accepted dtypes. The type also accepts None as an empty array.
        item_bytes: The size of one element for the native function.
        is_written: True if the native function writes to the array. Read-only arrays are then
            refused.
    """

    def from_param(cls: type[_Span], array: npt.NDArray[Any] | None) -> _Span:
        if array is None:
            return cls(None, 0)
        if array.dtype not in dtypes or not array.flags.c_contiguous:
            raise TypeError(f"{name} takes a C-contiguous array of {dtypes[0]}, not {array.dtype}")
        if is_written and not array.flags.writeable:
            raise TypeError(f"{name} is written to, and this array is read-only")
        return cls(_data_address(array), array.nbytes // item_bytes)

    return type(name, (_Span,), {"from_param": classmethod(from_param)})


class _BlocksSpan(_Span):
    """The `ctypes` type of a parameter that takes a sequence of arrays."""

    @classmethod
    def from_param(cls, arrays: Sequence[npt.NDArray[Any]]) -> _BlocksSpan:
        if not all(array.flags.c_contiguous for array in arrays):
            raise TypeError("each array is C-contiguous")
        table = (_Span * len(arrays))(
            *[_Span(_data_address(array), array.nbytes) for array in arrays]
        )
        blocks = cls(ctypes.addressof(table), len(table))
        blocks.table = table  # keeps the table alive for the duration of the call
        return blocks


@dataclass(frozen=True)
class NativeParameter:
    """A parameter of a native function, or a field of a struct.

    Attributes:
        name: The name in the header.
        kind: The C type of a number, the name of an enum or a struct, or "Blocks" for a sequence of
            arrays.
        is_array: True if the parameter is an array of `kind`.
        is_written: True if the function writes to the array or struct, because it is not const.
    """

    name: str
    kind: str
    is_array: bool
    is_written: bool


@dataclass(frozen=True)
class NativeFunction:
    """A function that the header declares.

    Attributes:
        name: The name without the prefix `rm_`.
        result: The C type of the result; void if there is no result.
        parameters: The parameters, in the order of the header.
    """

    name: str
    result: str
    parameters: tuple[NativeParameter, ...]


@dataclass(frozen=True)
class Header:
    """The parsed declarations of the C++ header.

    Attributes:
        constants: The value of each constant, by name.
        enums: The members of each enum and their values, by the name of the enum.
        structs: The fields of each struct, by the name of the struct. A field is described like a
            parameter of a function.
        functions: The functions, in the order of the header.
    """

    constants: dict[str, int]
    enums: dict[str, dict[str, int]]
    structs: dict[str, tuple[NativeParameter, ...]]
    functions: list[NativeFunction]

    def number_type(self, kind: str) -> str:
        """Returns the C type in which a number or an enum is passed.

        The result is int64_t for an enum, and `kind` itself for any other type.
        """
        return "int64_t" if kind in self.enums else kind

    def has_spans(self, struct: str) -> bool:
        """Returns whether a struct has fields that refer to arrays."""
        return any(field.is_array for field in self.structs[struct])


# `enum class NAME : int64_t { ... };`, or bits that are combined: `namespace NAME { enum ... }`
_ENUM = re.compile(
    r"(?:enum class (\w+) : int64_t|namespace (\w+) \{\s*enum : int64_t)\s*\{(.*?)\}", re.S
)
_CONSTANT = re.compile(r"^constexpr int64_t (\w+) = (-?\w+);", re.M)
_STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.M | re.S)
_FUNCTION = re.compile(r"^(\w+) rm_(\w+)\(([^)]*)\);", re.M)


@functools.cache
def read_header(text: str) -> Header:
    """Parses the text of `recordmill.h`."""
    text = re.sub(r"//[^\n]*", "", text)
    enums = {
        enum_name or namespace: _enum_members(body)
        for enum_name, namespace, body in _ENUM.findall(text)
    }
    # BOUNDS is the result of functions, which Python raises as an error, and not a constant.
    constants = {name: int(value, 0) for name, value in _CONSTANT.findall(text) if name != "BOUNDS"}
    structs = {name: _struct_fields(body) for name, body in _STRUCT.findall(text)}
    functions = [
        NativeFunction(
            name,
            result,
            tuple(_parameter(parameter) for parameter in arguments.split(",") if parameter.strip()),
        )
        for result, name, arguments in _FUNCTION.findall(text)
    ]
    return Header(constants, enums, structs, functions)


def _enum_members(body: str) -> dict[str, int]:
    members: dict[str, int] = {}
    value = -1  # a member without a value is one more than the previous one
    for name, explicit_value in re.findall(r"(\w+)\s*(?:=\s*(-?\w+))?\s*(?:,|$)", body.strip()):
        value = int(explicit_value, 0) if explicit_value else value + 1
        members[name] = value
    return members


def _struct_fields(body: str) -> tuple[NativeParameter, ...]:
    declarations = (declaration.split() for declaration in body.split(";") if declaration.strip())
    fields = []
    for words in declarations:
        # `Span<const float> factor, offset`: the type ends before the first name.
        begin = next(i for i, word in enumerate(words) if ">" in word) if "<" in words[0] else 0
        kind, names = " ".join(words[: begin + 1]), " ".join(words[begin + 1 :])
        fields += [_parameter(f"{kind} {name.strip()}") for name in names.split(",")]
    return tuple(fields)


def _parameter(text: str) -> NativeParameter:
    """Parses `Span<const T> name`, `ByteSpan name`, `const Struct &name` or `int64_t name`."""
    # The aliases of the header become the one form that the pattern below knows.
    text = (
        text.strip()
        .replace("Span<const ByteSpan>", "Blocks")
        .replace("ByteSpan", "Span<const uint8_t>")
    )
    text = text.replace("IntSpan", "Span<const int64_t>")
    match = re.fullmatch(r"(Span<)?(const )?(\w+)>? &?(\w+)", text)
    assert match is not None, text
    span, constant, kind, name = match.groups()
    return NativeParameter(name, kind, span is not None, constant is None)


def bind_library(library: ctypes.CDLL) -> dict[str, Any]:
    """Returns everything that a loaded library offers, by name.

    The library offers functions that check their arguments, classes for structs and enums, and
    constants.
    """
    # The library contains the text of its own header, so the two can't be of different builds.
    library.rm_header.restype = ctypes.c_char_p
    text = library.rm_header().decode()
    header, (enums, structs) = read_header(text), _make_types(text)
    functions = {
        function.name: _bind_function(library, function, header, structs)
        for function in header.functions
    }
    return {**header.constants, **enums, **structs, **functions}


@functools.cache
def _make_types(
    header_text: str,
) -> tuple[dict[str, type[enum.IntEnum]], dict[str, type[ctypes.Structure]]]:
    """Creates the classes of all enums and structs of the header.

    The result is cached, so all builds of the library with this header share the classes.
    """
    header = read_header(header_text)
    enums: dict[str, Any] = {
        name: enum.IntEnum(name, members, module="recordmill.base.native")
        for name, members in header.enums.items()
    }
    structs: dict[str, type[ctypes.Structure]] = {}
    for name, fields in header.structs.items():
        types = [(field.name, _argument_type(field, header, structs)) for field in fields]
        base = _StructWithSpans if header.has_spans(name) else ctypes.Structure
        structs[name] = type(name, (base,), {"_fields_": types})
    return enums, structs


class _StructWithSpans(ctypes.Structure):
    """Base class of structs that refer to arrays. It keeps the arrays alive.

    Args:
        **fields: The value of each field. An array field without a value is empty.
    """

    def __init__(self, **fields: Any) -> None:
        self._arrays = fields
        spans = {
            name: kind.from_param(fields.get(name))
            for name, kind, *_ in self._fields_
            if issubclass(kind, _Span)
        }
        super().__init__(**{**fields, **spans})


def _argument_type(
    parameter: NativeParameter, header: Header, structs: Mapping[str, type[ctypes.Structure]]
) -> Any:
    """Returns the `ctypes` type of a function parameter or of a struct field."""
    kind = header.number_type(parameter.kind)
    if kind == "Blocks":
        return _BlocksSpan
    if not parameter.is_array:
        return ctypes.POINTER(structs[kind]) if kind in structs else _C_TYPES[kind][0]
    if kind in structs:
        # An array of structs may also be passed as an array of the type of their fields.
        numbers = _C_TYPES[header.number_type(header.structs[kind][0].kind)][1]
        dtypes: tuple[np.dtype[Any], ...] = (np.dtype(structs[kind]), *map(np.dtype, numbers))
        item_bytes = ctypes.sizeof(structs[kind])
    else:
        dtypes = tuple(map(np.dtype, _C_TYPES[kind][1]))
        item_bytes = dtypes[0].itemsize
    return _make_array_span(parameter.name, dtypes, item_bytes, parameter.is_written)


def _bind_function(
    library: ctypes.CDLL,
    function: NativeFunction,
    header: Header,
    structs: Mapping[str, type[ctypes.Structure]],
) -> Callable[..., Any]:
    """Prepares a native function for calls from Python, and returns it.

    The GIL is released during a call. A call raises IndexError if sizes, offsets or indices do not
    fit the arrays, and `ctypes.ArgumentError` if an argument has a wrong type.
    """

    def raise_if_out_of_bounds(result: int, _function: object, _arguments: object) -> int:
        if result == BOUNDS:
            raise IndexError(f"{function.name}: sizes, offsets or indices do not fit the arrays")
        return result

    native_function = getattr(library, f"rm_{function.name}")
    native_function.argtypes = [
        _argument_type(parameter, header, structs) for parameter in function.parameters
    ]
    native_function.restype = _C_TYPES[function.result][0]
    # BOUNDS is an int64_t, so functions with another result can't report it.
    if function.result == "int64_t":
        native_function.errcheck = raise_if_out_of_bounds
    return native_function


def library_path(level: int) -> Path:
    """Returns the path of the library for an instruction set.

    Args:
        level: 0 for any processor, 3 for x86-64-v3.
    """
    return _LIBRARY_FOLDER / f"librecordmill{f'_v{level}' if level else ''}.so"


def load_library(level: int | None = None) -> dict[str, Any]:
    """Loads the fastest library that this processor can run.

    Two environment variables select another library. `RECORDMILL_NATIVE_LEVEL` is the level of an
    instruction set, for tests. `RECORDMILL_NATIVE` is the path of a library, for example one that
    was built with a sanitizer.

    Args:
        level: The instruction set to load, see `library_path`. If None, it is detected.

    Returns:
        The functions, structs and constants, by name.

    Raises:
        ImportError: The library is missing, because pip did not install the package or because it
            is for another system.
    """
    try:
        if path := os.environ.get("RECORDMILL_NATIVE"):
            return bind_library(ctypes.CDLL(path))
        if level is None and (level_text := os.environ.get("RECORDMILL_NATIVE_LEVEL")):
            level = int(level_text)
        # The plain library runs on any processor, so it can report the level of this one.
        library = ctypes.CDLL(str(library_path(0)))
        level = int(library.rm_machine_level()) if level is None else level
        if level > 0:
            library = ctypes.CDLL(str(library_path(level)))
    except OSError as error:
        raise ImportError(
            f"recordmill's native library can't be loaded: {error}. It is built when the package is installed: "
            "`pip install .` for a user, `pip install -e .` in a checkout, also after a change in native/."
        ) from error
    return bind_library(library)


def make_stub(header: Header) -> str:
    """Returns the contents of native.pyi, the type stub of the native library."""
    lines = [
        '"""Types of the native library, from its header. Do not edit: run native/make_stub.py."""',
        "",
        "from collections.abc import Sequence",
        "from enum import IntEnum",
        "from typing import Any",
        "",
        "import numpy as np",
        "import numpy.typing as npt",
        "",
    ]
    lines += [f"{name}: int" for name in header.constants]
    for name, members in header.enums.items():
        lines += ["", f"class {name}(IntEnum):"]
        lines += [f"    {member} = {value}" for member, value in members.items()]
    for name, fields in header.structs.items():
        lines += ["", f"class {name}:"]
        types = {field.name: _python_type(field, header) for field in fields}
        if header.has_spans(name):
            arguments = [f"{field}: {kind} = ..." for field, kind in types.items()]
            lines += _signature("    def __init__", ["self", "*", *arguments], "None")
        else:
            lines += [f"    {field}: {kind}" for field, kind in types.items()]
            lines += ["    def __init__(self, *args: float, **fields: float) -> None: ..."]
    lines += [""]
    for function in header.functions:
        parameters = [
            f"{parameter.name}: {_python_type(parameter, header)}"
            for parameter in function.parameters
        ]
        result = _python_number(function.result)
        lines += _signature(f"def {function.name}", parameters, result)
    return "\n".join(lines) + "\n"


def _signature(definition: str, parameters: Sequence[str], result: str) -> list[str]:
    """Returns the lines of a stub function, for example `def add(a: int) -> int: ...`.

    A line above 100 columns is wrapped as ruff does it.

    Args:
        definition: The start of the line, up to the parenthesis, such as "def add".
        parameters: The parameters with their types.
        result: The type of the result.
    """
    line = f"{definition}({', '.join(parameters)}) -> {result}: ..."
    if len(line) <= 100:
        return [line]
    indent = " " * (len(definition) - len(definition.lstrip()))
    joined = f"{indent}    {', '.join(parameters)}"
    each = [f"{indent}    {text}," for text in parameters]
    return [
        f"{definition}(",
        *([joined] if len(joined) <= 100 else each),
        f"{indent}) -> {result}: ...",
    ]


def _python_number(c_type: str) -> str:
    return {"float": "float", "double": "float", "void": "None"}.get(c_type, "int")


def _python_type(parameter: NativeParameter, header: Header) -> str:
    kind = header.number_type(parameter.kind)
    if kind == "Blocks":
        return "Sequence[npt.NDArray[Any]]"
    if not parameter.is_array:
        return _python_number(kind) if kind in _C_TYPES else kind
    if kind not in _C_TYPES:
        return "npt.NDArray[Any] | None"
    names: Sequence[str] = [dtype.__name__.rstrip("_") for dtype in _C_TYPES[kind][1]]
    kinds = " | ".join(f"np.{'bool_' if name == 'bool' else name}" for name in names)
    return f"npt.NDArray[{kinds}] | None"
