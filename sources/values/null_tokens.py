"""The texts that stand for a null, as bytes that kernels compare with a field."""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.byte_masks import Bytes
from recordmill.base.kernels import kernel


class NullTokens(NamedTuple):
    """data[ends[i - 1]:ends[i]] is token i; longest: the length of the longest, -1 if there are none."""

    data: Bytes
    ends: npt.NDArray[np.int64]
    longest: int

    @classmethod
    def of(cls, tokens: Sequence[str]) -> NullTokens:
        encoded = [token.encode() for token in tokens]
        data = np.frombuffer(bytearray(b"".join(encoded) or b"\0"), np.uint8)
        return cls(
            data,
            np.cumsum([len(token) for token in encoded], dtype=np.int64),
            max((len(token) for token in encoded), default=-1),
        )


@kernel
def null_index(data: Bytes, start: int, size: int, tokens: NullTokens) -> int:
    """Which token the field is; -1 if it is a value."""
    if size > tokens.longest:
        return -1
    first = 0
    for index in range(len(tokens.ends)):
        stop = tokens.ends[index]
        if stop - first == size:
            same = True
            for at in range(size):
                if data[start + at] != tokens.data[first + at]:
                    same = False
                    break
            if same:
                return index
        first = stop
    return -1
