"""Unifies the features of several batches or files to one schema that holds them all, or explains why there is none,
and applies what the user declares over it: `--dtype x=float64`, `--dtype image=uint8[28,28]`, a label with its classes.

Types widen only where every value survives: integers to the smallest type that holds both, numbers to a float,
timestamps to the finer unit, tensors of different length to lists, classes of different parts to those of all, by name.
A number and a text, a number of a class and one of none, or a scalar and a list, are not made one silently: the user is
told both places and declares which it shall be.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.schemas.arrow import class_names_in_metadata, from_arrow_field, label_in_metadata
from recordmill.schemas.feature import DTYPES, Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.values.labels import (
    ClassNames,
    float_label_notes,
    format_classes,
    has_text_classes,
    sort_classes,
    with_label,
)

_TIME_UNITS = ("s", "ms", "us", "ns")
_FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
_DTYPE_PATTERN = re.compile(
    r"(timestamp\[(?:s|ms|us|ns)(?:, ?UTC)?\]|[a-z]+[0-9]*)(?:\[([0-9?, ]*)\])?"
)


class SchemaUnifier:
    """Collects the flattened Arrow schemas of the parts of one input; `schema()` is what they have in common.

    declared: the names whose dtype the user gives: whatever they are, they don't conflict.
    """

    def __init__(self, declared: Mapping[str, str] | None = None) -> None:
        self._declared = declared or {}
        self._features: dict[str, Feature] = {}
        self._sources: dict[str, str] = {}
        self._typed: set[str] = set()  # names whose type some part has told, not only nulls
        self._parts = 0
        self._part_counts: dict[str, int] = {}
        self._label: str | None = None
        # of each column of numbers: the classes that parts name, None for numbers of no class, and the first such part
        self._class_tables: defaultdict[str, dict[tuple[str, ...] | None, str]] = defaultdict(dict)

    def add(
        self, schema: pa.Schema, source_name: str, null_counts: Mapping[str, int] | None = None
    ) -> None:
        """Takes in a part: its schema, its place for messages, and how many nulls each column has if that is known.

        Raises:
            DataError: a column has a type that no feature can hold, or one that does not go with the other parts.
        """
        self._parts += 1
        self._label = self._label or label_in_metadata(schema)
        for field in schema:
            name, has_values = field.name, not _is_null(field.type)
            feature = self._feature(field, source_name)
            required = feature.required if null_counts is None else null_counts[name] == 0
            feature = replace(
                feature, dtype=feature.dtype if has_values else "string", required=required
            )
            previous = self._features.get(name)
            if previous is None or (
                has_values and name not in self._typed and len(previous.shape) <= len(feature.shape)
            ):
                self._features[name] = replace(
                    feature, required=required and (previous is None or previous.required)
                )
                self._sources[name] = source_name
            elif has_values and name in self._typed:
                self._features[name] = self._join(previous, feature, source_name)
            else:
                self._features[name] = self._join_untyped(
                    previous, feature, source_name, has_values
                )
            self._part_counts[name] = self._part_counts.get(name, 0) + 1
            if has_values:
                self._typed.add(name)
                if is_number_dtype(feature.dtype):
                    self._class_tables[name].setdefault(feature.classes, source_name)

    def schema(self) -> Schema:
        """Returns all features, and the label that a part's metadata names; what is missing in some part is not
        required.

        A column of nothing but nulls, which has no type, is text.

        Raises:
            DataError: a column has classes in some parts and none in others.
        """
        structs = self._struct_names()
        features = [
            f for f in self._features.values() if f.name in self._typed or f.name not in structs
        ]
        finished = tuple(
            replace(
                f,
                required=f.required and self._part_counts[f.name] == self._parts,
                classes=self._classes(f),
            )
            for f in features
        )
        return Schema(
            finished, self._label if any(f.name == self._label for f in features) else None
        )

    def check_classes(self, schema: Schema) -> tuple[str, ...]:
        """Notes on classes of several tables in a schema that the user may have declared.

        Raises:
            DataError: parts have different classes, and the schema takes their numbers as they are.
        """
        notes = []
        for feature in schema:
            tables = self._class_tables.get(feature.name, {})
            (classes, source_name), *other_tables = [
                (names, place) for names, place in tables.items() if names
            ] or [((), "")]
            if not other_tables or feature.dtype in ("string", "bytes"):
                continue
            if feature.classes is None:
                raise DataError(
                    f"{feature.name!r} has the classes {format_classes(other_tables[0][0])} here and {format_classes(classes)} in "
                    f"{source_name}, so its numbers alone say nothing; name its classes in the schema, or declare "
                    f"{option('dtypes', {feature.name: 'string'})} for the names",
                    source=other_tables[0][1],
                )
            notes.append(
                f"{feature.name}: {len(tables):,} tables of classes, such as {format_classes(classes)} in {source_name} and "
                f"{format_classes(other_tables[0][0])} in {other_tables[0][1]}, are one by name: {format_classes(feature.classes)}"
            )
        return tuple(notes)

    def _classes(self, feature: Feature) -> tuple[str, ...] | None:
        tables = self._class_tables.get(feature.name, {})
        class_lists = [names for names in tables if names is not None]
        if not class_lists or feature.dtype != "int64":
            return None
        if None in tables:
            if feature.name in self._declared:
                return None
            raise DataError(
                f"{feature.name!r} has numbers of the classes {format_classes(class_lists[0])} in {tables[class_lists[0]]}, but "
                f"numbers of no class here; {option('dtypes', {feature.name: 'int64'})} takes all of them as numbers",
                source=tables[None],
            )
        return (
            class_lists[0]
            if len(class_lists) == 1
            else sort_classes(name for names in class_lists for name in names)
        )

    def empty_columns(self) -> tuple[str, ...]:
        """Returns the columns in which there is no value at all."""
        structs = self._struct_names()
        return tuple(
            name for name in self._features if name not in self._typed and name not in structs
        )

    def _struct_names(self) -> set[str]:
        """Returns all that stands before a dot in some name: a column that is null in some parts may be a struct in
        others, where its members have taken its place.
        """
        prefixes: set[str] = set()
        for name in self._features:
            while (name := name.rpartition(".")[0]) and name not in prefixes:
                prefixes.add(name)
        return prefixes

    def _feature(self, field: pa.Field, source_name: str) -> Feature:
        try:
            # rows of tables become Examples, which have no feature lists
            return replace(from_arrow_field(field), per_step=False)
        except DataError as error:
            if field.name not in self._declared:
                raise DataError(
                    f"{error.reason}, or declare what it shall be: {option('dtypes', {field.name: 'string'})}",
                    source=source_name,
                ) from None
            return Feature(field.name, "string", _list_shape(field.type), not field.nullable)

    def _join_untyped(
        self, first: Feature, second: Feature, source_name: str, has_values: bool
    ) -> Feature:
        """Returns whether one has only nulls or empty lists, which go with any value and lists as deep."""
        typed, untyped = (second, first) if has_values else (first, second)
        if first.name in self._typed or has_values:
            if len(untyped.shape) > len(typed.shape):
                raise self._conflict_error(first, second, source_name)
            return replace(typed, required=first.required and second.required)
        deeper = max(first, second, key=lambda feature: len(feature.shape))
        return replace(deeper, required=first.required and second.required)

    def _join(self, first: Feature, second: Feature, source_name: str) -> Feature:
        dtype, shape = (
            join_dtypes(first.dtype, second.dtype),
            join_shapes(first.shape, second.shape),
        )
        if shape is not None and dtype is not None:
            return Feature(first.name, dtype, shape, first.required and second.required)
        if first.name in self._declared and (
            shape is not None or "[" in self._declared[first.name]
        ):
            return replace(
                first,
                shape=first.shape if shape is None else shape,
                required=first.required and second.required,
            )
        raise self._conflict_error(first, second, source_name)

    def _conflict_error(self, first: Feature, second: Feature, source_name: str) -> DataError:
        earlier = f"{first.describe()} in {self._sources[first.name]}"
        return DataError(
            f"{first.name!r} is {second.describe()} here, but {earlier}; declare what it shall be, such as "
            f"{option('dtypes', {first.name: 'string'})}",
            source=source_name,
        )


def join_dtypes(first: str, second: str) -> str | None:
    """Returns the narrowest dtype that holds every value of both (of numbers: that a float can hold), or None."""
    if first == second:
        return first
    time, moment = Feature("", first).timestamp, Feature("", second).timestamp
    if time and moment:
        unit = max(time[0], moment[0], key=_TIME_UNITS.index)
        return (
            None
            if time[1] != moment[1]
            else f"timestamp[{unit}, UTC]"
            if time[1]
            else f"timestamp[{unit}]"
        )
    if not (is_number_dtype(first) and is_number_dtype(second)):
        return None
    if first in _FLOAT_DTYPES and second in _FLOAT_DTYPES:
        return (
            "float32"
            if {first, second} == {"float16", "bfloat16"}
            else max(first, second, key=_FLOAT_DTYPES.index)
        )
    if first in _FLOAT_DTYPES or second in _FLOAT_DTYPES:
        number, integer = (first, second) if first in _FLOAT_DTYPES else (second, first)
        return (
            number
            if number == "float64"
            or np.dtype(integer).itemsize
            < np.dtype("float16" if number == "bfloat16" else number).itemsize
            else "float64"
        )
    joined = np.promote_types(first, second)
    return None if joined.kind == "f" else joined.name


def is_number_dtype(dtype: str) -> bool:
    """Returns whether it is one of integers or floats."""
    return dtype in _FLOAT_DTYPES or dtype.lstrip("u").startswith("int")


def join_shapes(
    first: tuple[int | None, ...], second: tuple[int | None, ...]
) -> tuple[int | None, ...] | None:
    """Dimensions that differ vary, and so do those before them; None if one has more dimensions than the other."""
    if len(first) != len(second):
        return None
    joined = [a if a == b else None for a, b in zip(first, second, strict=True)]
    varying = max((i + 1 for i, size in enumerate(joined) if size is None), default=0)
    return (*[None] * varying, *joined[varying:])


def _is_null(kind: pa.DataType) -> bool:
    while hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_null(kind))


def _list_shape(kind: pa.DataType) -> tuple[int | None, ...]:
    shape: list[int | None] = []
    while (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(shape)


def parse_dtype(text: str) -> tuple[str, tuple[int | None, ...] | None]:
    """Returns (dtype, shape or None where none is given) of `float64`, `uint8[28,28]`, `int64[?]`, `timestamp[us,
    UTC]`.

    >>> parse_dtype("float32[?,4]")
    ('float32', (None, 4))

    Raises:
        UsageError: no such dtype.
    """
    match = _DTYPE_PATTERN.fullmatch(text.strip())
    if match is None or not (match[1] in DTYPES or match[1].startswith("timestamp[")):
        raise UsageError(
            f"unknown dtype {text!r}; one of {', '.join(DTYPES)}, timestamp[us], timestamp[us, UTC], with a "
            "shape if need be: float32[28,28], int64[?]"
        )
    dtype = match[1].replace(",UTC", ", UTC")
    if match[2] is None:
        return dtype, None
    return dtype, tuple(
        None if size.strip() == "?" else int(size) for size in match[2].split(",") if size.strip()
    )


def apply_dtypes(schema: Schema, dtypes: Mapping[str, str]) -> Schema:
    """Returns the schema with the declared dtypes (and shapes) in place of the inferred ones.

    Raises:
        UsageError: a name is no column (the message lists them), or the dtype is unknown.
    """
    unknown = [name for name in dtypes if name not in schema]
    if unknown:
        raise UsageError(
            f"{option('dtypes', {unknown[0]: dtypes[unknown[0]]})}: no such column; "
            f"{available_names(unknown[0], schema.names)}"
        )
    return replace(
        schema,
        features=tuple(_apply_dtype(f, dtypes[f.name]) if f.name in dtypes else f for f in schema),
    )


def check_columns(names: Iterable[str], columns: Collection[str], keyword: str = "columns") -> None:
    """Raises UsageError if one of the columns that an option wants is not there."""
    if absent := [name for name in names if name not in columns]:
        raise UsageError(
            f"{option(keyword)}: no column {absent[0]!r}; {available_names(absent[0], columns)}"
        )


def _apply_dtype(feature: Feature, text: str) -> Feature:
    dtype, shape = parse_dtype(text)
    try:
        return replace(
            feature,
            dtype=dtype,
            shape=feature.shape if shape is None else shape,
            classes=feature.classes if dtype == "int64" else None,
        )
    except ValueError as error:
        raise UsageError(f"{option('dtypes', {feature.name: text})}: {error}") from None


def check_declared_schema(
    declared: Schema, inferred: Schema, description: str
) -> tuple[Schema, tuple[str, ...]]:
    """Returns (the given schema, what to note) after checking that the data has its columns.

    Raises:
        DataError: a required feature is no column of the data.
    """
    absent = [f.name for f in declared if f.name not in inferred]
    missing_required = [name for name in absent if declared[name].required]
    if missing_required:
        raise DataError(
            f"the schema requires {missing_required[0]!r}, which is not in {description}; there are {', '.join(inferred.names)}"
        )
    notes = [
        f"{name}: in the schema but not in {description}: missing in every record"
        for name in absent
    ]
    dropped = [name for name in inferred.names if name not in declared]
    if dropped:
        notes.append(f"columns left out, since the schema does not name them: {', '.join(dropped)}")
    return declared, tuple(notes)


def _class_notes(schema: Schema, inferred: Schema) -> list[str]:
    """Returns where numbers in the data are taken for the numbers of the schema's classes."""
    return [
        f"{f.name}: numbers in the data are those of the schema's classes: 0 is {f.classes[0]!r}"
        for f in schema
        if f.classes
        and f.name in inferred
        and is_number_dtype(inferred[f.name].dtype)
        and not inferred[f.name].classes
    ]


def finish_schema(
    inferred: Schema,
    empty_columns: tuple[str, ...],
    classes: ClassNames | None,
    common: PlanOptions,
    description: str,
) -> tuple[Schema, tuple[str, ...]]:
    """Returns (the schema of the records, notes) from what was inferred and what the user declares. without_values:
    columns without any, noted as such. classes: the label's, unless the schema is given. what: the input, for messages.
    UsageError: an option names a column that is not there. DataError: a required feature is not there.
    """
    notes = [
        f"{name}: no value in any record; kept as {inferred[name].describe()}"
        for name in empty_columns
        if name not in common.dtypes
    ]
    common, left_out = common.without_absent(inferred.names, description)
    if common.schema is not None:
        schema, schema_notes = check_declared_schema(common.schema, inferred, description)
        schema = apply_dtypes(schema, common.dtypes)
        notes = [*left_out, *schema_notes, *_class_notes(schema, inferred)]
        classes = None
    else:
        schema = apply_dtypes(inferred, common.dtypes)
    if common.label is not None:
        schema = with_label(schema, common.label, classes)
    return schema, (*notes, *float_label_notes(schema, common.schema))


def finish_unified_schema(
    unifier: SchemaUnifier, batches: Iterable[pa.RecordBatch], common: PlanOptions, description: str
) -> tuple[Schema, tuple[str, ...], str | None]:
    """Finishes a schema as `finish_schema` does, of parts that are Arrow tables; returns also the label, if its classes
    are texts of its values.

    batches: all of them, flattened, with the label at least; they are only read if the label is text.
    """
    inferred, label = unifier.schema(), common.label
    classes = None if label is None or common.schema is not None else ClassNames(label)
    is_text_label = classes is not None and has_text_classes(
        label, apply_dtypes(inferred, common.dtypes), classes
    )
    if classes is not None and is_text_label:
        for batch in batches:
            if (index := batch.schema.get_field_index(label)) >= 0:
                classes.add(batch.column(index), class_names_in_metadata(batch.schema.field(index)))
    schema, notes = finish_schema(inferred, unifier.empty_columns(), classes, common, description)
    return schema, (*notes, *unifier.check_classes(schema)), label if is_text_label else None


def declared_dtypes(common: PlanOptions) -> dict[str, str]:
    """Returns what the user declares of columns, for a Unifier: a column of a given schema may be a list."""
    schema_dtypes = {} if common.schema is None else {f.name: f"{f.dtype}[]" for f in common.schema}
    return {**schema_dtypes, **common.dtypes}
