"""Types of the native library, from its header. Do not edit: run native/make_stub.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CRC_TABLE: int
CRC_INSTRUCTION: int
CRC_FOLDING: int
GOOD: int
HEADER_CRC: int
FRAME_TOO_LONG: int
SHORT_HEADER: int
SHORT_PAYLOAD: int
PAYLOAD_CRC: int
MORE: int
ONE_INT: int
INTS: int
CONSTANT_SIZE: int
FLOATS: int
TEXTS: int
MESSAGE: int
ONE_INT64: int
ONE_FLOAT: int
ONE_BYTES: int
INT64_LISTS: int
FLOAT_LISTS: int
BYTES_LISTS: int
STEPS: int
PAST_END: int
LONG_VARINT: int
UNUSUAL: int
WRONG_KIND: int
WRONG_COUNT: int
MISSING_VALUE: int
UNREAD: int
SKIP_OTHERS: int
CHECK_OTHERS: int
REFUSE_OTHERS: int
VARINT_ROOM: int
JSON_NULL: int
JSON_FALSE: int
JSON_TRUE: int
JSON_INT: int
JSON_FLOAT: int
JSON_STRING: int
JSON_ESCAPED: int
JSON_OBJECT: int
JSON_ARRAY: int
JSON_KINDS: int
JSON_OK: int
JSON_SYNTAX: int
JSON_NOT_OBJECT: int
JSON_DEEP: int
JSON_DUPLICATE: int
JSON_TRAILING: int
JSON_CONTROL: int
JSON_ESCAPE: int
JSON_SURROGATE: int
JSON_NOT_UTF8: int
JSON_NUMBER: int
JSON_CUT: int
JSON_MANY: int
JSON_FULL: int
JSON_DONE: int
JSON_TAPE_FULL: int
JSON_NAMES_FULL: int
JSON_NO_ELEMENT: int
JSON_AFTER_ARRAY: int
JSON_MOST_DEPTH: int
JSON_UNREADABLE: int
CSV_TOO_LONG: int
CSV_STRAY_QUOTE: int
FIELD_LENGTH: int
FIELD_QUOTED: int
BOOL_CLASS: int
INT64_CLASS: int
FLOAT32_CLASS: int
SECONDS_CLASS: int
MILLIS_CLASS: int
MICROS_CLASS: int
NANOS_CLASS: int
NAIVE_CLASS: int
AWARE_CLASS: int
BEYOND_NANOS_CLASS: int
TEXT_CLASS: int
FITS: int
WRONG_TYPE: int
BEYOND_RANGE: int
INEXACT: int
UNDECIDED: int
NO_ZONE: int
HAS_ZONE: int
TOO_FINE: int
FIELD_NOT_UTF8: int
NO_CLASS: int
NO_VALUE: int
NO_LOSS: int
INEXACT_DECIMAL: int
INEXACT_INTEGER: int
BEYOND_INT64: int
BEYOND_FLOAT32: int
CLASS_FIELDS: int
NUMBER_FIELDS: int
INTEGER_FIELDS: int
FLOAT_FIELDS: int
BOOLEAN_FIELDS: int
TIMESTAMP_FIELDS: int
JPEG_GOOD: int
JPEG_CUT: int
JPEG_NO_END: int
JPEG_LENGTH: int
JPEG_TWICE: int
JPEG_NO_FRAME: int
JPEG_NO_SCAN: int
JPEG_FRAME: int
JPEG_OTHER: int
MOST_COUNTED: int
EXPONENTS: int

class FrameScan:
    at: int
    end: int
    max_record_bytes: int
    final: int
    check: int
    code: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class ExampleColumn:
    way: int
    length: int
    head_bytes: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CellColumn:
    mode: int
    first: int
    is_required: int
    last_row: int
    nulls: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class NamesHead:
    slots: int
    text: int
    used: int
    used_text: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class NameSlot:
    text: int
    size: int
    part: int
    next: int
    newest: int
    before: int
    first: int
    last: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class NameCounts:
    records: int
    values: int
    least_values: int
    most_values: int
    first_least: int
    first_most: int
    last_row: int
    bytes_lists: int
    float_lists: int
    int64_lists: int
    first_bytes: int
    first_float: int
    first_int64: int
    bytes_values: int
    texts: int
    least_bytes: int
    most_bytes: int
    least_int: int
    most_int: int
    sum_int: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonValue:
    head: int
    around: int
    start: int
    stop: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonNode:
    element: int
    first: int
    next: int
    count: int
    last: int
    is_plain: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonError:
    line: int
    wrong: int
    at: int
    line_start: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonScan:
    at: int
    most_values: int
    line: int
    records: int
    errors: int
    values: int
    nodes: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonArray:
    depth: int
    in_string: int
    is_escaped: int
    is_filled: int
    elements: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvDialect:
    delimiter: int
    quote: int
    is_doubled: int
    escape: int
    comment: int
    trim: int
    max_row_bytes: int
    columns: int
    is_ragged: int
    is_lenient: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvScan:
    at: int
    line: int
    limit: int
    is_final: int
    is_skipping: int
    rows: int
    bad: int
    blanks: int
    quoted_fields: int
    needed: int
    across: int
    first_across: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvBadRow:
    ordinal: int
    line: int
    start: int
    width: int
    field: int
    are_rows: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class FieldType:
    kind: int
    low: int
    high: int
    beyond: float
    bits: int
    nanos_per_unit: int
    is_aware: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class ColumnCounts:
    classes: int
    values: int
    soft_nulls: int
    inexact_decimals: int
    inexact_integers: int
    beyond_int64: int
    overflows: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JpegFacts:
    code: int
    place: int
    height: int
    width: int
    components: int
    bits: int
    marker: int
    scans: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class ExponentSum:
    exponent: int
    sum_high: int
    sum_low: int
    squares_high: int
    squares_low: int
    def __init__(self, *args: float, **fields: float) -> None: ...

def machine_level() -> int: ...
def crc32c(data: npt.NDArray[np.uint8 | np.bool_] | None, crc: int, way: int) -> int: ...
def frame(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    offsets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def scan_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    scan: FrameScan,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def hop_frames(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    scan: FrameScan,
    starts: npt.NDArray[np.int64] | None,
    digest: npt.NDArray[np.uint64] | None,
) -> int: ...
def next_frame(
    data: npt.NDArray[np.uint8 | np.bool_] | None, at: int, max_record_bytes: int, whole: int
) -> int: ...
def copy_spans(
    blocks: Sequence[npt.NDArray[Any]],
    which: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    targets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def hash_spans(
    key0: npt.NDArray[np.uint64] | None,
    key1: npt.NDArray[np.uint64] | None,
    which: npt.NDArray[np.uint32] | None,
    first: int,
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint64] | None,
) -> int: ...
def permute(
    numbers: npt.NDArray[np.int64] | None,
    stretches: npt.NDArray[np.int64] | None,
    edges: npt.NDArray[np.int64] | None,
    key: int,
    out: npt.NDArray[np.int64] | None,
) -> int: ...
def pack_rows(
    lengths: npt.NDArray[np.int64] | None,
    limits: npt.NDArray[np.int64] | None,
    left: npt.NDArray[np.int64] | None,
    places: npt.NDArray[np.int64] | None,
    ends: npt.NDArray[np.int64] | None,
) -> int: ...
def size_examples(
    columns: npt.NDArray[Any] | None,
    parts: Sequence[npt.NDArray[Any]],
    kept: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
) -> int: ...
def write_examples(
    columns: npt.NDArray[Any] | None,
    parts: Sequence[npt.NDArray[Any]],
    kept: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def locate_features(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    parts: int,
    others: int,
    table: npt.NDArray[np.int64] | None,
    columns: npt.NDArray[Any] | None,
    ints: npt.NDArray[np.int64] | None,
    floats: npt.NDArray[np.uint32] | None,
    at: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    valid: npt.NDArray[np.uint8 | np.bool_] | None,
    status: npt.NDArray[np.uint8 | np.bool_] | None,
    culprits: npt.NDArray[np.int64] | None,
) -> int: ...
def make_names(
    table: npt.NDArray[np.int64] | None,
    most_names: int,
    text_bytes: int,
    names: Sequence[npt.NDArray[Any]],
    parts: npt.NDArray[np.int64] | None,
) -> int: ...
def read_varints(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    at: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    offsets: npt.NDArray[np.int64] | None,
    values: npt.NDArray[np.int64] | None,
    bad: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def find_fields(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    at: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    offsets: npt.NDArray[np.int64] | None,
    value_at: npt.NDArray[np.int64] | None,
    value_sizes: npt.NDArray[np.int64] | None,
) -> int: ...
def copy_values(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    at: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    are_lists: int,
    ends: npt.NDArray[np.int64] | None,
    values: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def count_names(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    first_record: int,
    table: npt.NDArray[np.int64] | None,
    counts: npt.NDArray[Any] | None,
    status: npt.NDArray[np.uint8 | np.bool_] | None,
    parts: npt.NDArray[np.int64] | None,
) -> int: ...
def scan_json(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    table: npt.NDArray[np.int64] | None,
    nodes: npt.NDArray[Any] | None,
    tape: npt.NDArray[Any] | None,
    record_lines: npt.NDArray[np.int32] | None,
    record_values: npt.NDArray[np.int32] | None,
    errors: npt.NDArray[Any] | None,
    scan: JsonScan,
) -> int: ...
def json_array_to_lines(data: npt.NDArray[np.uint8 | np.bool_] | None, array: JsonArray) -> int: ...
def sort_json_values(
    tape: npt.NDArray[Any] | None,
    places: npt.NDArray[np.int64] | None,
    found: npt.NDArray[np.int64] | None,
    order: npt.NDArray[np.int32] | None,
    kinds: npt.NDArray[np.uint8 | np.bool_] | None,
    around: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int32] | None,
    sizes: npt.NDArray[np.int32] | None,
) -> int: ...
def join_texts(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int32] | None,
    sizes: npt.NDArray[np.int32] | None,
    kinds: npt.NDArray[np.uint8 | np.bool_] | None,
    missing: npt.NDArray[np.uint8 | np.bool_] | None,
    texts: npt.NDArray[np.uint8 | np.bool_] | None,
    offsets: npt.NDArray[np.int64] | None,
) -> int: ...
def scan_csv(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    dialect: CsvDialect,
    scan: CsvScan,
    starts: npt.NDArray[np.int32] | None,
    infos: npt.NDArray[np.int32] | None,
    rows: npt.NDArray[np.int64] | None,
    bad: npt.NDArray[Any] | None,
) -> int: ...
def read_fields(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int32] | None,
    infos: npt.NDArray[np.int32] | None,
    tokens: npt.NDArray[np.uint8 | np.bool_] | None,
    token_ends: npt.NDArray[np.int64] | None,
    type: FieldType,
    values: npt.NDArray[np.uint8 | np.bool_] | None,
    valid: npt.NDArray[np.uint8 | np.bool_] | None,
    fault: npt.NDArray[np.uint8 | np.bool_] | None,
    counts: ColumnCounts,
    null_counts: npt.NDArray[np.int64] | None,
) -> int: ...
def find_bad_lines(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    stops: npt.NDArray[np.int64] | None,
    places: npt.NDArray[np.int64] | None,
) -> int: ...
def walk_jpegs(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    ends: npt.NDArray[np.int64] | None,
    facts: npt.NDArray[Any] | None,
) -> int: ...
def resize(
    pixels: npt.NDArray[np.uint8 | np.bool_] | None,
    stride: int,
    numbers: int,
    antialias: int,
    rows: npt.NDArray[np.uint32] | None,
    row_weights: npt.NDArray[np.float32] | None,
    columns: npt.NDArray[np.uint32] | None,
    column_weights: npt.NDArray[np.float32] | None,
    factor: npt.NDArray[np.float32] | None,
    offset: npt.NDArray[np.float32] | None,
    room: npt.NDArray[np.float32] | None,
    bytes: npt.NDArray[np.uint8 | np.bool_] | None,
    floats: npt.NDArray[np.float32] | None,
) -> int: ...
def sum_floats(values: npt.NDArray[np.float64] | None, sums: npt.NDArray[Any] | None) -> int: ...
def hash_texts(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    ends: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint64] | None,
) -> int: ...
def count_hashes(
    hashes: npt.NDArray[np.uint64] | None,
    first: int,
    threshold: int,
    used: int,
    slots: npt.NDArray[np.uint64] | None,
    counts: npt.NDArray[np.int64] | None,
    places: npt.NDArray[np.int32] | None,
) -> int: ...
