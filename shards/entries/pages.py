"""Pages: where a data set has very many shards, its manifest names files that hold their entries, each with its size
and digest, in place of the entries; who reads one split reads its pages one after the other.

They lie beside the shards, in `data-<id>/pages/`, so that they come, become visible and go with these. A page's name
follows from the split and its number, and a shard's name from its own, so a manifest can't lead anywhere else.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.entries.grammar import PAGE_FORMAT, check_entry, known_fields
from recordmill.shards.entries.names import ShardName, page_name
from recordmill.shards.entries.shard_info import ShardInfo, info_of
from recordmill.storage.digest import Digest
from recordmill.storage.folders import join
from recordmill.storage.listed.table import Table
from recordmill.storage.strict_json import Fields, parse, read_bounded

MOST_NAMED = 8_192  # shards that a manifest names itself: some 2 MiB of text, of which parsing makes 7 MiB
PAGE_SHARDS = 4_096  # of a page: 1 MiB, a request's worth
PAGES_FOLDER = "pages"
_KEPT = 2  # pages that a process holds


@dataclass(frozen=True)
class Page:
    """A page, as the manifest has it. name: below `pages/`; bytes, digest: of the file; shards: how many it lists;
    records, shard_bytes: of all these.
    """

    name: str
    bytes: int
    digest: str
    shards: int
    records: int
    shard_bytes: int


class Paged(Table[ShardInfo]):
    """The shards of a split, in order, read page by page as they are asked for. folder: `data-<id>`, where it lies.

    Raises:
        DataError: as soon as a page is read that is missing, or not what the manifest says.
    """

    def __init__(self, folder: str, split: str, compression: str, pages: Sequence[Page]) -> None:
        self.folder, self.split, self.compression, self.pages = folder, split, compression, tuple(pages)
        self._ends = list(itertools.accumulate(page.shards for page in self.pages))

    @property
    def records(self) -> int:
        return sum(page.records for page in self.pages)

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(page.shard_bytes for page in self.pages)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _item(self, at: int) -> ShardInfo:
        page = bisect.bisect_right(self._ends, at)
        return self._entries(page)[at - self._ends[page] + self.pages[page].shards]

    def __iter__(self) -> Iterator[ShardInfo]:
        for page in range(len(self.pages)):
            yield from self._entries(page)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Paged):
            return (self.split, self.compression, self.pages) == (other.split, other.compression, other.pages)
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.split, self.pages))

    def _entries(self, page: int) -> tuple[ShardInfo, ...]:
        about = self.pages[page]
        path = join(self.folder, PAGES_FOLDER, about.name)
        return _read(path, about, self.split, self.compression, self._ends[page] - about.shards, len(self))


def totals(shards: Sequence[ShardInfo]) -> tuple[int, int]:
    """(records, bytes) of these shards; no page is read for it."""
    if isinstance(shards, Paged):
        return shards.records, shards.bytes
    return sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)


def write_pages(
    splits: Mapping[str, Sequence[ShardInfo]], put: Callable[[str, bytes], None]
) -> dict[str, tuple[Page, ...]]:
    """Split to its pages; none where the manifest names the shards itself. put: is given each name and its bytes."""
    if sum(map(len, splits.values())) <= MOST_NAMED:
        return {}
    return {split: tuple(_write(split, shards, put)) for split, shards in splits.items()}


def _write(split: str, shards: Sequence[ShardInfo], put: Callable[[str, bytes], None]) -> Iterator[Page]:
    for number, first in enumerate(range(0, len(shards), PAGE_SHARDS)):
        some = shards[first : first + PAGE_SHARDS]
        name, data = page_name(split, number), _text(split, some)
        put(name, data)
        yield Page(name, len(data), _digest(data), len(some), *totals(some))


def _text(split: str, shards: Sequence[ShardInfo]) -> bytes:
    """A shard a line, for people."""
    lines = ",\n".join(json.dumps(asdict(shard)) for shard in shards)
    return f'{{"format": "{PAGE_FORMAT}", "split": {json.dumps(split)}, "shards": [\n{lines}\n]}}\n'.encode()


def _digest(data: bytes) -> str:
    digest = Digest()
    digest.update(data)
    return digest.text()


def pages_of(document: Mapping[str, Any]) -> tuple[Page, ...]:
    """The pages that a checked manifest names for a split."""
    return tuple(Page(**known_fields(page, Page.__dataclass_fields__)) for page in document["pages"])


@functools.lru_cache(maxsize=_KEPT)
def _read(path: str, page: Page, split: str, compression: str, first: int, of: int) -> tuple[ShardInfo, ...]:
    """The entries of a page whose first shard has that number, of so many in the split."""
    try:
        data = read_bounded(path, page.bytes)  # which the manifest can say of 16 MiB at most
    except FileNotFoundError:
        raise DataError("is missing; the manifest names it", source=path) from None
    if len(data) != page.bytes or _digest(data) != page.digest:
        raise DataError("is not what the manifest says it is: its size or its digest differs", source=path)
    fields = Fields(parse(data, path), path)
    fields.text("format", PAGE_FORMAT, f"{PAGE_FORMAT!r}")
    if len(fields.items("shards")) != page.shards:
        fields.refuse(f"are {len(fields.items('shards'))} where the manifest says {page.shards}", "shards")
    for number, entry in enumerate(fields.objects("shards"), first):
        check_entry(entry, split, compression)
        if entry.text("name") != (name := str(ShardName(split, number, of, compression))):
            entry.refuse(f"is not {name}, whose place it has", "name")
    found = tuple(info_of(entry) for entry in fields.items("shards"))
    if totals(found) != (page.records, page.shard_bytes):
        fields.refuse("hold other records or bytes than the manifest says", "shards")
    return found
