"""A repeated upload succeeds, and an object too large to copy is an error."""

import pytest
from kit.store_server import BUCKET, Store, azure_server, s3_server

from recordmill.storage.stores import uploads

STORES = (s3_server, azure_server)


def test_repeated_put_of_the_same_content_succeeds(store: Store, out: str) -> None:
    assert uploads.put_object_if_absent(f"{out}/m", b"one")
    assert uploads.put_object_if_absent(f"{out}/m", b"one")
    assert not uploads.put_object_if_absent(f"{out}/m", b"other")
    assert store.objects(out) == {"m": b"one"}


def test_object_too_large_to_copy_is_an_error(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{out.partition(f'{BUCKET}/')[2]}/old", b"x" * 1001)
    monkeypatch.setattr(uploads, "MAX_COPY_BYTES", 1000)
    with pytest.raises(OSError, match="make smaller shards"):
        uploads.copy_object(f"{out}/old", f"{out}/new", 1001)
