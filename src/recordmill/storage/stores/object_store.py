"""`Bucket`: a `Connection` to a bucket, or to a web server, by obstore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recordmill.storage.stores.protocol import Answer, ObjectInfo, ObjectWriter

LIST_PAGE_OBJECTS = 1000  # objects that a store lists in an answer


class Bucket:
    """See `Connection`; store: obstore's."""

    most_named_bytes: int | None = 5 << 30  # 5 GiB: what stores copy by one request

    def __init__(self, store: Any) -> None:
        self._store = store

    def head(self, key: str) -> ObjectInfo:
        import obstore

        return obstore.head(self._store, key)

    def try_range(self, key: str) -> None:
        import obstore

        obstore.get_range(self._store, key, start=0, end=1)

    def get(self, key: str, span: tuple[int, int] | None = None) -> Answer:
        import obstore

        return obstore.get(self._store, key, options=None if span is None else {"range": span})

    def pages(self, key: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        import obstore

        return obstore.list(self._store, key or None, offset=after or None, chunk_size=LIST_PAGE_OBJECTS)

    def names(self, key: str) -> list[str]:
        import obstore

        found = obstore.list_with_delimiter(self._store, key or None)
        return [*found["common_prefixes"], *(about["path"] for about in found["objects"])]

    def put(self, key: str, data: bytes) -> None:
        import obstore

        obstore.put(self._store, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def upload(self, key: str, data: str | Iterator[bytes], part_bytes: int, at_once: int) -> None:
        import obstore

        source = Path(data) if isinstance(data, str) else data
        obstore.put(self._store, key, source, chunk_size=part_bytes, max_concurrency=at_once)

    def delete(self, keys: Sequence[str], root: str) -> None:
        import obstore

        obstore.delete(self._store, list(keys))

    def name(self, key: str, new: str) -> None:
        import obstore

        obstore.copy(self._store, key, new)

    def writer(self, key: str, part_bytes: int) -> ObjectWriter:
        import obstore

        return obstore.open_writer(self._store, key, buffer_size=part_bytes)
