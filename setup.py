"""Packaging; also Beam's `--setup_file`. The folders at the top level are installed as `recordmill.schemas` and so on.

Under their bare names they would collide with folders of the user's own. Everything else stands in pyproject.toml.
"""

import sys

from setuptools import setup

if sys.platform == "win32":
    raise SystemExit("recordmill does not run on Windows: its commit needs POSIX links and locks. Use WSL 2 or a container.")

FOLDERS = ("schemas", "storage", "sources", "records", "shards", "reader", "transforms", "pipelines")
MAPPED = {f"recordmill.{name}": name for name in FOLDERS}

setup(packages=["recordmill", *MAPPED], package_dir={"recordmill": "src/recordmill", **MAPPED}, package_data={"recordmill": ["py.typed"]})
