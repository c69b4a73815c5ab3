"""Choice of the features that become files and file names in `read --to files`."""

from __future__ import annotations

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.exporting.infer_conversions import (
    MAX_SNIFFED_PARTS,
    RecordBatches,
    find_image_features,
)
from recordmill.records.writers.files import FileLayout, has_split_folder
from recordmill.records.writers.options import FileOptions
from recordmill.schemas.feature import Feature, Schema

# Feature in which `build` stores the path of the file that was the source of a record.
_SOURCE_FEATURE = "source"
# Names of features that usually contain file names. They are only suggested in a note, because
# their values may be anything.
_NAME_WORDS = ("filename", "file_name", "path", "file_path", "filepath", "image_name", "image_id")


def choose_layout(
    request: FileOptions, schema: Schema, selected: Schema, records: RecordBatches
) -> tuple[FileLayout, tuple[str, ...]]:
    """Chooses the features with the contents, names and metadata of the files.

    Unless an option names the feature with the contents, it is the only bytes feature with images,
    or else the only bytes feature.

    Unless an option names the feature with the file names, it is `source`. But if many records have
    the same `source`, a file is named by the number of its record.

    Args:
        request: The options of the user.
        schema: All features of the records.
        selected: The features that the user has selected. They become metadata.
        records: The records. Some of them are read to find images and to inspect names.

    Returns:
        The layout, and notes for the user.

    Raises:
        UsageError: A feature does not exist or has an unsuitable type. Or several features could
            contain the files.
    """
    file = (
        _get_feature("file_feature", request.file_feature, schema)
        if request.file_feature is not None
        else _choose_file_feature(schema, selected, records)
    )
    _check_file(file)
    strip_split, name, notes = False, None, list[str]()
    if request.name_feature:
        name = _get_feature("name_feature", request.name_feature, schema).name
        _check_name(schema[name])
    # None means that the option is not set. An empty text requests numbers as names.
    elif (
        request.name_feature is None
        and _SOURCE_FEATURE in schema
        and not schema[_SOURCE_FEATURE].shape
        and schema[_SOURCE_FEATURE].dtype == "string"
        and file.name != _SOURCE_FEATURE
    ):
        strip_split, is_distinct = _inspect_names(_SOURCE_FEATURE, records)
        name = _SOURCE_FEATURE if is_distinct else None
        if not is_distinct:
            notes.append(
                Message(
                    "{source_feature} has the same value in many records, so it does "
                    "not name the files. To use it anyway: {name_feature}",
                    source_feature=repr(_SOURCE_FEATURE),
                    name_feature=option("name_feature", _SOURCE_FEATURE),
                )
            )
    if name == file.name:
        raise UsageError(
            "{name_feature}: this feature is the contents of the files; name another one",
            name_feature=option("name_feature", name),
        )
    columns = tuple(feature.name for feature in selected if feature.name != file.name)
    layout = FileLayout(file.name, name, name != _SOURCE_FEATURE, columns, strip_split)
    return layout, (_layout_note(layout, schema), *notes)


def check_layout(layout: FileLayout, schema: Schema) -> None:
    """Raises UsageError if the types in the output do not suit the layout.

    Conversions may have changed the types after the layout was chosen.

    Args:
        schema: Schema of the output.
    """
    _check_file(schema[layout.file_feature])
    if layout.name_feature is not None:
        _check_name(schema[layout.name_feature])


def _check_file(feature: Feature) -> None:
    if feature.shape or feature.dtype not in ("bytes", "string"):
        raise UsageError(
            "{to}: each file must be one bytes or string value; {feature} is {described}",
            to=option("to", "files"),
            feature=feature.name,
            described=feature.describe(),
        )


def _check_name(feature: Feature) -> None:
    if feature.shape or feature.dtype not in ("bytes", "string", "int64", "int32", "uint64"):
        raise UsageError(
            "{name_feature}: a file name must be one text or whole number, not {feature}",
            name_feature=option("name_feature", feature.name),
            feature=feature.describe(),
        )


def _get_feature(keyword: str, name: str, schema: Schema) -> Feature:
    if name not in schema:
        raise UsageError(
            "{option}: no such feature; {available_names}",
            option=option(keyword, name),
            available_names=available_names(name, schema.names),
        )
    return schema[name]


def _choose_file_feature(schema: Schema, selected: Schema, records: RecordBatches) -> Feature:
    """Returns the feature that becomes the files.

    If there are images, this is the only bytes feature with images. Otherwise this is the only
    bytes feature.

    Raises:
        UsageError: No feature is suitable, or several are.
    """
    # If the user has selected bytes features, only these are candidates.
    selected_names = [feature.name for feature in selected if _is_bytes(feature)]
    candidates = tuple(selected_names or (feature.name for feature in schema if _is_bytes(feature)))
    if not candidates:
        texts = [
            feature.name for feature in schema if feature.dtype == "string" and not feature.shape
        ]
        hint = (
            Message(
                "{file_feature} also takes a text feature: {texts}",
                file_feature=option("file_feature"),
                texts=", ".join(texts),
            )
            if texts
            else f"there are {', '.join(f'{f.name} ({f.describe()})' for f in schema)}"
        )
        raise UsageError(
            "{to}: no feature holds one bytes value that could become a file; {hint}",
            to=option("to", "files"),
            hint=hint,
        )
    images = find_image_features(candidates, records)
    matches = images if images else list(candidates)
    if len(matches) > 1:
        contents = "hold encoded images" if images else "hold bytes"
        raise UsageError(
            "{to}: {matches_count} features {contents} ({matches}); choose with "
            "{file_feature} which one becomes the files",
            to=option("to", "files"),
            matches_count=len(matches),
            contents=contents,
            matches=", ".join(matches),
            file_feature=option("file_feature"),
        )
    return schema[matches[0]]


def _is_bytes(feature: Feature) -> bool:
    return feature.dtype == "bytes" and not feature.shape


def _inspect_names(name: str, records: RecordBatches) -> tuple[bool, bool]:
    """Inspects the first values of a feature that could name the files.

    Returns:
        (True if all values begin with a folder that names their split, True if at least half of the
        values differ).
    """
    splits = {file.path: file.split for file in records.files}
    values: list[tuple[str, str]] = []
    for path, batch in records.read((name,), MAX_SNIFFED_PARTS):
        values += [(splits[path], value) for value in batch.column(0).drop_null().to_pylist()]
    strip_split = bool(values) and all(has_split_folder(value, split) for split, value in values)
    return strip_split, 2 * len(set(values)) >= len(values)


def _layout_note(layout: FileLayout, schema: Schema) -> str:
    """Returns a note that names the features of the layout.

    If the files are only numbered, it suggests a feature that looks like a file name.
    """
    if layout.name_feature is not None:
        return f"the files are {layout.file_feature!r}, named by {layout.name_feature!r}"
    matches = [
        f.name
        for f in schema
        if f.dtype == "string"
        and not f.shape
        and f.name.rpartition("/")[2].lower() in _NAME_WORDS
        and f.name != layout.file_feature
    ]
    hint = (
        Message(
            "; to name them by that feature: {name_feature}",
            name_feature=option("name_feature", matches[0]),
        )
        if matches
        else ""
    )
    return Message(
        "the files are {file_feature}, named by the record's number{hint}",
        file_feature=repr(layout.file_feature),
        hint=hint,
    )
