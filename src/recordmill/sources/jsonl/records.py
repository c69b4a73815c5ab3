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
    starts, places = find_invalid_lines(block.data)
    found = {
        start: (place - start, int(block.data[place]))
        for start, place in zip(starts.tolist(), places.tolist(), strict=True)
    }
    block.data[starts] = native.JSON_UNREADABLE_BYTE
    return found


def explain_line_error(
    tape: Tape, error: Sequence[int], unreadable: Mapping[int, tuple[int, int]]
) -> tuple[str, str]:
    """Returns (reason, message) for an entry of tape.errors."""
    _, wrong, at, start = error
    if wrong == native.JsonFault.NOT_UTF8 and start in unreadable:
        offset, byte = unreadable[start]
        return (
            "encoding",
            f"is not UTF-8: byte 0x{byte:02X} at byte {offset} of the line; declare the file's {option('encoding')}",
        )
    if wrong == native.JsonFault.TOO_MANY_VALUES:
        line = tape.data[start : start + int(np.argmax(tape.data[start:] == 10))]
        enough = option(
            "memory",
            f"{(MEMORY_BYTES_PER_VALUE * (np.count_nonzero(line == 44) + 1) >> 20) + 1}MiB",
        )
        return (
            OUT_OF_MEMORY_REASON,
            f"{_LINE_ERRORS[wrong]} {option('memory')} leaves room for; {enough} is enough",
        )
    text = tape.data[at : at + 24].tobytes().split(b"\n")[0].decode(errors="replace")
    return (
        "json",
        f"{_LINE_ERRORS[wrong]}: at byte {at - start} of the line{f', {text!r}' if text else ''}",
    )


def explain_long_line(size: int, limit: int) -> tuple[str, str]:
    """Returns (reason, message) for a line that was passed over."""
    what = f"the line has {size:,} bytes, more than the {limit:,} that"
    return (
        "too_long",
        f"{what} {option('max_line_bytes')}, and an eighth of {option('memory')}, allow",
    )


def explain_misfits(tape: Tape, misfits: Sequence[Misfit]) -> Iterator[tuple[int, str, str]]:
    """Yields (record on the tape, reason, message) of each value that is no such feature."""
    for leaf, entries in misfits:
        for row, entry in zip(tape.find_rows(entries).tolist(), entries.tolist(), strict=True):
            yield row, *_explain_misfit(tape, entry, leaf)


def _explain_misfit(tape: Tape, entry: int, leaf: Leaf) -> tuple[str, str]:
    head, _, start, stop = tape.entries[entry].tolist()
    text = (
        tape.data[start : min(stop, start + _MAX_QUOTED_BYTES)].tobytes().decode(errors="replace")
    )
    feature, kind, depth = leaf.feature, head & 15, leaf.nodes.index(head >> 4)
    if depth + 1 < len(leaf.nodes):  # on the way to the value
        wanted = "a list" if leaf.path[depth + 1] is None else "an object"
        place = path_to_feature_name(leaf.path[: depth + 1])
        return (
            "type",
            f"{place}: {describe_kind(kind)} where {wanted} is expected: {quote_value(text)}",
        )
    if leaf.text_rule == TEXT_FROM_STRINGS and kind not in _CONTAINER_NAMES:
        keeps = f"{option('dtypes', {feature.name: 'string'})} keeps it"
        return (
            "type",
            f"{feature.name}: {describe_kind(kind)} where most are strings: {text[:60]}; {keeps}",
        )
    if feature.dtype == "bytes" and kind not in _CONTAINER_NAMES:
        keeps = f"{option('dtypes', {feature.name: 'bytes'})} keeps text as it is"
        return "type", f"{feature.name}: {quote_value(text)} is no base64; {keeps}"
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
    lost = kind == native.JsonKind.INT and "float" in feature.dtype and not as_float
    if not is_number or feature.dtype == "bool" or lost:
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
        self, tape: Tape, scanner: TapeScanner, unreadable: Mapping[int, tuple[int, int]]
    ) -> CachedBatch:
        """Returns the records of a tape; its lines are counted, blank ones too.

        Raises:
            DataError: a whole column has another form than its feature.
        """
        rejects = {
            int(error[0]): explain_line_error(tape, error, unreadable)
            for error in tape.errors.tolist()
        }
        batch, misfits = build_columns(tape, self._leaves(scanner))
        keep = np.ones(tape.rows, np.bool_)
        for row, reason, message in explain_misfits(tape, misfits):
            keep[row] = False
            rejects.setdefault(int(tape.row_lines[row]), (reason, message))
        fitted = conform(batch if keep.all() else batch.filter(pa.array(keep)), self.schema)
        at = tape.row_lines[keep].astype(np.int64)
        rejects.update(
            (int(at[row]), (reason, message)) for row, reason, message in fitted.bad_rows
        )
        return CachedBatch.from_ordinals(
            fitted.batch, at[fitted.good_rows], _sorted_rejects(rejects), tape.lines
        )

    def build_long_line_batch(self, size: int, most_bytes: int) -> CachedBatch:
        """Returns the piece of one line that is too long to be looked at."""
        reject = CachedReject(0, 0, *explain_long_line(size, most_bytes))
        return CachedBatch(
            pa.RecordBatch.from_pylist([], to_arrow(self.schema)),
            np.zeros(1, np.int64),
            (reject,),
            1,
        )

    def finish_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch of another layout that agrees, with the features and classes that all data tells."""
        there = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            _finish_column(there.get(feature.name), feature, batch.num_rows)
            for feature in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow(self.schema))

    def agrees_with(self, final: RecordLayout) -> bool:
        """Returns whether what was parsed by it is what the final one gives: they differ at most by features that no
        record had yet, of which none can then be required.
        """
        names = {*self.schema.names}
        others = [feature for feature in final.schema if feature.name not in names]
        alike = [form for form in final._parsing_key() if form[0] in names] == self._parsing_key()
        return alike and not any(feature.required for feature in others)

    def _parsing_key(self) -> list[tuple[object, ...]]:
        return [
            (
                f.name,
                f.dtype,
                f.shape,
                f.classes,
                self.paths.get(f.name),
                f.name in self.base64_features,
                self.text_rules.get(f.name),
            )
            for f in self.schema
        ]

    def _leaves(self, scanner: TapeScanner) -> list[Leaf]:
        """Returns the features that some record read so far has; conform gives nulls for the others."""
        leaves = (
            Leaf(
                f,
                scanner.find_nodes(self.paths[f.name]),
                self.paths[f.name],
                f.name in self.base64_features,
                self.text_rules.get(f.name, ""),
            )
            for f in self.schema
            if f.name in self.paths
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

    def __init__(self, common: PlanOptions, base64: frozenset[str]) -> None:
        self._common, self._base64_features = replace(common, label=None), base64
        self._counts_by_path: dict[JsonPath, ValueCounts] = {}
        self._layout: RecordLayout | None = None
        self._lock = threading.Lock()

    def predict(self, observed: Observations) -> RecordLayout | None:
        """After that was seen, too; None if none fits."""
        if any(
            _has_new_kinds(seen, self._counts_by_path.get(path))
            for path, seen in observed.counts_by_path.items()
        ):
            with self._lock:
                together = Observations(
                    0, {path: _to_kind_flags(seen) for path, seen in self._counts_by_path.items()}
                )
                together.merge(
                    Observations(
                        0,
                        {
                            path: _to_kind_flags(seen)
                            for path, seen in observed.counts_by_path.items()
                        },
                    )
                )
                self._counts_by_path = {
                    path: _to_kind_flags(seen) for path, seen in together.counts_by_path.items()
                }
                self._layout = self._make_layout()
        return self._layout

    def _make_layout(self) -> RecordLayout | None:
        try:
            # of -1 records none has a value in all, so that none is required
            found = infer_features(
                Observations(-1, self._counts_by_path),
                Declarations.from_options(self._common),
                lambda _: ("", 0),
            )
            return make_layout(found, self._common, self._base64_features)
        except RecordmillError:  # which the plan says when it has seen all
            return None


def make_layout(
    inferred: InferredFeatures, common: PlanOptions, base64: frozenset[str]
) -> RecordLayout:
    """Returns the layout of inferred features as the user declares them, before the label has classes. UsageError: an
    option names a column that is not there. DataError: a required feature is not there.
    """
    schema, _ = finish_schema(inferred.schema, (), None, replace(common, label=None), "the files")
    paths = {name: path for name, path in inferred.paths.items() if name in schema}
    return RecordLayout(
        schema, paths, base64, dict.fromkeys(inferred.string_features, TEXT_FROM_STRINGS)
    )


def _has_new_kinds(seen: ValueCounts, known: ValueCounts | None) -> bool:
    beyond = native.NumberLoss.BEYOND_INT64
    if (
        known is None
        or seen.text_classes & ~known.text_classes
        or (seen.inexact[beyond] and not known.inexact[beyond])
    ):
        return True
    return bool(((seen.counts != 0) & (known.counts == 0)).any())


def _to_kind_flags(seen: ValueCounts) -> ValueCounts:
    """Returns the counts with 1 for each kind that there is, which is what a dtype depends on."""
    inexact = np.zeros_like(seen.inexact)
    beyond = native.NumberLoss.BEYOND_INT64
    inexact[beyond] = seen.inexact[beyond] > 0
    counts = (seen.counts != 0).astype(np.int64)
    return ValueCounts(
        counts, [(0, 0) if count else None for count in counts.tolist()], inexact, seen.text_classes
    )


class LineCacheWriter:
    """Parses the records of one part by what is expected, and keeps them."""

    def __init__(self, expected: LayoutPredictor, cache: ScanCache) -> None:
        self._predictor, self._writer = expected, ScanCacheWriter(cache)

    def add(
        self,
        tape: Tape,
        scanner: TapeScanner,
        unreadable: Mapping[int, tuple[int, int]],
        observed: Observations,
    ) -> None:
        """Parses the next tape. observed: what the part's records were seen to be, these included."""
        if not self._writer.is_active:
            return
        try:
            layout = self._predictor.predict(observed)
            if layout is not None:
                self._writer.add(layout.build_batch(tape, scanner, unreadable), layout)
                return
        except RecordmillError:  # which is said where it is read
            pass
        self._writer.discard()

    def discard(self) -> None:
        """Keeps nothing of this part."""
        self._writer.discard()

    def store(self, file: int, start: int) -> None:
        """Ends the range, and caches its records."""
        self._writer.store((file, start))
