"""What an image's folder and the labels file say of it: the columns of records that don't come from the image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import Reject
from recordmill.schemas.arrow import from_arrow_field
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.inputs.beside import Beside, Part, narrow
from recordmill.sources.inputs.layout import Layout
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.listed.coded import Coded
from recordmill.storage.listed.files import InputFile, chosen


def by_folders(said: Layout) -> Beside:
    """`label` and `class_name` of each file, as its folders say."""
    if not said.class_names:
        return Beside()
    coded = said.classes if isinstance(said.classes, Coded) else Coded.of(said.classes, len(said.classes))
    names = pa.array(coded.words, pa.large_string())
    return Beside((Part(pa.RecordBatch.from_pydict({"label": names, "class_name": names}), coded.numbers),))


def side_feature(name: str, column: pa.Array) -> Feature:
    """The feature of a column as it is; text labels become classes."""
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


def conform_side(
    side: Beside, schema: Schema, files: Sequence[InputFile]
) -> tuple[Beside, Sequence[InputFile], list[Reject], list[str]]:
    """The columns as that schema, of nothing else, has them; a file whose columns don't fit is a reject;
    and which floats lose digits.
    """
    if not len(schema) or not files:
        return Beside(), files, [], []
    parts, good, lost = list[Part](), np.ones(len(files), np.bool_), Counter[str]()
    bad: dict[int, tuple[str, str]] = {}
    for part, names in _parts(side, schema, len(files)):
        values, numbers = part.here
        fitted = conform(values, schema.select(names))
        rows = np.arange(len(files)) if numbers is None else numbers
        for row, reason, message in fitted.bad:
            for at in np.flatnonzero(rows == row).tolist():
                bad.setdefault(at, (reason, message))
        place = np.full(values.num_rows, -1)
        place[fitted.good] = np.arange(len(fitted.good))
        good &= place[rows] >= 0
        is_own = numbers is None and not fitted.bad
        parts.append(Part(fitted.batch) if is_own else Part(fitted.batch, narrow(np.maximum(place, 0))[rows]))
        lost.update(fitted.lost)
    said = [f"{name}: {lost[name]} value(s) lose digits as {schema[name].dtype}" for name in schema.names if lost[name]]
    rejects = [Reject(files[at].name, "", why, f"labels: {message}") for at, (why, message) in sorted(bad.items())]
    return Beside(tuple(parts)).filter(good), chosen(files, good), rejects, said


def _parts(side: Beside, schema: Schema, count: int) -> list[tuple[Part, list[str]]]:
    """Each part and its names in the schema; and what nothing says of any file, which is null."""
    found = [(part, [name for name in schema.names if name in part.here[0].schema.names]) for part in side.parts]
    if rest := [name for name in schema.names if name not in side.names]:
        nothing = pa.RecordBatch.from_pydict({name: pa.nulls(1) for name in rest})
        found.append((Part(nothing, np.zeros(count, np.uint8)), rest))
    return [(part, names) for part, names in found if names]
