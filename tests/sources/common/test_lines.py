"""Blocks of a text end with complete lines, and lines that cannot be decoded are found."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recordmill.base.utf8 import find_invalid_lines, find_invalid_utf8, is_utf8
from recordmill.sources.common.lines import align_to_lines


# Where lines begin and end, and where bytes are not UTF-8, against Python
def array(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(data, np.uint8).copy()


@settings(deadline=None)
@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode()))
@example(b"\xed\xa0\x80")  # a surrogate
@example(b"\xc0\x80")  # overlong
@example(b"\xf4\x90\x80\x80")  # beyond U+10FFFF
@example(b"\xe2\x82")  # cut
def test_utf8_check_equals_that_of_python(data: bytes) -> None:
    try:
        data.decode()
        expected = -1
    except UnicodeDecodeError as error:
        expected = error.start
    assert find_invalid_utf8(array(data)) == expected
    assert is_utf8(array(data)) == (expected < 0)


def test_every_undecodable_line_is_found() -> None:
    lines = [b"x" * (number % 5) + (b"\xff" if number % 2 else b"") for number in range(300)]
    starts, places = find_invalid_lines(array(b"\n".join(lines)))
    expected = np.cumsum([0, *(len(line) + 1 for line in lines)])[1:300:2]
    assert starts.tolist() == expected.tolist()
    assert places.tolist() == [
        start + number % 5
        for start, number in zip(expected.tolist(), range(1, 300, 2), strict=True)
    ]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"a", b"bb\r", b"cccccc", b"d" * 30]), max_size=10),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 35),
)
def test_blocks_are_aligned_to_lines(
    lines: list[bytes], final: bool, block: int, most: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if final else b"")
    pieces = [array(data[at : at + block]) for at in range(0, len(data), block)]
    found: list[bytes | int] = []
    for piece in align_to_lines(pieces, most):
        if piece.skipped_line_bytes:
            assert len(piece.data) == 0
            found.append(piece.skipped_line_bytes)
        else:
            text = piece.data.tobytes()
            found += text.removesuffix(b"\n").split(b"\n")
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert found == [len(line) if len(line) > most else line for line in expected]
