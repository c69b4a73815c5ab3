"""Processors and memory that this process may use."""

from __future__ import annotations

import errno
import functools
import os
import resource  # imported early: later there may be no memory to load it
from enum import Enum
from pathlib import Path

# 2 GiB in addition to the interpreter: a laptop can spare this much. More memory makes sorted runs
# larger and fewer.
DEFAULT_MEMORY_BYTES = 2 << 30
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
# The quota of cgroup v2. A container sees its own quota at this path.
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


@functools.cache
def core_count() -> int:
    """Returns the number of processors that this process may use, at least 1.

    This is the affinity mask, limited by the CPU quota of a container. The result is cached.
    """
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _read_cpu_quota(_CPU_QUOTA_FILE)
    return count if quota is None else max(1, min(count, quota))


def _read_cpu_quota(path: Path) -> int | None:
    """Returns the number of processors that a `cpu.max` file allows.

    The content `200000 100000` allows 2. Fractions are rounded up. None means no quota.
    """
    try:
        allowed, period = path.read_text(encoding="ascii").split()
        return -(-int(allowed) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or the quota is `max`
        return None


def read_boot_id() -> str | None:
    """Returns the boot id of the kernel, which changes when the machine is restarted.

    All containers of a machine have it in common. None on systems without one.
    """
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def descriptor_quarter(minimum: int, maximum: int) -> int:
    """Returns a quarter of the files that this process may open, from `minimum` to `maximum`.

    The other descriptors are for sockets, outputs and other files of the process.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return maximum if limit == resource.RLIM_INFINITY else min(max(limit // 4, minimum), maximum)


class SystemLimit(Enum):
    """A resource of the system that ran out.

    LIBRARY means that a shared library could not be loaded, most likely because the address space
    is limited.
    """

    MEMORY = "memory"
    LIBRARY = "library"
    THREADS = "threads"


def exhausted_limit(error: Exception) -> SystemLimit | None:
    """Returns the system limit that caused an exception, if any."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return SystemLimit.MEMORY
    if "can't start new thread" in str(error):
        return SystemLimit.THREADS
    # Without a limit of the address space an ImportError has an ordinary cause.
    is_space_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if "failed to map segment" in str(error) or (is_space_limited and _is_load_failure(error)):
        return SystemLimit.LIBRARY
    return None


def _is_load_failure(error: Exception) -> bool:
    """Returns whether a library that could not be loaded may have caused the error."""
    # Some packages continue without a part that they could not load, and fail when it is used.
    if isinstance(error, AttributeError):
        return str(error).startswith("module ")
    return isinstance(error, ImportError | SystemError) and not isinstance(
        error, ModuleNotFoundError
    )
