"""Compiles the library: `compile_library(sources, output, level=...)`. Standard library only; setup.py calls it.

The compiler is `$CXX`, else c++, g++ or clang++ from PATH, else the `ziglang` package.
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
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    "-fwrapv",  # integers wrap, as NumPy's do
    "-ffp-contract=off",  # a * b + c is rounded twice on all processors: the same bits everywhere
    *("-Wall", "-Wextra", "-Wno-psabi"),
]
LEVELS = {0: [], 3: ["-march=x86-64-v3"]}  # what code may be used: of any processor, of Haswell (2013) and later


def levels() -> list[int]:
    """The instruction sets that the library is built for on this machine."""
    return [0, 3] if platform.machine().lower() in ("x86_64", "amd64") else [0]


def library_name(level: int) -> str:
    """The file name of the library for an instruction set; `recordmill.base.native` looks for it beside itself."""
    return f"librecordmill{f'_v{level}' if level else ''}.so"


def system_compiler() -> list[str] | None:
    """The command of the machine's own compiler of C++, or None."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    return [found] if found else None


def requirements() -> list[str]:
    """What a build needs from the package index beside setuptools."""
    return [] if system_compiler() else ["ziglang>=0.13"]


def compile_library(sources: Sequence[str], output: str, *, level: int = 0, flags: Sequence[str] = ()) -> None:
    """Compiles each source, several at once, and links them into one shared library.

    Raises:
        subprocess.CalledProcessError: the compiler refused; its own message stands above.
    """
    command = system_compiler() or [sys.executable, "-m", "ziglang", "c++"]
    is_zig = "ziglang" in command
    # libc is all that the library needs; without this, C++ compilers name their own library as well
    linking = ["-s"] if is_zig else ["-nodefaultlibs", "-lc", "-lgcc"] if sys.platform == "linux" else []
    if any(flag.startswith("-fsanitize") for flag in flags):
        linking = []
    with tempfile.TemporaryDirectory() as folder:
        sources = [*sources, _header_source(Path(sources[0]).with_name("recordmill.h"), Path(folder))]
        objects = [str(Path(folder) / f"{Path(source).stem}.o") for source in sources]

        def compiled(source: str, target: str) -> None:
            subprocess.run([*command, *FLAGS, *LEVELS[level], *flags, "-c", source, "-o", target], check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, sources, objects))
        subprocess.run([*command, "-shared", *flags, *objects, "-o", output, *linking], check=True)


def _header_source(header: Path, folder: Path) -> str:
    """Writes a source with the text of the header, so that a library always says what is in it."""
    source = folder / "header_text.cpp"
    text = header.read_text(encoding="utf-8")
    declaration = 'extern "C" __attribute__((visibility("default"))) const char *rm_header(void)'
    source.write_text(f'{declaration} {{ return R"RM({text})RM"; }}\n', encoding="utf-8")
    return str(source)
