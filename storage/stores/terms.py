"""On which terms a process reads certain files of stores: what every process that reads them is to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from recordmill.storage.stores.protocol import Stat

_takers: list[Callable[[Terms], None]] = []


@dataclass(frozen=True)
class Terms:
    """requests: how many may be under way at once, None: as before. folder, most_bytes: where blocks of the files are
    kept on a disk; "": nowhere. files: what they were when they were opened.

    A process that unpickles it takes the terms.
    """

    requests: int | None = None
    folder: str = ""
    most_bytes: int = 0
    files: Mapping[str, Stat] = field(default_factory=dict, repr=False)

    def take(self) -> None:
        """This process reads on these terms from now on."""
        for taker in _takers:
            taker(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.take()


def taken_by(taker: Callable[[Terms], None]) -> None:
    """Have the terms that this process takes told to `taker`."""
    _takers.append(taker)
