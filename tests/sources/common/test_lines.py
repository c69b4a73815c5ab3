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
