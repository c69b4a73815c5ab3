"""`prune`: compiled code that no process has used for long goes; how its use is noted."""

from __future__ import annotations

import re
import time
from pathlib import Path

from recordmill.base.compiled.digest import DIGEST_CHARS

TOUCH_SEC = 86400  # a day: use is noted no more often than that
_UNUSED_SEC = 14 * 86400  # two weeks: longer than a branch is left alone, short enough that the folder stays small
_FILE = re.compile(rf"(.+\.[0-9a-f]{{{DIGEST_CHARS}}})\.(nbi|[0-9]+\.nbc|[0-9a-f]+\.code)")

_pruned: set[str] = set()  # the folders that this process has tidied


def prune(folder: str) -> None:
    """Remove what no process has used for long, once in a process: code of kernels that have changed since, or are
    gone.
    """
    if folder in _pruned:
        return
    _pruned.add(folder)
    now = time.time()
    try:
        found = [(path, match[1]) for path in Path(folder).iterdir() if (match := _FILE.fullmatch(path.name))]
        used = {name for path, name in found if now - path.stat().st_mtime < _UNUSED_SEC}
        for path, name in found:
            if name not in used:
                path.unlink(missing_ok=True)
    except OSError:  # another process tidies the same folder, or it can't be written
        return
