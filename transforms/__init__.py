"""PTransforms around functions of other packages.

Only this package and `pipelines` use Beam.

`WriteShards`, `ReadShards` and `BatchDicts` are for users' own pipelines. Importing one of them
imports apache_beam. `build_stages` contains the stages of `recordmill build`, and `read_shards`
the stages of `recordmill read`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "BatchDicts": "write_shards",
    "ReadShards": "read_shards",
    "WriteShards": "write_shards",
}
__all__ = ["BatchDicts", "ReadShards", "WriteShards"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'recordmill.transforms' has no attribute {name!r}")
    try:
        return getattr(import_module(f"recordmill.transforms.{_MODULES[name]}"), name)
    except ImportError as error:
        if (error.name or "").split(".")[0] != "apache_beam":
            raise
        from recordmill.base.errors import MissingExtraError

        raise MissingExtraError(f"recordmill.transforms.{name}", "beam", "apache_beam") from None
