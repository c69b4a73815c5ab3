"""Blocks of a text end with complete lines."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.sources.common.lines import align_to_lines


def array(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(data, np.uint8).copy()


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"a", b"bb\r", b"cccccc", b"d" * 30]), max_size=10),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 35),
)
def test_blocks_are_aligned_to_lines(
    lines: list[bytes], has_final_newline: bool, block_bytes: int, max_line_bytes: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if has_final_newline else b"")
    pieces = [
        array(data[begin : begin + block_bytes]) for begin in range(0, len(data), block_bytes)
    ]
    result: list[bytes | int] = []
    for piece in align_to_lines(pieces, max_line_bytes):
        if piece.skipped_line_bytes:
            assert len(piece.data) == 0
            result.append(piece.skipped_line_bytes)
        else:
            text = piece.data.tobytes()
            result += text.removesuffix(b"\n").split(b"\n")
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert result == [len(line) if len(line) > max_line_bytes else line for line in expected]
