"""Files that stay mapped while they are among the last ones that were read: each takes a descriptor and a mapping, of
which a process has only so many, however many shards it reads.
"""

from __future__ import annotations

import mmap
import resource

import numpy as np

from recordmill.base.lru import LruLimit

_MOST, _LEAST = 1024, 16  # files: more make nothing quicker, with fewer each batch would map its files again


def _most() -> int:
    """A quarter of the descriptors that the process may have: what else it does needs some, too."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if allowed == resource.RLIM_INFINITY else min(max(allowed // 4, _LEAST), _MOST)


MAPPED_FILES = LruLimit(_most())  # slots of arrays that `storage.files.map_file` gave, or views of them


def unmap_pages() -> None:
    """Let go of the pages of mapped files that this process has touched; who reads on has them again from the page
    cache. Else all that was ever read counts as this process's memory.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in MAPPED_FILES.values():
            if (file := _mapping_of(mapped)) is not None:
                file.madvise(mmap.MADV_DONTNEED)


def _mapping_of(view: object) -> mmap.mmap | None:
    while isinstance(view, np.ndarray):
        view = view.base
    return view.obj if isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap) else None
