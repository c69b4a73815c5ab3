"""Types of the native library, from its header. Do not edit: run native/make_stub.py."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

VARINT_ROOM: int
JSON_KINDS: int
JSON_MAX_DEPTH: int
JSON_UNREADABLE_BYTE: int
FIELD_LENGTH_MASK: int
FIELD_QUOTED_BIT: int
MAX_SUMMED_VALUES: int
FLOAT64_EXPONENTS: int
INT_LIMBS: int
INT_SQUARE_LIMBS: int
FLOAT32_LIMBS: int
FLOAT32_SQUARE_LIMBS: int
FLOAT64_LIMBS: int
FLOAT64_SQUARE_LIMBS: int
KEY_RANGES: int

class CrcMethod(IntEnum):
    TABLE = 0
    INSTRUCTION = 1
    FOLDING = 2

class FrameCode(IntEnum):
    GOOD = 0
    BAD_HEADER_CRC = 1
    TOO_LONG = 2
    SHORT_HEADER = 3
    SHORT_PAYLOAD = 4
    BAD_PAYLOAD_CRC = 5
    NEEDS_MORE = 6

class EntryKind(IntEnum):
    ONE_INT = 0
    INTS = 1
    CONSTANT_SIZE = 2
    FLOATS = 3
    TEXTS = 4
    MESSAGE = 5

class CellMode(IntEnum):
    ONE_INT64 = 0
    ONE_FLOAT = 1
    ONE_BYTES = 2
    INT64_LIST = 3
    FLOAT_LIST = 4
    BYTES_LIST = 5
    STEPS = 6

class RecordStatus(IntEnum):
    GOOD = 0
    PAST_END = 1
    LONG_VARINT = 2
    UNUSUAL = 20
    WRONG_KIND = 21
    WRONG_COUNT = 22
    MISSING_VALUE = 23
    OUT_OF_RANGE = 24
    NOT_UTF8 = 25
    WRONG_SIZE = 26
    BAD_ROW_LENGTHS = 27
    UNREAD = 255

class OtherFeatures(IntEnum):
    SKIP = 0
    CHECK = 1
    REFUSE = 2

class JsonKind(IntEnum):
    NULL_VALUE = 0
    FALSE_VALUE = 1
    TRUE_VALUE = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    ESCAPED_STRING = 6
    OBJECT = 7
    ARRAY = 8

class JsonFault(IntEnum):
    NONE = 0
    SYNTAX = 1
    NOT_AN_OBJECT = 2
    TOO_DEEP = 3
    DUPLICATE_KEY = 4
    TRAILING_DATA = 5
    CONTROL_CHARACTER = 6
    UNKNOWN_ESCAPE = 7
    LONE_SURROGATE = 8
    NOT_UTF8 = 9
    BAD_NUMBER = 10
    CUT_OFF = 11
    TOO_MANY_VALUES = 12
    NO_ROOM = 13

class JsonScanEnd(IntEnum):
    DONE = 0
    TAPE_FULL = 1
    NAMES_FULL = 2

class JsonArrayFault(IntEnum):
    NONE = 0
    NO_ELEMENT = 1
    DATA_AFTER_ARRAY = 2

class CsvRowFault(IntEnum):
    TOO_LONG = -1
    STRAY_QUOTE = -2

class TextClass(IntEnum):
    BOOL = 1
    INT64 = 2
    FLOAT32 = 4
    SECONDS = 8
    MILLIS = 16
    MICROS = 32
    NANOS = 64
    NAIVE = 128
    AWARE = 256
    BEYOND_NANOS = 512
    TEXT = 1024

class FieldFault(IntEnum):
    NONE = 0
    WRONG_TYPE = 1
    OUT_OF_RANGE = 2
    INEXACT = 3
    UNDECIDED = 4
    NO_ZONE = 5
    HAS_ZONE = 6
    TOO_FINE = 7
    NOT_UTF8 = 8
    NOT_A_CLASS = 9
    MISSING = 10

class NumberLoss(IntEnum):
    NONE = 0
    INEXACT_DECIMAL = 1
    INEXACT_INTEGER = 2
    BEYOND_INT64 = 3
    BEYOND_FLOAT32 = 4

class FieldKind(IntEnum):
    CLASSES = 0
    NUMBERS = 1
    INTEGERS = 2
    FLOATS = 3
    BOOLEANS = 4
    TIMESTAMPS = 5

class JpegCode(IntEnum):
    GOOD = 0
    CUT_OFF = 1
    NO_END = 2
    BAD_LENGTH = 3
    REPEATED = 4
    NO_FRAME = 5
    NO_SCAN = 6
    BAD_FRAME = 7
    NOT_A_JPEG = 8

class ElementKind(IntEnum):
    UINT8 = 0
    INT64 = 1
    FLOAT32 = 2
    FLOAT64 = 3

class FrameScan:
    position: int
    end: int
    max_record_bytes: int
    is_final: int
    checks_payloads: int
    code: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class ExampleColumn:
    kind: int
    length: int
    head_bytes: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CellColumn:
    mode: int
    first: int
    is_required: int
    last_row: int
    null_count: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class RecordCells:
    def __init__(
        self,
        *,
        columns: npt.NDArray[Any] | None = ...,
        ints: npt.NDArray[np.int64] | None = ...,
        floats: npt.NDArray[np.uint32] | None = ...,
        starts: npt.NDArray[np.int64] | None = ...,
        sizes: npt.NDArray[np.int64] | None = ...,
        valid: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        status: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        culprits: npt.NDArray[np.int64] | None = ...,
    ) -> None: ...

class NamesHead:
    slots: int
    text_bytes: int
    used_slots: int
    used_text_bytes: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class NameSlot:
    text: int
    size: int
    part: int
    next: int
    newest: int
    before: int
    head: int
    tail: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class NameCounts:
    records: int
    values: int
    min_values: int
    max_values: int
    first_min_values: int
    first_max_values: int
    last_row: int
    bytes_lists: int
    float_lists: int
    int64_lists: int
    first_bytes_list: int
    first_float_list: int
    first_int64_list: int
    bytes_values: int
    texts: int
    min_bytes: int
    max_bytes: int
    min_int: int
    max_int: int
    sum_int: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonValue:
    head: int
    parent: int
    start: int
    stop: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonNode:
    element: int
    first_member: int
    next_member: int
    count: int
    last_parent: int
    is_plain: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonError:
    line: int
    fault: int
    position: int
    line_start: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonScan:
    position: int
    max_line_values: int
    lines: int
    records: int
    errors: int
    values: int
    nodes: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonArray:
    depth: int
    in_string: int
    is_escaped: int
    element_has_begun: int
    elements: int
    stop: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JsonMember:
    depth: int
    in_string: int
    is_escaped: int
    in_key: int
    expects_key: int
    expects_value: int
    matched: int
    has_name: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvDialect:
    delimiter: int
    quote: int
    is_doubled: int
    escape: int
    comment: int
    trims: int
    max_row_bytes: int
    columns: int
    is_ragged: int
    is_lenient: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvScan:
    position: int
    line: int
    limit: int
    is_final: int
    is_skipping: int
    rows: int
    bad_rows: int
    blank_lines: int
    quoted_fields: int
    rows_needing_quotes: int
    rows_across_lines: int
    first_across_line: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class CsvBadRow:
    ordinal: int
    line: int
    start: int
    width: int
    field_start: int
    is_good_as_text: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class TextFields:
    def __init__(
        self,
        *,
        data: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        starts: npt.NDArray[np.int32] | None = ...,
        infos: npt.NDArray[np.int32] | None = ...,
        tokens: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        token_ends: npt.NDArray[np.int64] | None = ...,
    ) -> None: ...

class FieldType:
    kind: int
    low: int
    high: int
    overflow_limit: float
    mantissa_bits: int
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
    beyond_float32: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class JpegFacts:
    code: int
    position: int
    height: int
    width: int
    components: int
    bits: int
    marker: int
    scans: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class PixelLines:
    def __init__(
        self,
        *,
        pixels: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        deep_pixels: npt.NDArray[np.uint16] | None = ...,
        stride: int = ...,
        width: int = ...,
    ) -> None: ...

class ResizeTaps:
    def __init__(
        self,
        *,
        sources: npt.NDArray[np.uint32] | None = ...,
        weights: npt.NDArray[np.float32] | None = ...,
    ) -> None: ...

class ResizeOutput:
    def __init__(
        self,
        *,
        factor: npt.NDArray[np.float32] | None = ...,
        offset: npt.NDArray[np.float32] | None = ...,
        bytes: npt.NDArray[np.uint8 | np.bool_] | None = ...,
        floats: npt.NDArray[np.float32] | None = ...,
    ) -> None: ...

class ExponentSum:
    exponent: int
    sum_high: int
    sum_low: int
    squares_high: int
    squares_low: int
    def __init__(self, *args: float, **fields: float) -> None: ...

class ElementSums:
    def __init__(
        self,
        *,
        limbs: npt.NDArray[np.int64] | None = ...,
        square_limbs: npt.NDArray[np.int64] | None = ...,
        finite: npt.NDArray[np.int64] | None = ...,
        minima: npt.NDArray[np.float64] | None = ...,
        maxima: npt.NDArray[np.float64] | None = ...,
    ) -> None: ...

def machine_level() -> int: ...
def crc32c(data: npt.NDArray[np.uint8 | np.bool_] | None, crc: int, method: int) -> int: ...
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
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    position: int,
    max_record_bytes: int,
    is_complete: int,
) -> int: ...
def copy_spans(
    blocks: Sequence[npt.NDArray[Any]],
    block_ids: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    targets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def read_spans(
    paths: npt.NDArray[np.uint8 | np.bool_] | None,
    edges: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    targets: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def hash_spans(
    key0: npt.NDArray[np.uint64] | None,
    key1: npt.NDArray[np.uint64] | None,
    key_ids: npt.NDArray[np.uint32] | None,
    first_key: int,
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    hashes: npt.NDArray[np.uint64] | None,
) -> int: ...
def mix_words(words: npt.NDArray[np.uint64] | None, out: npt.NDArray[np.uint64] | None) -> int: ...
def find_ranges(
    numbers: npt.NDArray[np.int64] | None,
    edges: npt.NDArray[np.int64] | None,
    range_ids: npt.NDArray[np.int64] | None,
) -> int: ...
def permute(
    numbers: npt.NDArray[np.int64] | None,
    range_ids: npt.NDArray[np.int64] | None,
    edges: npt.NDArray[np.int64] | None,
    key: int,
    out: npt.NDArray[np.int64] | None,
) -> int: ...
def pack_rows(
    lengths: npt.NDArray[np.int64] | None,
    limits: npt.NDArray[np.int64] | None,
    free: npt.NDArray[np.int64] | None,
    row_ids: npt.NDArray[np.int64] | None,
    step_ends: npt.NDArray[np.int64] | None,
) -> int: ...
def size_examples(
    columns: npt.NDArray[Any] | None,
    parts: Sequence[npt.NDArray[Any]],
    list_sizes: npt.NDArray[np.int64] | None,
    entry_sizes: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
) -> int: ...
def write_examples(
    columns: npt.NDArray[Any] | None,
    parts: Sequence[npt.NDArray[Any]],
    list_sizes: npt.NDArray[np.int64] | None,
    entry_sizes: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.uint8 | np.bool_] | None,
    crcs: npt.NDArray[np.uint32] | None,
) -> int: ...
def locate_features(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64] | None,
    map_count: int,
    others: int,
    table: npt.NDArray[np.int64] | None,
    cells: RecordCells,
) -> int: ...
def make_names(
    table: npt.NDArray[np.int64] | None,
    max_names: int,
    text_bytes: int,
    names: Sequence[npt.NDArray[Any]],
    parts: npt.NDArray[np.int64] | None,
) -> int: ...
def read_varints(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    offsets: npt.NDArray[np.int64] | None,
    values: npt.NDArray[np.int64] | None,
    statuses: npt.NDArray[np.uint8 | np.bool_] | None,
) -> int: ...
def find_fields(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    offsets: npt.NDArray[np.int64] | None,
    field_starts: npt.NDArray[np.int64] | None,
    field_sizes: npt.NDArray[np.int64] | None,
) -> int: ...
def copy_values(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
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
    maps: npt.NDArray[np.int64] | None,
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
def find_json_member(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    start: int,
    name: npt.NDArray[np.uint8 | np.bool_] | None,
    member: JsonMember,
) -> int: ...
def sort_json_values(
    tape: npt.NDArray[Any] | None,
    positions: npt.NDArray[np.int64] | None,
    kind_bits: npt.NDArray[np.int64] | None,
    order: npt.NDArray[np.int32] | None,
    kinds: npt.NDArray[np.uint8 | np.bool_] | None,
    parents: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int32] | None,
    sizes: npt.NDArray[np.int32] | None,
) -> int: ...
def join_texts(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int32] | None,
    sizes: npt.NDArray[np.int32] | None,
    kinds: npt.NDArray[np.uint8 | np.bool_] | None,
    is_missing: npt.NDArray[np.uint8 | np.bool_] | None,
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
    fields: TextFields,
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
    positions: npt.NDArray[np.int64] | None,
) -> int: ...
def walk_jpegs(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    ends: npt.NDArray[np.int64] | None,
    facts: npt.NDArray[Any] | None,
) -> int: ...
def resize(
    source: PixelLines,
    antialias: int,
    rows: ResizeTaps,
    columns: ResizeTaps,
    output: ResizeOutput,
    scratch: npt.NDArray[np.float32] | None,
) -> int: ...
def sum_floats(values: npt.NDArray[np.float64] | None, sums: npt.NDArray[Any] | None) -> int: ...
def add_elements(
    values: npt.NDArray[np.uint8 | np.bool_] | None, kind: int, sums: ElementSums
) -> int: ...
def count_keys(
    keys: npt.NDArray[np.uint64] | None,
    dropped_bits: npt.NDArray[np.uint8 | np.bool_] | None,
    bins: npt.NDArray[np.uint64] | None,
    counts: npt.NDArray[np.int64] | None,
    slots: npt.NDArray[np.int32] | None,
    new_keys: npt.NDArray[np.uint64] | None,
) -> int: ...
def hash_texts(
    data: npt.NDArray[np.uint8 | np.bool_] | None,
    starts: npt.NDArray[np.int64] | None,
    ends: npt.NDArray[np.int64] | None,
    hashes: npt.NDArray[np.uint64] | None,
) -> int: ...
def count_hashes(
    hashes: npt.NDArray[np.uint64] | None,
    first: int,
    threshold: int,
    used: int,
    slots: npt.NDArray[np.uint64] | None,
    counts: npt.NDArray[np.int64] | None,
    positions: npt.NDArray[np.int32] | None,
) -> int: ...
