"""Calls every entry of the native library with arguments that hardly ever fit together.

    python tests/native/fuzz.py SECONDS [SEED [ENTRIES TO LEAVE OUT]]

An entry answers, or says that sizes do not fit (IndexError). Anything else ends the process: run it
on a library that was built with sanitizers, as `.ci/sanitize` does.
"""

import ctypes
import faulthandler
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.base import native
from recordmill.base.library import Header, NativeParameter, read_header
from recordmill.base.names import make_name_table

HEADER = Path(__file__).parents[2] / "native" / "recordmill.h"
DTYPES = {
    "uint8_t": "u1",
    "uint16_t": "u2",
    "uint32_t": "u4",
    "int32_t": "i4",
    "uint64_t": "u8",
    "int64_t": "i8",
    "float": "f4",
    "double": "f8",
}
NUMBERS = [
    -1,
    7,
    8,
    16,
    63,
    64,
    255,
    256,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
]
TEXTS = [
    b'{"a": [1, -2.5e3, null], "b": "x\\u00e9"}\n',
    b'a,"b ""c""",3.5\r\n',
    b"2024-01-02T03:04:05Z",
    b"\xff\xd8\xff",
]
RECORD = bytes.fromhex("0a0d0a0b0a016112061a040a02ac02")  # an Example of the feature a: 300
HUNG_SEC = 120


def number(size: int) -> int:
    """Returns a number that is a place in arrays of that size more often than not."""
    return random.randint(0, size) if random.random() < 0.8 else random.choice(NUMBERS)


def content(size: int, item_bytes: int) -> bytes:
    """Returns texts, zeros, ones, ascending or random numbers."""
    if item_bytes == 1 and random.random() < 0.7:
        return b"".join(random.choices(TEXTS, k=size // 8 + 1))[:size].ljust(size, b" ")
    way = random.randrange(5)
    if way == 0:
        return os.urandom(size * item_bytes)
    numbers = [way - 1 if way < 3 else at if way == 3 else number(size) for at in range(size)]
    return b"".join(
        (one & ((1 << 8 * item_bytes) - 1)).to_bytes(item_bytes, "little") for one in numbers
    )


def argument(parameter: NativeParameter, header: Header, size: int) -> Any:
    """Returns an argument of that type; arrays have about that size."""
    kind = header.number_type(parameter.kind)
    is_struct = kind in header.structs
    if kind == "Blocks":
        return [
            np.frombuffer(bytearray(content(size, 8)), np.uint8)
            for _ in range(random.choice((0, 1, 1, 5, 10)))
        ]
    if not parameter.is_array:
        if not is_struct:
            return random.gauss(0, 9) if kind in ("float", "double") else number(size)
        fields = {field.name: argument(field, header, size) for field in header.structs[kind]}
        return getattr(native, kind)(**fields)
    if random.random() < 0.03:
        return None
    dtype = np.dtype(getattr(native, kind)) if is_struct else np.dtype(DTYPES[kind])
    count = size if random.random() < 0.8 else max(0, size + random.choice((-1, 1, size, 3 * size)))
    item_bytes = (
        4
        if is_struct and header.structs[kind][0].kind == "int32_t"
        else 8
        if is_struct
        else dtype.itemsize
    )
    return np.frombuffer(
        bytearray(content(count * dtype.itemsize // item_bytes, item_bytes)), dtype
    )


def names_arguments() -> list[Any]:
    """Returns arguments of count_names that fit; at times a byte of the record or of the table is
    another.
    """
    table = make_name_table(2, 16)
    record, row = np.frombuffer(bytearray(RECORD), np.uint8), np.zeros(1, np.int64)
    for array in (record, table.view(np.uint8)):
        if random.random() < 0.5:
            array[random.randrange(len(array))] = random.randrange(256)
    counts, status = (
        np.zeros(3, np.dtype(native.NameCounts)),
        np.full(1, native.RecordStatus.UNREAD, np.uint8),
    )
    counts["last_row"] = -1
    return [record, row, row + len(record), 7, table, counts, status, row.copy()]


def main(seconds: float, seed: int) -> None:
    """Prints the number of calls, and which entries refused all of them."""
    header = read_header(HEADER.read_text(encoding="utf-8"))
    random.seed(seed)
    answered, calls, end = Counter[str](), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(HUNG_SEC, exit=True)
        for function in (f for f in header.functions if f.name not in sys.argv[3:]):
            size = random.choice((0, 1, 2, 3, 8, 17, 64, 200))
            calls += 1
            arguments = [argument(one, header, size) for one in function.parameters]
            if function.name == "count_names" and random.random() < 0.5:
                arguments = names_arguments()
            if (
                function.name == "scan_json" and random.random() < 0.5
            ):  # places in records, of which none is known
                arguments[1:3] = make_name_table(7, 64), np.full(8, -1, np.dtype(native.JsonNode))
            try:
                getattr(native, function.name)(*arguments)
                answered[function.name] += 1
            except (IndexError, ctypes.ArgumentError):
                pass
    faulthandler.cancel_dump_traceback_later()
    deaf = sorted({function.name for function in header.functions} - answered.keys())
    print(
        f"seed {seed}: {calls:,} calls, {sum(answered.values()):,} answered; refused always: {', '.join(deaf)}"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32))
