"""Calls every entry, which is a function of the native library, with damaged arguments.

    python tests/native/fuzz.py SECONDS [SEED [ENTRIES TO LEAVE OUT]]

The arguments come from real calls, which a small build, read and training make first. One to three
of their values are changed. A quarter of the calls has arbitrary arguments instead, which hardly
ever fit together.

An entry returns normally, or reports that sizes do not fit (IndexError). Any other result ends the
process. Run it on a library that was built with sanitizers, as `.ci/sanitize` does.
"""

import contextlib
import ctypes
import faulthandler
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.base import native
from recordmill.base.library import Header, NativeFunction, NativeParameter, read_header
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
ROUNDS_PER_WATCH = 100  # a new watch for hanging calls costs as much as many calls
RNG = np.random.default_rng()
# Examples of real calls that are kept for each native function. Calls with larger arguments are
# skipped, because copying them is slow.
MAX_EXAMPLES, MAX_EXAMPLE_BYTES = 60, 1 << 16

# The arguments of a call. A struct is a dict of its fields.
Arguments = list[Any]


def number(size: int) -> int:
    """Returns a number that is usually a valid offset in arrays of this size."""
    return random.randint(0, size) if random.random() < 0.8 else random.choice(NUMBERS)


def content(size: int, item_bytes: int) -> Any:
    """Returns the bytes of `size` items: texts, zeros, ones, or ascending or random integers."""
    if item_bytes == 1 and random.random() < 0.7:
        text = b"".join(random.choices(TEXTS, k=size // 8 + 1))[:size].ljust(size, b" ")
        return np.frombuffer(bytearray(text), np.uint8)
    way = random.randrange(5)
    if way == 0:
        return np.frombuffer(bytearray(os.urandom(size * item_bytes)), np.uint8)
    if way < 3:
        integers = np.full(size, way - 1, np.int64)
    elif way == 3:
        integers = np.arange(size, dtype=np.int64)
    else:  # the same distribution as `number`
        integers = RNG.integers(0, size, size, endpoint=True)
        is_limit = RNG.random(size) >= 0.8
        integers[is_limit] = RNG.choice(np.array(NUMBERS), int(is_limit.sum()))
    return integers.astype(f"<i{item_bytes}").view(np.uint8)


def arbitrary_argument(parameter: NativeParameter, header: Header, size: int) -> Any:
    """Returns a random argument of a parameter's type. Arrays have about `size` items."""
    kind = header.number_type(parameter.kind)
    is_struct = kind in header.structs
    if kind == "Blocks":
        return [content(size, 8) for _ in range(random.choice((0, 1, 1, 5, 10)))]
    if not parameter.is_array:
        if not is_struct:
            return random.gauss(0, 9) if kind in ("float", "double") else number(size)
        return {
            field.name: arbitrary_argument(field, header, size) for field in header.structs[kind]
        }
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
    return content(count * dtype.itemsize // item_bytes, item_bytes).view(dtype)


def names_arguments(header: Header) -> Arguments:
    """Returns valid arguments of count_names.

    Its real calls are not recorded, because their tables are too large.
    """
    table, counts = make_name_table(2, 16), np.zeros(3, np.dtype(native.NameCounts))
    counts["last_row"] = -1
    record, row = np.frombuffer(bytearray(RECORD), np.uint8), np.zeros(1, np.int64)
    status = np.full(1, native.RecordStatus.UNREAD, np.uint8)
    return [record, row, row + len(record), 7, table, counts, status, row.copy()]


def json_arguments(header: Header) -> Arguments:
    """Returns arbitrary arguments of scan_json, except for a valid table of names and its nodes."""
    (function,) = (entry for entry in header.functions if entry.name == "scan_json")
    arguments = [arbitrary_argument(parameter, header, 200) for parameter in function.parameters]
    arguments[1:3] = make_name_table(7, 64), np.full(8, -1, np.dtype(native.JsonNode))
    return arguments


# Functions that make the arguments, for entries with real calls above MAX_EXAMPLE_BYTES.
EXAMPLES = {"count_names": names_arguments, "scan_json": json_arguments}


class Recorder:
    """Examples of the arguments of real calls, by entry."""

    def __init__(self, header: Header) -> None:
        self.examples: dict[str, list[Arguments]] = defaultdict(list)
        self._header, self._calls = header, Counter[str]()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records the calls in the `with` block."""
        originals = {entry.name: getattr(native, entry.name) for entry in self._header.functions}
        for function in self._header.functions:
            setattr(native, function.name, self._wrap(function, originals[function.name]))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(native, name, original)

    def _wrap(self, function: NativeFunction, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._record(function, arguments)
            return original(*arguments)

        return call

    def _record(self, function: NativeFunction, arguments: tuple[Any, ...]) -> None:
        """Keeps a random sample of the small calls of each entry."""
        if sum(map(size_bytes, arguments)) > MAX_EXAMPLE_BYTES:
            return
        self._calls[function.name] += 1
        examples = self.examples[function.name]
        example = [copy_argument(self._as_dict(argument)) for argument in arguments]
        if len(examples) < MAX_EXAMPLES:
            examples.append(example)
        elif (place := random.randrange(self._calls[function.name])) < MAX_EXAMPLES:
            examples[place] = example

    def _as_dict(self, argument: Any) -> Any:
        fields = self._header.structs.get(type(argument).__name__)
        if fields is None or isinstance(argument, np.ndarray):
            return argument
        arrays = getattr(argument, "_arrays", {})
        return {
            field.name: arrays.get(field.name)
            if field.is_array
            else self._as_dict(getattr(argument, field.name))
            for field in fields
        }


def size_bytes(argument: Any) -> int:
    """Returns the size of all arrays of an argument."""
    if isinstance(argument, ctypes.Structure):
        return size_bytes(list(getattr(argument, "_arrays", {}).values()))
    if isinstance(argument, list | tuple):
        return sum(map(size_bytes, argument))
    return argument.nbytes if isinstance(argument, np.ndarray) else 0


def copy_argument(argument: Any) -> Any:
    """Returns an argument with copies of its arrays. An entry may write to them."""
    if isinstance(argument, dict):
        return {name: copy_argument(value) for name, value in argument.items()}
    if isinstance(argument, list | tuple):
        return [copy_argument(value) for value in argument]
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def damage_argument(argument: Any, parameter: NativeParameter, header: Header) -> Any:
    """Returns an argument with one change.

    Arrays are changed in place, or get another length.
    """
    if argument is None or random.random() < 0.05:
        return arbitrary_argument(parameter, header, random.choice((0, 1, 3, 17, 200)))
    if isinstance(argument, dict):
        field = random.choice(header.structs[parameter.kind])
        return {**argument, field.name: damage_argument(argument[field.name], field, header)}
    if isinstance(argument, list):
        place = random.randrange(len(argument) + 1)
        block = argument[place] if place < len(argument) else np.zeros(9, np.uint8)
        return [*argument[:place], *random.choice([[], [block, block], [damage_array(block)]])]
    if isinstance(argument, np.ndarray):
        return damage_array(argument)
    if isinstance(argument, float):
        return random.choice((0.0, -argument, argument * 2, random.gauss(0, 9), 1e300, np.nan))
    return random.choice((argument - 1, argument + 1, 0, argument * 2 % (1 << 63), number(64)))


def damage_array(array: Any) -> Any:
    """Returns an array of another length, or changes some of its items or bytes."""
    way = random.randrange(6) if array.size else 1
    if way == 0:
        return array[: random.randrange(len(array))].copy()
    if way == 1:
        return np.resize(array, len(array) + random.choice((1, 1, 8, 100)))
    data = array.reshape(-1).view(np.uint8)
    item_bytes = array.itemsize if array.dtype.fields is None else 8
    for _ in range(random.choice((1, 1, 1, 3, 10))):
        place = random.randrange(len(data))
        if way == 2:
            data[place] = random.randrange(256)
        elif way == 3:
            data[place] ^= 1 << random.randrange(8)
        elif way == 4:  # one item is replaced by another one
            begin, source = (
                offset // item_bytes * item_bytes for offset in (place, random.randrange(len(data)))
            )
            data[begin : begin + item_bytes] = data[source : source + item_bytes].copy()
        else:  # one item is replaced by a number up to the size of the array, or by a limit
            begin = place // item_bytes * item_bytes
            item = number(len(array)) & ((1 << 8 * item_bytes) - 1)
            data[begin : begin + item_bytes] = np.frombuffer(
                item.to_bytes(item_bytes, "little"), np.uint8
            )
    return array


def call(function: NativeFunction, arguments: Arguments) -> bool:
    """Calls an entry. Returns whether it returned normally."""
    converted = [
        getattr(native, parameter.kind)(**argument) if isinstance(argument, dict) else argument
        for parameter, argument in zip(function.parameters, arguments, strict=True)
    ]
    try:
        getattr(native, function.name)(*converted)
    except (IndexError, ctypes.ArgumentError):
        return False
    return True


def exercise(folder: Path) -> None:
    """Makes small builds, reads and training epochs, which call all entries."""
    import pyarrow as pa
    from PIL import Image

    import recordmill

    rng = np.random.default_rng(0)
    rows = {
        "id": np.arange(300),
        "x": rng.normal(0, 1e3, 300),
        "text": ["é" * (number % 9) + f'"{number}", b' for number in range(300)],
        "maybe": [None if number % 7 == 0 else number * 0.5 for number in range(300)],
        "flags": [[True, False][: number % 3] for number in range(300)],
        "names": [["a", "bb"][: number % 3] for number in range(300)],
    }
    for dtype in ("uint8", "int64", "float32", "float64"):
        vectors = (rng.normal(0, 50, 900)).astype(dtype)
        rows[dtype] = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 3)
    sources: dict[str, Any] = {"memory": pa.table(rows)}
    lines = [
        json.dumps(
            {
                "id": number,
                "a": {"b": [number, -2.5e3], "c": "x\u00e9\\" * (number % 4)},
                "d": None if number % 5 == 0 else number / 3,
            }
        )
        for number in range(200)
    ]
    times = "".join(
        f'{number},{number / 7:.5f},"say ""{number}""",2024-01-{number % 28 + 1:02}T03:04:05Z,{number % 3 == 0}\n'
        for number in range(200)
    )
    texts = {
        "table.csv": "id,share,said,when,is\n" + times,
        "lines.jsonl": "\n".join(lines),
        "document.json": f'{{"head": {{"n": 2}}, "rows": [{", ".join(lines)}]}}',
        "lines.txt": "\n".join(TEXTS[2].decode() * (number % 3) for number in range(100)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        sources[name] = folder / name
    for number in range(12):
        photo = folder / "photos" / "ab"[number % 2] / f"{number}.{('jpg', 'png')[number // 6]}"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9 + number, 12, 3), np.uint8)).save(photo)
    sources["photos"] = folder / "photos"
    options: dict[str, dict[str, Any]] = {
        "document.json": {"record_path": "rows"},
        "photos": {"resize": "8x8"},
        "memory": {
            "compression": "gzip",
            "num_shards": 3,
            "splits": "train=0.5,test=0.5",
            "key": "text",
        },
    }
    for name, source in sources.items():
        out = folder / f"set-{name}"
        recordmill.build(source, out, **options.get(name, {}))
        (shard, *_) = sorted(out.glob("data-*/*.tfrecord*"))
        foreign = folder / f"foreign-{name}{shard.suffix if shard.suffix == '.gz' else ''}"
        foreign.write_bytes(shard.read_bytes())
        for inputs in (out, foreign):
            dataset = recordmill.open(inputs)
            for shuffle in ("window", "global"):
                for _ in dataset.batches(16, shuffle=shuffle):
                    pass
            if name == "memory":
                for _ in dataset.select(["flags"]).batches(4, collate=recordmill.Packed(9)):
                    pass
            dataset[3], dataset.take([5, 1, 1]), dataset.to_table()
            recordmill.read(inputs, folder / f"read-{inputs.name}", to="parquet")
            recordmill.stats(inputs, recount=inputs == out)
        recordmill.verify(out)
        (folder / "damaged.tfrecord").write_bytes(shard.read_bytes()[:-3])
        recordmill.read(folder / "damaged.tfrecord", folder / f"damaged-{name}", max_rejects="100%")
        recordmill.check(out)
        recordmill.build(foreign, folder / f"copied-{name}")


def main(seconds: float, seed: int) -> None:
    """Prints the number of calls, and the entries that were hardly tested.

    These are entries without an example, and entries that refused all calls.
    """
    header = read_header(HEADER.read_text(encoding="utf-8"))
    global RNG
    random.seed(seed)
    RNG = np.random.default_rng(seed)
    recorder = Recorder(header)
    with tempfile.TemporaryDirectory() as folder, recorder.recording():
        exercise(Path(folder))
    functions = [entry for entry in header.functions if entry.name not in sys.argv[3:]]
    num_answered, calls = Counter[str](), Counter[str]()
    end = time.monotonic() + seconds
    for round_number in itertools.count():
        if time.monotonic() >= end:
            break
        if round_number % ROUNDS_PER_WATCH == 0:
            faulthandler.dump_traceback_later(HUNG_SEC, exit=True)
        for function in functions:
            examples = recorder.examples[function.name]
            make_example = EXAMPLES.get(function.name)
            if (examples or make_example) and random.random() < 0.75:
                arguments = (
                    make_example(header) if make_example else copy_argument(random.choice(examples))
                )
                for _ in range(random.choice((1, 1, 2, 3)) if arguments else 0):
                    place = random.randrange(len(arguments))
                    arguments[place] = damage_argument(
                        arguments[place], function.parameters[place], header
                    )
            else:
                size = random.choice((0, 1, 2, 3, 8, 17, 64, 200))
                arguments = [
                    arbitrary_argument(parameter, header, size) for parameter in function.parameters
                ]
            calls[function.name] += 1
            num_answered[function.name] += call(function, arguments)
    faulthandler.cancel_dump_traceback_later()
    print(f"seed {seed}: {calls.total():,} calls, {num_answered.total():,} answered")
    for title, names in {
        "without an example": [
            entry.name for entry in functions if not recorder.examples[entry.name]
        ],
        "refused always": [entry.name for entry in functions if not num_answered[entry.name]],
    }.items():
        print(f"{title}: {', '.join(names) or 'none'}")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32))
