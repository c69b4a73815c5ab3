"""Invalid UTF-8 is found at the same byte as by Python.

This also holds for a search line by line.
"""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from recordmill.base.buffers import Bytes
from recordmill.base.utf8 import find_invalid_lines, find_invalid_utf8, is_utf8, split_lines


def array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8).copy()


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


@given(st.lists(st.sampled_from([b"", b"a", b"\r", b"a\r\r", b"\xff"]), max_size=6), st.booleans())
def test_lines_end_at_lf_or_crlf(lines: list[bytes], has_final_break: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if has_final_break else b"")
    starts, stops = split_lines(array(data))
    expected = data.split(b"\n")
    ends_with_break = expected[-1] == b""
    expected = [line.removesuffix(b"\r") for line in expected[:-1]] + (
        [] if ends_with_break else expected[-1:]
    )
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    assert [data[start:stop] for start, stop in pairs] == expected
