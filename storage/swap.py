"""Two names of one folder exchanged in one step: renameat2(RENAME_EXCHANGE), where the system has it."""

from __future__ import annotations

import ctypes
import errno
import os

_EXCHANGE = 2  # RENAME_EXCHANGE of <linux/fs.h>
# how systems say that they can't, not that it failed: no such call, another file system, a mount point
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES)


def exchange(folder: int, one: str, other: str) -> bool:
    """Exchange two names in an open folder; False where the system can't, and nothing has happened then.

    Raises:
        OSError: anything else.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), one)
