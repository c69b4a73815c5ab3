"""Records from tapes of JSON values.

`RecordLayout` determines how records become columns. While the types of an input are still being
inferred, `LayoutPredictor` predicts the layout from the values so far. `LineCacheWriter` parses and
caches the records with it. Each bad line or value gets a reason and a message with a remedy.
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
from recordmill.base.errors import OUT_OF_MEMORY_REASON, Fault, RecordmillError
from recordmill.base.messages import Message
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
from recordmill.sources.jsonl.columns import (
    BOOLS_WITHOUT_NUMBERS,
    TEXT_FROM_STRINGS,
    Leaf,
    Misfit,
    build_columns,
)
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
from recordmill.sources.values.conform import (
    build_batch,
    conform,
    encode_classes,
    quote_value,
    suggest_remedy,
)
from recordmill.sources.values.schema_unifier import finish_schema

_MAX_QUOTED_BYTES = 200  # of a value in a message
_CONTAINER_NAMES = {native.JsonKind.ARRAY: "a list", native.JsonKind.OBJECT: "an object"}
# The values of features that take only one form, by `Leaf.scalar_rule`.
_MAJORITY_NAMES = {TEXT_FROM_STRINGS: "strings", BOOLS_WITHOUT_NUMBERS: "true or false"}
# Why a line is not a record. The index is a native.JsonFault.
_LINE_ERRORS = (
    "",
    "is not JSON",
    "is not a JSON object",
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
    """Finds lines that are not UTF-8, and marks them for the scanner.

    The first byte of each such line is overwritten, so that the scanner rejects the line.

    Args:
        block: The lines. Changed in place.

    Returns:
        (index of the first bad byte in the line, value of this byte), by the offset of the line in
        the block.
    """
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
) -> Fault:
    """Returns the fault of a bad line.

    Args:
        tape: The tape with the line.
        line_error: The entry of the line in `tape.errors`.
        invalid_bytes: The result of `mark_invalid_lines`.
    """
    _, error_number, offset, line_start = line_error
    if error_number == native.JsonFault.NOT_UTF8 and line_start in invalid_bytes:
        byte_index, byte = invalid_bytes[line_start]
        return Fault(
            "encoding",
            Message(
                "is not UTF-8: byte 0x{byte} at byte {byte_index} of the line; declare the "
                "file's {encoding}",
                byte=f"{byte:02X}",
                byte_index=byte_index,
                encoding=option("encoding"),
            ),
        )
    if error_number == native.JsonFault.TOO_MANY_VALUES:
        line = tape.data[line_start : line_start + int(np.argmax(tape.data[line_start:] == 10))]
        # An estimate: the line has about one value for each comma.
        sufficient_memory = option(
            "memory",
            f"{(MEMORY_BYTES_PER_VALUE * (np.count_nonzero(line == 44) + 1) >> 20) + 1}MiB",
        )
        return Fault(
            OUT_OF_MEMORY_REASON,
            Message(
                "{line_errors} {memory} leaves room for; {sufficient_memory} is enough",
                line_errors=_LINE_ERRORS[error_number],
                memory=option("memory"),
                sufficient_memory=sufficient_memory,
            ),
        )
    text = tape.data[offset : offset + 24].tobytes().split(b"\n")[0].decode(errors="replace")
    return Fault(
        "json",
        f"{_LINE_ERRORS[error_number]}: at byte {offset - line_start} of the line{f', {text!r}' if text else ''}",
    )


def explain_long_line(line_bytes: int, max_line_bytes: int) -> Fault:
    """Returns the fault of a line that was skipped because of its length."""
    problem = f"the line has {line_bytes:,} bytes, more than the {max_line_bytes:,} that"
    return Fault(
        "too_long",
        Message(
            "{problem} {max_line_bytes}, and an eighth of {memory}, allow",
            problem=problem,
            max_line_bytes=option("max_line_bytes"),
            memory=option("memory"),
        ),
    )


def explain_misfits(tape: Tape, misfits: Sequence[Misfit]) -> Iterator[tuple[int, Fault]]:
    """Explains the values that don't fit their features.

    Yields:
        (number of the record on the tape, fault) of each value.
    """
    for leaf, entries in misfits:
        for row, entry in zip(tape.find_rows(entries).tolist(), entries.tolist(), strict=True):
            yield row, _explain_misfit(tape, entry, leaf)


def _explain_misfit(tape: Tape, entry: int, leaf: Leaf) -> Fault:
    node_and_kind, _, start, stop = tape.entries[entry].tolist()
    text = (
        tape.data[start : min(stop, start + _MAX_QUOTED_BYTES)].tobytes().decode(errors="replace")
    )
    # The low four bits are the kind.
    feature, kind, depth = leaf.feature, node_and_kind & 15, leaf.nodes.index(node_and_kind >> 4)
    if depth + 1 < len(leaf.nodes):  # an object or list around the value
        expected_form = "a list" if leaf.path[depth + 1] is None else "an object"
        step_name = path_to_feature_name(leaf.path[: depth + 1])
        return Fault(
            "type",
            f"{step_name}: {describe_kind(kind)}, but {expected_form} is expected: "
            f"{quote_value(text)}",
        )
    if leaf.scalar_rule in _MAJORITY_NAMES and kind not in _CONTAINER_NAMES:
        majority = _MAJORITY_NAMES[leaf.scalar_rule]
        remedy = Message("{dtypes} keeps it", dtypes=option("dtypes", {feature.name: "string"}))
        return Fault(
            "type",
            Message(
                "{feature}: {kind} where most are {majority}: {text}; {remedy}",
                feature=feature.name,
                kind=describe_kind(kind),
                majority=majority,
                text=text[:60],
                remedy=remedy,
            ),
        )
    if feature.dtype == "bytes" and kind not in _CONTAINER_NAMES:
        remedy = Message(
            "{dtypes} keeps text as it is", dtypes=option("dtypes", {feature.name: "bytes"})
        )
        return Fault(
            "type",
            Message(
                "{feature}: {quote_value} is not base64; {remedy}",
                feature=feature.name,
                quote_value=quote_value(text),
                remedy=remedy,
            ),
        )
    if kind in _CONTAINER_NAMES:
        return Fault(
            "type",
            f"{feature.name}: {_CONTAINER_NAMES[kind]} where {feature.describe()} is expected: {quote_value(text)}",
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, float) and math.isinf(value) and "Inf" not in text:
        value = text  # only a string can represent 1e999
    is_number = kind in (native.JsonKind.INT, native.JsonKind.FLOAT)
    # float64 can represent such a number exactly.
    as_float = isinstance(value, int) and feature.dtype == "float32" and abs(value) <= 1 << 53
    loses_digits = kind == native.JsonKind.INT and "float" in feature.dtype and not as_float
    if not is_number or feature.dtype == "bool" or loses_digits:
        # The other values have another kind, so only a string dtype keeps all of them.
        value = text
    reason = "class" if feature.classes else "range" if is_number else "type"
    return Fault(
        reason,
        Message(
            "{feature}: {text} does not fit {feature2}{suggest_remedy}",
            feature=feature.name,
            text=text[:60],
            feature2=feature.describe(),
            suggest_remedy=suggest_remedy(value, feature),
        ),
    )


@dataclass(frozen=True, eq=False)
class RecordLayout:
    """The features, and where and how their values are stored in a record.

    Attributes:
        schema: The features.
        paths: Path of each feature in a record, by feature name. A feature without one is null in
            every record.
        base64_features: The features with base64 strings.
        scalar_rules: `Leaf.scalar_rule` by feature name.
    """

    schema: Schema
    paths: Mapping[str, JsonPath]
    base64_features: frozenset[str]
    scalar_rules: Mapping[str, str]

    def build_batch(
        self, tape: Tape, scanner: TapeScanner, invalid_bytes: Mapping[int, tuple[int, int]]
    ) -> CachedBatch:
        """Converts the records of a tape to the schema. Bad lines and misfits become rejects.

        Args:
            tape: The records.
            scanner: The scanner that made the tape.
            invalid_bytes: The result of `mark_invalid_lines`.

        Returns:
            The records and rejects. Their positions are line numbers, so blank lines count.

        Raises:
            DataError: An entire column has another structure than its feature, such as lists for a
                scalar.
        """
        faults = {
            int(error[0]): explain_line_error(tape, error, invalid_bytes)
            for error in tape.errors.tolist()
        }
        batch, misfits = build_columns(tape, self._leaves(scanner))
        is_kept = np.ones(tape.rows, np.bool_)
        for row, fault in explain_misfits(tape, misfits):
            is_kept[row] = False
            # A record is rejected once, by its first misfit.
            faults.setdefault(int(tape.row_lines[row]), fault)
        conformed = conform(
            batch if is_kept.all() else batch.filter(pa.array(is_kept)), self.schema
        )
        line_numbers = tape.row_lines[is_kept].astype(np.int64)
        faults.update((int(line_numbers[row]), fault) for row, fault in conformed.faults.items())
        return CachedBatch.from_ordinals(
            conformed.batch, line_numbers[conformed.good_rows], _sorted_rejects(faults), tape.lines
        )

    def build_long_line_batch(self, line_bytes: int, max_line_bytes: int) -> CachedBatch:
        """Returns a batch with the reject of one line that is too long."""
        reject = CachedReject(0, 0, explain_long_line(line_bytes, max_line_bytes))
        return CachedBatch(
            batch=pa.RecordBatch.from_pylist([], to_arrow(self.schema)),
            missing_ordinals=np.zeros(1, np.int64),
            rejects=(reject,),
            num_positions=1,
        )

    def finish_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch of a predicted layout to this one, the final layout.

        Features that the batch lacks become nulls, and class names become class numbers.
        `agrees_with` must have accepted this layout.
        """
        columns_by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            _finish_column(columns_by_name.get(feature.name), feature, batch.num_rows)
            for feature in self.schema
        ]
        return build_batch(columns, to_arrow(self.schema), batch.num_rows)

    def agrees_with(self, final_layout: RecordLayout) -> bool:
        """Returns whether records of this layout are valid for the final one.

        The final layout may have additional features, which the parsed records lack. So none of
        these may be required.
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
                self.scalar_rules.get(feature.name),
            )
            for feature in self.schema
        ]

    def _leaves(self, scanner: TapeScanner) -> list[Leaf]:
        """Returns the features that occurred in a record so far.

        `conform` adds nulls for the others.
        """
        leaves = (
            Leaf(
                feature=feature,
                nodes=scanner.find_nodes(self.paths[feature.name]),
                path=self.paths[feature.name],
                is_base64=feature.name in self.base64_features,
                scalar_rule=self.scalar_rules.get(feature.name, ""),
            )
            for feature in self.schema
            if feature.name in self.paths
        )
        # A node of -1 means that no record has the key.
        return [leaf for leaf in leaves if leaf.nodes[0] >= 0]


def _sorted_rejects(faults: Mapping[int, Fault]) -> tuple[CachedReject, ...]:
    return tuple(CachedReject(number, number, faults[number]) for number in sorted(faults))


def _finish_column(column: pa.Array | None, feature: Feature, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, arrow_type(feature))
    return encode_classes(column, feature)


class LayoutPredictor:
    """Predicts the layout from the values that all threads have seen so far.

    The predicted layout has no label, because its class names are only known after the scan.
    Several threads may use the predictor at once.

    Args:
        common: The options of the plan.
        base64_features: The features with base64 strings.
    """

    def __init__(self, common: PlanOptions, base64_features: frozenset[str]) -> None:
        self._common, self._base64_features = replace(common, label=None), base64_features
        self._counts_by_path: dict[JsonPath, ValueCounts] = {}
        self._layout: RecordLayout | None = None
        self._lock = threading.Lock()

    def predict(self, observations: Observations) -> RecordLayout | None:
        """Adds the values of a range, and returns the layout.

        The layout fits all values so far.

        Args:
            observations: All values of one range so far.

        Returns:
            The layout, or None if no layout fits. As long as no new kind of value appears, it is
            the same object.
        """
        if any(
            _has_new_kinds(counts, self._counts_by_path.get(path))
            for path, counts in observations.counts_by_path.items()
        ):
            # Most calls bring no new kind of value, so they need no lock.
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
            # No feature has a value in exactly -1 records, so that none is required.
            inferred = infer_features(
                Observations(-1, self._counts_by_path),
                Declarations.from_options(self._common),
                lambda _: ("", 0),
            )
            return make_layout(inferred, self._common, self._base64_features)
        except RecordmillError:  # the plan reports it after the scan
            return None


def make_layout(
    inferred: InferredFeatures, common: PlanOptions, base64_features: frozenset[str]
) -> RecordLayout:
    """Returns the layout of inferred features, after the user's declarations. It has no label.

    Raises:
        UsageError: An option names an unknown column.
        DataError: A required feature is missing.
    """
    schema, _ = finish_schema(inferred.schema, (), None, replace(common, label=None), "the files")
    paths = {name: path for name, path in inferred.paths.items() if name in schema}
    return RecordLayout(schema, paths, base64_features, inferred.scalar_rules)


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
    """Returns the counts with 1 instead of each positive number.

    Dtypes depend only on the kinds that occur, so equal flags need no new layout.
    """
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
    """Parses the records of one range with the predicted layout, and caches them.

    Args:
        predictor: Predicts the layout for all ranges.
        cache: Receives the records.
    """

    def __init__(self, predictor: LayoutPredictor, cache: ScanCache) -> None:
        self._predictor, self._writer = predictor, ScanCacheWriter(cache)

    def add(
        self,
        tape: Tape,
        scanner: TapeScanner,
        invalid_bytes: Mapping[int, tuple[int, int]],
        observations: Observations,
    ) -> None:
        """Parses the records of the next tape.

        If no layout fits, or another one than for the earlier tapes, the records of the range are
        discarded.

        Args:
            tape: The records.
            scanner: The scanner that made the tape.
            invalid_bytes: The result of `mark_invalid_lines`.
            observations: The values of the range so far, including this tape.
        """
        if not self._writer.is_active:
            return
        try:
            layout = self._predictor.predict(observations)
            if layout is not None:
                self._writer.add(layout.build_batch(tape, scanner, invalid_bytes), layout)
                return
        except RecordmillError:  # reading these records again reports it
            pass
        self._writer.discard()

    def discard(self) -> None:
        """Discards the records of this range."""
        self._writer.discard()

    def store(self, file_ordinal: int, begin: int) -> None:
        """Ends the range and puts its records into the cache."""
        self._writer.store((file_ordinal, begin))
