"""Defaults of processors and memory: what this process may take of its machine."""

from __future__ import annotations

import errno
import functools
import os
import resource  # before there is no room for it
from enum import Enum
from pathlib import Path

# 2 GiB, beside the interpreter: what a laptop spares; more makes larger runs and fewer of them
DEFAULT_MEMORY_BYTES = 2 << 30
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")  # of cgroup v2, as containers see their own


@functools.cache
def core_count() -> int:
    """Returns how many processors the process may run on, or what a container's quota leaves of them; 1 or more."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _read_cpu_quota(_CPU_QUOTA_FILE)
    return count if quota is None else max(1, min(count, quota))


def _read_cpu_quota(path: Path) -> int | None:
    """Returns how many processors `cpu.max` allows (`200000 100000`: 2), rounded up; None where it sets no bound."""
    try:
        allowed, period = path.read_text(encoding="ascii").split()
        return -(-int(allowed) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or `max`
        return None


class SystemLimit(Enum):
    """Resource that ran out. LIBRARY: a library could not be loaded, most likely for lack of address space."""

    MEMORY = "memory"
    LIBRARY = "library"
    THREADS = "threads"


def exhausted_limit(error: Exception) -> SystemLimit | None:
    """The limit; None where the exception comes of something else."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return SystemLimit.MEMORY
    if "can't start new thread" in str(error):
        return SystemLimit.THREADS
    is_space_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if "failed to map segment" in str(error) or (is_space_limited and _is_load_failure(error)):
        return SystemLimit.LIBRARY
    return None


def _is_load_failure(error: Exception) -> bool:
    """Returns whether the error may come of a library that can't be loaded; some go on without a part of themselves."""
    if isinstance(error, AttributeError):
        return str(error).startswith("module ")
    return isinstance(error, ImportError | SystemError) and not isinstance(
        error, ModuleNotFoundError
    )
