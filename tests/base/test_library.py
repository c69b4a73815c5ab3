"""The C++ header determines the Python functions, which check their arguments."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from recordmill.base import library, native
from recordmill.base.library import NativeParameter, load_library, make_stub, read_header

HEADER = """
constexpr int64_t BOUNDS = INT64_MIN;
constexpr int64_t MAX_DEPTH = 0x10;
enum class Fault : int64_t { NONE, CUT = 5, LONG, BAD = -1 };
namespace Bits { enum : int64_t { A = 1, B = 2 }; }
// int64_t rm_commented(int64_t x);
struct Slot {
  int64_t text, size;  // a comment; with a semicolon
  Fault fault;
};
struct Columns {
  Span<const float> factor, offset;
  ByteSpan data;
};
int64_t rm_scan(ByteSpan data, Span<int64_t> out, const Slot &slot, Fault fault);
void rm_copy(Span<const ByteSpan> blocks, Span<uint8_t> out);
uint32_t rm_version();
"""


def test_declarations_of_the_header_are_parsed() -> None:
    header = read_header(HEADER)
    assert header.constants == {"MAX_DEPTH": 16}
    assert header.enums == {
        "Fault": {"NONE": 0, "CUT": 5, "LONG": 6, "BAD": -1},
        "Bits": {"A": 1, "B": 2},
    }
    assert [field.name for field in header.structs["Slot"]] == ["text", "size", "fault"]
    assert header.structs["Columns"] == (
        NativeParameter("factor", "float", True, False),
        NativeParameter("offset", "float", True, False),
        NativeParameter("data", "uint8_t", True, False),
    )
    assert (header.has_spans("Slot"), header.has_spans("Columns")) == (False, True)
    scan, copy, version = header.functions
    assert scan.parameters == (
        NativeParameter("data", "uint8_t", True, False),
        NativeParameter("out", "int64_t", True, True),
        NativeParameter("slot", "Slot", False, False),
        NativeParameter("fault", "Fault", False, True),
    )
    assert copy.parameters[0] == NativeParameter("blocks", "Blocks", False, True)
    assert (version.name, version.result, version.parameters) == ("version", "uint32_t", ())
    assert (header.number_type("Fault"), header.number_type("float")) == ("int64_t", "float")


def test_stub_of_the_header_is_python() -> None:
    stub = make_stub(read_header(HEADER))
    compile(stub, "native.pyi", "exec")
    for line in (
        "MAX_DEPTH: int",
        "class Fault(IntEnum):",
        "    CUT = 5",
        "def version() -> int: ...",
    ):
        assert line in stub.splitlines()


def _write_crcs(data: object, offsets: object) -> None:
    native.find_bad_lines(data, np.zeros(1, np.int64), np.ones(1, np.int64), offsets)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros(8, np.int8), "takes a C-contiguous array of uint8, not int8"),
        (np.zeros(8, np.uint8)[::2], "takes a C-contiguous array of uint8"),
    ],
)
def test_array_of_another_dtype_or_with_gaps_is_refused(data: object, message: str) -> None:
    with pytest.raises(ctypes.ArgumentError, match=message):
        _write_crcs(data, np.empty(1, np.int64))


def test_read_only_array_is_refused_only_if_it_is_written_to() -> None:
    data, offsets = np.zeros(8, np.uint8), np.empty(1, np.int64)
    data.setflags(write=False)
    _write_crcs(data, offsets)
    assert offsets.tolist() == [-1]
    offsets.setflags(write=False)
    with pytest.raises(ctypes.ArgumentError, match="is written to, and this array is read-only"):
        _write_crcs(data, offsets)


def test_offsets_beyond_the_arrays_are_an_error() -> None:
    offsets, message = np.empty(1, np.int64), "do not fit the arrays"
    for start, stop in ((0, 9), (-1, 3), (5, 4)):
        with pytest.raises(IndexError, match=message):
            native.find_bad_lines(
                np.zeros(8, np.uint8), np.array([start]), np.array([stop]), offsets
            )


def test_missing_library_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDMILL_NATIVE", str(tmp_path / "none.so"))
    with pytest.raises(ImportError, match=r"can't be loaded: .*It is built when the package is"):
        load_library()


def test_environment_selects_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECORDMILL_NATIVE", raising=False)
    names = []
    load_original = ctypes.CDLL

    def load(path: str) -> ctypes.CDLL:
        names.append(Path(path).name)
        return load_original(path)

    monkeypatch.setattr(library.ctypes, "CDLL", load)
    monkeypatch.setenv("RECORDMILL_NATIVE_LEVEL", "0")
    load_library()
    assert names == ["librecordmill.so"]
