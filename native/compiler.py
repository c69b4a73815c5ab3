"""Compiles the library: `compile_library(sources, output, level=...)`.

setup.py calls it before anything is installed, so it imports only the standard library. The
compiler is `$CXX`, else c++, g++ or clang++ from PATH, else the `ziglang` package. `$CXXFLAGS` are
added.
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
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fwrapv",  # integers wrap, as NumPy's do
    "-ffp-contract=off",  # a * b + c is rounded twice on all processors: the same bits everywhere
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]
# What code may be used, by level: that of any processor; that of Haswell (2013) and later. Zig has
# its own names.
LEVELS = {0: [], 3: ["-march=x86-64-v3"]}
# Without -mcpu zig compiles for the machine at hand.
ZIG_LEVELS = {0: ["-mcpu=baseline"], 3: ["-mcpu=x86_64_v3"]}


def target() -> tuple[str, str]:
    """Returns the processor family and the system that the library is built for.

    Both are those of this machine, unless `$RECORDMILL_TARGET` names others, for example
    `aarch64-linux` or `aarch64-macos`. ziglang then compiles the library.
    """
    if named := os.environ.get("RECORDMILL_TARGET"):
        machine, _, system = named.partition("-")
        return machine, system
    system = {"darwin": "macos"}.get(sys.platform, sys.platform)
    return platform.machine().lower().replace("amd64", "x86_64"), system


def levels() -> list[int]:
    """The instruction sets that the library is built for."""
    return [0, 3] if target()[0] == "x86_64" else [0]


def library_name(level: int) -> str:
    """Returns the file name of the library for an instruction set.

    `recordmill.base.native` looks for it in its own folder.
    """
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
    command, (machine, system) = system_compiler(), target()
    if command is not None:
        machine_flags = LEVELS[level]
        # libc and the compiler's own helpers are all that is needed; a C++ compiler would name its
        # library as well
        linking = ["-nodefaultlibs", "-lc", "-lgcc"] if sys.platform == "linux" else []
    else:
        command = [sys.executable, "-m", "ziglang", "c++"]
        # manylinux_2_17 is the oldest Linux that wheels for today's Python support
        zig_target = f"{machine}-linux-gnu.2.17" if system == "linux" else f"{machine}-{system}"
        machine_flags = ["-target", zig_target, *ZIG_LEVELS[level]]
        linking = ["-s", "-nostdlib++"]
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
                [*command, *FLAGS, *machine_flags, *flags, *own, "-c", source, "-o", target],
                check=True,
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, sources, objects))
        subprocess.run(
            [*command, *machine_flags, "-shared", *flags, *objects, "-o", output, *linking],
            check=True,
        )


def _header_source(header: Path, folder: Path) -> str:
    """Writes a source with the text of the header, so that a library always says what is in it."""
    source = folder / "header_text.cpp"
    text = header.read_text(encoding="utf-8")
    declaration = 'extern "C" __attribute__((visibility("default"))) const char *rm_header()'
    source.write_text(f'{declaration} {{ return R"RM({text})RM"; }}\n', encoding="utf-8")
    return str(source)
