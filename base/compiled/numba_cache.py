"""`KernelCache`: for a function the files in which Numba keeps what it compiled.

Numba takes compiled code for fresh while the file that defines the kernel is the same; here the name of a kernel's
cache holds a digest of all that is compiled into it (`digest`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache

from recordmill.base.compiled.digest import code_digest
from recordmill.base.compiled.pruning import TOUCH_SEC, prune


class KernelCache:
    """What a Numba dispatcher asks of its cache. The folder is looked for at the first use, not on import; where none
    can be read or written, or no longer, code is compiled in memory, and `not_kept` is called.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, bool] | None = None,
        not_kept: Callable[[], None] = lambda: None,
    ) -> None:
        self._function, self._options = function, options or {}
        self._not_kept = not_kept
        self._made: Any = None
        self.is_asked = True  # False: what is there already can't be used

    @property
    def cache_path(self) -> Any:
        """The folder; None without one."""
        return self._cache().cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for these argument types; None if it is not there."""
        try:
            return self._cache().load_overload(sig, target_context) if self.is_asked else None
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code."""
        try:
            self._cache().save_overload(sig, data)
        except OSError:
            return
        if self.cache_path is not None:
            prune(self.cache_path)

    def flush(self) -> None:
        """Forget what was kept."""
        self._cache().flush()

    def _cache(self) -> Any:
        if self._made is None:
            self._made = _open(self._function, self._options, self._not_kept)
        return self._made


def _open(function: Callable[..., Any], options: Mapping[str, bool], not_kept: Callable[[], None]) -> Any:
    try:
        cache = FunctionCache(function)
    except RuntimeError:  # numba: "no locator available": no folder for the cache can be written
        not_kept()
        return NullCache()
    digest = code_digest(function, options)
    files = IndexDataCacheFile(cache.cache_path, f"{cache._impl.filename_base}.{digest}", digest)
    cache._cache_file = files
    try:  # note that it is still in use
        if time.time() - os.stat(files._index_path).st_mtime > TOUCH_SEC:
            os.utime(files._index_path)
    except OSError:
        pass
    return cache
