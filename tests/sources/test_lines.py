"""Where lines begin and end, and where bytes are no UTF-8, against Python."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from source_reading import input_files

from recordmill.base.utf8 import bad_lines, find_bad_utf8, is_utf8
from recordmill.sources.common import lines
from recordmill.sources.common.encoding import is_plain
from recordmill.sources.common.lines import LineStarts, cut_regions, file_lines, stream_lines, whole_lines
from recordmill.storage.files import Bytes, read_range


def array(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(data, np.uint8).copy()


@settings(deadline=None)
@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode()))
@example(b"\xed\xa0\x80")  # a surrogate
@example(b"\xc0\x80")  # overlong
@example(b"\xf4\x90\x80\x80")  # beyond U+10FFFF
@example(b"\xe2\x82")  # cut
def test_utf8_is_what_python_decodes(data: bytes) -> None:
    try:
        data.decode()
        expected = -1
    except UnicodeDecodeError as error:
        expected = error.start
    assert find_bad_utf8(array(data)) == expected
    assert is_utf8(array(data)) == (expected < 0)


def test_bad_lines_are_found_however_many() -> None:
    lines = [b"x" * (number % 5) + (b"\xff" if number % 2 else b"") for number in range(300)]
    starts, places = bad_lines(array(b"\n".join(lines)))
    expected = np.cumsum([0, *(len(line) + 1 for line in lines)])[1:300:2]
    assert starts.tolist() == expected.tolist()
    assert places.tolist() == [
        start + number % 5 for start, number in zip(expected.tolist(), range(1, 300, 2), strict=True)
    ]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"a", b"bb\r", b"cccccc", b"d" * 30]), max_size=10),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 35),
)
def test_blocks_of_whole_lines(lines: list[bytes], final: bool, block: int, most: int) -> None:
    """Every line once, in order; exactly those longer than the limit set apart, wherever blocks end."""
    data = b"\n".join(lines) + (b"\n" if final else b"")
    pieces = [array(data[at : at + block]) for at in range(0, len(data), block)]
    found: list[bytes | int] = []
    for piece in whole_lines(pieces, most):
        if piece.too_long_bytes:
            assert len(piece.data) == 0
            found.append(piece.too_long_bytes)
        else:
            text = piece.data.tobytes()
            found += text.removesuffix(b"\n").split(b"\n")
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert found == [len(line) if len(line) > most else line for line in expected]


def test_regions_begin_at_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = b"".join(b"x" * (number * 7 % 50) + b"\n" for number in range(2000)) + b"end"
    path.write_bytes(data)
    file = input_files(path)[0]
    for region in (1, 17, 1000, 40_000, 10**6):
        starts = LineStarts(file)
        bounds = [*[starts.at(start) for start, _ in cut_regions(len(data), region)][:200], len(data)]
        assert all(at == 0 or at == len(data) or data[at - 1] == 10 for at in bounds)
        got = b"".join(
            block.data.tobytes() for a, b in itertools.pairwise(bounds) for block in file_lines(file, a, b, 100)
        )
        assert got == data
    assert b"".join(block.data.tobytes() for block in stream_lines(file, "utf-8", 100)) == data


def test_a_mark_of_utf8_is_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("x\n".encode("utf-16"))
    assert not is_plain(input_files(path)[0], "utf-8")
    path.write_bytes(b"\xef\xbb\xbfx\n")
    assert is_plain(input_files(path)[0], "utf-8")
    assert b"".join(block.data.tobytes() for block in file_lines(input_files(path)[0], 0, 5, 100)) == b"x\n"


def test_a_file_without_line_feeds_is_read_once_for_all_its_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + b"y" * 100_000)
    starts, reads = LineStarts(input_files(path)[0]), []

    def counted(*args: int) -> Bytes:
        reads.append(len(block := read_range(*args)))  # type: ignore[arg-type]
        return block

    monkeypatch.setattr(lines, "read_range", counted)
    bounds = [starts.at(start) for start, _ in cut_regions(3_100_001, 50_000)]
    assert bounds == [0, *[3_000_001] * 60, 3_100_001, 3_100_001][: len(bounds)]
    assert sum(reads) < 4_000_000
