"""recordmill builds TFRecord data sets from raw data, and reads TFRecords back.

Sources are images, text, tables and arrays. Results of reading are Parquet, NumPy and other
formats.

Everything here is imported on first use, so `import recordmill` takes milliseconds and needs no
extra.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "recordmill does not run on Windows: its commit needs POSIX links and locks. Use WSL 2 or a container."
    )

if TYPE_CHECKING:
    from recordmill.base.errors import DataError, RecordmillError, UsageError
    from recordmill.base.progress import ProgressUpdate
    from recordmill.commands.check import check
    from recordmill.commands.report import report
    from recordmill.commands.stats import stats
    from recordmill.pipelines.build import BuildResult, build, submit
    from recordmill.pipelines.dry_run import BuildPreview, preview
    from recordmill.pipelines.generations import Generation, compact, log, restore
    from recordmill.pipelines.read import ReadResult, read
    from recordmill.pipelines.remote.preflight import doctor
    from recordmill.pipelines.remote.status import status
    from recordmill.preprocessing.serving import serving_layer, serving_objects
    from recordmill.reader.dataset import Dataset, open
    from recordmill.reader.inspect.summary import inspect
    from recordmill.reader.mixture import mixture
    from recordmill.reader.options.collation import Bucketed, OneHot, Packed, Padded
    from recordmill.reader.options.images import Images, RandomCrop
    from recordmill.reader.options.training import hosts
    from recordmill.reader.zip import zip
    from recordmill.schemas.feature import Feature, Schema
    from recordmill.shards.store_run import clean
    from recordmill.shards.verify import verify
    from recordmill.sources.arrow.single_example import example, parse_example

_MODULES_BY_NAME = {
    name: module
    for module, names in {
        "pipelines.build": "build BuildResult submit",
        "commands.check": "check",
        "shards.store_run": "clean",
        "pipelines.dry_run": "preview BuildPreview",
        "pipelines.generations": "Generation compact log restore",
        "pipelines.remote.preflight": "doctor",
        "commands.report": "report",
        "commands.stats": "stats",
        "pipelines.remote.status": "status",
        "pipelines.read": "read ReadResult",
        "reader.dataset": "open Dataset",
        "reader.inspect.summary": "inspect",
        "reader.mixture": "mixture",
        "reader.zip": "zip",
        "reader.options.training": "hosts",
        "reader.options.images": "Images RandomCrop",
        "reader.options.collation": "Bucketed OneHot Packed Padded",
        "sources.arrow.single_example": "example parse_example",
        "preprocessing.serving": "serving_layer serving_objects",
        "shards.verify": "verify",
        "schemas.feature": "Feature Schema",
        "base.errors": "DataError RecordmillError UsageError",
        "base.progress": "ProgressUpdate",
    }.items()
    for name in names.split()
}
__all__ = [
    "Bucketed",
    "BuildPreview",
    "BuildResult",
    "DataError",
    "Dataset",
    "Feature",
    "Generation",
    "Images",
    "OneHot",
    "Packed",
    "Padded",
    "ProgressUpdate",
    "RandomCrop",
    "ReadResult",
    "RecordmillError",
    "Schema",
    "UsageError",
    "build",
    "check",
    "clean",
    "compact",
    "doctor",
    "example",
    "hosts",
    "inspect",
    "log",
    "mixture",
    "open",
    "parse_example",
    "preview",
    "read",
    "report",
    "restore",
    "serving_layer",
    "serving_objects",
    "stats",
    "status",
    "submit",
    "verify",
    "zip",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("recordmill")
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module 'recordmill' has no attribute {name!r}")
    value = getattr(import_module(f"recordmill.{_MODULES_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
