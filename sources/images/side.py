"""What an image's folder and the labels file say of it: the features of records that don't come from the image, as
columns of the table of files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import Reject
from recordmill.schemas.arrow import from_arrow_field
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.inputs.layout import Layout
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.listed.files import FileTable, coded, nothing

FEATURES = "feature/"  # what the names of these columns begin with


def feature_names(files: FileTable) -> list[str]:
    """Of the features that are columns of the files."""
    return [name.removeprefix(FEATURES) for name in files.columns if name.startswith(FEATURES)]


def with_features(files: FileTable, columns: Mapping[str, pa.Array]) -> FileTable:
    """The files with these features: [files]."""
    for name, values in columns.items():
        files = files.with_column(FEATURES + name, values)
    return files


def without_features(files: FileTable) -> FileTable:
    """The files as they were listed, and split."""
    return files.without([FEATURES + name for name in feature_names(files)])


def by_folders(files: FileTable, said: Layout) -> FileTable:
    """The files with `label` and `class_name`, as their folders say."""
    return with_features(files, dict.fromkeys(("label", "class_name"), said.classes) if said.class_names else {})


def side_feature(files: FileTable, name: str) -> Feature:
    """The feature of a column as it is; text labels become classes."""
    column = files.words(FEATURES + name)
    feature = from_arrow_field(pa.field(name, column.type, nullable=column.null_count > 0))
    if feature.dtype == "float64":
        feature = replace(feature, dtype="float32")
    if name == "label" and feature.dtype == "string":
        values = column
        while not pa.types.is_large_string(values.type):
            values = pc.list_flatten(values)
        names = ClassNames(name)
        names.add(values)
        return replace(feature, dtype="int64", classes=names.sorted())
    return feature


def conform_side(files: FileTable, schema: Schema) -> tuple[FileTable, list[Reject], list[str]]:
    """The files with their features as that schema, of nothing else, has them; a file whose features don't fit is a
    reject; and which floats lose digits.
    """
    bare, found = without_features(files), dict[str, pa.Array]()
    if not len(schema) or not files:
        return bare, [], []
    good, lost = np.ones(len(files), np.bool_), Counter[str]()
    bad: dict[int, tuple[str, str]] = {}
    for values, names in _batches(files, schema):
        fitted = conform(values, schema.select(names))
        numbers = files.column(FEATURES + names[0]).indices if files.is_coded(FEATURES + names[0]) else None
        rows = np.arange(len(files)) if numbers is None else numbers.to_numpy()
        for row, reason, message in fitted.bad:
            for at in np.flatnonzero(rows == row).tolist():
                bad.setdefault(at, (reason, message))
        place = np.full(values.num_rows, -1)
        place[fitted.good] = np.arange(len(fitted.good))
        good &= place[rows] >= 0
        for name, column in zip(fitted.batch.schema.names, fitted.batch.columns, strict=True):
            if fitted.bad:
                found[name] = coded(np.maximum(place, 0)[rows], column)
            else:  # of a file each, or as many numbers as before, which columns may share
                found[name] = column if numbers is None else pa.DictionaryArray.from_arrays(numbers, column)
        lost.update(fitted.lost)
    absent = [name for name in schema.names if name not in feature_names(files)]
    for name in absent:
        values = conform(pa.RecordBatch.from_pydict({name: pa.nulls(1)}), schema.select([name]))
        for _, reason, message in values.bad:
            bad = {at: bad.get(at, (reason, message)) for at in range(len(files))}
            good[:] = False
        if not values.bad:
            found[name] = pa.DictionaryArray.from_arrays(nothing(len(files)).indices, values.batch.column(0))
    said = [f"{name}: {lost[name]} value(s) lose digits as {schema[name].dtype}" for name in schema.names if lost[name]]
    rejects = [Reject(files[at].name, "", why, f"labels: {message}") for at, (why, message) in sorted(bad.items())]
    return with_features(bare, found).filter(good), rejects, said


def _batches(files: FileTable, schema: Schema) -> list[tuple[pa.RecordBatch, list[str]]]:
    """The values that are to fit, with the features' names: of columns that are dictionary-encoded by themselves."""
    there = [name for name in schema.names if name in feature_names(files)]
    encoded = [name for name in there if files.is_coded(FEATURES + name)]
    own = [name for name in there if name not in encoded]
    parts = [[name] for name in encoded] + ([own] if own else [])
    return [(pa.RecordBatch.from_pydict({n: files.words(FEATURES + n) for n in names}), names) for names in parts]
