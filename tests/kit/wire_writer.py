"""Hand-made serialized Examples, in every form that protobuf allows and some invalid ones."""

import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

BYTES, FLOAT, INT64 = 1, 2, 3


def varint(value: int, pad: int = 0) -> bytes:
    """Returns the varint of a value mod 2^64, with `pad` unnecessary bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(pad):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def field(number: int, payload: bytes, pad: int = 0) -> bytes:
    """Returns a field of wire type LEN."""
    return varint(number << 3 | 2) + varint(len(payload), pad) + payload


def packed(kind: int, values: Sequence[int | float | bytes]) -> bytes:
    """Returns the list message of a kind, in the form that every writer uses."""
    if kind == BYTES:
        return b"".join(field(1, value) for value in values)  # type: ignore[arg-type]
    if not values:
        return b""
    return field(
        1,
        struct.pack(f"<{len(values)}f", *values)
        if kind == FLOAT
        else b"".join(varint(value) for value in values),
    )  # type: ignore[arg-type]


def feature(kind: int, values: Sequence[int | float | bytes]) -> bytes:
    return field(kind, packed(kind, values))


def entry(key: str | bytes, value: bytes) -> bytes:
    return field(1, field(1, key.encode() if isinstance(key, str) else key) + field(2, value))


def feature_list(
    key: str | bytes, kind: int, steps: Sequence[Sequence[int | float | bytes]]
) -> bytes:
    """Returns an entry of a SequenceExample's feature lists."""
    return entry(key, b"".join(field(1, feature(kind, step)) for step in steps))


def example(entries: Sequence[tuple[str, bytes]]) -> bytes:
    return field(1, b"".join(entry(key, value) for key, value in entries))


def serialize_row(row: Mapping[str, tuple[int, Sequence[Any]] | None]) -> bytes:
    """Returns an Example.

    Args:
        row: (kind, values) of each feature, or None for a Feature without a kind.
    """
    return example(
        [(name, b"" if values is None else feature(*values)) for name, values in row.items()]
    )


class Scribe:
    """Writer of random messages.

    Args:
        oddity: The probability that a step is done in an unusual way. With 0, all messages have the
            plain form.
    """

    def __init__(self, seed: int, oddity: float, kinds: dict[str, int]) -> None:
        self.random = random.Random(seed)
        self.oddity = oddity
        self.kinds = kinds

    def odd(self) -> bool:
        return self.random.random() < self.oddity

    def number(self) -> int:
        return self.random.choice(
            [
                0,
                1,
                5,
                127,
                128,
                300,
                1 << 20,
                1 << 35,
                (1 << 56) - 1,
                1 << 56,
                (1 << 63) - 1,
                -1,
                -(1 << 63),
                self.random.getrandbits(self.random.randint(1, 64)),
            ]
        )

    def pad(self) -> int:
        return self.random.choice([1, 2, 4, 5, 8, 9]) if self.odd() else 0

    def field(self, number: int, payload: bytes) -> bytes:
        return field(number, payload, self.pad())

    def unknown(self, depth: int = 0) -> bytes:
        pick = self.random
        number = (
            pick.choice([1, 2, 3, 4, 7, 15, 16, 2047, (1 << 29) - 1]) if pick.random() < 0.9 else 0
        )
        wire = pick.choice(
            [0, 0, 1, 2, 3, 5, 5, 6 if pick.random() < 0.1 else 0, 4 if pick.random() < 0.1 else 3]
        )
        if number <= 3 and wire == 2:
            number = 9
        head = varint(number << 3 | wire, self.pad() % 3)
        if wire == 0:
            return head + varint(self.number(), self.pad() % 2)
        if wire == 2:
            return head + varint(3, self.pad()) + b"abc"
        if wire == 3:
            inside = (
                b"".join(self.unknown(depth + 1) for _ in range(pick.randint(0, 2)))
                if depth < 4
                else b""
            )
            return head + inside + varint((number if pick.random() < 0.95 else 5) << 3 | 4)
        return head + bytes(pick.randrange(256) for _ in range({1: 8, 5: 4}.get(wire, 0)))

    def maybe_unknown(self) -> bytes:
        return self.unknown() if self.random.random() < self.oddity / 3 else b""

    def values(self, kind: int) -> list[int | float | bytes]:
        count = self.random.choice([0, 1, 1, 1, 1, 2, 3, 4, 9, 40])
        if kind == BYTES:
            return [
                self.random.choice(
                    [b"", b"a", b"text", "größe".encode(), b"\xff\xfe", bytes(20), b"x" * 200]
                )
                for _ in range(count)
            ]
        if kind == FLOAT:
            return [
                struct.unpack(
                    "<f",
                    struct.pack(
                        "<I",
                        self.random.choice(
                            [0, 0x3F800000, 0x7F800000, self.random.getrandbits(31)]
                        ),
                    ),
                )[0]
                for _ in range(count)
            ]
        return [self.number() for _ in range(count)]

    def list(self, kind: int) -> bytes:
        values = self.values(kind)
        if not self.odd():
            return packed(kind, values)
        out = self.maybe_unknown()
        while values:
            take, values = values[: (n := self.random.randint(1, 3))], values[n:]
            if kind == BYTES:
                out += b"".join(self.field(1, value) for value in take)  # type: ignore[arg-type]
            elif self.odd():
                out += b"".join(
                    b"\x0d" + struct.pack("<f", v)
                    if kind == FLOAT
                    else b"\x08" + varint(v, self.pad() % 2)
                    for v in take
                )  # type: ignore[arg-type]
            else:
                out += self.field(
                    1, b"".join(struct.pack("<f", v) if kind == FLOAT else varint(v) for v in take)
                )  # type: ignore[arg-type]
            out += self.maybe_unknown()
        return out

    def feature(self, kind: int) -> bytes:
        if self.random.random() < 0.03:
            return b""
        out = self.maybe_unknown()
        for _ in range(self.random.randint(1, 3) if self.odd() else 1):
            out += (
                self.field(
                    self.random.choice([BYTES, FLOAT, INT64]) if self.odd() else kind,
                    self.list(kind),
                )
                + self.maybe_unknown()
            )
            if self.odd():
                out += self.field(kind, self.list(kind))
        return out

    def feature_list(self, kind: int) -> bytes:
        return b"".join(
            self.field(1, self.feature(kind)) + self.maybe_unknown()
            for _ in range(self.random.randint(0, 4))
        )

    def entry(self, steps: bool) -> bytes:
        key = self.random.choice(list(self.kinds))
        write = self.feature_list if steps else self.feature
        parts = (
            [self.field(1, key.encode())]
            if not self.odd()
            else [
                self.field(1, self.random.choice([key.encode(), b"other", "ü".encode(), b"\xc3"]))
            ]
        )
        parts.append(self.field(2, write(self.kinds[key])))
        if self.odd():
            parts.append(self.field(2, write(self.kinds[key])))
        if self.odd():
            parts.append(self.maybe_unknown())
        if self.odd():
            self.random.shuffle(parts)
        if self.odd():
            parts.pop()
        return b"".join(parts)

    def features(self, steps: bool = False) -> bytes:
        return b"".join(
            self.field(1, self.entry(steps)) + self.maybe_unknown()
            for _ in range(self.random.randint(0, 2 * len(self.kinds)))
        )

    def message(self, sequence: bool) -> bytes:
        out = self.maybe_unknown()
        for _ in range(self.random.randint(0, 2) if self.odd() else 1):
            out += self.field(1, self.features()) + self.maybe_unknown()
            if sequence:
                out += self.field(2, self.features(steps=True))
        return out

    def mutate(self, data: bytes) -> bytes:
        """Returns `data` after a few bytes were changed, removed, repeated or inserted."""
        out = bytearray(data)
        for _ in range(self.random.randint(1, 3)):
            position = self.random.randrange(len(out) + 1)
            change = self.random.randrange(5)
            if change == 0 and position < len(out):
                out[position] ^= 1 << self.random.randrange(8)
            elif change == 1:
                del out[position : position + self.random.randint(1, 4)]
            elif change == 2:
                out[position:position] = bytes(
                    [
                        self.random.choice(
                            [0, 1, 0x0A, 0x12, 0x1A, 0x7F, 0x80, 0xFF, self.random.randrange(256)]
                        )
                    ]
                )
            elif change == 3:
                out[position:position] = out[position : position + 8]
            elif position < len(out):
                out[position] = self.random.randrange(256)
        return bytes(out)
