"""Makes records of tapes: `RecordLayout` says how, `LayoutPredictor` which layout fits what was seen so far. The scan
parses by that, and keeps what it parses; what is wrong with a line, or a value in it, becomes a reason and a message
that says what to do.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base import native
from recordmill.base.errors import OUT_OF_MEMORY_REASON, RecordmillError
from recordmill.base.option_names import option
from recordmill.base.utf8 import find_invalid_lines, is_utf8
from recordmill.schemas.arrow import arrow_type, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.lines import LineBlock
from recordmill.sources.common.scan_cache import (
    CachedBatch,
    CachedReject,
    ScanCache,
    ScanCacheWriter,
)
from recordmill.sources.jsonl.columns import TEXT_FROM_STRINGS, Leaf, Misfit, build_columns
from recordmill.sources.jsonl.schema import (
    Declarations,
    InferredFeatures,
    Observations,
    ValueCounts,
    describe_kind,
    infer_features,
    path_to_feature_name,
)
from recordmill.sources.jsonl.tape import MEMORY_BYTES_PER_VALUE, JsonPath, Tape, TapeScanner
from recordmill.sources.values.conform import conform, encode_classes, quote_value, suggest_remedy
from recordmill.sources.values.schema_unifier import finish_schema

_MAX_QUOTED_BYTES = 200  # bytes of a value that are read to quote it
_CONTAINER_NAMES = {native.JsonKind.ARRAY: "a list", native.JsonKind.OBJECT: "an object"}
_LINE_ERRORS = (  # why a line is no record, by the native library's numbers
    "",
    "is no JSON",
    "is no JSON object",
    f"is nested more than {native.JSON_MAX_DEPTH} levels deep",
    "has a key twice in one object",
    "has more after the end of its object",
    "has a control character inside a string (a newline or tab must be escaped)",
    "has an unknown escape in a string",
    "has half a surrogate pair in a string, which no UTF-8 text can hold",
    "is not UTF-8",
    "has a malformed number",
    "ends inside its object",
    "has more values than",
)


def mark_invalid_lines(block: LineBlock) -> Mapping[int, tuple[int, int]]:
    """Returns, by start of line that is no UTF-8, (place of the first bad byte, that byte), and marks the line."""
    if is_utf8(block.data):
        return {}
    starts, offsets = find_invalid_lines(block.data)
    invalid_bytes = {
        start: (offset - start, int(block.data[offset]))
        for start, offset in zip(starts.tolist(), offsets.tolist(), strict=True)
    }
    block.data[starts] = native.JSON_UNREADABLE_BYTE
    return invalid_bytes


def explain_line_error(
    tape: Tape, line_error: Sequence[int], invalid_bytes: Mapping[int, tuple[int, int]]
) -> tuple[str, str]:
    """Returns (reason, message) for an entry of tape.errors."""
    _, error_number, offset, line_start = line_error
    if error_number == native.JsonFault.NOT_UTF8 and line_start in invalid_bytes:
        byte_index, byte = invalid_bytes[line_start]
        return (
            "encoding",
            f"is not UTF-8: byte 0x{byte:02X} at byte {byte_index} of the line; declare the file's {option('encoding')}",
        )
    if error_number == native.JsonFault.TOO_MANY_VALUES:
        line = tape.data[line_start : line_start + int(np.argmax(tape.data[line_start:] == 10))]
        sufficient_memory = option(
            "memory",
            f"{(MEMORY_BYTES_PER_VALUE * (np.count_nonzero(line == 44) + 1) >> 20) + 1}MiB",
        )
        return (
            OUT_OF_MEMORY_REASON,
            f"{_LINE_ERRORS[error_number]} {option('memory')} leaves room for; {sufficient_memory} is enough",
        )
    text = tape.data[offset : offset + 24].tobytes().split(b"\n")[0].decode(errors="replace")
    return (
        "json",
        f"{_LINE_ERRORS[error_number]}: at byte {offset - line_start} of the line{f', {text!r}' if text else ''}",
    )


def explain_long_line(line_bytes: int, max_line_bytes: int) -> tuple[str, str]:
    """Returns (reason, message) for a line that was passed over."""
    problem = f"the line has {line_bytes:,} bytes, more than the {max_line_bytes:,} that"
    return (
        "too_long",
        f"{problem} {option('max_line_bytes')}, and an eighth of {option('memory')}, allow",
    )


def explain_misfits(tape: Tape, misfits: Sequence[Misfit]) -> Iterator[tuple[int, str, str]]:
    """Yields (record on the tape, reason, message) of each value that is no such feature."""
    for leaf, entries in misfits:
        for row, entry in zip(tape.find_rows(entries).tolist(), entries.tolist(), strict=True):
            yield row, *_explain_misfit(tape, entry, leaf)


def _explain_misfit(tape: Tape, entry: int, leaf: Leaf) -> tuple[str, str]:
    node_and_kind, _, start, stop = tape.entries[entry].tolist()
    text = (
        tape.data[start : min(stop, start + _MAX_QUOTED_BYTES)].tobytes().decode(errors="replace")
    )
    feature, kind, depth = leaf.feature, node_and_kind & 15, leaf.nodes.index(node_and_kind >> 4)
    if depth + 1 < len(leaf.nodes):  # on the way to the value
        expected_form = "a list" if leaf.path[depth + 1] is None else "an object"
        step_name = path_to_feature_name(leaf.path[: depth + 1])
        return (
            "type",
            f"{step_name}: {describe_kind(kind)} where {expected_form} is expected: {quote_value(text)}",
        )
    if leaf.text_rule == TEXT_FROM_STRINGS and kind not in _CONTAINER_NAMES:
        remedy = f"{option('dtypes', {feature.name: 'string'})} keeps it"
        return (
            "type",
            f"{feature.name}: {describe_kind(kind)} where most are strings: {text[:60]}; {remedy}",
        )
    if feature.dtype == "bytes" and kind not in _CONTAINER_NAMES:
        remedy = f"{option('dtypes', {feature.name: 'bytes'})} keeps text as it is"
        return "type", f"{feature.name}: {quote_value(text)} is no base64; {remedy}"
    if kind in _CONTAINER_NAMES:
        return (
            "type",
            f"{feature.name}: {_CONTAINER_NAMES[kind]} where {feature.describe()} is expected: {quote_value(text)}",
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, float) and math.isinf(value) and "Inf" not in text:
        value = text  # 1e999: only a string keeps it
    is_number = kind in (native.JsonKind.INT, native.JsonKind.FLOAT)
    as_float = isinstance(value, int) and feature.dtype == "float32" and abs(value) <= 1 << 53
    loses_digits = kind == native.JsonKind.INT and "float" in feature.dtype and not as_float
    if not is_number or feature.dtype == "bool" or loses_digits:
        value = text  # the values beside it are of another kind: only a string keeps all
    reason = "class" if feature.classes else "range" if is_number else "type"
    return (
        reason,
        f"{feature.name}: {text[:60]} does not fit {feature.describe()}{suggest_remedy(value, feature)}",
    )


@dataclass(frozen=True, eq=False)
class RecordLayout:
    """Layout by which records become columns. paths: by feature, where in the record it stands. base64: the features
    whose strings stand for bytes. text_rules: by feature, what of its scalars is text (Leaf.text).
    """

    schema: Schema
    paths: Mapping[str, JsonPath]
    base64_features: frozenset[str]
    text_rules: Mapping[str, str]

    def build_batch(
        self, tape: Tape, scanner: TapeScanner, invalid_bytes: Mapping[int, tuple[int, int]]
    ) -> CachedBatch:
        """Returns the records of a tape; its lines are counted, blank ones too.

        Raises:
            DataError: a whole column has another form than its feature.
        """
        rejects = {
            int(error[0]): explain_line_error(tape, error, invalid_bytes)
            for error in tape.errors.tolist()
        }
        batch, misfits = build_columns(tape, self._leaves(scanner))
        is_kept = np.ones(tape.rows, np.bool_)
        for row, reason, message in explain_misfits(tape, misfits):
            is_kept[row] = False
            rejects.setdefault(int(tape.row_lines[row]), (reason, message))
        conformed = conform(
            batch if is_kept.all() else batch.filter(pa.array(is_kept)), self.schema
        )
        line_numbers = tape.row_lines[is_kept].astype(np.int64)
        rejects.update(
            (int(line_numbers[row]), (reason, message))
            for row, reason, message in conformed.bad_rows
        )
        return CachedBatch.from_ordinals(
            conformed.batch, line_numbers[conformed.good_rows], _sorted_rejects(rejects), tape.lines
        )

    def build_long_line_batch(self, line_bytes: int, max_line_bytes: int) -> CachedBatch:
        """Returns the piece of one line that is too long to be looked at."""
        reject = CachedReject(0, 0, *explain_long_line(line_bytes, max_line_bytes))
        return CachedBatch(
            batch=pa.RecordBatch.from_pylist([], to_arrow(self.schema)),
            missing_ordinals=np.zeros(1, np.int64),
            rejects=(reject,),
            num_positions=1,
        )

    def finish_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch of another layout that agrees, with the features and classes that all data tells."""
        columns_by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            _finish_column(columns_by_name.get(feature.name), feature, batch.num_rows)
            for feature in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow(self.schema))

    def agrees_with(self, final_layout: RecordLayout) -> bool:
        """Returns whether what was parsed by it is what the final one gives: they differ at most by features that no
        record had yet, of which none can then be required.
        """
        names = {*self.schema.names}
        later_features = [feature for feature in final_layout.schema if feature.name not in names]
        has_same_parsing = [
            parsing for parsing in final_layout._parsing_key() if parsing[0] in names
        ] == self._parsing_key()
        return has_same_parsing and not any(feature.required for feature in later_features)

    def _parsing_key(self) -> list[tuple[object, ...]]:
        return [
            (
                feature.name,
                feature.dtype,
                feature.shape,
                feature.classes,
                self.paths.get(feature.name),
                feature.name in self.base64_features,
                self.text_rules.get(feature.name),
            )
            for feature in self.schema
        ]

    def _leaves(self, scanner: TapeScanner) -> list[Leaf]:
        """Returns the features that some record read so far has; conform gives nulls for the others."""
        leaves = (
            Leaf(
                feature=feature,
                nodes=scanner.find_nodes(self.paths[feature.name]),
                path=self.paths[feature.name],
                is_base64=feature.name in self.base64_features,
                text_rule=self.text_rules.get(feature.name, ""),
            )
            for feature in self.schema
            if feature.name in self.paths
        )
        return [leaf for leaf in leaves if leaf.nodes[0] >= 0]


def _sorted_rejects(rejects: Mapping[int, tuple[str, str]]) -> tuple[CachedReject, ...]:
    return tuple(CachedReject(number, number, *rejects[number]) for number in sorted(rejects))


def _finish_column(column: pa.Array | None, feature: Feature, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, arrow_type(feature))
    return encode_classes(column, feature)


class LayoutPredictor:
    """The layout that fits what all threads have seen so far, without classes that the data tells."""

    def __init__(self, common: PlanOptions, base64_features: frozenset[str]) -> None:
        self._common, self._base64_features = replace(common, label=None), base64_features
        self._counts_by_path: dict[JsonPath, ValueCounts] = {}
        self._layout: RecordLayout | None = None
        self._lock = threading.Lock()

    def predict(self, observations: Observations) -> RecordLayout | None:
        """After that was seen, too; None if none fits."""
        if any(
            _has_new_kinds(counts, self._counts_by_path.get(path))
            for path, counts in observations.counts_by_path.items()
        ):
            with self._lock:
                merged = Observations(
                    0,
                    {path: _to_kind_flags(counts) for path, counts in self._counts_by_path.items()},
                )
                merged.merge(
                    Observations(
                        0,
                        {
                            path: _to_kind_flags(counts)
                            for path, counts in observations.counts_by_path.items()
                        },
                    )
                )
                self._counts_by_path = {
                    path: _to_kind_flags(counts) for path, counts in merged.counts_by_path.items()
                }
                self._layout = self._make_layout()
        return self._layout

    def _make_layout(self) -> RecordLayout | None:
        try:
            # of -1 records none has a value in all, so that none is required
            inferred = infer_features(
                Observations(-1, self._counts_by_path),
                Declarations.from_options(self._common),
                lambda _: ("", 0),
            )
            return make_layout(inferred, self._common, self._base64_features)
        except RecordmillError:  # which the plan says when it has seen all
            return None


def make_layout(
    inferred: InferredFeatures, common: PlanOptions, base64_features: frozenset[str]
) -> RecordLayout:
    """Returns the layout of inferred features as the user declares them, before the label has classes. UsageError: an
    option names a column that is not there. DataError: a required feature is not there.
    """
    schema, _ = finish_schema(inferred.schema, (), None, replace(common, label=None), "the files")
    paths = {name: path for name, path in inferred.paths.items() if name in schema}
    return RecordLayout(
        schema, paths, base64_features, dict.fromkeys(inferred.string_features, TEXT_FROM_STRINGS)
    )


def _has_new_kinds(counts: ValueCounts, known_counts: ValueCounts | None) -> bool:
    beyond_int64 = native.NumberLoss.BEYOND_INT64
    if (
        known_counts is None
        or counts.text_classes & ~known_counts.text_classes
        or (counts.inexact[beyond_int64] and not known_counts.inexact[beyond_int64])
    ):
        return True
    return bool(((counts.counts != 0) & (known_counts.counts == 0)).any())


def _to_kind_flags(counts: ValueCounts) -> ValueCounts:
    """Returns the counts with 1 for each kind that there is, which is what a dtype depends on."""
    inexact = np.zeros_like(counts.inexact)
    beyond_int64 = native.NumberLoss.BEYOND_INT64
    inexact[beyond_int64] = counts.inexact[beyond_int64] > 0
    kind_flags = (counts.counts != 0).astype(np.int64)
    return ValueCounts(
        kind_flags,
        [(0, 0) if count else None for count in kind_flags.tolist()],
        inexact,
        counts.text_classes,
    )


class LineCacheWriter:
    """Parses the records of one part by what is expected, and keeps them."""

    def __init__(self, predictor: LayoutPredictor, cache: ScanCache) -> None:
        self._predictor, self._writer = predictor, ScanCacheWriter(cache)

    def add(
        self,
        tape: Tape,
        scanner: TapeScanner,
        invalid_bytes: Mapping[int, tuple[int, int]],
        observations: Observations,
    ) -> None:
        """Parses the next tape. observed: what the part's records were seen to be, these included."""
        if not self._writer.is_active:
            return
        try:
            layout = self._predictor.predict(observations)
            if layout is not None:
                self._writer.add(layout.build_batch(tape, scanner, invalid_bytes), layout)
                return
        except RecordmillError:  # which is said where it is read
            pass
        self._writer.discard()

    def discard(self) -> None:
        """Keeps nothing of this part."""
        self._writer.discard()

    def store(self, file_ordinal: int, begin: int) -> None:
        """Ends the range, and caches its records."""
        self._writer.store((file_ordinal, begin))
