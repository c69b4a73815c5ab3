"""Packaging; also Beam's `--setup_file`. The folders at the top level are installed as `recordmill.schemas` and so on.

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
BESIDE = ("benchmarks*", "constraints*", "docs*", "examples*", "src*", "tests*")  # not part of the package
# every folder with an __init__.py: `records`, `records.tfrecord`, ...
ROOMS = sorted(find_packages(str(ROOT), exclude=BESIDE))
MAPPED = {f"recordmill.{name}": name.replace(".", "/") for name in ROOMS}

setup(
    license="Apache-2.0",
    packages=["recordmill", "recordmill.commands", *MAPPED],
    package_dir={"recordmill": "src/recordmill", **MAPPED},
    package_data={"recordmill": ["py.typed"], "recordmill.transforms": ["*.yaml"]},
)
