"""Packaging; also Beam's `--setup_file`. Three top-level folders are installed as `recordmill.schemas` and so on.

Under their bare names they would collide with folders of the user's own. Everything else stands in pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

if sys.platform == "win32":
    raise SystemExit(
        "recordmill does not run on Windows: its commit needs POSIX links and locks. Use WSL 2 or a container."
    )

ROOT = Path(__file__).resolve().parent
MAPPED = ("pipelines", "schemas", "transforms")  # beside src/, where all other rooms are
ROOMS = sorted(find_packages(str(ROOT), include=[pattern for room in MAPPED for pattern in (room, f"{room}.*")]))

setup(
    license="Apache-2.0",
    packages=[*find_packages(str(ROOT / "src")), *(f"recordmill.{room}" for room in ROOMS)],
    package_dir={"": "src", **{f"recordmill.{room}": room.replace(".", "/") for room in ROOMS}},
    package_data={"recordmill": ["py.typed"], "recordmill.transforms": ["*.yaml"]},
)
