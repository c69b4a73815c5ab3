"""Inference of features from the values at each path of JSON records.

JSON values have types, and no type is converted to another:

* Whole numbers are int64.
* A path with whole numbers and decimals is float32.
* Numbers are text if some of them are whole and exceed int64.
* true and false are bool. Numbers among them are another form, unless the user declares bool. Then
  0 and 1 are values, too.
* Strings are text, even if they look like numbers. If all of them are ISO 8601, they are dates or
  times, because JSON has no type for these. The rules are the same as for CSV, see
  `schemas.type_lattice`.
* A string among numbers or booleans is a value if its text is valid for their dtype.
* A list of scalars is a feature of variable length. A list of objects becomes one list for each key
  of the objects. A list of lists has the shape `[?, ?]`.
* Objects are divided into features with dotted names.
* A feature that never has a value is text, as in CSV.

The form of a value is one of: true or false, a number, a string, an object, a list. If a path has
values of several forms, the declaration of the user decides, or else the form of most values.
Records with other forms are rejects. If no form has more than half of the values, the user must
choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bools
from recordmill.base.errors import DataError
from recordmill.base.messages import Message, join_messages
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
from recordmill.sources.jsonl.columns import BOOLS_WITHOUT_NUMBERS, TEXT_FROM_STRINGS
from recordmill.sources.jsonl.tape import JsonPath, Tape, check_path_count
from recordmill.sources.values.schema_unifier import note_float32_losses, parse_dtype

_KINDS_BY_FORM: Mapping[str, tuple[int, ...]] = {
    "true or false": (native.JsonKind.FALSE_VALUE, native.JsonKind.TRUE_VALUE),
    "a number": (native.JsonKind.INT, native.JsonKind.FLOAT),
    "a string": (native.JsonKind.STRING, native.JsonKind.ESCAPED_STRING),
    "an object": (native.JsonKind.OBJECT,),
    "a list": (native.JsonKind.ARRAY,),
}
_SCALAR_FORMS = ("true or false", "a number", "a string")
# The rules for the other scalars of an undeclared feature, by the form of most values.
_SCALAR_RULES = {"a string": TEXT_FROM_STRINGS, "true or false": BOOLS_WITHOUT_NUMBERS}
# 7 characters: a whole number of 6 digits and a sign is exact as float32.
_MAX_EXACT_DIGITS = 7
# (index of the range, line number in it from 0)
JsonPlace = tuple[int, int]


@dataclass
class ValueCounts:
    """Counts of the values at one path.

    Attributes:
        counts: Number of values of each native.JsonKind.
        first_places: Place of the first value of each kind. None if there is no such value.
        inexact: Number of numbers that float32 or int64 can't represent, by native.NumberLoss.
        text_classes: Types that the strings could have, as bits of `schemas.type_lattice`.
    """

    counts: npt.NDArray[np.int64]
    first_places: list[JsonPlace | None]
    inexact: npt.NDArray[np.int64]
    text_classes: int

    def merge(self, later: ValueCounts) -> None:
        """Adds the counts of other values at the same path."""
        self.text_classes |= later.text_classes
        self.counts += later.counts
        self.inexact += later.inexact
        self.first_places = [
            min((place for place in places if place is not None), default=None)
            for places in zip(self.first_places, later.first_places, strict=True)
        ]


_NO_VALUES = ValueCounts(
    np.zeros(0, np.int64), [None] * native.JSON_KINDS, np.zeros(0, np.int64), 0
)


@dataclass
class Observations:
    """The kinds of values in some records, by path.

    Attributes:
        rows: Number of records.
        counts_by_path: Counts of the values by path, in the order of their first occurrence.
    """

    rows: int = 0
    counts_by_path: dict[JsonPath, ValueCounts] = field(default_factory=dict)

    def add(self, tape: Tape, paths: list[JsonPath], range_index: int, first_line: int) -> None:
        """Adds the records of a tape.

        Args:
            tape: The records.
            paths: The path of each node.
            range_index: Index of the range that contains the tape.
            first_line: Line number in this range of the first line of the tape.
        """
        self.rows += tape.rows
        for node in np.flatnonzero(tape.kind_masks).tolist():
            known_counts = self.counts_by_path.get(paths[node], _NO_VALUES)
            self._merge(
                paths[node], _count_values(tape, node, known_counts, range_index, first_line)
            )

    def _merge(self, path: JsonPath, counts: ValueCounts) -> None:
        if (known_counts := self.counts_by_path.get(path)) is None:
            self.counts_by_path[path] = counts
        else:
            known_counts.merge(counts)

    def merge(self, later: Observations) -> None:
        """Adds the observations of a later range."""
        self.rows += later.rows
        for path, counts in later.counts_by_path.items():
            self._merge(path, counts)
        check_path_count(len(self.counts_by_path), lambda: next(reversed(self.counts_by_path)))


def _count_values(
    tape: Tape, node: int, known_counts: ValueCounts, range_index: int, first_line: int
) -> ValueCounts:
    """Counts the values of a node.

    Args:
        tape: The records.
        node: The node.
        known_counts: Counts of the earlier values at this path. If a kind has occurred before, its
            first place is not searched again. If some earlier string is plain text, strings are not
            classified again.
        range_index: Index of the range.
        first_line: Line number in this range of the first line of the tape.
    """
    node_slice, kind_mask = tape.node_slice(node), int(tape.kind_masks[node])
    kinds, number_counts, text_classes = tape.kinds[node_slice], native.ColumnCounts(), 0
    counts = np.zeros(native.JSON_KINDS, np.int64)
    first_places: list[JsonPlace | None] = [None] * native.JSON_KINDS
    for kind in (kind for kind in range(native.JSON_KINDS) if kind_mask >> kind & 1):
        has_kind = kinds == kind
        counts[kind] = np.count_nonzero(has_kind)
        # The search for the first place is slow, and only the first one of a range is needed.
        if known_counts.first_places[kind] is None:
            row = tape.find_rows(tape.entry_ids[node_slice][[np.argmax(has_kind)]])[0]
            first_places[kind] = range_index, first_line + int(tape.row_lines[row])
    if kind_mask & (1 << native.JsonKind.INT | 1 << native.JsonKind.FLOAT):
        # Short whole numbers are exact, so the check skips them.
        may_be_inexact = (kinds == native.JsonKind.FLOAT) | (
            (kinds == native.JsonKind.INT) & (tape.sizes[node_slice] > _MAX_EXACT_DIGITS)
        )
        number_counts = _classify_values(tape, node_slice, may_be_inexact, native.FieldKind.NUMBERS)
    # Strings with escapes are text, so only the others are classified.
    if kind_mask >> native.JsonKind.STRING & 1 and not known_counts.text_classes & TEXT_CLASS:
        text_classes = _classify_values(
            tape, node_slice, kinds == native.JsonKind.STRING, native.FieldKind.CLASSES
        ).classes
        text_classes = (
            TEXT_CLASS
            # Only dates and times count as more than text. JSON has its own booleans and numbers.
            if text_classes & (BOOL_CLASS | INT64_CLASS | FLOAT32_CLASS)
            else text_classes
        )
    inexact = (
        number_counts.inexact_decimals,
        number_counts.inexact_integers,
        number_counts.beyond_int64,
        number_counts.beyond_float32,
    )
    return ValueCounts(counts, first_places, np.array([0, *inexact]), text_classes)


def _classify_values(
    tape: Tape, node_slice: slice, mask: Bools, field_kind: int
) -> native.ColumnCounts:
    """Determines which types some values of a node could have, and counts inexact numbers.

    Args:
        tape: The records.
        node_slice: The values of the node in the sorted arrays of the tape.
        mask: Which of these values are classified.
        field_kind: native.FieldKind of the classification.
    """
    counts = native.ColumnCounts()
    if mask.any():
        starts, sizes = (
            array[node_slice] if mask.all() else array[node_slice][mask]
            for array in (tape.starts, tape.sizes)
        )
        infos = np.minimum(sizes, native.FIELD_LENGTH_MASK)
        fields = native.TextFields(data=tape.data, starts=starts, infos=infos)
        native.read_fields(
            fields, native.FieldType(kind=field_kind), None, None, None, counts, None
        )
    return counts


@dataclass(frozen=True)
class InferredFeatures:
    """The features that were inferred, one for each path that ends in scalars.

    Attributes:
        schema: The features.
        paths: Path of each feature in a record, by feature name.
        features_without_values: Features that never have a value.
        notes: Notes for the user.
        scalar_rules: `Leaf.scalar_rule` of features that are text or bool because most values are.
            Features with a dtype declared by the user are not included. Other scalars are rejects.
    """

    schema: Schema
    paths: Mapping[str, JsonPath]
    features_without_values: tuple[str, ...]
    notes: tuple[str, ...]
    scalar_rules: Mapping[str, str]


class Declarations:
    """The user's declarations about features.

    Args:
        has_shape: Maps the name of each declared feature to whether it is declared as a list. The
            value is None if only its dtype is declared.
        has_schema: Whether the user has declared a complete schema. Paths outside of it are not
            read, so they can't be errors.
        columns: The columns to read, or None for all.
    """

    def __init__(
        self,
        has_shape: Mapping[str, bool | None],
        has_schema: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._has_shape, self.has_schema, self.columns = has_shape, has_schema, columns
        self._parent_names = {
            name[:index]
            for name in has_shape
            for index, character in enumerate(name)
            if character == "."
        }

    @classmethod
    def from_options(cls, common: PlanOptions) -> Declarations:
        shapes = {name: parse_dtype(text)[1] for name, text in common.dtypes.items()}
        schema_shapes = (
            {}
            if common.schema is None
            else {feature.name: bool(feature.shape) for feature in common.schema}
        )
        return cls(
            {
                **schema_shapes,
                **{name: None if shape is None else bool(shape) for name, shape in shapes.items()},
            },
            common.schema is not None,
            common.columns,
        )

    def __contains__(self, name: object) -> bool:
        return self.has_schema or name in self._has_shape

    def declares(self, name: str) -> bool:
        """Returns whether the user has declared the feature itself."""
        return name in self._has_shape

    def is_object(self, name: str) -> bool:
        """Returns whether members of the feature are declared, and not the feature itself."""
        return name in self._parent_names and name not in self._has_shape

    def is_list(self, name: str) -> bool:
        return bool(self._has_shape.get(name))


def infer_features(
    observations: Observations,
    declarations: Declarations,
    locate_range: Callable[[int], tuple[str, int]],
) -> InferredFeatures:
    """Infers the features of the observed values.

    Args:
        observations: The values of all records.
        declarations: The user's declarations, which decide if a path has values of several forms.
        locate_range: Returns (file name, first line number) of a range, by its index.

    Raises:
        DataError: A path has values of several forms without a majority, or two paths have the same
            feature name. The message names the places.
    """
    features: dict[str, Feature] = {}
    paths: dict[str, JsonPath] = {}
    features_without_values, notes = [], []
    scalar_rules: dict[str, str] = {}
    parents = {path[:-1] for path in observations.counts_by_path}
    # The form of each path. A path comes before the paths inside of it.
    forms: dict[JsonPath, str | None] = {(): "an object"}
    counts_by_path = list(observations.counts_by_path.items())
    # The columns option also determines the order of the features.
    if (columns := declarations.columns) is not None:
        counts_by_path = sorted(
            (item for item in counts_by_path if item[0][0] in columns),
            key=lambda item: columns.index(item[0][0]),
        )
    for path, counts in counts_by_path:
        name = path_to_feature_name(path)
        if forms.get(path[:-1]) != ("a list" if path[-1] is None else "an object"):
            continue  # inside of a value in a form that was not chosen
        form = forms[path] = _choose_form(path, observations, declarations, locate_range)
        notes.extend(_note_minority_forms(name, form, counts, declarations, locate_range))
        if (form == "a list" and (*path, None) in observations.counts_by_path) or (
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
        dtype = _resolve_form_dtype(form, counts)
        if form in _SCALAR_RULES and name not in declarations:
            scalar_rules[name] = _SCALAR_RULES[form]
        # Each list level is a dimension of unknown size.
        features[name] = Feature(
            name, dtype, (None,) * leaf.count(None), _is_in_every_record(observations, leaf)
        )
        paths[name] = leaf
        if form is None or form == "a list":
            features_without_values.append(name)
        if form == "a number" and name not in declarations:
            notes.extend(_note_losses(name, counts, dtype))
        if form == "a string" and dtype != "string" and name not in declarations:
            notes.append(
                Message(
                    "{name}: all its text is ISO 8601, so it is {dtype}; {dtypes} keeps the text",
                    name=name,
                    dtype=dtype,
                    dtypes=option("dtypes", {name: "string"}),
                )
            )
    return InferredFeatures(
        schema=Schema(tuple(features.values())),
        paths=paths,
        features_without_values=tuple(features_without_values),
        notes=tuple(notes),
        scalar_rules=scalar_rules,
    )


def path_to_feature_name(path: JsonPath) -> str:
    """Joins the keys of a path with dots.

    List levels add nothing. A dot inside a key is kept.

    >>> path_to_feature_name(("box", None, "x.min"))
    'box.x.min'
    """
    return ".".join(name for name in path if name is not None)


def _format_path(path: JsonPath) -> str:
    return "".join("[]" if name is None else f"[{name!r}]" for name in path)


def describe_kind(kind: int) -> str:
    """Returns a phrase for a native.JsonKind, such as `a number`, for messages."""
    return next((form for form, kinds in _KINDS_BY_FORM.items() if kind in kinds), "null")


def _find_forms(counts: ValueCounts) -> dict[str, tuple[JsonPlace, int]]:
    """Returns the forms of the values at a path.

    The forms are in the order of their first places.

    Returns:
        (place of the first value, number of values) by form.
    """
    first_places = {}
    for form, kinds in _KINDS_BY_FORM.items():
        if places := [place for kind in kinds if (place := counts.first_places[kind]) is not None]:
            first_places[form] = min(places), int(counts.counts[[*kinds]].sum())
    return dict(sorted(first_places.items(), key=lambda item: item[1]))


def _choose_form(
    path: JsonPath,
    observations: Observations,
    declarations: Declarations,
    locate_range: Callable[[int], tuple[str, int]],
) -> str | None:
    """Chooses the form of the feature at a path.

    Returns:
        The form. None if all values are null.

    Raises:
        DataError: No form has more than half of the values, and the user has not declared one.
    """
    name, forms = path_to_feature_name(path), _find_forms(observations.counts_by_path[path])
    if len(forms) < 2:
        return next(iter(forms), None)
    # A declared member requires an object.
    if declarations.is_object(name) and "an object" in forms:
        return "an object"
    if declarations.declares(name):
        scalars = [form for form in forms if form in _SCALAR_FORMS]
        if "a list" in forms and (declarations.is_list(name) or not scalars):
            return "a list"
        return "a string" if len(scalars) > 1 else scalars[0]
    majority_form = max(forms, key=lambda form: forms[form][1])
    if (
        2 * forms[majority_form][1] > sum(count for _, count in forms.values())
        or declarations.has_schema
    ):
        return majority_form
    forms_text = " and ".join(
        f"{form} ({_format_place(place, locate_range)})" for form, (place, _) in forms.items()
    )
    choices = join_messages(
        "; ",
        (
            Message(
                "{dtypes} {effect}", dtypes=option("dtypes", {feature_name: dtype}), effect=effect
            )
            for feature_name, dtype, effect in _list_choices(path, forms, observations)
        ),
    )
    raise DataError(
        "{name} is {forms_text}; declare its type: {choices}",
        name=repr(name),
        forms_text=forms_text,
        choices=choices,
    )


def _list_choices(
    path: JsonPath, forms: Mapping[str, tuple[JsonPlace, int]], observations: Observations
) -> list[tuple[str, str, str]]:
    """Returns the possible declarations for a path with several forms.

    The user can choose one of them.

    Args:
        path: The path.
        forms: The result of `_find_forms`.
        observations: The values of all records.

    Returns:
        (feature name, dtype, effect in words) of each declaration.
    """
    name, scalars = path_to_feature_name(path), [form for form in forms if form in _SCALAR_FORMS]
    if len(scalars) == len(forms):
        return [(name, "string", "keeps the scalars as text")]
    dtype = (
        "string"
        if len(scalars) > 1
        else _resolve_form_dtype(scalars[0], observations.counts_by_path[path])
        if scalars
        else ""
    )
    choices = [(name, dtype, f"takes {' and '.join(scalars)}")] if scalars else []
    for form in forms:
        if form in _SCALAR_FORMS:
            continue
        inner_paths = (
            leaf
            for leaf in observations.counts_by_path
            if leaf[: len(path)] == path and len(leaf) > len(path)
        )
        leaf_paths = (
            leaf for leaf in inner_paths if (leaf[len(path)] is None) == (form == "a list")
        )
        for leaf, kinds in (
            (leaf, _find_forms(observations.counts_by_path[leaf])) for leaf in leaf_paths
        ):
            if any(kind in _SCALAR_FORMS for kind in kinds):
                shape = (
                    f"[{','.join('?' for step in leaf if step is None)}]" if None in leaf else ""
                )
                inner_dtype = _resolve_form_dtype(
                    next(iter(kinds)), observations.counts_by_path[leaf]
                )
                choices.append((path_to_feature_name(leaf), inner_dtype + shape, f"takes {form}"))
                break
    return [
        (feature_name, dtype, f"{effect}, and the others are rejects")
        for feature_name, dtype, effect in choices
    ]


def _note_minority_forms(
    name: str,
    form: str | None,
    counts: ValueCounts,
    declarations: Declarations,
    locate_range: Callable[[int], tuple[str, int]],
) -> list[str]:
    """Returns a note on values that are rejected because most have another form.

    The list is empty if there are none.
    """
    forms = _find_forms(counts)
    if form not in forms or len(forms) < 2 or name in declarations or declarations.is_object(name):
        return []
    other_forms = " and ".join(
        f"{count:,} time{'s' * (count > 1)} {other_form} ({_format_place(place, locate_range)})"
        for other_form, (place, count) in forms.items()
        if other_form != form
    )
    are_scalars = all(other_form in _SCALAR_FORMS for other_form in forms)
    remedy = (
        Message("; {dtypes} keeps all as text", dtypes=option("dtypes", {name: "string"}))
        if are_scalars
        else ""
    )
    # Text is parsed as in CSV, so numbers and booleans may be strings.
    is_parsed = form in ("true or false", "a number") and "a string" in forms
    exception = f" unless its text is valid for {_resolve_form_dtype(form, counts)}"
    return [
        Message(
            "{name}: {form} in most records, and {other_forms}, which is "
            "rejected{exception}{remedy}",
            name=name,
            form=form,
            other_forms=other_forms,
            exception=exception * is_parsed,
            remedy=remedy,
        )
    ]


def _format_place(place: JsonPlace, locate_range: Callable[[int], tuple[str, int]]) -> str:
    file_name, line = locate_range(place[0])
    return f"{file_name}: line {line + place[1] + 1}"


def _resolve_form_dtype(form: str | None, counts: ValueCounts) -> str:
    if form == "a number":
        integer_class = INT64_CLASS if counts.counts[native.JsonKind.INT] else 0
        float_class = FLOAT32_CLASS if counts.counts[native.JsonKind.FLOAT] else 0
        return resolve_dtype(
            integer_class
            | float_class
            # Whole numbers beyond int64 make the feature text, which keeps all digits.
            | (TEXT_CLASS if counts.inexact[native.NumberLoss.BEYOND_INT64] else 0)
        )
    if form == "a string" and not counts.counts[native.JsonKind.ESCAPED_STRING]:
        return resolve_dtype(counts.text_classes)
    return resolve_dtype(BOOL_CLASS if form == "true or false" else TEXT_CLASS)


def _is_in_every_record(observations: Observations, leaf: JsonPath) -> bool:
    """Returns whether every record has a value that is not null for a feature.

    For a feature inside of lists, only the outermost list must exist in every record. It may be
    empty.

    Args:
        observations: The values of all records.
        leaf: The path of the feature.
    """
    # An element of a list need not exist in each record, but the list itself does.
    path = leaf[: leaf.index(None)] if None in leaf else leaf
    counts = observations.counts_by_path[path].counts
    return int(counts.sum() - counts[native.JsonKind.NULL_VALUE]) == observations.rows


def _note_losses(name: str, counts: ValueCounts, dtype: str) -> list[str]:
    _, num_inexact_decimals, num_inexact_integers, num_beyond_int64, num_overflows = (
        counts.inexact.tolist()
    )
    num_numbers = int(counts.counts[native.JsonKind.INT] + counts.counts[native.JsonKind.FLOAT])
    if dtype == "string":
        return [
            f"{name}: {num_beyond_int64:,} of {num_numbers:,} values are whole numbers beyond int64, so all are kept as text"
        ]
    if dtype == "int64":
        return []
    return note_float32_losses(
        name,
        name,
        values=num_numbers,
        rounded=num_inexact_decimals,
        rejected=num_inexact_integers + num_overflows,
    )
