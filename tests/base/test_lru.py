"""A limited number of values is kept: the most recently used ones."""

from recordmill.base.lru import LruLimit, LruSlot


def test_lru_limit_keeps_the_most_recently_used_values() -> None:
    limit, made_values = LruLimit(2), []
    slots: list[LruSlot[int]] = [LruSlot(limit) for _ in range(3)]

    def get(number: int) -> int:
        return slots[number].get(lambda: made_values.append(number) or number)  # type: ignore[func-returns-value]

    assert [get(0), get(1), get(0), get(2), get(0), get(1)] == [0, 1, 0, 2, 0, 1]
    assert made_values == [0, 1, 2, 1]
    assert sorted(limit.values()) == [0, 1]
    assert not limit.has_room()
    slots.clear()  # values of removed slots no longer count
    assert limit.values() == []
    assert limit.has_room()
