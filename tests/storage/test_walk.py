"""Folders on a disk and in a store are walked alike."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.storage.files import stat
from recordmill.storage.walk import IgnoredFiles, walk_disk, walk_store

# The walk of a store against that of a disk
PARTS = ["a", "b.csv", "c.txt", ".hid", "_SUCCESS", "d~", "e[1]", "x.CSV"]
PATTERNS = [
    "*",
    "*.csv",
    "**",
    "**/*.csv",
    "a/*",
    "a/**/b.csv",
    "*/**",
    ".*",
    ".hid/*",
    "?",
    "[a-c]*",
    "**/.hid",
    "*/*/*",
]
names_of_walk = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)


@settings(max_examples=75, deadline=None)
@given(
    files=st.lists(st.tuples(names_of_walk, st.integers(0, 1)), max_size=12),
    pattern=st.sampled_from([None, *PATTERNS]),
)
def test_disk_and_store_listings_agree(files: list[tuple[str, int]], pattern: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        made = {}
        for name, size in files:
            path = Path(folder, name)
            if not path.exists() and not any(above.is_file() for above in path.parents):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x" * size)
                made[name] = stat(str(path))
        patched.setattr("recordmill.storage.walk.iter_object_stats", lambda _: iter(made.items()))
        near, far = IgnoredFiles({"csv"}), IgnoredFiles({"csv"})
        here = {one.name for one in walk_disk(folder, pattern, False, near)}
        found = list(walk_store("s3://bucket/in", pattern, far))
        assert sorted(one.name for one in found) == sorted(here)
        assert all(one.path == f"s3://bucket/in/{one.name}" for one in found)
        assert far.notes() == near.notes()
