"""Types of what native/recordmill.h declares. Made by `python native/make_stub.py`; not edited by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CRC_TABLES: int
CRC_INSTRUCTION: int
CRC_FOLDING: int
GOOD: int
HEADER_CRC: int
FRAME_TOO_LONG: int
SHORT_HEADER: int
SHORT_PAYLOAD: int
PAYLOAD_CRC: int
MORE: int

class struct_frame_scan:
    at: int
    max_record_bytes: int
    final: int
    check: int
    code: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class struct_frame_hop:
    lead: int
    left: int
    max_record_bytes: int
    at: int
    code: int
    def __init__(self, *args: float, **fields: float) -> None: ...

def built_level() -> int: ...
def machine_level() -> int: ...
def crc32c(data: npt.NDArray[np.uint8 | np.bool_] | None, crc: int) -> int: ...
def crc32c_by(way: int, data: npt.NDArray[np.uint8 | np.bool_] | None) -> int: ...
def frame(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    offsets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def frame_fault(data: npt.NDArray[np.uint8 | np.bool_] | None, at: int, max_record_bytes: int, final: int) -> int: ...
def scan_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    scan: struct_frame_scan,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def hop_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    hop: struct_frame_hop,
    starts: npt.NDArray[np.int64] | None,
    digest: npt.NDArray[np.uint64] | None,
) -> int: ...
def digest_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    digest: npt.NDArray[np.uint64] | None,
) -> int: ...
def digest_word(digest: npt.NDArray[np.uint64] | None, word: int) -> int: ...
def next_frame(data: npt.NDArray[np.uint8 | np.bool_] | None, at: int, max_record_bytes: int, whole: int) -> int: ...
def copy_spans(
    blocks: Sequence[npt.NDArray[Any]],
    which: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    targets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def record_sum(keys: npt.NDArray[np.uint64] | None, crcs: npt.NDArray[np.uint32] | None) -> int: ...
def locate_entries(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    places: npt.NDArray[np.int64] | None,
    records: npt.NDArray[np.int64] | None,
    count: int,
    end: int,
    offsets: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
) -> int: ...
def walk_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    marks: npt.NDArray[np.int64] | None,
    stride: int,
    records: npt.NDArray[np.int64] | None,
    shifts: npt.NDArray[np.int64] | None,
    gaps: npt.NDArray[np.int64] | None,
    max_record_bytes: int,
    offsets: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
) -> int: ...
