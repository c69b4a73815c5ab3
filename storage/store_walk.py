"""A folder of a store, or a glob below it, to the objects in it, by the rules that hold on a disk (`walk`): a store
lists all that lies below a name in one go, so each name is judged from its first part to its last.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from recordmill.storage.files import below
from recordmill.storage.walk import EMPTY, HIDDEN, Found, Ignored, clutter, extension_of

_TAKEN = ("", 0)
_Verdict = tuple[str, int] | None  # (why it is left out, by which part); _TAKEN; None where it does not match


def walk_store(folder: str, pattern: str | None, ignored: Ignored) -> Iterator[Found]:
    """The objects below the folder, or those of them that match and all below the folders that match, as they come.

    Raises:
        OSError: the store can't list them.
    """
    root = folder.rstrip("/")
    wanted = None if pattern is None else [(part, _regex(part)) for part in pattern.split("/")]
    for name, about in below(folder):
        parts = name.split("/")
        verdict = _descend(parts, 0) if wanted is None else _match(parts, wanted)
        if verdict is None:
            continue
        if verdict != _TAKEN:
            left = "/".join(parts[: verdict[1] + 1])
            ignored.add(verdict[0], left, f"{root}/{left}")
        elif about.size_bytes == 0 and extension_of(name) not in ignored.data_extensions:
            ignored.add(EMPTY, name, f"{root}/{name}")
        else:
            yield Found(name, f"{root}/{name}", about)


def _regex(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def _descend(parts: Sequence[str], at: int) -> _Verdict:
    """Everything is wanted from that part on."""
    for place in range(at, len(parts)):
        if (reason := clutter(parts[place])) is not None:
            return reason, place
    return _TAKEN


def _match(parts: Sequence[str], wanted: Sequence[tuple[str, re.Pattern[str]]], at: int = 0) -> _Verdict:
    (part, regex), rest = wanted[0], wanted[1:]
    is_last, name = at == len(parts) - 1, parts[at]
    if part == "**":
        if not rest:
            return _descend(parts, at)
        if (verdict := _match(parts, rest, at)) is not None:
            return verdict
        return None if is_last or clutter(name) is not None else _match(parts, wanted, at + 1)
    if regex.match(name) is None or (name[0] == "." and part[0] != "."):
        return None
    reason = clutter(name)
    if reason is not None and not (part[0] == "." and reason == HIDDEN):
        return None if rest else (reason, at)
    if rest:
        return None if is_last else _match(parts, rest, at + 1)
    return _TAKEN if is_last else _descend(parts, at + 1)
