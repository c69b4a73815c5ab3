"""Source of samples, as WebDataset writes them.

Files form a sample if their names are equal up to the first dot: for example `7.jpg`, `7.json` and
`7.cls`. A sample is one record. The files are in a tar or in a folder. The ending of a file is the
part after the first dot.

The ending determines the features. The first image has the features of images. Other images are
bytes. `cls` becomes `label`, each key of the object in `json` becomes a feature, `txt` becomes
`text`, and `npy` becomes a tensor. All other files become bytes, named after their ending.

JSON, texts, numbers and arrays are read twice: for their types, and for the records. Nothing is
unpickled. If a JSON key has values of several forms, the form of the majority is used, as in JSON
Lines. Samples with other forms are rejects.

Source: github.com/webdataset/webdataset, tariterators.py and autodecode.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Fault, Reject, UsageError
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.records.images.header import FORMATS_BY_EXTENSION
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.arrow.numpy_files import read_npy
from recordmill.sources.arrow.python_rows import objects_to_column
from recordmill.sources.common.content import is_documentation
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_FILES,
    Chunk,
    PlanOptions,
    Source,
    Unit,
    pack_file_units,
)
from recordmill.sources.common.layout import NO_LAYOUT, read_layout
from recordmill.sources.images.options import SampleOptions
from recordmill.sources.images.source import (
    OWN_FEATURES,
    plan_images,
    reject_oversized,
    rewrite_rule,
)
from recordmill.sources.values.column_join import JoinedRows, JoinedSource, join_columns
from recordmill.sources.values.flatten import flatten
from recordmill.sources.values.schema_unifier import SchemaUnifier, declared_dtypes
from recordmill.storage.archives import archive_path, is_streamed_member, is_tar
from recordmill.storage.file_table import FileTable, InputFile, make_dictionary_column, read_files
from recordmill.storage.json_fields import parse_json
from recordmill.storage.listing import Listing

SAMPLES_KIND = "webdataset"
_LABEL_FEATURE, _JSON_FEATURE = "label", "json"
_CLASS_ENDING = "cls"
# features that do not have the name of their ending
_FEATURES_BY_ENDING = {
    _CLASS_ENDING: _LABEL_FEATURE,
    "txt": "text",
    "jsn": _JSON_FEATURE,
}
# The name of a member column is this prefix and an ending. For the first file of each sample it
# contains the index of the file of the sample that has this ending.
_MEMBER_PREFIX = "member/"
_BYTES_COLUMN = "sample/bytes"  # column with the bytes of all files of a sample
# forms of JSON values, for messages
_FORM_NAMES = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_MAX_ENDINGS = 100  # each ending is a column in memory
# Samples are detected if 90 % of the tar members are in samples of several files.
_MIN_SAMPLE_SHARE = 0.9


def _parse_integer(data: bytes, _: InputFile) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number:.9g} does not fit int64")
    return number


def _parse_json_object(data: bytes, file: InputFile) -> Any:
    document = parse_json(data, file.name)
    if not isinstance(document, dict):
        raise DataError(
            "is not a JSON object; {dtypes} keeps it as text",
            dtypes=option("dtypes", {_JSON_FEATURE: "string"}),
        )
    if b"\\u" in data:
        # fails for a lone surrogate, which is not valid in UTF-8
        json.dumps(document, ensure_ascii=False).encode()
    return document


def _value_forms(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields (path, form) of each value in a JSON object or list, such as (`a.b`, "a string").

    Only values of the same form can have a common type. Null has no form.

    Args:
        value: The object or list.
        path: Path of `value` itself. "" for the outermost one.
        depth: Number of enclosing objects and lists.
    """
    for name, item in (
        value.items() if isinstance(value, dict) else (("[]", element) for element in value)
    ):
        inner, form = f"{path}.{name}" if path else name, _FORM_NAMES.get(type(item), "a number")
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            form = "a number beyond int64"
        if item is not None:
            yield inner, form
        # real files are not nested as deeply
        if isinstance(item, dict | list) and depth < 64:
            yield from _value_forms(item, inner, depth + 1)


_Decode = Callable[[bytes, InputFile], Any]
_DECODERS: dict[str, _Decode] = {
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _parse_integer),
    **dict.fromkeys(("txt", "text", "transcript"), lambda data, _: data.decode()),
    **dict.fromkeys(("json", "jsn"), _parse_json_object),
    "npy": read_npy,
}


@dataclass(frozen=True)
class _NameSource:
    """A source with file names as records, for samples without images."""

    schema: Schema
    files: FileTable
    units: Sequence[Unit] = ()
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kind: str = SAMPLES_KIND

    def read(self, unit: Unit) -> Iterator[Chunk]:
        files = range(unit.begin_file, unit.end_file)
        names = pa.array([file.name for file in self.files.items_at(files)], pa.large_string())
        records = pa.RecordBatch.from_arrays([names], schema=to_arrow(self.schema))
        yield Chunk(records, np.array(files, np.uint32), np.zeros(len(files), np.int64))


@dataclass(frozen=True)
class _MemberColumns:
    """Joins the features of the other files of each sample.

    The source itself reads the first image of a sample, or the name of its first file.

    Attributes:
        endings: The endings of these other files.
        reserved_names: Names of other features. A JSON key of this name gets a prefix.
        as_text: Whether JSON is kept as text.
        with_bytes: Whether files that become bytes are read. Otherwise their values are empty,
            which is enough to determine types.
        forms: The form that JSON values must have, by path. It contains only paths with several
            forms.
    """

    endings: tuple[str, ...]
    reserved_names: frozenset[str]
    as_text: bool
    with_bytes: bool = True
    forms: Mapping[str, str] = field(default_factory=dict)

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields the chunk with the features of the other files of its samples."""
        yield JoinedRows(chunk, *self.values(files, chunk.file_ids.tolist()))

    def values(
        self, files: FileTable, ordinals: Sequence[int]
    ) -> tuple[pa.RecordBatch, dict[int, Fault]]:
        """Reads the other files of some samples.

        Args:
            files: All files. The member columns of the first file of a sample refer to its other
                files.
            ordinals: Indices of the first files of the samples.

        Returns:
            (a row for each sample, the fault of each row that can't be used).
        """
        columns, bad = dict[str, list[Any]](), dict[int, Fault]()
        for ending in self.endings:
            name, values, faults = (
                _FEATURES_BY_ENDING.get(ending, ending),
                *self._decode_members(files, ordinals, ending),
            )
            bad |= faults
            columns |= self._json_members(values) if self._is_expanded(ending) else {name: values}
        try:
            columns_of_features = [
                objects_to_column(name, column_values) for name, column_values in columns.items()
            ]
        except DataError as error:
            remedy = Message(
                "; {dtypes} keeps .json as text", dtypes=option("dtypes", {_JSON_FEATURE: "string"})
            )
            raise DataError(
                "{reason}{remedy}",
                reason=error.reason,
                remedy=remedy,
                source=files[ordinals[0]].name,
            ) from None
        if not columns_of_features:  # only a struct keeps the number of rows without columns
            return pa.RecordBatch.from_struct_array(
                pa.array([{}] * len(ordinals), pa.struct([]))
            ), bad
        fields, arrays = zip(*columns_of_features, strict=True)
        return flatten(pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))), bad

    def with_forms(
        self, files: FileTable, ranges: Iterable[Sequence[int]]
    ) -> _MemberColumns | None:
        """Returns these columns with the majority form of each JSON value.

        Args:
            files: All files.
            ranges: Indices of the first files of the samples, in parts that are read at once.

        Returns:
            The columns. None if all values of each path have one form, or if some path has no form
            with more than half of its values.
        """
        form_counts = defaultdict[str, Counter[str]](Counter)
        for ordinals, ending in product(ranges, filter(self._is_expanded, self.endings)):
            for path, form in chain.from_iterable(
                _value_forms(value or {})
                for value in self._decode_members(files, ordinals, ending)[0]
            ):
                form_counts[path][form] += 1
        majority = {
            path: counts.most_common(1)[0]
            for path, counts in form_counts.items()
            if len(counts) > 1
        }
        if not majority or any(
            2 * count <= form_counts[path].total() for path, (_, count) in majority.items()
        ):
            return None
        return replace(self, forms={path: form for path, (form, _) in majority.items()})

    def _is_expanded(self, ending: str) -> bool:
        return not self.as_text and _DECODERS.get(ending.rpartition(".")[2]) is _parse_json_object

    def _decode_members(
        self, files: FileTable, ordinals: Sequence[int], ending: str
    ) -> tuple[list[Any], dict[int, Fault]]:
        """Reads and decodes the files with one ending.

        Returns:
            (value for each sample, the fault of each row that can't be used). The value is None
            if a sample has no such file.
        """
        decode, bad = _DECODERS.get(ending.rpartition(".")[2]), dict[int, Fault]()
        if self.as_text and decode is _parse_json_object:
            decode = _DECODERS["txt"]
        places = files.take_columns(ordinals, (_MEMBER_PREFIX + ending,))[_MEMBER_PREFIX + ending]
        values: list[Any] = [None] * len(ordinals)
        rows, members = (
            np.flatnonzero(places.is_valid()).tolist(),
            files.items_at(places.drop_null().to_numpy()),
        )
        requests = members if decode or self.with_bytes else []
        buffer = np.empty(
            sum(member.stat.size_bytes for member in members) if requests else 0, np.uint8
        )
        read = read_files(requests, buffer) if requests else [buffer[:0]] * len(members)
        for row, file, data in zip(rows, members, read, strict=True):
            try:
                if len(data) and is_streamed_member(file.path):
                    raise ValueError("is large and compressed: unpack the archive")
                value = data.tobytes() if decode is None else decode(data.tobytes(), file)
                for path, form in (
                    _value_forms(value) if self.forms and decode is _parse_json_object else ()
                ):
                    if self.forms.get(path, form) != form:
                        remedy = Message(
                            "; {dtypes} keeps .json as text",
                            dtypes=option("dtypes", {_JSON_FEATURE: "string"}),
                        )
                        raise DataError(
                            "{path} is {form}, where most have {majority}{remedy}",
                            path=path,
                            form=form,
                            majority=self.forms[path],
                            remedy=remedy,
                        )
                values[row] = value
            except (ValueError, DataError) as error:
                reason = error.reason if isinstance(error, DataError) else str(error)
                message = Message(".{ending}: {reason}", ending=ending, reason=reason)
                bad[row] = Fault("type", shorten(message, 280))
        return values, bad

    def _json_members(self, values: Sequence[dict[str, Any] | None]) -> dict[str, list[Any]]:
        """Returns a column for each key of JSON objects.

        A key with a reserved name gets the prefix `json_`.
        """
        keys = dict.fromkeys(chain.from_iterable(value for value in values if value is not None))
        names = {key: f"json_{key}" if key in self.reserved_names else key for key in keys}
        return {
            name: [None if value is None else value.get(key) for value in values]
            for key, name in names.items()
        }


def detect_samples(listing: Listing) -> tuple[str, str] | None:
    """Detects whether members of archives form samples.

    Most of the members must be in samples of several files.
    Other tools also write ZIP archives of images, each with another file of the same name. So the
    members of a ZIP archive must also include an ending of WebDataset's labels.

    Returns:
        (SAMPLES_KIND, the reason for a note), or None.
    """
    archives = dict.fromkeys(archive_path(file.path) for file in listing.files)
    samples, _ = _group_by_stem(listing.files)
    multi_file_samples = [sample for sample in samples if len(sample) > 1]
    if not all(map(is_tar, archives)) and not any(
        _CLASS_ENDING in sample for sample in multi_file_samples
    ):
        return None
    if len(multi_file_samples) < 2 or sum(map(len, multi_file_samples)) < _MIN_SAMPLE_SHARE * len(
        listing.files
    ):
        return None
    first = " and ".join(
        file.name for file in listing.files.items_at(list(multi_file_samples[0].values())[:3])
    )
    alone = (
        " (`build images` takes images alone)" if any(map(_is_image, multi_file_samples[0])) else ""
    )
    return SAMPLES_KIND, f"{SAMPLES_KIND}: {first} are one record{alone}"


def _is_image(ending: str) -> bool:
    return ending.rpartition(".")[2] in FORMATS_BY_EXTENSION


def _group_by_stem(files: FileTable) -> tuple[list[dict[str, int]], list[int]]:
    """Groups files by folder and by their name up to the first dot.

    Returns:
        (for each sample: index of each file by its ending; indices of files without a sample).
    """
    samples, ungrouped = dict[tuple[int, str, str], dict[str, int]](), list[int]()
    for ordinal, (root, name) in enumerate(files.roots_and_names()):
        folder, _, base = name.rpartition("/")
        stem, _, ending = base.lower().partition(".")
        key = (root, folder, base[: len(stem)])
        if (
            not ending
            or is_documentation(name)
            or samples.setdefault(key, {}).setdefault(ending, ordinal) != ordinal
        ):
            ungrouped.append(ordinal)
    return list(samples.values()), ungrouped


def plan_samples(listing: Listing, options: SampleOptions, common: PlanOptions) -> Source:
    """Groups files by their names, and plans the samples.

    The ending of a file usually determines the type of its feature. Files with other endings are
    read to find the type.

    Raises:
        UsageError: There are no samples, or an option does not apply to them.
        DataError: The values of a feature have different types.
    """
    samples, ungrouped = _group_by_stem(listing.files)
    endings = sorted(
        {*chain.from_iterable(samples)}, key=lambda ending: (ending.count("."), ending)
    )
    if not 0 < len(endings) <= _MAX_ENDINGS:
        raise UsageError(
            f"{len(listing.files):,} files have {len(endings):,} endings: these are not samples"
        )
    files, incomplete = _list_first_files(listing.files, samples, endings)
    fits, large = reject_oversized(files, files.column(_BYTES_COLUMN).to_numpy(), common)
    first_source, member_options = _plan_first_files(
        replace(listing, files=files.filter(fits)), any(map(_is_image, endings)), options, common
    )
    used_endings = tuple(
        ending
        for ending in endings
        if first_source.files.column(_MEMBER_PREFIX + ending).null_count < len(first_source.files)
    )
    notes = (
        [
            f"left out: {len(ungrouped):,} file(s) that belong to no sample, such as "
            f"{listing.files[ungrouped[0]].name}"
        ]
        if ungrouped
        else []
    )
    first_source = replace(  # type: ignore[type-var]
        first_source,
        files=_append_members(first_source.files, listing.files, used_endings),
        units=pack_file_units(
            first_source.files.column(_BYTES_COLUMN).to_pylist(), BATCH_BYTES, BATCH_FILES
        ),
        notes=(*first_source.notes, *notes),
        plan_rejects=(*first_source.plan_rejects, *incomplete, *large),
    )
    if member_options.label is None and any(
        _FEATURES_BY_ENDING.get(ending) == _LABEL_FEATURE for ending in used_endings
    ):
        member_options = replace(member_options, label=_LABEL_FEATURE)
    names = {
        *first_source.schema.names,
        *(_FEATURES_BY_ENDING.get(ending, ending) for ending in used_endings),
    }
    as_text = _JSON_FEATURE in member_options.dtypes or (
        member_options.schema is not None and _JSON_FEATURE in member_options.schema
    )
    columns = _MemberColumns(used_endings, frozenset(names), as_text)
    try:
        return _join_members(first_source, columns, member_options, common.schema)
    except DataError:
        majority_columns = columns.with_forms(first_source.files, _sample_ranges(first_source))
        # without a JoinedSource, all samples are rejects
        if majority_columns is None or not isinstance(
            joined_source := _join_members(
                first_source, majority_columns, member_options, common.schema
            ),
            JoinedSource,
        ):
            raise
        return joined_source


def _list_first_files(
    files: FileTable, samples: Sequence[Mapping[str, int]], endings: Sequence[str]
) -> tuple[FileTable, list[Reject]]:
    """Lists the first image of each sample.

    If no sample has images, the first file of each sample is listed.

    Args:
        files: All files.
        samples: For each sample, the index of each file by its ending.
        endings: All endings, in the order of preference.

    Returns:
        (first files with the member columns and _BYTES_COLUMN, a reject for each sample that has no
        image where others have one).
    """
    members = np.array([[sample.get(ending, -1) for sample in samples] for ending in endings])
    sizes = np.where(members >= 0, files.sizes[members], 0).sum(axis=0)
    is_image = np.array(list(map(_is_image, endings)))
    has_images, sample_ids = bool(is_image.any()), np.arange(len(samples))
    # the row in `members` of the first file of each sample
    row = ((members >= 0) & (is_image | ~has_images)[:, None]).argmax(axis=0)
    firsts = members[row, sample_ids]
    if has_images:
        members[row, sample_ids] = -1
        firsts[~is_image[row]] = -1
    incomplete = files.items_at(
        [min(samples[sample_id].values()) for sample_id in np.flatnonzero(firsts < 0).tolist()]
    )
    complete = np.flatnonzero(firsts >= 0)
    first_files = files.take_files(firsts[complete])
    for ending, ids in zip(endings, members[:, complete], strict=True):
        first_files = first_files.with_column(_MEMBER_PREFIX + ending, pa.array(ids, mask=ids < 0))
    return first_files.with_column(_BYTES_COLUMN, pa.array(sizes[complete])), [
        Reject(file.name, "", "no file", "the sample has no image") for file in incomplete
    ]


def _sample_ranges(first_source: Source) -> list[range]:
    """Returns the samples of each unit, which are read at once."""
    return [range(unit.begin_file, unit.end_file) for unit in first_source.units]


def _join_members(
    first_source: Source,
    columns: _MemberColumns,
    member_options: PlanOptions,
    declared_schema: Schema | None,
) -> Source:
    """Infers the types of the other files of the samples, and joins these files.

    Args:
        first_source: The source of the first file of each sample.
        columns: The columns of the other files.
        member_options: The options of the plan for these columns.
        declared_schema: The schema of the records, or None.

    Raises:
        DataError: The values of a feature have different types.
    """
    ranges, header_columns = _sample_ranges(first_source), replace(columns, with_bytes=False)

    def read_good_rows(samples: range) -> pa.RecordBatch:
        batch, bad = header_columns.values(first_source.files, samples)
        return (
            batch.take(np.setdiff1d(np.arange(len(samples)), [*bad]))
            if header_columns.forms
            else batch
        )

    def iter_parts() -> Iterator[tuple[str, pa.RecordBatch]]:
        batches = thread_map(read_good_rows, ranges, member_options.threads)
        places = (first_source.files[samples[0]].name for samples in ranges)
        return (
            place_and_batch
            for place_and_batch in zip(places, batches, strict=True)
            if place_and_batch[1].num_rows
        )

    unifier = SchemaUnifier(declared_dtypes(member_options))
    for place, batch in iter_parts():
        check_feature_count(batch.num_columns, member_options.memory_bytes, place)
        unifier.add(
            batch.schema,
            place,
            {name: batch.column(name).null_count for name in batch.schema.names},
        )
    return join_columns(
        first_source,
        columns,
        unifier=unifier,
        batches=(batch for _, batch in iter_parts()),
        common=member_options,
        declared_schema=declared_schema,
        description="the samples",
        kind=SAMPLES_KIND,
    )


def _plan_first_files(
    listing: Listing, has_images: bool, options: SampleOptions, common: PlanOptions
) -> tuple[Source, PlanOptions]:
    """Plans the first files of the samples: their images or, without images, their names.

    Args:
        listing: The first file of each sample.
        has_images: Whether samples have images.
        options: Options of samples.
        common: Options that all kinds of input share.

    Returns:
        (source of the first files, options for the features of the other files).
    """
    declared, names = (
        common.schema,
        {feature.name for feature in (OWN_FEATURES if has_images else OWN_FEATURES[-1:])},
    )
    options_by_source = []
    for is_own in (True, False):
        schema = (
            None
            if declared is None
            else declared.select(name for name in declared.names if (name in names) == is_own)
        )
        dtypes = {name: dtype for name, dtype in common.dtypes.items() if (name in names) == is_own}
        options_by_source.append(
            replace(common, schema=schema, dtypes=dtypes, label=None if is_own else common.label)
        )
    if has_images:
        return plan_images(listing, options.image_options, options_by_source[0]), options_by_source[
            1
        ]
    if rewrite_rule(options.image_options) is not None:
        raise UsageError(
            "{option}: the samples have no images",
            option=option("resize" if options.resize else "reencode"),
        )
    layout = read_layout(
        listing.files, listing.roots, split_from=options.split_from, class_from=NO_LAYOUT
    )
    files, notes = listing.files.with_splits(layout.splits), (*listing.notes, *layout.notes)
    return _NameSource(Schema(OWN_FEATURES[-1:]), files, notes=notes), options_by_source[1]


def _append_members(files: FileTable, all_files: FileTable, endings: Sequence[str]) -> FileTable:
    """Returns the first files of the samples, followed by the other files.

    The member columns of the result refer to the new positions of these files.

    Args:
        files: The first files. Their member columns are indices into `all_files`.
        all_files: All files of the listing.
        endings: The endings of the other files.
    """
    columns = {_MEMBER_PREFIX + ending: files.column(_MEMBER_PREFIX + ending) for ending in endings}
    member_ids = np.unique(
        np.concatenate([[], *(column.drop_null().to_numpy() for column in columns.values())])
    ).astype(int)
    for name, column in columns.items():
        positions = np.searchsorted(member_ids, column.fill_null(-1).to_numpy()) + len(files)
        files = files.with_column(
            name, pa.array(positions, mask=column.is_null().to_numpy(zero_copy_only=False))
        )
    # the other files are not records, and must not add a split
    split = make_dictionary_column(np.zeros(len(member_ids), np.uint8), [files.splits[0].as_py()])
    return files.concat(all_files.take_files(member_ids).with_splits(split))
