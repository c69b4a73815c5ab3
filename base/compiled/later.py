"""`Later`: a module that is imported where something of it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module that takes long to import, where functions name it that are seldom called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)

    def __repr__(self) -> str:
        return f"Later({self._module!r})"
