"""Compiles the library: `compile_library(sources, output, level=...)`. Standard library only; setup.py calls it.

The compiler is `$CXX`, else c++, g++ or clang++ from PATH, else the `ziglang` package; `$CXXFLAGS` are added.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = [
    *(
        "-std=c++17",
        "-O3",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-threadsafe-statics",
    ),
    "-fwrapv",  # integers wrap, as NumPy's do
    "-ffp-contract=off",  # a * b + c is rounded twice on all processors: the same bits everywhere
    *("-Wall", "-Wextra", "-Wno-psabi"),
]
# What code may be used, by level: that of any processor; that of Haswell (2013) and later. Zig has its own names.
LEVELS = {0: [], 3: ["-march=x86-64-v3"]}
ZIG_LEVELS = {
    0: ["-mcpu=baseline"],
    3: ["-mcpu=x86_64_v3"],
}  # without -mcpu it compiles for the machine at hand


def target_machine() -> str:
    """The processor family that is built for: this machine's, or $RECORDMILL_TARGET (x86_64, aarch64; by ziglang)."""
    return os.environ.get("RECORDMILL_TARGET") or platform.machine().lower().replace(
        "amd64", "x86_64"
    )


def levels() -> list[int]:
    """The instruction sets that the library is built for."""
    return [0, 3] if target_machine() == "x86_64" else [0]


def library_name(level: int) -> str:
    """The file name of the library for an instruction set; `recordmill.base.native` looks for it beside itself."""
    return f"librecordmill{f'_v{level}' if level else ''}.so"


def system_compiler() -> list[str] | None:
    """The command of the machine's own compiler of C++, or None."""
    if os.environ.get("RECORDMILL_TARGET"):
        return None
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    return [found] if found else None


def requirements() -> list[str]:
    """What a build needs from the package index beside setuptools."""
    return [] if system_compiler() else ["ziglang>=0.13"]


def compile_library(
    sources: Sequence[str], output: str, *, level: int = 0, flags: Sequence[str] = ()
) -> None:
    """Compiles each source, several at once, and links them into one shared library.

    Raises:
        subprocess.CalledProcessError: the compiler refused; its own message stands above.
    """
    command = system_compiler()
    if command is not None:
        machine = LEVELS[level]
        # libc and the compiler's own helpers are all that is needed; a C++ compiler would name its library as well
        linking = ["-nodefaultlibs", "-lc", "-lgcc"] if sys.platform == "linux" else []
    else:
        command, machine, linking = (
            [sys.executable, "-m", "ziglang", "c++"],
            ZIG_LEVELS[level],
            ["-s", "-nostdlib++"],
        )
        if sys.platform == "linux":
            machine = ["-target", f"{target_machine()}-linux-gnu.2.17", *machine]  # manylinux_2_17
    if any(flag.startswith("-fsanitize") for flag in flags):
        linking = []
    own = shlex.split(os.environ.get("CXXFLAGS", ""))
    with tempfile.TemporaryDirectory() as folder:
        sources = [
            *sources,
            _header_source(Path(sources[0]).with_name("recordmill.h"), Path(folder)),
        ]
        objects = [str(Path(folder) / f"{Path(source).stem}.o") for source in sources]

        def compiled(source: str, target: str) -> None:
            subprocess.run(
                [*command, *FLAGS, *machine, *flags, *own, "-c", source, "-o", target], check=True
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, sources, objects))
        subprocess.run(
            [*command, *machine, "-shared", *flags, *objects, "-o", output, *linking], check=True
        )


def _header_source(header: Path, folder: Path) -> str:
    """Writes a source with the text of the header, so that a library always says what is in it."""
    source = folder / "header_text.cpp"
    text = header.read_text(encoding="utf-8")
    declaration = 'extern "C" __attribute__((visibility("default"))) const char *rm_header()'
    source.write_text(f'{declaration} {{ return R"RM({text})RM"; }}\n', encoding="utf-8")
    return str(source)
