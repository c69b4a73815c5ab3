"""The build backend: setuptools, with a C++ compiler from the package index where the machine has
none.

`native/compiler.py` uses the `ziglang` package then, which is a whole compiler in a wheel.
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
