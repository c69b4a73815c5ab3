"""Hopping headers finds what reading everything finds, stops at what is damaged,
and shares a file out without overlap.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recordmill.base.errors import DataError
from recordmill.records.tfrecord import frames as module
from recordmill.records.tfrecord.frames import frame, hop
from recordmill.storage.files import Stat


def shard(sizes: list[int]) -> tuple[bytes, list[int]]:
    made = frame(np.zeros(sum(sizes), np.uint8), np.cumsum([0, *sizes]))
    return made.data.tobytes(), made.starts.tolist()


SIZES = [*[5, 0, 300, 17, 1, 1, 1, 40] * 8, 200_000, 150_000, 70_000, 3, 3, 100_000]
DATA, STARTS = shard(SIZES)


@pytest.fixture(params=[16, 100, 4096, 1 << 20])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "_WINDOW_BYTES", request.param)
    return int(request.param)


def found(path: Path, **options: object) -> list[int]:
    return [start for part in hop(str(path), **options) for start in part.tolist()]  # type: ignore[arg-type]


def test_every_record_is_found(tmp_path: Path, window: int) -> None:
    (tmp_path / "f").write_bytes(DATA)
    assert found(tmp_path / "f") == STARTS
    (tmp_path / "f").write_bytes(b"")
    assert found(tmp_path / "f") == []


def test_ranges(tmp_path: Path, window: int) -> None:
    (tmp_path / "f").write_bytes(DATA)
    for first in (0, 1, 30, 64, 65, 69):
        for stop in (STARTS[first], STARTS[first] + 1, STARTS[40] + 13, STARTS[66], STARTS[66] + 1, len(DATA), None):
            wanted = [start for start in STARTS[first:] if stop is None or start < stop]
            assert found(tmp_path / "f", start=STARTS[first], stop=stop, first_record=first) == wanted


def test_every_cut_is_an_error_at_its_record(tmp_path: Path, window: int) -> None:
    small, starts = shard([5, 0, 300, 17, 1])
    for cut in range(1, len(small)):
        (tmp_path / "f").write_bytes(small[:cut])
        if cut in starts:
            assert found(tmp_path / "f") == starts[: starts.index(cut)]
            continue
        number = sum(start < cut for start in starts) - 1
        with pytest.raises(DataError, match=f"^s: record {number}, byte {starts[number]}: truncated"):
            found(tmp_path / "f", source="s")


def test_every_damaged_header_is_an_error_at_its_record(tmp_path: Path) -> None:
    small, starts = shard([5, 0, 300, 17, 1])
    for number, start in enumerate(starts):
        for bit in range(96):
            damaged = bytearray(small)
            damaged[start + bit // 8] ^= 1 << bit % 8
            (tmp_path / "f").write_bytes(damaged)
            with pytest.raises(DataError, match=f"^s: record {7 + number}, byte {start}: CRC of the length"):
                found(tmp_path / "f", source="s", first_record=7)


def test_a_payload_is_not_looked_at_and_a_limit_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA[:20] + b"?" + DATA[21:])
    assert len(found(tmp_path / "f")) == len(SIZES)
    with pytest.raises(DataError, match=r"record 64, .* a length of 200000 bytes is above the limit of 199999"):
        found(tmp_path / "f", max_record_bytes=199_999)


def test_large_records_are_hopped_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, starts = shard([300_000] * 20)
    (tmp_path / "f").write_bytes(data)
    read: list[int] = []
    original = module.read_range

    def counting(path: str, start: int, stop: int) -> np.ndarray:
        got = original(path, start, stop)
        read.append(len(got))
        return got

    monkeypatch.setattr(module, "read_range", counting)
    assert found(tmp_path / "f") == starts
    assert sum(read) < (1 << 20) + 20 * 16


def test_a_file_that_shrinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Its size was asked before it was cut."""
    (tmp_path / "f").write_bytes(DATA)
    monkeypatch.setattr(module, "stat", lambda path: Stat(len(DATA), 0))
    for cut in (0, 5, STARTS[3], STARTS[-2] + 4):
        (tmp_path / "f").write_bytes(DATA[:cut])
        with pytest.raises(DataError, match=r"truncated|ends at byte"):
            found(tmp_path / "f")
