"""Unification of the schemas of several batches or files, and declared dtypes.

Types widen only if every value survives. Two integer types become the smallest type that holds all
values of both. An integer and a float become a float, and timestamps get the finer unit. Tensors of
different lengths become lists. Different lists of class names become one list, and class numbers
are matched by name.

Other combinations are an error that names both places: text and numbers, class numbers and plain
numbers, or scalars and lists. The user then declares a dtype: `--dtype x=float64` or `--dtype
image=uint8[28,28]`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.schemas.arrow import class_names_in_metadata, from_arrow_field, label_in_metadata
from recordmill.schemas.feature import DTYPES, Feature, Schema, format_classes
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.values.labels import (
    ClassNames,
    float_label_notes,
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
    """Unifies the Arrow schemas of the tables of an input.

    A table is a batch or a file.

    Args:
        declared: Dtypes that the user has declared, by column name. The types of such a column may
            differ between tables.
    """

    def __init__(self, declared: Mapping[str, str] | None = None) -> None:
        self._declared = declared or {}
        self._features: dict[str, Feature] = {}
        self._sources: dict[str, str] = {}
        # columns with a value in some table, so their type is known
        self._typed: set[str] = set()
        self._num_tables = 0
        self._table_counts: dict[str, int] = {}
        self._last_added: tuple[pa.Schema, Mapping[str, int] | None] | None = None
        self._label: str | None = None
        # For each column of numbers: the name of the first table with each list of class names. The
        # list is None if a table has plain numbers.
        self._class_sources: defaultdict[str, dict[tuple[str, ...] | None, str]] = defaultdict(dict)

    def add(
        self, schema: pa.Schema, source_name: str, null_counts: Mapping[str, int] | None = None
    ) -> None:
        """Adds the schema of a table.

        Args:
            schema: The schema, without structs. See `flatten_schema`.
            source_name: Name of the table, for messages.
            null_counts: Number of nulls of each column, or -1 if it is unknown. Without this
                argument, a column counts as nullable if its field is.

        Raises:
            DataError: No feature can have the type of a column, or the type conflicts with another
                table.
        """
        self._num_tables += 1
        if self._is_repeated(schema, null_counts):
            for name in schema.names:
                self._table_counts[name] += 1
            return
        self._label = self._label or label_in_metadata(schema)
        for field in schema:
            name, has_values = field.name, not _is_null(field.type)
            feature = self._read_feature(field, source_name)
            required = feature.required if null_counts is None else null_counts[name] == 0
            feature = replace(
                feature, dtype=feature.dtype if has_values else "string", required=required
            )
            previous = self._features.get(name)
            # nulls and empty lists have no type, so the first table with values decides
            if previous is None or (
                has_values and name not in self._typed and len(previous.shape) <= len(feature.shape)
            ):
                self._features[name] = replace(
                    feature, required=required and (previous is None or previous.required)
                )
                self._sources[name] = source_name
            elif has_values and name in self._typed:
                self._features[name] = self._join_features(previous, feature, source_name)
            else:
                self._features[name] = self._join_untyped(
                    previous, feature, source_name, has_values
                )
            self._table_counts[name] = self._table_counts.get(name, 0) + 1
            if has_values:
                self._typed.add(name)
                if is_number_dtype(feature.dtype):
                    self._class_sources[name].setdefault(feature.classes, source_name)
        self._last_added = schema, null_counts

    def _is_repeated(self, schema: pa.Schema, null_counts: Mapping[str, int] | None) -> bool:
        """Returns whether the table before had the same schema and nulls.

        Such a table changes only the counts. Thousands of small files are often alike.
        """
        if self._last_added is None:
            return False
        last_schema, last_null_counts = self._last_added
        return null_counts == last_null_counts and schema.equals(last_schema, check_metadata=True)

    def schema(self) -> Schema:
        """Returns the unified features, and the label from the metadata of a table.

        A feature is required if each table has it without nulls. A column that contains only nulls
        becomes text.

        Raises:
            DataError: A column has class numbers in some tables and plain numbers in others.
        """
        structs = self._struct_names()
        features = [
            f for f in self._features.values() if f.name in self._typed or f.name not in structs
        ]
        unified = tuple(
            replace(
                f,
                required=f.required and self._table_counts[f.name] == self._num_tables,
                classes=self._unified_classes(f),
            )
            for f in features
        )
        return Schema(
            unified, self._label if any(f.name == self._label for f in features) else None
        )

    def check_classes(self, schema: Schema) -> tuple[str, ...]:
        """Returns notes on features that have different class names in different tables.

        Args:
            schema: The final schema, which may be declared by the user.

        Raises:
            DataError: The class names differ, and the schema uses the class numbers as plain
                numbers.
        """
        notes = []
        for feature in schema:
            sources = self._class_sources.get(feature.name, {})
            (classes, source_name), *other_sources = [
                (names, place) for names, place in sources.items() if names
            ] or [((), "")]
            if not other_sources or feature.dtype in ("string", "bytes"):
                continue
            if feature.classes is None:
                raise DataError(
                    "{feature} has the classes {classes} here and {classes2} in "
                    "{source_name}, so its numbers are ambiguous; name its classes "
                    "in the schema, or declare {dtypes} to use the names",
                    feature=repr(feature.name),
                    classes=format_classes(other_sources[0][0]),
                    classes2=format_classes(classes),
                    source_name=source_name,
                    dtypes=option("dtypes", {feature.name: "string"}),
                    source=other_sources[0][1],
                )
            notes.append(
                f"{feature.name}: {len(sources):,} tables of classes, such as "
                f"{format_classes(classes)} in {source_name} and "
                f"{format_classes(other_sources[0][0])} in {other_sources[0][1]}, "
                f"were merged by name: {format_classes(feature.classes)}"
            )
        return tuple(notes)

    def _unified_classes(self, feature: Feature) -> tuple[str, ...] | None:
        sources = self._class_sources.get(feature.name, {})
        class_lists = [names for names in sources if names is not None]
        if not class_lists or feature.dtype != "int64":
            return None
        if None in sources:
            if feature.name in self._declared:
                return None
            raise DataError(
                "{feature} has numbers of the classes {classes} in {sources}, but numbers of "
                "no class here; {dtypes} takes all of them as numbers",
                feature=repr(feature.name),
                classes=format_classes(class_lists[0]),
                sources=sources[class_lists[0]],
                dtypes=option("dtypes", {feature.name: "int64"}),
                source=sources[None],
            )
        return (
            class_lists[0]
            if len(class_lists) == 1
            else sort_classes(name for names in class_lists for name in names)
        )

    def empty_columns(self) -> tuple[str, ...]:
        """Returns the columns without a value in any table."""
        structs = self._struct_names()
        return tuple(
            name for name in self._features if name not in self._typed and name not in structs
        )

    def _struct_names(self) -> set[str]:
        """Returns the names that are a dotted prefix of another column.

        Such a name is a struct that is null in all rows of some table. For example, that table has
        a single column geo, and other tables have a column for each member, such as geo.lat.
        """
        prefixes: set[str] = set()
        for name in self._features:
            while (name := name.rpartition(".")[0]) and name not in prefixes:
                prefixes.add(name)
        return prefixes

    def _read_feature(self, field: pa.Field, source_name: str) -> Feature:
        try:
            # rows of tables become Examples, which don't have feature lists
            return replace(from_arrow_field(field), per_step=False)
        except DataError as error:
            if field.name not in self._declared:
                raise DataError(
                    "{reason}, or declare its type: {dtypes}",
                    reason=error.reason,
                    dtypes=option("dtypes", {field.name: "string"}),
                    source=source_name,
                ) from None
            return Feature(field.name, "string", _list_shape(field.type), not field.nullable)

    def _join_untyped(
        self, first: Feature, second: Feature, source_name: str, has_values: bool
    ) -> Feature:
        """Joins two features if one of them has only nulls or empty lists.

        Such a feature fits any feature of scalars, or of lists that are at least as deep.

        Args:
            first: The feature so far.
            second: The feature of a further table.
            source_name: Name of this table.
            has_values: Whether `second` has values.
        """
        typed, untyped = (second, first) if has_values else (first, second)
        if first.name in self._typed or has_values:
            if len(untyped.shape) > len(typed.shape):
                raise self._conflict_error(first, second, source_name)
            return replace(typed, required=first.required and second.required)
        deeper = max(first, second, key=lambda feature: len(feature.shape))
        return replace(deeper, required=first.required and second.required)

    def _join_features(self, first: Feature, second: Feature, source_name: str) -> Feature:
        dtype, shape = (
            join_dtypes(first.dtype, second.dtype),
            join_shapes(first.shape, second.shape),
        )
        if shape is not None and dtype is not None:
            return Feature(first.name, dtype, shape, first.required and second.required)
        # the declared dtype replaces both dtypes, and a declared shape also replaces shapes that
        # differ
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
            "{first} is {second} here, but {earlier}; declare its type, such as {dtypes}",
            first=repr(first.name),
            second=second.describe(),
            earlier=earlier,
            dtypes=option("dtypes", {first.name: "string"}),
            source=source_name,
        )


def join_dtypes(first: str, second: str) -> str | None:
    """Returns the narrowest dtype that holds all values of two dtypes.

    The result is None if there is no such dtype.

    For an integer and a float, this is the float dtype if it has more bytes than the integer, else
    float64.

    >>> join_dtypes("int8", "uint8"), join_dtypes("int32", "float32"), join_dtypes("string", "bool")
    ('int16', 'float64', None)
    """
    if first == second:
        return first
    first_time, second_time = Feature("", first).timestamp, Feature("", second).timestamp
    if first_time and second_time:
        unit = max(first_time[0], second_time[0], key=_TIME_UNITS.index)
        return (
            None
            if first_time[1] != second_time[1]
            else f"timestamp[{unit}, UTC]"
            if first_time[1]
            else f"timestamp[{unit}]"
        )
    if not (is_number_dtype(first) and is_number_dtype(second)):
        return None
    if first in _FLOAT_DTYPES and second in _FLOAT_DTYPES:
        # neither float16 nor bfloat16 holds all values of the other
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
    # NumPy promotes uint64 and a signed integer to float64, which does not hold all of them
    joined = np.promote_types(first, second)
    return None if joined.kind == "f" else joined.name


def is_number_dtype(dtype: str) -> bool:
    """Returns whether a dtype is an integer or a float."""
    return dtype in _FLOAT_DTYPES or dtype.lstrip("u").startswith("int")


def join_shapes(
    first: tuple[int | None, ...], second: tuple[int | None, ...]
) -> tuple[int | None, ...] | None:
    """Returns the shape that fits values of two shapes.

    The result is None if the numbers of dimensions differ.

    A dimension that differs becomes None, and so do all dimensions before it.

    >>> join_shapes((2, 3, 4), (2, 5, 4)), join_shapes((2,), (2, 3))
    ((None, None, 4), None)
    """
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
    """Parses a declared dtype such as `uint8[28,28]`, `int64[?]` or `timestamp[us, UTC]`.

    >>> parse_dtype("float32[?,4]"), parse_dtype("string")
    (('float32', (None, 4)), ('string', None))

    Returns:
        (dtype, shape). The shape is None if the text has no shape.

    Raises:
        UsageError: The dtype is unknown.
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
    """Replaces inferred dtypes and shapes by the user's declarations.

    Args:
        schema: The inferred schema.
        dtypes: Declarations such as `uint8[28,28]`, by column name.

    Raises:
        UsageError: A name is not a column, or a dtype is unknown.
    """
    unknown = [name for name in dtypes if name not in schema]
    if unknown:
        raise UsageError(
            "{dtypes}: no such column; {available_names}",
            dtypes=option("dtypes", {unknown[0]: dtypes[unknown[0]]}),
            available_names=available_names(unknown[0], schema.names),
        )
    return replace(
        schema,
        features=tuple(_apply_dtype(f, dtypes[f.name]) if f.name in dtypes else f for f in schema),
    )


def check_columns(names: Iterable[str], columns: Collection[str], keyword: str = "columns") -> None:
    """Raises UsageError if an option names a column that does not exist.

    Args:
        names: Column names from the option.
        columns: The columns of the input.
        keyword: Name of the option.
    """
    if absent := [name for name in names if name not in columns]:
        raise UsageError(
            "{option}: no column {absent}; {available_names}",
            option=option(keyword),
            absent=repr(absent[0]),
            available_names=available_names(absent[0], columns),
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
        raise UsageError(
            "{dtypes}: {error}", dtypes=option("dtypes", {feature.name: text}), error=error
        ) from None


def check_declared_schema(
    declared: Schema, inferred: Schema, description: str
) -> tuple[Schema, tuple[str, ...]]:
    """Compares a declared schema with the columns of the data.

    Args:
        declared: The schema from the user.
        inferred: The schema of the data.
        description: Phrase for the input, for messages.

    Returns:
        (`declared`, notes on columns that only one of the two schemas has).

    Raises:
        DataError: A required feature is not a column of the data.
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
    """Returns a note for each column of numbers that become class numbers."""
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
    """Applies the user's declarations to an inferred schema.

    Args:
        inferred: The schema of the data.
        empty_columns: Columns without any value. Each gets a note.
        classes: Distinct values of the label. They are ignored if the user has declared the schema.
        common: The user's declarations.
        description: Phrase for the input, for messages.

    Returns:
        (schema of the records, notes).

    Raises:
        UsageError: An option names a column that does not exist.
        DataError: A required feature is not a column of the data, or a text label has no values or
            too many.
    """
    notes = [
        f"{name}: no value in any record; kept as {inferred[name].describe()}"
        for name in empty_columns
        if name not in common.dtypes
    ]
    common, absent_notes = common.drop_absent_features(inferred.names, description)
    if common.schema is not None:
        schema, schema_notes = check_declared_schema(common.schema, inferred, description)
        schema = apply_dtypes(schema, common.dtypes)
        notes = [*absent_notes, *schema_notes, *_class_notes(schema, inferred)]
        classes = None
    else:
        schema = apply_dtypes(inferred, common.dtypes)
    if common.label is not None:
        if classes is not None and not classes.names:
            classes = ClassNames(common.label, common.label_classes)
        schema = with_label(schema, common.label, classes)
    return schema, (*notes, *float_label_notes(schema, common.schema))


def finish_unified_schema(
    unifier: SchemaUnifier, batches: Iterable[pa.RecordBatch], common: PlanOptions, description: str
) -> tuple[Schema, tuple[str, ...], str | None]:
    """Applies the user's declarations to the unified schema of Arrow tables.

    The function does the same as `finish_schema`, for inputs that are Arrow tables.

    Args:
        unifier: The schemas of all tables.
        batches: All rows, flattened, with at least the column of the label. They are only read if
            the label is text.
        common: The user's declarations.
        description: Phrase for the input, for messages.

    Returns:
        (schema, notes, text label). The text label is the name of the label if its class names are
        the distinct texts in its column, else None.

    Raises:
        UsageError: An option names a column that does not exist.
        DataError: The tables don't fit each other, a required feature is not a column of the data,
            or a text label has no values or too many.
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
    schema, notes = finish_schema(
        inferred,
        empty_columns=unifier.empty_columns(),
        classes=classes,
        common=common,
        description=description,
    )
    return schema, (*notes, *unifier.check_classes(schema)), label if is_text_label else None


def declared_dtypes(common: PlanOptions) -> dict[str, str]:
    """Returns the dtypes that the user has declared, by column name, for a SchemaUnifier.

    The dtypes of a declared schema get a shape, because its columns may also contain lists.
    """
    schema_dtypes = {} if common.schema is None else {f.name: f"{f.dtype}[]" for f in common.schema}
    return {**schema_dtypes, **common.dtypes}


def note_float32_losses(
    name: str, subject: str, *, values: int, rounded: int, rejected: int
) -> list[str]:
    """Returns notes on the values of a feature that float32 can't represent.

    Args:
        name: The name of the feature.
        subject: How the notes name the feature.
        values: The number of values.
        rounded: The number of decimals that lose digits.
        rejected: The number of integers and floats that do not fit.
    """
    texts = {
        "{subject}: {count} of {values} values lose digits as float32; {dtypes} keeps them": rounded,
        "{subject}: {count} of {values} values do not fit float32 and are rejected; {dtypes} keeps "
        "them": rejected,
    }
    return [
        Message(
            text,
            subject=subject,
            count=f"{count:,}",
            values=f"{values:,}",
            dtypes=option("dtypes", {name: "float64"}),
        )
        for text, count in texts.items()
        if count
    ]
