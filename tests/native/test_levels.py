"""All builds of the library and all methods of CRC return the same results.

Arguments of inconsistent lengths are refused.
"""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from recordmill.base import library, native

PORTABLE = library.load_library(0)
LENGTHS = [*range(400), 767, 768, 769, 1023, 1024, 1025, 3071, 3072, 3073, 5000, 99_999]
DATA = np.random.default_rng(0).integers(0, 256, 100_007, dtype=np.uint8)
MAX_RECORD_BYTES = 1 << 30


def test_crcs_are_equal_for_each_method() -> None:
    for length in LENGTHS:
        for start in (0, 1, 7):
            part = DATA[start : start + length]
            expected = native.crc32c(part, 0, native.CrcMethod.TABLE)
            third = length // 3
            for method in (native.CrcMethod.INSTRUCTION, native.CrcMethod.FOLDING):
                assert (
                    native.crc32c(part, 0, method)
                    == PORTABLE["crc32c"](part, 0, method)
                    == expected
                )
                assert (
                    native.crc32c(part[third:], native.crc32c(part[:third], 0, method), method)
                    == expected
                )


def test_crc_of_the_check_string_is_right() -> None:
    assert (
        native.crc32c(np.frombuffer(b"123456789", np.uint8), 0, native.CrcMethod.TABLE)
        == 0xE3069283
    )


def _make_frames(functions: dict[str, Any]) -> list[bytes]:
    offsets = np.cumsum([0, *LENGTHS[:420]])
    count = len(offsets) - 1
    out = np.empty(int(offsets[-1]) + 16 * count, np.uint8)
    arrays = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint32)
    assert functions["frame"](np.resize(DATA, int(offsets[-1])), offsets, out, *arrays) == len(out)
    return [out.tobytes(), *(array.tobytes() for array in arrays)]


def _scan_frames(functions: dict[str, Any], data: np.ndarray, is_final: int) -> list[object]:
    scan = functions["FrameScan"](
        max_record_bytes=MAX_RECORD_BYTES, is_final=is_final, checks_payloads=1
    )
    arrays = np.empty(500, np.int64), np.empty(500, np.int64), np.empty(500, np.uint32)
    count = functions["scan_frames"](data, scan, *arrays)
    return [count, scan.position, scan.code, *(array[:count].tobytes() for array in arrays)]


def test_frames_are_equal_in_both_builds() -> None:
    frames = _make_frames(vars(native))
    assert _make_frames(PORTABLE) == frames
    data, random = np.frombuffer(frames[0], np.uint8), np.random.default_rng(1)
    for _ in range(300):
        damaged = data.copy()
        damaged[random.integers(0, len(data))] ^= np.uint8(1 << random.integers(0, 8))
        part, is_final = damaged[: random.integers(0, len(data))], int(random.integers(0, 2))
        assert _scan_frames(PORTABLE, part, is_final) == _scan_frames(vars(native), part, is_final)
        position = int(random.integers(0, len(part) + 1))
        assert PORTABLE["next_frame"](
            part, position, MAX_RECORD_BYTES, is_final
        ) == native.next_frame(part, position, MAX_RECORD_BYTES, is_final)


def _bytes(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def _words(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _inconsistent_calls() -> list[tuple[str, tuple[object, ...]]]:
    crcs, scan, hop = (
        np.zeros(1, np.uint32),
        native.FrameScan(position=9),
        native.FrameScan(position=9, end=9),
    )
    one_word, no_words, digest = _words(0), _words(), np.zeros(1, np.uint64)
    byte, counts, type_ = _bytes(1), native.ColumnCounts(), native.FieldType()

    def fields(data: np.ndarray) -> native.TextFields:
        starts, infos = np.zeros(1, np.int32), np.ones(1, np.int32)
        return native.TextFields(
            data=data, starts=starts, infos=infos, tokens=byte, token_ends=_words(1)
        )

    return [
        ("crc32c", (_bytes(1), -1, native.CrcMethod.FOLDING)),
        ("crc32c", (_bytes(1), 1 << 32, native.CrcMethod.FOLDING)),
        ("crc32c", (_bytes(1), 0, -1)),
        ("frame", (_bytes(4), _words(0, 5), _bytes(99), one_word, one_word, crcs)),
        ("frame", (_bytes(4), _words(3, 2), _bytes(99), one_word, one_word, crcs)),
        ("frame", (_bytes(4), _words(-1, 2), _bytes(99), one_word, one_word, crcs)),
        ("frame", (_bytes(4), _words(0, 4), _bytes(19), one_word, one_word, crcs)),
        ("frame", (_bytes(4), _words(0, 4), _bytes(99), one_word, no_words, crcs)),
        ("frame", (_bytes(4), _words(0), _bytes(99), one_word, one_word, crcs)),
        ("scan_frames", (_bytes(8), scan, one_word, one_word, crcs)),
        ("scan_frames", (_bytes(8), native.FrameScan(), one_word, no_words, crcs)),
        ("hop_frames", (_bytes(8), hop, one_word, digest)),
        ("hop_frames", (_bytes(8), native.FrameScan(), one_word, digest[:0])),
        ("next_frame", (_bytes(20), -1, MAX_RECORD_BYTES, 1)),
        ("read_fields", (fields(_bytes(0)), type_, None, byte, byte, counts, one_word)),
        ("read_fields", (fields(byte), type_, None, _bytes(0), byte, counts, one_word)),
        ("read_fields", (fields(byte), type_, None, None, byte, counts, one_word)),
        ("read_fields", (fields(byte), type_, None, byte, _bytes(0), counts, one_word)),
        ("read_fields", (fields(byte), type_, None, byte, byte, counts, no_words)),
        ("read_fields", (fields(byte), type_, None, None, None, counts, None)),
    ]


@pytest.mark.parametrize(("name", "arguments"), _inconsistent_calls())
def test_arguments_of_inconsistent_lengths_are_refused(
    name: str, arguments: tuple[object, ...]
) -> None:
    for functions in (vars(native), PORTABLE):
        with pytest.raises(IndexError):
            functions[name](*arguments)


def test_new_table_of_names_does_not_depend_on_the_old_content_of_its_memory() -> None:
    names = [np.frombuffer(name, np.uint8) for name in (b"a", b"b", b"name")]
    size = native.make_names(None, 5, 16, names, _words(1, 1, 1))
    tables = [np.full(size, word, np.int64) for word in (0, 1, -1, MAX_RECORD_BYTES)]
    for table in tables:
        native.make_names(table, 5, 16, names, _words(1, 1, 1))
        assert table.tolist() == tables[0].tolist()


def test_name_counts_refuse_arguments_out_of_bounds() -> None:
    record = np.frombuffer(bytes.fromhex("0a0d0a0b0a016112061a040a02ac02"), np.uint8)

    def arguments() -> dict[str, Any]:
        table = np.empty(native.make_names(None, 2, 16, [], None), np.int64)
        native.make_names(table, 2, 16, [], None)
        starts, lengths, parts = _words(0), _words(len(record)), _words(0)
        counts, status = (
            np.zeros(3, np.dtype(native.NameCounts)),
            np.full(1, native.RecordStatus.UNREAD, np.uint8),
        )
        counts["last_row"], counts["first_int64_list"] = -1, MAX_RECORD_BYTES
        inputs = {"data": record, "starts": starts, "lengths": lengths, "first": 7, "table": table}
        return {**inputs, "counts": counts, "status": status, "parts": parts}

    damaged_table = arguments()["table"]
    damaged_table[3] = 1 << 40  # the number of names in the table
    changes = [
        *({"starts": _words(start)} for start in (-1, 1, 1 << 62)),
        {"lengths": _words(-1)},
        {"lengths": _words(1 << 62)},
        {"lengths": _words(1, 1)},
        {"counts": np.zeros(2, np.dtype(native.NameCounts))},
        {"table": _words(1, 2)},
        {"table": damaged_table},
        {"status": _bytes(0)},
        {"parts": _words()},
    ]
    for functions in (vars(native), PORTABLE):
        valid_arguments = arguments()
        assert functions["count_names"](*valid_arguments.values()) == 0
        name_counts = valid_arguments["counts"][1]
        assert (
            name_counts["records"],
            name_counts["int64_lists"],
            name_counts["sum_int"],
            name_counts["first_int64_list"],
        ) == (
            1,
            1,
            300,
            7,
        )
        for change in changes:
            with pytest.raises(IndexError):
                functions["count_names"](*{**arguments(), **change}.values())


def _encode_column(
    functions: dict[str, Any], kind: int, length: int, head_bytes: int, parts: list[Any], short: int
) -> bytes:
    """Encodes two records of one column.

    Args:
        short: Number of bytes that are missing in the output array.
    """
    column, entry_sizes, starts, lengths, list_sizes = (
        _words(kind, length, head_bytes),
        *(_words(0, 0) for _ in range(4)),
    )
    total = functions["size_examples"](column, parts, list_sizes, entry_sizes, starts, lengths)
    out, crcs = _bytes(total + 16 - short), np.zeros(2, np.uint32)
    assert (
        functions["write_examples"](
            column, parts, list_sizes, entry_sizes, starts, lengths, out, crcs
        )
        == 2
    )
    return out[:total].tobytes()


def _columns() -> list[tuple[int, int, int, list[Any]]]:
    key, no_bytes, heads = (
        np.resize(np.frombuffer(b"\n\1a\x12", np.uint8), 16),
        _bytes(0),
        _bytes(11 * 16),
    )
    texts, numbers, splits = _bytes(7), _words(1, -1, 1 << 40), _words(0, 1, 3)
    return [
        (native.EntryKind.ONE_INT, 1, 4, [no_bytes, no_bytes, numbers, no_bytes, heads]),
        (native.EntryKind.CONSTANT_SIZE, 3, 9, [no_bytes, no_bytes, texts, no_bytes, key]),
        (native.EntryKind.INTS, 1, 4, [no_bytes, splits, numbers, no_bytes, key]),
        (native.EntryKind.FLOATS, 1, 4, [no_bytes, splits, np.zeros(3, np.float32), no_bytes, key]),
        (native.EntryKind.TEXTS, 1, 4, [no_bytes, no_bytes, texts, _words(0, 5, 7), key]),
        (native.EntryKind.TEXTS, 1, 4, [no_bytes, splits, texts, _words(0, 5, 5, 7), key]),
        (native.EntryKind.MESSAGE, 1, 4, [no_bytes, no_bytes, texts, _words(0, 5, 7), key]),
    ]


@pytest.mark.parametrize(("kind", "length", "head_bytes", "parts"), _columns())
def test_columns_of_inconsistent_lengths_are_refused(
    kind: int, length: int, head_bytes: int, parts: list[Any]
) -> None:
    assert _encode_column(PORTABLE, kind, length, head_bytes, parts, 0) == _encode_column(
        vars(native), kind, length, head_bytes, parts, 0
    )
    inconsistent: list[tuple[int, int, int, list[Any], int]] = [
        (-1, length, head_bytes, parts, 0),
        (native.EntryKind.MESSAGE + 1, length, head_bytes, parts, 0),
        (kind, length, -1, parts, 0),
        (kind, length, 1 << 62, parts, 0),
        (kind, length, head_bytes, parts[:4], 0),
        (kind, length, head_bytes, [*parts[:4], parts[4][1:]], 0),
        (kind, length, head_bytes, [_bytes(1), *parts[1:]], 0),
        (kind, length, head_bytes, [*parts[:2], parts[2][:1], *parts[3:]], 0),
        (kind, length, head_bytes, parts, 17),
    ]
    if len(parts[1]):
        changed_splits = (
            (0, 1),
            (0, 1, 4),
            (-1, 1, 3),
            (0, 2, 1),
            (0, 1, -(1 << 63)),
            (0, -(1 << 63), (1 << 63) - 1),
        )
        inconsistent += [
            (kind, length, head_bytes, [parts[0], _words(*splits), *parts[2:]], 0)
            for splits in changed_splits
        ]
    else:
        inconsistent += [
            (kind, wrong_length, head_bytes, parts, 0) for wrong_length in (-1, 4, 1 << 62)
        ]
    for functions in (vars(native), PORTABLE):
        for arguments in inconsistent:
            with pytest.raises(IndexError):
                _encode_column(functions, *arguments)


PROGRAM = """
import hashlib, pyarrow as pa
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import scan_frames
from recordmill.schemas.feature import Feature, Schema
schema = Schema((Feature("a", "int64"), Feature("b", "string"), Feature("c", "int64", (None,))))
numbers = [[(i * 7919) ** (j % 5) % 2**40 for j in range(i % 50)] for i in range(500)]
strings = pa.array([str(i) * i for i in range(500)], pa.large_string())
batch = pa.RecordBatch.from_pydict({"a": range(500), "b": strings, "c": pa.array(numbers, pa.large_list(pa.int64()))})
frames = encode(batch, schema)
assert scan_frames(frames.data, source="x", is_final=True)[1] == len(frames.data)
assert decode(frames.data, frames.starts + 12, frames.lengths, schema).to_pydict() == batch.to_pydict()
print(hashlib.sha256(frames.data).hexdigest())
"""


@pytest.mark.sweep
def test_processor_without_special_instructions_writes_and_reads_the_same_bytes() -> None:
    outputs = set()
    for cpu in ({}, {"RECORDMILL_NATIVE_LEVEL": "0"}):
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env={**os.environ, **cpu},
                check=True,
                capture_output=True,
            ).stdout
        )
    assert len(outputs) == 1
