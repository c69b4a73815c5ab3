"""Plans of data in memory."""

from pathlib import Path
from typing import Any

from recordmill.sources.arrow.memory import MemorySource, plan_memory
from recordmill.sources.common.contract import PlanOptions


def plan(data: Any, folder: Path, **common: Any) -> MemorySource:
    (folder / "spool").mkdir(exist_ok=True)
    return plan_memory(data, folder / "spool", PlanOptions(**common))
