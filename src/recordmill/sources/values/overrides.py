"""Applies what the user declares over an inferred schema: `--dtype x=float64`, `--dtype image=uint8[28,28]`, a label
column with its classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.suggestions import there_are
from recordmill.schemas.arrow import classes_in_metadata
from recordmill.schemas.feature import DTYPES, Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.values.labels import ClassNames, is_named, note_float_label, with_label
from recordmill.sources.values.unify import Unifier, is_number

_DTYPE = re.compile(r"(timestamp\[(?:s|ms|us|ns)(?:, ?UTC)?\]|[a-z]+[0-9]*)(?:\[([0-9?, ]*)\])?")


def parse_dtype(text: str) -> tuple[str, tuple[int | None, ...] | None]:
    """Returns (dtype, shape or None where none is given) of `float64`, `uint8[28,28]`, `int64[?]`, `timestamp[us,
    UTC]`.

    >>> parse_dtype("float32[?,4]")
    ('float32', (None, 4))

    Raises:
        UsageError: no such dtype.
    """
    match = _DTYPE.fullmatch(text.strip())
    if match is None or not (match[1] in DTYPES or match[1].startswith("timestamp[")):
        raise UsageError(
            f"unknown dtype {text!r}; one of {', '.join(DTYPES)}, timestamp[us], timestamp[us, UTC], with a "
            "shape if need be: float32[28,28], int64[?]"
        )
    dtype = match[1].replace(",UTC", ", UTC")
    if match[2] is None:
        return dtype, None
    return dtype, tuple(None if size.strip() == "?" else int(size) for size in match[2].split(",") if size.strip())


def apply_dtypes(schema: Schema, dtypes: Mapping[str, str]) -> Schema:
    """Returns the schema with the declared dtypes (and shapes) in place of the inferred ones.

    Raises:
        UsageError: a name is no column (the message lists them), or the dtype is unknown.
    """
    unknown = [name for name in dtypes if name not in schema]
    if unknown:
        raise UsageError(
            f"{option('dtypes', {unknown[0]: dtypes[unknown[0]]})}: no such column; "
            f"{there_are(unknown[0], schema.names)}"
        )
    return replace(schema, features=tuple(_override(f, dtypes[f.name]) if f.name in dtypes else f for f in schema))


def _override(feature: Feature, text: str) -> Feature:
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


def select_declared(given: Schema, inferred: Schema, what: str) -> tuple[Schema, tuple[str, ...]]:
    """Returns (the given schema, what to note) after checking that the data has its columns.

    Raises:
        DataError: a required feature is no column of the data.
    """
    absent = [f.name for f in given if f.name not in inferred]
    lacking = [name for name in absent if given[name].required]
    if lacking:
        raise DataError(
            f"the schema requires {lacking[0]!r}, which is not in {what}; there are {', '.join(inferred.names)}"
        )
    notes = [f"{name}: in the schema but not in {what}: missing in every record" for name in absent]
    dropped = [name for name in inferred.names if name not in given]
    if dropped:
        notes.append(f"columns left out, since the schema does not name them: {', '.join(dropped)}")
    return given, tuple(notes)


def _class_notes(schema: Schema, inferred: Schema) -> list[str]:
    """Returns where numbers in the data are taken for the numbers of the schema's classes."""
    return [
        f"{f.name}: numbers in the data are those of the schema's classes: 0 is {f.classes[0]!r}"
        for f in schema
        if f.classes and f.name in inferred and is_number(inferred[f.name].dtype) and not inferred[f.name].classes
    ]


def finish_schema(
    inferred: Schema, without_values: tuple[str, ...], classes: ClassNames | None, common: PlanOptions, what: str
) -> tuple[Schema, tuple[str, ...]]:
    """Returns (the schema of the records, notes) from what was inferred and what the user declares.

    Args:
        inferred: The inferred schema.
        without_values: Columns without any value, noted as such.
        classes: The label's classes, unless the schema is given.
        common: The options of the plan.
        what: The input, for messages.

    Raises:
        UsageError: an option names a column that is not there. DataError: a required feature is not there.
    """
    notes = [
        f"{name}: no value in any record; kept as {inferred[name].describe()}"
        for name in without_values
        if name not in common.dtypes
    ]
    common, left_out = common.without_absent(inferred.names, what)
    if common.schema is not None:
        schema, more = select_declared(common.schema, inferred, what)
        schema = apply_dtypes(schema, common.dtypes)
        notes = [*left_out, *more, *_class_notes(schema, inferred)]
        classes = None
    else:
        schema = apply_dtypes(inferred, common.dtypes)
    if common.label is not None:
        schema = with_label(schema, common.label, classes)
    return schema, (*notes, *note_float_label(schema, common.schema))


def finish_parts(
    unifier: Unifier, batches: Iterable[pa.RecordBatch], common: PlanOptions, what: str
) -> tuple[Schema, tuple[str, ...], str | None]:
    """Finishes a schema as `finish_schema` does, of parts that are Arrow tables; returns also the label, if its classes
    are texts of its values.

    batches: all of them, flattened, with the label at least; they are only read if the label is text.
    """
    inferred, label = unifier.schema(), common.label
    classes = None if label is None or common.schema is not None else ClassNames(label)
    named = classes is not None and is_named(label, apply_dtypes(inferred, common.dtypes), classes)
    if classes is not None and named:
        for batch in batches:
            if (at := batch.schema.get_field_index(label)) >= 0:
                classes.add(batch.column(at), classes_in_metadata(batch.schema.field(at)))
    schema, notes = finish_schema(inferred, unifier.without_values(), classes, common, what)
    return schema, (*notes, *unifier.check_classes(schema)), label if named else None


def declared_columns(common: PlanOptions) -> dict[str, str]:
    """Returns what the user declares of columns, for a Unifier: a column of a given schema may be a list."""
    given = {} if common.schema is None else {f.name: f"{f.dtype}[]" for f in common.schema}
    return {**given, **common.dtypes}
