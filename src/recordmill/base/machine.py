"""Processors and memory that this process may use."""

from __future__ import annotations

import errno
import functools
import os
import resource  # not imported on demand, because there may be no memory left to load it
from enum import Enum
from pathlib import Path

# 2 GiB in addition to the memory of the interpreter, which a laptop has available. With more
# memory, sorted runs are larger, so there are fewer of them.
DEFAULT_MEMORY_BYTES = 2 << 30
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
# CPU quota of cgroup v2. A container finds its own quota at this path.
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


@functools.cache
def count_cores() -> int:
    """Returns the number of processors that this process may use, at least 1.

    The affinity mask and the CPU quota of a container limit it. The result is cached.
    """
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _read_cpu_quota(_CPU_QUOTA_FILE)
    return count if quota is None else max(1, min(count, quota))


def _read_cpu_quota(path: Path) -> int | None:
    """Returns the number of processors that a `cpu.max` file allows, rounded up.

    For example, the content `200000 100000` allows 2. None means no quota.
    """
    try:
        allowed, period = path.read_text(encoding="ascii").split()
        return -(-int(allowed) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or the quota is `max`
        return None


def read_boot_id() -> str | None:
    """Returns the boot id of the kernel. It changes when the machine is restarted.

    All containers of a machine have the same boot id. None if the system has no boot id.
    """
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def limit_descriptors(minimum: int, maximum: int) -> int:
    """Returns a quarter of the files that this process may open.

    The rest is for sockets, outputs and other files of the process.

    Args:
        minimum: Smallest result.
        maximum: Largest result. Also the result if the number of open files is unlimited.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return maximum if limit == resource.RLIM_INFINITY else min(max(limit // 4, minimum), maximum)


class SystemLimit(Enum):
    """A limit of the system that a process has reached.

    LIBRARY means that a shared library can't be loaded, usually because the address space is
    limited.
    """

    MEMORY = "memory"
    LIBRARY = "library"
    THREADS = "threads"


def find_exhausted_limit(error: Exception) -> SystemLimit | None:
    """Returns the system limit that has caused an exception, or None."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return SystemLimit.MEMORY
    if "can't start new thread" in str(error):
        return SystemLimit.THREADS
    # If the address space is not limited, an ImportError has another cause.
    is_space_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if "failed to map segment" in str(error) or (is_space_limited and _is_load_failure(error)):
        return SystemLimit.LIBRARY
    return None


def _is_load_failure(error: Exception) -> bool:
    """Returns whether a library that can't be loaded may be the cause."""
    # Some packages ignore a part that can't be loaded, and raise AttributeError when it is used.
    if isinstance(error, AttributeError):
        return str(error).startswith("module ")
    return isinstance(error, ImportError | SystemError) and not isinstance(
        error, ModuleNotFoundError
    )
