"""The build backend: setuptools, plus a C++ compiler if the machine has none.

The compiler is the `ziglang` package, a complete compiler in a wheel, see `native/compiler.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setuptools.build_meta import *  # noqa: F403
from setuptools.build_meta import get_requires_for_build_editable as _for_editable
from setuptools.build_meta import get_requires_for_build_wheel as _for_wheel

sys.path.insert(0, str(Path(__file__).parent))

from compiler import requirements


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*_for_wheel(config_settings), *requirements()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*_for_editable(config_settings), *requirements()]
