"""Infers features of what was seen at each place of JSON records, merged over blocks, files and threads.

JSON's values are typed, and no type is made another: whole numbers are int64, whole numbers and decimals together
float32, numbers of which some are whole and beyond int64 text, true and false bool, strings text, also where they look
like numbers; only dates and times, which JSON has no type for, are told from strings: where all are ISO 8601 (the rules
of schemas.lattice, as for CSV). A list of scalars is a feature of variable length, a list of objects
one list per member, a list of lists `[?, ?]`; objects are taken apart into dotted names. What never has a value is
text, as in CSV. Where one place has values of several forms, it has the one that the user declares, or else that of
most values; the records of the others are rejects. If no form has more than half of them, the user is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bools
from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.type_lattice import (
    BOOL_CLASS,
    FLOAT32_CLASS,
    INT64_CLASS,
    TEXT_CLASS,
    resolve_dtype,
)
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.tape import JsonPath, Tape, check_path_count
from recordmill.sources.values.schema_unifier import parse_dtype

_KINDS_BY_FORM: Mapping[str, tuple[int, ...]] = {
    "true or false": (native.JsonKind.FALSE_VALUE, native.JsonKind.TRUE_VALUE),
    "a number": (native.JsonKind.INT, native.JsonKind.FLOAT),
    "a string": (native.JsonKind.STRING, native.JsonKind.ESCAPED_STRING),
    "an object": (native.JsonKind.OBJECT,),
    "a list": (native.JsonKind.ARRAY,),
}
_SCALAR_FORMS = ("true or false", "a number", "a string")
_MAX_EXACT_DIGITS = 7  # a whole number of so many (6 digits and a sign) is exact as float32
JsonPlace = tuple[int, int]  # (part of the input, line in it)


@dataclass
class ValueCounts:
    """Counts of the values at one place of records.

    Attributes:
        counts: How many values of each kind.
        first_places: The place of the first one of each kind.
        inexact: Decimals and whole numbers that float32 changes, whole numbers beyond int64, decimals beyond float32.
        text_classes: What the strings are, as classes of schemas.lattice.
    """

    counts: npt.NDArray[np.int64]
    first_places: list[JsonPlace | None]
    inexact: npt.NDArray[np.int64]
    text_classes: int

    def merge(self, other: ValueCounts) -> None:
        self.text_classes |= other.text_classes
        self.counts += other.counts
        self.inexact += other.inexact
        self.first_places = [
            min((p for p in pair if p is not None), default=None)
            for pair in zip(self.first_places, other.first_places, strict=True)
        ]


_NO_VALUES = ValueCounts(
    np.zeros(0, np.int64), [None] * native.JSON_KINDS, np.zeros(0, np.int64), 0
)


@dataclass
class Observations:
    """rows: records seen; seen: by path, in the order in which the paths were first met."""

    rows: int = 0
    counts_by_path: dict[JsonPath, ValueCounts] = field(default_factory=dict)

    def add(self, tape: Tape, paths: list[JsonPath], part: int, line: int) -> None:
        """Takes in a tape whose first line is that line of that part of the input."""
        self.rows += tape.rows
        for node in np.flatnonzero(tape.kind_masks).tolist():
            known = self.counts_by_path.get(paths[node], _NO_VALUES)
            self._merge(paths[node], _count_values(tape, node, known, part, line))

    def _merge(self, path: JsonPath, seen: ValueCounts) -> None:
        if (known := self.counts_by_path.get(path)) is None:
            self.counts_by_path[path] = seen
        else:
            known.merge(seen)

    def merge(self, other: Observations) -> None:
        """Takes in what was seen in a later part of the input."""
        self.rows += other.rows
        for path, seen in other.counts_by_path.items():
            self._merge(path, seen)
        check_path_count(len(self.counts_by_path), lambda: next(reversed(self.counts_by_path)))


def _count_values(tape: Tape, node: int, known: ValueCounts, part: int, line: int) -> ValueCounts:
    """Returns the counts of a node's values. known: what was seen there before, whose first places are not looked for,
    nor what strings are that are text.
    """
    here, have = tape.node_slice(node), int(tape.kind_masks[node])
    kinds, numbers, texts = tape.kinds[here], native.ColumnCounts(), 0
    counts = np.zeros(native.JSON_KINDS, np.int64)
    first: list[JsonPlace | None] = [None] * native.JSON_KINDS
    for kind in (kind for kind in range(native.JSON_KINDS) if have >> kind & 1):
        same = kinds == kind
        counts[kind] = np.count_nonzero(same)
        if known.first_places[kind] is None:
            row = tape.find_rows(tape.entry_ids[here][[np.argmax(same)]])[0]
            first[kind] = part, line + int(tape.row_lines[row])
    if have & (1 << native.JsonKind.INT | 1 << native.JsonKind.FLOAT):
        long = (kinds == native.JsonKind.FLOAT) | (
            (kinds == native.JsonKind.INT) & (tape.sizes[here] > _MAX_EXACT_DIGITS)
        )
        numbers = _classify_values(tape, here, long, native.FieldKind.NUMBERS)
    if have >> native.JsonKind.STRING & 1 and not known.text_classes & TEXT_CLASS:
        texts = _classify_values(
            tape, here, kinds == native.JsonKind.STRING, native.FieldKind.CLASSES
        ).classes
        texts = TEXT_CLASS if texts & (BOOL_CLASS | INT64_CLASS | FLOAT32_CLASS) else texts
    lost = (
        numbers.inexact_decimals,
        numbers.inexact_integers,
        numbers.beyond_int64,
        numbers.beyond_float32,
    )
    return ValueCounts(counts, first, np.array([0, *lost]), texts)


def _classify_values(tape: Tape, here: slice, among: Bools, kind: int) -> native.ColumnCounts:
    """Returns what some of a node's values are, as fields of that kind."""
    counts = native.ColumnCounts()
    if among.any():
        starts, sizes = (
            of[here] if among.all() else of[here][among] for of in (tape.starts, tape.sizes)
        )
        infos = np.minimum(sizes, native.FIELD_LENGTH_MASK)
        fields = native.TextFields(data=tape.data, starts=starts, infos=infos)
        native.read_fields(fields, native.FieldType(kind=kind), None, None, None, counts, None)
    return counts


@dataclass(frozen=True)
class InferredFeatures:
    """A feature for each leaf of JSON records. paths: by name, where in the record it stands. string_features: features that
    are text because strings are there, and are not declared: other scalars don't fit.
    """

    schema: Schema
    paths: Mapping[str, JsonPath]
    features_without_values: tuple[str, ...]
    notes: tuple[str, ...]
    string_features: frozenset[str]


class Declarations:
    """Declarations of the user about features: by name, whether it has a shape, or None where that is not said.

    A given schema names all that is wanted, so that no other place can be wrong; `all_of_it` says that there is one.
    """

    def __init__(
        self,
        shaped: Mapping[str, bool | None],
        all_of_it: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._has_shape, self.has_schema, self.columns = shaped, all_of_it, columns
        self._parent_names = {
            name[:at] for name in shaped for at, letter in enumerate(name) if letter == "."
        }

    @classmethod
    def from_options(cls, common: PlanOptions) -> Declarations:
        shapes = {name: parse_dtype(text)[1] for name, text in common.dtypes.items()}
        given = (
            {}
            if common.schema is None
            else {feature.name: bool(feature.shape) for feature in common.schema}
        )
        return cls(
            {
                **given,
                **{name: None if shape is None else bool(shape) for name, shape in shapes.items()},
            },
            common.schema is not None,
            common.columns,
        )

    def __contains__(self, name: object) -> bool:
        return self.has_schema or name in self._has_shape

    def declares(self, name: str) -> bool:
        """Returns whether it speaks of that feature itself."""
        return name in self._has_shape

    def is_object(self, name: str) -> bool:
        """Returns whether it speaks of a member of that place, and not of the place."""
        return name in self._parent_names and name not in self._has_shape

    def is_list(self, name: str) -> bool:
        return bool(self._has_shape.get(name))


def infer_features(
    observed: Observations, declared: Declarations, where: Callable[[int], tuple[str, int]]
) -> InferredFeatures:
    """Returns the features of what was seen.

    declared: names whose values may be of several forms. where: by part, its file's name and first line.

    Raises:
        DataError: a place has values of several forms, or two places have one name; it names the places.
    """
    features: dict[str, Feature] = {}
    paths: dict[str, JsonPath] = {}
    without_values, notes, strings = [], [], set()
    parents = {path[:-1] for path in observed.counts_by_path}
    forms: dict[JsonPath, str | None] = {(): "an object"}  # of a place before those inside it
    places = list(observed.counts_by_path.items())
    if (columns := declared.columns) is not None:
        places = sorted(
            (item for item in places if item[0][0] in columns),
            key=lambda item: columns.index(item[0][0]),
        )
    for path, seen in places:
        name = path_to_feature_name(path)
        if forms.get(path[:-1]) != ("a list" if path[-1] is None else "an object"):
            continue  # inside a value of a form that was not chosen
        form = forms[path] = _choose_form(path, observed, declared, where)
        notes.extend(_note_minority_forms(name, form, seen, declared, where))
        if (form == "a list" and (*path, None) in observed.counts_by_path) or (
            form == "an object" and path in parents
        ):
            continue
        if form == "an object":
            notes.append(
                f"{name}: an empty object in every record that has it; it holds no feature"
            )
            continue
        leaf = (*path, None) if form == "a list" else path
        if name in paths:
            raise DataError(
                f"two places in the records are called {name!r}: {_format_path(paths[name])} and "
                f"{_format_path(leaf)}; rename one"
            )
        dtype = _resolve_form_dtype(form, seen)
        if form == "a string" and name not in declared:
            strings.add(name)
        features[name] = Feature(
            name, dtype, (None,) * leaf.count(None), _is_in_every_record(observed, leaf)
        )
        paths[name] = leaf
        if form is None or form == "a list":
            without_values.append(name)
        if form == "a number" and name not in declared:
            notes.extend(_note_losses(name, seen, dtype))
        if form == "a string" and dtype != "string" and name not in declared:
            notes.append(
                f"{name}: all its text is ISO 8601, so it is {dtype}; {option('dtypes', {name: 'string'})} keeps the "
                "text"
            )
    return InferredFeatures(
        Schema(tuple(features.values())),
        paths,
        tuple(without_values),
        tuple(notes),
        frozenset(strings),
    )


def path_to_feature_name(path: JsonPath) -> str:
    """Returns the keys with dots between them; a dot that stands in a key stays."""
    return ".".join(name for name in path if name is not None)


def _format_path(path: JsonPath) -> str:
    return "".join("[]" if name is None else f"[{name!r}]" for name in path)


def describe_kind(kind: int) -> str:
    """Returns the name of a kind of value, for messages."""
    return next((form for form, kinds in _KINDS_BY_FORM.items() if kind in kinds), "null")


def _find_forms(seen: ValueCounts) -> dict[str, tuple[JsonPlace, int]]:
    """Returns the forms of the values, each with the place of its first one and their number, by place."""
    found = {}
    for form, kinds in _KINDS_BY_FORM.items():
        if places := [place for kind in kinds if (place := seen.first_places[kind]) is not None]:
            found[form] = min(places), int(seen.counts[[*kinds]].sum())
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _choose_form(
    path: JsonPath,
    observed: Observations,
    declared: Declarations,
    where: Callable[[int], tuple[str, int]],
) -> str | None:
    """Returns the form that a place's values have, or are to have; None if all are null."""
    name, have = path_to_feature_name(path), _find_forms(observed.counts_by_path[path])
    if len(have) < 2:
        return next(iter(have), None)
    if declared.is_object(name) and "an object" in have:
        return "an object"
    if declared.declares(name):
        scalars = [form for form in have if form in _SCALAR_FORMS]
        if "a list" in have and (declared.is_list(name) or not scalars):
            return "a list"
        return "a string" if len(scalars) > 1 else scalars[0]
    most = max(have, key=lambda form: have[form][1])
    if 2 * have[most][1] > sum(count for _, count in have.values()) or declared.has_schema:
        return most
    forms_text = " and ".join(
        f"{form} ({_format_place(place, where)})" for form, (place, _) in have.items()
    )
    choices = "; ".join(
        f"{option('dtypes', {of: dtype})} {what}"
        for of, dtype, what in _list_choices(path, have, observed)
    )
    raise DataError(f"{name!r} is {forms_text}; declare what it shall be: {choices}")


def _list_choices(
    path: JsonPath, have: Mapping[str, tuple[JsonPlace, int]], observed: Observations
) -> list[tuple[str, str, str]]:
    """Returns (name, dtype, what that does) of what may be declared where values have these forms."""
    name, scalars = path_to_feature_name(path), [form for form in have if form in _SCALAR_FORMS]
    if len(scalars) == len(have):
        return [(name, "string", "keeps the scalars as text")]
    dtype = (
        "string"
        if len(scalars) > 1
        else _resolve_form_dtype(scalars[0], observed.counts_by_path[path])
        if scalars
        else ""
    )
    found = [(name, dtype, f"takes {' and '.join(scalars)}")] if scalars else []
    for form in have:
        if form in _SCALAR_FORMS:
            continue
        below = (
            leaf
            for leaf in observed.counts_by_path
            if leaf[: len(path)] == path and len(leaf) > len(path)
        )
        leaves = (leaf for leaf in below if (leaf[len(path)] is None) == (form == "a list"))
        for leaf, kinds in ((leaf, _find_forms(observed.counts_by_path[leaf])) for leaf in leaves):
            if any(kind in _SCALAR_FORMS for kind in kinds):
                shape = (
                    f"[{','.join('?' for step in leaf if step is None)}]" if None in leaf else ""
                )
                inner = _resolve_form_dtype(next(iter(kinds)), observed.counts_by_path[leaf])
                found.append((path_to_feature_name(leaf), inner + shape, f"takes {form}"))
                break
    return [(of, dtype, f"{what}, and the others are rejects") for of, dtype, what in found]


def _note_minority_forms(
    name: str,
    form: str | None,
    seen: ValueCounts,
    declared: Declarations,
    where: Callable[[int], tuple[str, int]],
) -> list[str]:
    """Returns a note on values of other forms than that of most."""
    have = _find_forms(seen)
    if form not in have or len(have) < 2 or name in declared or declared.is_object(name):
        return []
    others = " and ".join(
        f"{count:,} time{'s' * (count > 1)} {other} ({_format_place(place, where)})"
        for other, (place, count) in have.items()
        if other != form
    )
    text = all(other in _SCALAR_FORMS for other in have)
    keeps = f"; {option('dtypes', {name: 'string'})} keeps all as text" if text else ""
    return [f"{name}: {form} in most records, and {others}, which is rejected{keeps}"]


def _format_place(place: JsonPlace, where: Callable[[int], tuple[str, int]]) -> str:
    file, line = where(place[0])
    return f"{file}: line {line + place[1] + 1}"


def _resolve_form_dtype(form: str | None, seen: ValueCounts) -> str:
    if form == "a number":
        wholes = INT64_CLASS if seen.counts[native.JsonKind.INT] else 0
        decimals = FLOAT32_CLASS if seen.counts[native.JsonKind.FLOAT] else 0
        return resolve_dtype(
            wholes | decimals | (TEXT_CLASS if seen.inexact[native.NumberLoss.BEYOND_INT64] else 0)
        )
    if form == "a string" and not seen.counts[native.JsonKind.ESCAPED_STRING]:
        return resolve_dtype(seen.text_classes)
    return resolve_dtype(BOOL_CLASS if form == "true or false" else TEXT_CLASS)


def _is_in_every_record(observed: Observations, leaf: JsonPath) -> bool:
    """Returns whether every record has it: the value itself, or the outermost list on the way to it."""
    path = leaf[: leaf.index(None)] if None in leaf else leaf
    counts = observed.counts_by_path[path].counts
    return int(counts.sum() - counts[native.JsonKind.NULL_VALUE]) == observed.rows


def _note_losses(name: str, seen: ValueCounts, dtype: str) -> list[str]:
    notes = []
    _, decimals, wholes, beyond, overflows = seen.inexact.tolist()
    numbers = int(seen.counts[native.JsonKind.INT] + seen.counts[native.JsonKind.FLOAT])
    if dtype == "string":
        return [
            f"{name}: {beyond:,} of {numbers:,} values are whole numbers beyond int64, so all are kept as text"
        ]
    if dtype == "int64":
        return []
    if decimals:
        notes.append(
            f"{name}: {decimals:,} of {numbers:,} values lose digits as float32; "
            f"{option('dtypes', {name: 'float64'})} keeps them"
        )
    if wholes + overflows:
        notes.append(
            f"{name}: {wholes + overflows:,} of {numbers:,} values can't be held by float32 and are rejected; "
            f"{option('dtypes', {name: 'float64'})} keeps them"
        )
    return notes
