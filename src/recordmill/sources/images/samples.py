"""Plans samples as WebDataset writes them: files of one name before the first dot are a record, as `7.jpg`, `7.json`
and `7.cls` in a tar, or in a folder.

The ending says what a file becomes: an image, with the features that images have (the first one; others are bytes),
`label` (cls), features of their own (json), `text` (txt), a tensor (npy), and else bytes, called as the ending. JSON,
texts, numbers and arrays are read twice, for their types and for the records; nothing is unpickled. Where a member of
JSON has values of several forms, that of most of them counts, as in JSON Lines; samples of others are rejects.

Source: github.com/webdataset/webdataset, tariterators.py and autodecode.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.records.images.header import EXTENSIONS
from recordmill.records.images.resize import STRETCH
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.arrow.numpy_files import read_npy
from recordmill.sources.arrow.python_rows import objects_to_column
from recordmill.sources.common.content import is_paper
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_FILES,
    Chunk,
    PlanOptions,
    Source,
    Unit,
    packed_files,
)
from recordmill.sources.common.layout import AUTO_LAYOUT, NO_LAYOUT, read_layout
from recordmill.sources.images.source import OWN_FEATURES, ImageOptions, oversized, plan_images
from recordmill.sources.values.column_join import JoinedRows, JoinedSource, join_columns
from recordmill.sources.values.flatten import flatten
from recordmill.sources.values.schema_unifier import SchemaUnifier, declared_dtypes
from recordmill.storage.archives import archive_of, is_tar
from recordmill.storage.file_table import FileTable, InputFile, coded
from recordmill.storage.files import read_files
from recordmill.storage.json_fields import parse
from recordmill.storage.listing import Listing

SAMPLES = "webdataset"
_LABEL, _JSON = "label", "json"
_FEATURES = {
    "cls": _LABEL,
    "txt": "text",
    "jsn": _JSON,
}  # of endings that are not called as their features
_MEMBER = (
    "member/"  # before an ending: a column of first files, the ordinal of their sample's file of it
)
_BYTES = "sample/bytes"  # a column: of all files of a sample
_FORMS = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}  # of values of JSON
_MOST_ENDINGS = 100  # of the files of all samples: each is a column in memory
_LEAST_SHARE = (
    0.9  # of the members of tars that must lie in samples of several, for these to be told
)


def _whole_number(data: bytes, _: InputFile) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number:.9g} does not fit int64")
    return number


def _json_object(data: bytes, file: InputFile) -> Any:
    found = parse(data, file.name)
    if not isinstance(found, dict):
        raise ValueError(
            f"is no JSON object; {option('dtypes', {_JSON: 'string'})} keeps it as text"
        )
    if b"\\u" in data:
        json.dumps(found, ensure_ascii=False).encode()  # which half of a pair of surrogates is not
    return found


def _forms(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields (path, form) of what an object or a list has; values of one form go together."""
    for name, item in value.items() if isinstance(value, dict) else (("[]", one) for one in value):
        inner, form = f"{path}.{name}" if path else name, _FORMS.get(type(item), "a number")
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            form = "a number beyond int64"
        if item is not None:
            yield inner, form
        if (
            isinstance(item, dict | list) and depth < 64
        ):  # of more values within values than anybody writes
            yield from _forms(item, inner, depth + 1)


_Decode = Callable[[bytes, InputFile], Any]
_DECODERS: dict[str, _Decode] = {
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _whole_number),
    **dict.fromkeys(("txt", "text", "transcript"), lambda data, _: data.decode()),
    **dict.fromkeys(("json", "jsn"), _json_object),
    "npy": read_npy,
}


@dataclass(frozen=True)
class SampleOptions:
    """split_from: as in `sources.common.layout`; the others as in `ImageOptions`."""

    split_from: str = AUTO_LAYOUT
    resize: str | tuple[int, int] | None = None
    resize_mode: str = STRETCH
    reencode: str | None = None

    @property
    def of_images(self) -> ImageOptions:
        return ImageOptions(
            class_from=NO_LAYOUT, **{one.name: getattr(self, one.name) for one in fields(self)}
        )


@dataclass(frozen=True)
class _NameSource:
    """A Source of files of which only the names are read."""

    schema: Schema
    files: FileTable
    units: Sequence[Unit] = ()
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kind: str = SAMPLES

    def read(self, unit: Unit) -> Iterator[Chunk]:
        files = range(unit.first_file, unit.last_file)
        names = pa.array([file.name for file in self.files.some(files)], pa.large_string())
        records = pa.RecordBatch.from_arrays([names], schema=to_arrow(self.schema))
        yield Chunk(records, np.array(files, np.uint32), np.zeros(len(files), np.int64))


@dataclass(frozen=True)
class _MemberColumns:
    """The features of the files of samples beside the images.

    Attributes:
        endings: Theirs.
        taken: The names that features have already.
        as_text: JSON is kept as it is.
        with_bytes: Files that are kept as they are are read; else they count as empty.
        forms: Those that values of JSON must have, by path, where there are several.
    """

    endings: tuple[str, ...]
    taken: frozenset[str]
    as_text: bool
    with_bytes: bool = True
    forms: Mapping[str, str] = field(default_factory=dict)

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields the chunk with the features of its samples, of which each has a file of its own."""
        yield JoinedRows(chunk, *self.values(files, chunk.file.tolist()))

    def values(
        self, files: FileTable, ordinals: Sequence[int]
    ) -> tuple[pa.RecordBatch, dict[int, tuple[str, str]]]:
        """Returns (a row for each sample, the reasons why rows are bad)."""
        columns, bad = dict[str, list[Any]](), dict[int, tuple[str, str]]()
        for ending in self.endings:
            name, values, wrong = (
                _FEATURES.get(ending, ending),
                *self._decoded(files, ordinals, ending),
            )
            bad |= wrong
            columns |= self._members(values) if self._is_taken_apart(ending) else {name: values}
        try:
            each = [objects_to_column(name, some) for name, some in columns.items()]
        except DataError as error:
            remedy = f"; {option('dtypes', {_JSON: 'string'})} keeps .json as text"
            raise DataError(f"{error.reason}{remedy}", source=files[ordinals[0]].name) from None
        if not each:  # only a struct can tell how many rows have nothing
            return pa.RecordBatch.from_struct_array(
                pa.array([{}] * len(ordinals), pa.struct([]))
            ), bad
        fields, arrays = zip(*each, strict=True)
        return flatten(pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))), bad

    def with_forms(
        self, files: FileTable, ranges: Iterable[Sequence[int]]
    ) -> _MemberColumns | None:
        """Returns the columns of values of the forms that most have; None: they all are of one, or none has most."""
        seen = defaultdict[str, Counter[str]](Counter)
        for ordinals, ending in product(ranges, filter(self._is_taken_apart, self.endings)):
            for path, form in chain.from_iterable(
                _forms(one or {}) for one in self._decoded(files, ordinals, ending)[0]
            ):
                seen[path][form] += 1
        most = {path: counts.most_common(1)[0] for path, counts in seen.items() if len(counts) > 1}
        if not most or any(2 * count <= seen[path].total() for path, (_, count) in most.items()):
            return None
        return replace(self, forms={path: form for path, (form, _) in most.items()})

    def _is_taken_apart(self, ending: str) -> bool:
        return not self.as_text and _DECODERS.get(ending.rpartition(".")[2]) is _json_object

    def _decoded(
        self, files: FileTable, ordinals: Sequence[int], ending: str
    ) -> tuple[list[Any], dict[int, tuple[str, str]]]:
        """Returns (what the files of that ending hold, the reasons why rows are bad)."""
        decode, bad = _DECODERS.get(ending.rpartition(".")[2]), dict[int, tuple[str, str]]()
        if self.as_text and decode is _json_object:
            decode = _DECODERS["txt"]
        places = files.take(ordinals, (_MEMBER + ending,))[_MEMBER + ending]
        values: list[Any] = [None] * len(ordinals)
        rows, some = (
            np.flatnonzero(places.is_valid()).tolist(),
            files.some(places.drop_null().to_numpy()),
        )
        wanted = (
            [(one.path, one.stat, one.name) for one in some] if decode or self.with_bytes else []
        )
        into = np.empty(sum(one.stat.size_bytes for one in some) if wanted else 0, np.uint8)
        read = read_files(wanted, into) if wanted else [into[:0]] * len(some)
        for row, file, data in zip(rows, some, read, strict=True):
            try:
                value = data.tobytes() if decode is None else decode(data.tobytes(), file)
                for path, form in _forms(value) if self.forms and decode is _json_object else ():
                    if self.forms.get(path, form) != form:
                        remedy = f"; {option('dtypes', {_JSON: 'string'})} keeps .json as text"
                        raise ValueError(
                            f"{path} is {form}, where most have {self.forms[path]}{remedy}"
                        )
                values[row] = value
            except (ValueError, DataError) as error:
                reason = error.reason if isinstance(error, DataError) else str(error)
                bad[row] = ("type", f".{ending}: {reason}"[:280])
        return values, bad

    def _members(self, values: Sequence[dict[str, Any] | None]) -> dict[str, list[Any]]:
        """Returns the members of JSON objects; whose name is taken is called `json_NAME`."""
        keys = dict.fromkeys(chain.from_iterable(one for one in values if one is not None))
        names = {key: f"json_{key}" if key in self.taken else key for key in keys}
        return {
            name: [None if one is None else one.get(key) for one in values]
            for key, name in names.items()
        }


def tell_samples(listing: Listing) -> tuple[str, str] | None:
    """Returns (kind, why) of members of tars of which several have one name; None of anything else."""
    if not all(is_tar(archive_of(file.path)) for file in listing.files):
        return None
    samples, _ = _group(listing.files)
    several = [sample for sample in samples if len(sample) > 1]
    if len(several) < 2 or sum(map(len, several)) < _LEAST_SHARE * len(listing.files):
        return None
    first = " and ".join(file.name for file in listing.files.some(list(several[0].values())[:3]))
    alone = " (`build images` takes images alone)" if any(map(_is_image, several[0])) else ""
    return SAMPLES, f"{SAMPLES}: {first} are one record{alone}"


def _is_image(ending: str) -> bool:
    return ending.rpartition(".")[2] in EXTENSIONS


def _group(files: FileTable) -> tuple[list[dict[str, int]], list[int]]:
    """Returns (the ordinals of the files of each sample by ending, those of files of no sample)."""
    samples, left = dict[tuple[int, str, str], dict[str, int]](), list[int]()
    for at, (root, name) in enumerate(files.named()):
        folder, _, base = name.rpartition("/")
        stem, _, ending = base.lower().partition(".")
        key = (root, folder, base[: len(stem)])
        if not ending or is_paper(name) or samples.setdefault(key, {}).setdefault(ending, at) != at:
            left.append(at)
    return list(samples.values()), left


def plan_samples(listing: Listing, options: SampleOptions, common: PlanOptions) -> Source:
    """Groups the files by their names, and reads those whose types are not told by these.

    Raises:
        UsageError: There is no sample, or an option doesn't fit.
        DataError: Values of a feature don't go together.
    """
    samples, left = _group(listing.files)
    endings = sorted(
        {*chain.from_iterable(samples)}, key=lambda ending: (ending.count("."), ending)
    )
    if not 0 < len(endings) <= _MOST_ENDINGS:
        raise UsageError(
            f"{len(listing.files):,} files have {len(endings):,} endings: these are no samples"
        )
    members = np.array([[sample.get(ending, -1) for sample in samples] for ending in endings])
    sizes = np.where(members >= 0, listing.files.sizes[members], 0).sum(axis=0)
    is_image = np.array(list(map(_is_image, endings)))
    has_images, each = bool(is_image.any()), np.arange(len(samples))
    row = ((members >= 0) & (is_image | ~has_images)[:, None]).argmax(
        axis=0
    )  # of each sample's first file
    firsts = members[row, each]
    if has_images:
        members[row, each] = -1
        firsts[~is_image[row]] = -1
    lost = listing.files.some(
        [min(samples[at].values()) for at in np.flatnonzero(firsts < 0).tolist()]
    )
    rejects = [Reject(file.name, "", "no file", "the sample has no image") for file in lost]
    there = np.flatnonzero(firsts >= 0)
    files = listing.files.at(firsts[there])
    for ending, at in zip(endings, members[:, there], strict=True):
        files = files.with_column(_MEMBER + ending, pa.array(at, mask=at < 0))
    fits, large = oversized(files, sizes[there], common)
    files = files.with_column(_BYTES, pa.array(sizes[there])).filter(fits)
    own, mine = _own(replace(listing, files=files), has_images, options, common)
    used = tuple(
        one for one in endings if own.files.column(_MEMBER + one).null_count < len(own.files)
    )
    notes = (
        [f"left out: {len(left):,} file(s) of no sample, as {listing.files[left[0]].name}"]
        if left
        else []
    )
    own = replace(  # type: ignore[type-var]
        own,
        files=_with_members(own.files, listing.files, used),
        units=packed_files(own.files.column(_BYTES).to_pylist(), BATCH_BYTES, BATCH_FILES),
        notes=(*own.notes, *notes),
        plan_rejects=(*own.plan_rejects, *rejects, *large),
    )
    if mine.label is None and any(_FEATURES.get(ending) == _LABEL for ending in used):
        mine = replace(mine, label=_LABEL)
    names = {*own.schema.names, *(_FEATURES.get(ending, ending) for ending in used)}
    as_text = _JSON in mine.dtypes or (mine.schema is not None and _JSON in mine.schema)
    ranges = [range(unit.first_file, unit.last_file) for unit in own.units]

    def joined(columns: _MemberColumns) -> Source:
        some = replace(columns, with_bytes=False)

        def good(samples: range) -> pa.RecordBatch:
            batch, bad = some.values(own.files, samples)
            return (
                batch.take(np.setdiff1d(np.arange(len(samples)), [*bad])) if some.forms else batch
            )

        def parts() -> Iterator[tuple[str, pa.RecordBatch]]:
            batches = thread_map(good, ranges, common.threads)
            places = (own.files[samples[0]].name for samples in ranges)
            return (one for one in zip(places, batches, strict=True) if one[1].num_rows)

        unifier = SchemaUnifier(declared_dtypes(mine))
        for where, batch in parts():
            check_feature_count(batch.num_columns, common.memory_bytes, where)
            unifier.add(
                batch.schema,
                where,
                {name: batch.column(name).null_count for name in batch.schema.names},
            )
        batches = (batch for _, batch in parts())
        return join_columns(
            own,
            columns,
            unifier=unifier,
            batches=batches,
            common=mine,
            declared_schema=common.schema,
            description="the samples",
            kind=SAMPLES,
        )

    columns = _MemberColumns(used, frozenset(names), as_text)
    try:
        return joined(columns)
    except DataError:
        of_forms = columns.with_forms(own.files, ranges)
        if of_forms is None or not isinstance(
            found := joined(of_forms), JoinedSource
        ):  # if all samples are rejects
            raise
        return found


def _own(
    listing: Listing, has_images: bool, options: SampleOptions, common: PlanOptions
) -> tuple[Source, PlanOptions]:
    """Returns (the source of the first files, what the options say of the others)."""
    given, names = (
        common.schema,
        {feature.name for feature in (OWN_FEATURES if has_images else OWN_FEATURES[-1:])},
    )
    parts = []
    for is_own in (True, False):
        schema = (
            None
            if given is None
            else given.select(name for name in given.names if (name in names) == is_own)
        )
        dtypes = {name: dtype for name, dtype in common.dtypes.items() if (name in names) == is_own}
        parts.append(
            replace(common, schema=schema, dtypes=dtypes, label=None if is_own else common.label)
        )
    if has_images:
        return plan_images(listing, options.of_images, parts[0]), parts[1]
    if options.of_images.rule is not None:
        raise UsageError(
            f"{option('resize' if options.resize else 'reencode')}: the samples have no images"
        )
    layout = read_layout(
        listing.files, listing.roots, split_from=options.split_from, class_from=NO_LAYOUT
    )
    files, notes = listing.files.with_splits(layout.splits), (*listing.notes, *layout.notes)
    return _NameSource(Schema(OWN_FEATURES[-1:]), files, notes=notes), parts[1]


def _with_members(files: FileTable, all_files: FileTable, endings: Sequence[str]) -> FileTable:
    """Returns the files followed by those of their samples that the columns of these endings name, by their places."""
    columns = {_MEMBER + ending: files.column(_MEMBER + ending) for ending in endings}
    others = np.unique(
        np.concatenate([[], *(column.drop_null().to_numpy() for column in columns.values())])
    ).astype(int)
    for name, column in columns.items():
        at = np.searchsorted(others, column.fill_null(-1).to_numpy()) + len(files)
        files = files.with_column(
            name, pa.array(at, mask=column.is_null().to_numpy(zero_copy_only=False))
        )
    # the others give no records, and may not add a split
    split = coded(np.zeros(len(others), np.uint8), [files.splits[0].as_py()])
    return files.followed_by(all_files.at(others).with_splits(split))
