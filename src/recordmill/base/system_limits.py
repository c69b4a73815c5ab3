"""What an exception says of a limit of the system that was reached, and what to do about it."""

from __future__ import annotations

import errno

_NO_MEMORY = "out of memory: give less --memory or fewer --threads, or a larger machine"
_NOT_LOADED = f"{_NO_MEMORY} (a library could not be loaded; `ulimit -v` may limit the address space)"
_NO_THREADS = (
    "no more threads can be started: give fewer --threads, or raise what limits them (`ulimit -u`, or a container's "
    "limit of processes)"
)


def limit_reached(error: Exception) -> str | None:
    """A sentence for the user; None where the exception comes of something else."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return _NO_MEMORY
    if "can't start new thread" in str(error):
        return _NO_THREADS
    if "failed to map segment" in str(error) or (_is_of_loading(error) and _is_space_limited()):
        return _NOT_LOADED
    return None


def _is_of_loading(error: Exception) -> bool:
    """Whether it may come of a library that can't be loaded; some go on without a part of themselves."""
    if isinstance(error, AttributeError):
        return str(error).startswith("module ")
    return isinstance(error, ImportError | SystemError) and not isinstance(error, ModuleNotFoundError)


def _is_space_limited() -> bool:
    try:
        import resource
    except ImportError:  # no such system
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
