"""The schema of records that are appended to a data set.

The inferred types of the new records are compared with the schema of the data set:

* An equal or narrower type is read as the type of the data set.
* A wider type is refused, because the stored records would have to change. `widen` allows wider
  types if the stored records stay readable. These are a larger integer type, a list of variable
  length, a value that may be missing, and a new feature.
* A wider float type that is stored in another way is read as the type of the data set, and its
  values are rounded. So Python's floats, which are float64, fit a feature of float32.
* Another type, such as text for a feature with numbers, is tried value by value. Values that do not
  fit the type of the data set are rejects.
* New classes are refused, unless `new_classes` allows them. They get the numbers after the existing
  ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature, Schema, format_classes
from recordmill.sources.values.schema_unifier import is_number_dtype, join_dtypes, join_shapes

# Kinds of input whose types are inferred from text: all whole numbers are int64, independent of
# their size.
_TEXT_KINDS = ("csv", "jsonl")


@dataclass(frozen=True)
class AppendRules:
    """Permitted changes of an append to the schema of a data set.

    Attributes:
        out: The folder of the data set, for messages.
        widen: Whether types may become wider.
        new_classes: Whether there may be new classes.
    """

    out: str
    widen: bool = False
    new_classes: bool = False


def extend_schema(
    stored: Schema,
    inferred: Schema,
    rules: AppendRules,
    kind: str,
    kept_columns: Collection[str] = (),
) -> Schema:
    """Returns the schema of the data set after the append.

    New records are read with it. The features of `kept_columns` come last: they are read, but not
    stored.

    Args:
        stored: The schema of the data set.
        inferred: The schema of the new records.
        rules: The changes that are allowed.
        kind: The kind of the new inputs.
        kept_columns: Columns that must be read, but are not features of the data set.

    Raises:
        UsageError: The new records need a change that is not allowed.
    """
    extended = [
        _extend_feature(feature, inferred[feature.name], rules, kind)
        if feature.name in inferred
        else _make_optional(feature, rules)
        for feature in stored
    ]
    new_features = [feature for feature in inferred if feature.name not in stored]
    order_columns = [feature for feature in new_features if feature.name in kept_columns]
    added_features = [
        replace(feature, required=False)
        for feature in new_features
        if feature.name not in kept_columns
    ]
    if added_features and not rules.widen:
        raise UsageError(
            "{out} has no feature {names}; {widen} adds it to the data set, and it is then "
            "missing in the records that are there",
            out=rules.out,
            names=", ".join(repr(feature.name) for feature in added_features[:5]),
            widen=option("widen", True),
        )
    return Schema((*extended, *added_features, *order_columns), stored.label)


def _make_optional(feature: Feature, rules: AppendRules) -> Feature:
    if feature.required and not rules.widen:
        raise UsageError(
            "{feature} is missing in some or all of the new records, and {out} has it in every "
            "record; {widen} allows missing values",
            feature=repr(feature.name),
            out=rules.out,
            widen=option("widen", True),
        )
    return replace(feature, required=False)


def _extend_feature(stored: Feature, inferred: Feature, rules: AppendRules, kind: str) -> Feature:
    """Returns the feature of the data set, extended for the new records."""
    feature = stored if inferred.required else _make_optional(stored, rules)
    if stored.classes is not None:
        return _add_classes(feature, inferred, rules)
    dtype = _join_dtypes(stored.dtype, inferred.dtype, kind)
    shape = join_shapes(stored.shape, inferred.shape) or stored.shape
    joined = replace(feature, dtype=dtype, shape=shape)
    if (joined.dtype, joined.shape) == (stored.dtype, stored.shape):
        return feature
    # Old records can only be read with the joined type if it is stored in the same way.
    can_widen = _storage_entries(joined) == _storage_entries(stored) and not stored.timestamp
    if not can_widen and joined.shape == stored.shape and _are_floats(stored, inferred):
        return feature
    if not can_widen:
        raise UsageError(
            "{feature} is {inferred} in the new inputs and {stored} in {out}, and its records "
            "can't be read as {joined}; build all inputs again into one data set, or read the "
            "feature as it is there with {dtypes}: values that do not fit are then rejects",
            joined=joined.describe(),
            dtypes=option("dtypes", {stored.name: stored.describe().replace(" [", "[")}),
            feature=repr(stored.name),
            inferred=inferred.describe(),
            stored=stored.describe(),
            out=rules.out,
        )
    if not rules.widen:
        raise UsageError(
            "{feature} is {inferred} in the new inputs and {stored} in {out}; {widen} makes it "
            "{joined} in the data set",
            joined=joined.describe(),
            widen=option("widen", True),
            feature=repr(stored.name),
            inferred=inferred.describe(),
            stored=stored.describe(),
            out=rules.out,
        )
    return joined


def _are_floats(*features: Feature) -> bool:
    return all("float" in feature.dtype for feature in features)


def _storage_entries(feature: Feature) -> tuple[tuple[str, str, bool], ...]:
    return tuple((entry.name, entry.kind, entry.raw) for entry in feature.storage())


def _join_dtypes(stored: str, inferred: str, kind: str) -> str:
    """Returns the dtype of a feature after the append.

    The dtype stays `stored` if the new values are checked one by one. They are checked for whole
    numbers in text, which are inferred as int64, for whole numbers in a feature of floats, and for
    unrelated dtypes.
    """
    are_numbers = is_number_dtype(stored) and is_number_dtype(inferred)
    stored_is_int, inferred_is_int = "int" in stored, "int" in inferred
    if are_numbers and inferred_is_int and (kind in _TEXT_KINDS or not stored_is_int):
        return stored
    return join_dtypes(stored, inferred) or stored


def _add_classes(feature: Feature, inferred: Feature, rules: AppendRules) -> Feature:
    assert feature.classes is not None
    known = {*feature.classes}
    added = tuple(name for name in inferred.classes or () if name not in known)
    if added and not rules.new_classes:
        raise UsageError(
            "{feature} has {classes} in the new inputs, which {out} does not have; {new_classes} "
            "adds new classes after the others",
            feature=repr(feature.name),
            classes=_describe_classes(added),
            out=rules.out,
            new_classes=option("new_classes", True),
        )
    return replace(feature, classes=(*feature.classes, *added))


def _describe_classes(names: tuple[str, ...]) -> str:
    return f"the {'class' if len(names) == 1 else 'classes'} {format_classes(names)}"
