"""Blocks of a CSV file that can't be cut (compressed, or in another encoding than UTF-8) to rows, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.sources.csv.fields import Rows, Tokenizer


def read_rows(
    tokenizer: Tokenizer, blocks: Iterator[Bytes], at: int, line: int, chunk_bytes: int
) -> Iterator[tuple[Bytes, Rows]]:
    """(buffer, rows in it) for all rows of the blocks, which make one file, from byte `at` on,
    which lies in the first `line`.

    At most chunk_bytes of rows at once; none if there are blank lines only. The buffer holds one row more than a block
    at most, and must be used before the next is asked for.
    """
    data: Bytes | None = np.empty(0, np.uint8)
    while data is not None and len(data) <= at:  # `at` may lie behind the first block
        at -= len(data)
        data = next(blocks, None)
    if data is None:
        return
    following = next(blocks, None)
    skipping = False
    while True:
        rows = tokenizer.read(
            data, at, min(at + chunk_bytes, len(data)), final=following is None, line=line, skipping=skipping
        )
        if rows.count or rows.blanks:
            yield data, rows
        stuck = rows.stop == at or rows.stop >= len(data)
        at, line, skipping = rows.stop, rows.line, rows.skipping
        if not stuck:
            continue
        if following is None:
            return
        data, at = np.concatenate([data[at:], following]), 0
        following = next(blocks, None)
