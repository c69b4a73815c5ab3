"""Packaging, and Beam's `--setup_file`.

Three top-level folders are installed as `recordmill.schemas` and so on, because their own names
would collide with folders of users. The C++ library of `native/` is built next to
`recordmill.base.native`, once for any processor and once for newer ones. Everything else is in
pyproject.toml.
"""

import sys
from pathlib import Path

if sys.platform == "win32":
    raise SystemExit(
        "recordmill does not run on Windows: its commit needs POSIX links and locks. Use WSL 2 or a container."
    )

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "native"))

from compiler import compile_library, levels, library_name  # noqa: E402

MAPPED = ("pipelines", "schemas", "transforms")  # beside src/, where all other rooms are
ROOMS = sorted(
    find_packages(
        str(ROOT), include=[pattern for room in MAPPED for pattern in (room, f"{room}.*")]
    )
)
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "native").glob("*.cpp"))
HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "native").glob("*.h"))


class Library(Extension):
    """The shared library for one instruction set."""

    def __init__(self, level: int) -> None:
        super().__init__(
            f"recordmill.base.{library_name(level).removesuffix('.so')}", SOURCES, depends=HEADERS
        )
        self.level = level


class BuildLibrary(build_ext):
    """Builds shared libraries that know nothing of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        compile_library(ext.sources, str(target), level=ext.level)


class Wheel(bdist_wheel):
    """A wheel of one platform and of every Python 3."""

    def get_tag(self) -> tuple:
        return ("py3", "none", super().get_tag()[2])


setup(
    license="Apache-2.0",
    packages=[*find_packages(str(ROOT / "src")), *(f"recordmill.{room}" for room in ROOMS)],
    package_dir={"": "src", **{f"recordmill.{room}": room.replace(".", "/") for room in ROOMS}},
    package_data={
        "recordmill": ["py.typed"],
        "recordmill.base": ["*.pyi"],
        "recordmill.transforms": ["*.yaml"],
    },
    ext_modules=[Library(level) for level in levels()],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
