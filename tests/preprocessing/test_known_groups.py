"""The files of an analysis cache: whole or not at all, and of one context."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recordmill.preprocessing import analysis_cache
from recordmill.preprocessing.analysis_cache import (
    CachedGroup,
    choose_groups,
    find_groups,
    framed,
    group_name,
    write_group,
)

CONTEXT, OTHER = "ab" * 32, "cd" * 32
MEMBERS = tuple(bytes([number]) * 32 for number in range(5))
WORDS = b"__v1__3.11_VocabularyAccumulate[vocabulary]-\x00hash"
ENTRIES = {b"mean": [b"[1.0, 2.0]"], WORDS: [b"word %d" % number for number in range(1000)], b"none": []}


def write(folder: Path, members: tuple[bytes, ...] = MEMBERS, context: str = CONTEXT) -> Path:
    parts: dict[bytes, list[str]] = {}
    for number, (key, elements) in enumerate(ENTRIES.items()):
        parts[key] = []
        for half in (elements[: len(elements) // 2], elements[len(elements) // 2 :]):
            part = folder.parent / f"part-{number}-{len(parts[key])}"
            part.write_bytes(b"".join(map(framed, half)))
            parts[key].append(str(part))
    write_group(str(folder), context, members, parts)
    return folder / group_name(context, members)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def find(cache: Path, context: str = CONTEXT) -> tuple[list[CachedGroup], int]:
    into = cache.parent / f"into-{len(list(cache.parent.iterdir()))}"
    into.mkdir()
    return find_groups(str(cache), context, str(into))


def test_what_was_written_is_found(cache: Path) -> None:
    path = write(cache, MEMBERS[::-1])
    before = path.read_bytes()
    (group,), damaged = find(cache)
    assert (group.members, damaged) == (MEMBERS, 0)
    assert {key: list(group.elements(key)) for key in group.entries} == ENTRIES
    assert write(cache) == path  # once more, by another that found the same
    assert path.read_bytes() == before
    assert os.listdir(cache) == [path.name]


def test_what_belongs_to_another_transform_or_is_no_group_is_passed_over(cache: Path) -> None:
    write(cache, context=OTHER)
    (cache / "notes.txt").write_text("mine")
    (cache / f"{CONTEXT[:32]}-unfinished.tmp").write_text("")
    assert find(cache) == ([], 0)


def test_each_byte_of_a_group_counts(cache: Path) -> None:
    path = write(cache)
    whole = path.read_bytes()
    for place in (0, 30, 60, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert find(cache) == ([], 1), place
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert find(cache) == ([], 1), size
    path.write_bytes(whole + b"\0")
    assert find(cache) == ([], 1)


def test_a_group_under_another_name_or_behind_a_link_is_not_believed(cache: Path) -> None:
    path = write(cache)
    path.rename(cache / group_name(CONTEXT, MEMBERS[:2]))
    assert find(cache) == ([], 1)
    (cache / group_name(CONTEXT, MEMBERS[:2])).rename(cache.parent / "away")
    path.symlink_to(cache.parent / "away")
    assert find(cache) == ([], 1)
    path.unlink()
    write(cache, context=OTHER).rename(path)
    assert find(cache) == ([], 1)


def test_a_file_that_takes_no_room_is_not_copied(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(cache)
    whole = path.read_bytes()
    for content in (b"", whole, b"recordmill known group 2\n" + bytes(8)):
        path.write_bytes(content)
        os.truncate(path, 50 << 30)
        monkeypatch.setattr(analysis_cache, "create_file", lambda path: pytest.fail("copied"))
        assert find(cache) == ([], 1)


def test_no_element_is_larger_than_can_be_held(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cache)
    monkeypatch.setattr(analysis_cache, "_MOST_ELEMENT", len(b"word 999") - 1)
    assert find(cache) == ([], 1)
    monkeypatch.setattr(analysis_cache, "_MOST_ELEMENT", len(b"[1.0, 2.0]"))
    assert find(cache)[1] == 0


def test_groups_are_taken_whole_each_file_once_the_largest_first() -> None:
    def group(name: str, *members: int, entries: tuple[bytes, ...] = (b"mean",)) -> CachedGroup:
        return CachedGroup(name, tuple(MEMBERS[number] for number in members), dict.fromkeys(entries, (0, 0)))

    large, small, changed, twice = group("a", 0, 1, 2), group("b", 3), group("c", 3, 4), group("d", 0, 0)
    here = list(MEMBERS[:4])
    assert choose_groups([small, changed, large, twice], here) == [large, small]
    assert choose_groups([twice], here) == []
    assert choose_groups([twice, small], [*here, MEMBERS[0]]) == [twice, small]
    assert choose_groups([large, group("e", 3, entries=(b"other",))], here) == [large]
