"""Limits of the system that an exception tells of."""

from __future__ import annotations

import errno
import resource  # before there is no room for it
from enum import Enum


class SystemLimit(Enum):
    """Resource that ran out. LIBRARY: a library could not be loaded, most likely for lack of address space."""

    MEMORY = "memory"
    LIBRARY = "library"
    THREADS = "threads"


def limit_reached(error: Exception) -> SystemLimit | None:
    """The limit; None where the exception comes of something else."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return SystemLimit.MEMORY
    if "can't start new thread" in str(error):
        return SystemLimit.THREADS
    if "failed to map segment" in str(error) or (_is_of_loading(error) and _is_space_limited()):
        return SystemLimit.LIBRARY
    return None


def _is_of_loading(error: Exception) -> bool:
    """Returns whether the error may come of a library that can't be loaded; some go on without a part of themselves."""
    if isinstance(error, AttributeError):
        return str(error).startswith("module ")
    return isinstance(error, ImportError | SystemError) and not isinstance(error, ModuleNotFoundError)


def _is_space_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
