"""int64 values to packed varints, list by list: what the encoder makes of a feature that is a list of whole numbers.

Everything is an address, and nothing checks a bound (see `base.memory`).
"""

from __future__ import annotations

from recordmill.base.kernels import kernel
from recordmill.base.memory import item64, put_item64, put_varint, spread_varint, store64, varint_bytes

SCRATCH_BYTES = 1024  # what put_varints needs: 64 words and 64 lengths
OVERRUN_BYTES = 7  # behind the end that put_varints may write

_RUN = 64  # values that are looked at together
_FEW = 8  # values below which looking at them takes longer than it spares
_WORD_BITS = 56  # of a value whose varint is a word


@kernel
def varints_bytes(values: int, count: int) -> int:
    """The bytes of count int64 from an address as varints."""
    size = 0
    for i in range(count):
        size += varint_bytes(item64(values, i))
    return size


@kernel
def _all_bits(values: int, count: int) -> int:
    """The bits that are set in any of count int64."""
    bits = 0
    for i in range(count):
        bits |= item64(values, i)
    return bits


@kernel
def _spread_all(values: int, count: int, words: int, sizes: int) -> None:
    """Each number as the word and the length of its varint, in vector code."""
    for i in range(count):
        value = item64(values, i)
        length = varint_bytes(value)
        put_item64(words, i, spread_varint(value, length))
        put_item64(sizes, i, length)


@kernel
def put_varints(at: int, values: int, count: int, scratch: int) -> int:
    """Write count int64 from an address as varints and give the address behind them.
    Writes up to OVERRUN_BYTES behind the end.

    scratch: the address of SCRATCH_BYTES bytes. The largest number of a run decides how it goes: in words, or one by
    one.
    """
    while count >= _FEW:
        run = min(count, _RUN)
        bits = _all_bits(values, run)
        if bits >> _WORD_BITS == 0:
            _spread_all(values, run, scratch, scratch + 8 * _RUN)
            for i in range(run):
                store64(at, item64(scratch, i))
                at += item64(scratch + 8 * _RUN, i)
        else:
            for i in range(run):
                at = put_varint(at, item64(values, i))
        values += 8 * run
        count -= run
    for i in range(count):
        at = put_varint(at, item64(values, i))
    return at
