"""Values are held while they are among the last that were used."""

from recordmill.base.lru import LruLimit, LruSlot


def test_lru_limit_keeps_the_most_recently_used_values() -> None:
    limit, made = LruLimit(2), []
    slots: list[LruSlot[int]] = [LruSlot(limit) for _ in range(3)]

    def get(number: int) -> int:
        return slots[number].get(lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    assert [get(0), get(1), get(0), get(2), get(0), get(1)] == [0, 1, 0, 2, 0, 1]
    assert made == [0, 1, 2, 1]
    assert sorted(limit.values()) == [0, 1]
    assert not limit.has_room()
    slots.clear()  # what nobody has any more is not held
    assert limit.values() == []
    assert limit.has_room()
