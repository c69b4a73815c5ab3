"""Plans image files: which files of a listing are images, what their folders and a labels file say, and the units to
read.

The plan looks at names, and at the first bytes of files whose extension tells nothing. Every image is read once, by
`reading`.

Features: `image` (the original bytes), `format`, `height`, `width`, `channels`, `source` (the file's name below its
INPUT) of every record; `label` with `format_class_value` where folders or a labels file give one; every further column of the
labels file.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image, sniff_unsupported_image
from recordmill.base.option_names import option
from recordmill.records.images.check import MAX_PIXELS
from recordmill.records.images.header import EXTENSIONS, SIZE_FAULT
from recordmill.records.images.resize import STRETCH, PixelRule
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common import layout
from recordmill.sources.common.content import (
    HEAD_BYTES,
    NO_DATA_EXTENSIONS,
    format_extension_counts,
    full_extension,
    note_extensions,
)
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    Chunk,
    PlanOptions,
    Unit,
    pack_file_units,
)
from recordmill.sources.common.layout import (
    exclude_unlabelled_files,
    reject_unknown_classes,
    resolve_class_rule,
)
from recordmill.sources.images.boxes import OBJECT_LABEL, box_columns, object_features
from recordmill.sources.images.labels_file import LabelRequest, label_columns
from recordmill.sources.images.pairs import append_partners, pair_feature, pair_files, record_sizes
from recordmill.sources.images.reading import (
    DECODE_MEMORY_DIVISOR,
    column_feature,
    conform_columns,
    feature_names,
    read_images,
    with_features,
    with_folder_labels,
    without_features,
)
from recordmill.sources.values.schema_unifier import apply_dtypes, check_declared_schema
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import parse_input_path, read_range
from recordmill.storage.folders import real_path
from recordmill.storage.listing import Listing
from recordmill.storage.walk import is_within

STRUCTURE_CHECK, DECODE_CHECK = "structure", "decode"
REJECT_MISSING, IGNORE_MISSING = "reject", "ignore"
# one chunk a unit: there is nothing to set up for a file, and the finer the units, the better all threads share them
IMAGE_UNIT_BYTES = BATCH_BYTES
IMAGE_UNIT_FILES = 8192  # files: bounds the Python objects that a unit of tiny images makes
MAX_IMAGE_BYTES = (1 << 31) - (
    1 << 20
)  # 2 GiB less 1 MiB: a serialized Example must stay below 2 GiB

OWN_FEATURES: tuple[Feature, ...] = (
    Feature("image", "bytes", required=True),
    Feature("format", "string", required=True),
    Feature("height", "int64", required=True),
    Feature("width", "int64", required=True),
    Feature("channels", "int64", required=True),
    Feature("source", "string", required=True),
)
IMAGE_FEATURE_NAMES = frozenset(feature.name for feature in OWN_FEATURES)
_FOREIGN_EXTENSIONS = frozenset(
    (
        "jp2",
        "j2k",
        "jpf",
        "jpx",
        "jxl",
        "avif",
        "heic",
        "heif",
        "ico",
        "cur",
        "psd",
        "ppm",
        "pgm",
        "pbm",
        "pnm",
        "pfm",
        "tga",
        "dds",
        "qoi",
        "exr",
    )
)
# names of folders of images, and of those beside them that hold what is to be seen in each, in any case
_IMAGE_FOLDERS = frozenset(
    ("image", "images", "img", "imgs", "jpegimages", "photos", "inputs", "rgb")
)
_MASK_FOLDERS = frozenset(
    (
        "mask",
        "masks",
        "annotations",
        "labels",
        "segmentations",
        "segmentationclass",
        "gt",
        "groundtruth",
    )
)
_MAX_INSPECTED_FILES = 8  # files beside the images, of which the first bytes are read
_MAX_SEARCHED_NAMES = 100  # names of images
_TABLE_EXTENSIONS = ("csv", "tsv", "jsonl")  # that --labels reads


@dataclass(frozen=True)
class ImageOptions:
    """Options of image files.

    Attributes:
        labels: A .csv, .tsv or .jsonl file with a row per image (or several).
        labels_path_column: Its column of paths; None: found by name.
        pair: `IMAGES,MASKS`: folders of which each file goes with that of the same name, into one record.
        boxes: Annotations of objects: a file, or a folder of files.
        label_offset: The number of the first class of objects: 0, or 1, where 0 is the background.
        missing: `reject` a labels row without a file and a file without a row, or `ignore`: such rows are dropped, such
            files have no labels.
        check: `structure` (whole container, nothing decoded) or `decode` (every frame, with Pillow; takes 4 to 12 bytes
            of memory per pixel).
        max_pixels: Height x width above which an image is a reject, known from its header before anything is decoded.
        resize: `HxW`, or (height, width): images, masks and boxes get that size; None: pixels stay as they are.
        resize_mode: `stretch`, `crop` the middle, or `pad` with black, to keep the ratio.
        reencode: `jpeg:QUALITY`, `webp:QUALITY` or `png`: the format that is written; None: each image's own.
        class_from: `auto`, `folders`, `none`.
        label_regex: A regular expression for the names of files, with a group around the class.
        split_from: `auto`, `folders`, `names`, `none`: see `sources.common.layout`.
        unlabelled: Of files beside class folders, as there.
    """

    labels: str | None = None
    labels_path_column: str | None = None
    pair: str | None = None
    boxes: str | None = None
    label_offset: int = 0
    missing: str = REJECT_MISSING
    check: str = STRUCTURE_CHECK
    max_pixels: int = MAX_PIXELS
    resize: str | tuple[int, int] | None = None
    resize_mode: str = STRETCH
    reencode: str | None = None
    class_from: str = layout.AUTO_LAYOUT
    label_regex: str | None = None
    split_from: str = layout.AUTO_LAYOUT
    unlabelled: str = layout.LEAVE_UNLABELLED

    def __post_init__(self) -> None:
        if self.label_offset not in (0, 1):
            raise UsageError(
                f"{option('label_offset', self.label_offset)}: 0, or 1 for a background class before them"
            )
        if self.max_pixels < 1:
            raise UsageError(f"{option('max_pixels', self.max_pixels)}: at least 1")
        _ = self.rule

    @property
    def rule(self) -> PixelRule | None:
        """A rule that says what is written in place of the bytes of images."""
        return PixelRule.of(self.resize, self.resize_mode, self.reencode)


@dataclass(frozen=True)
class ImageSource:
    """The `Source` of image files; these have the columns of records that don't come from the image itself.

    statistics: images that are decoded for the check are added up for them. absolute_boxes: see `read_images`.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    options: ImageOptions
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    statistics: bool = False
    absolute_boxes: bool | None = None

    @property
    def kind(self) -> str:
        return "images"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's images, checked, with their bytes as they are, or written anew.

        Raises:
            DataError: a file changed since it was listed, or can't be read.
        """
        yield from self.read_files(range(unit.first_file, unit.last_file))

    @property
    def is_record_per_file(self) -> bool:
        # what is written anew may take much more than the file, which runs bound and shards in order of files don't
        return self.options.pair is None and self.options.rule is None

    def read_files(self, ordinals: Sequence[int]) -> Iterator[Chunk]:
        """Yields the images of these files, in this order; DataError as `read`."""
        options = self.options
        yield from read_images(
            self.files,
            ordinals,
            self.schema,
            decode_bytes=self.memory_bytes // DECODE_MEMORY_DIVISOR,
            max_pixels=options.max_pixels,
            decode=options.check == DECODE_CHECK,
            with_pixels=self.statistics,
            absolute_boxes=self.absolute_boxes,
            pair="" if options.pair is None else pair_feature(options.pair).name,
            rule=options.rule,
        )


def plan_images(
    listing: Listing, options: ImageOptions | None = None, common: PlanOptions | None = None
) -> ImageSource:
    """Plans the images of a listing.

    Raises:
        UsageError: there is no image, an option doesn't fit, or folders name splits for a part of the files only.
        DataError: the labels file can't be read or doesn't fit the schema.
    """
    options, common = options or ImageOptions(), common or PlanOptions()
    annotations_path = options.labels if options.boxes is None else options.boxes
    files, notes = _select_images(
        listing, None if annotations_path is None else real_path(parse_input_path(annotations_path))
    )
    partners: FileTable | None = None
    own_features, rejects = OWN_FEATURES, list[Reject]()
    if options.pair is not None:
        files, partners, rejects = pair_files(
            files, options.pair, [*IMAGE_FEATURE_NAMES, "label", "class_name"]
        )
        own_features = (*OWN_FEATURES[:1], pair_feature(options.pair), *OWN_FEATURES[1:])
    keep, large = reject_oversized(files, record_sizes(files, partners), common)
    files, rejects = files.filter(keep), [*rejects, *large]
    files, folder_layout, unlabelled_notes = exclude_unlabelled_files(
        files,
        listing.roots,
        split_from=options.split_from,
        class_from=resolve_class_rule(options.class_from, options.label_regex)
        if options.boxes is None
        else layout.NO_LAYOUT,
        unlabelled=options.unlabelled if options.labels is None else layout.KEEP_UNLABELLED,
    )
    if annotations_path is None and partners is None and options.class_from == layout.AUTO_LAYOUT:
        _check_class_folders(folder_layout.class_names)
    if partners is not None and not folder_layout.class_names:
        folder_layout = folder_layout.without_classes()
    files, time_dtypes = (
        with_folder_labels(files.with_splits(folder_layout.splits), folder_layout),
        dict[str, str](),
    )
    if options.labels is not None:
        request = LabelRequest(
            options.labels,
            options.labels_path_column,
            common.label,
            options.missing == REJECT_MISSING,
            frozenset(feature.name for feature in own_features).union(feature_names(files)),
        )
        labels = label_columns(request, files, listing.roots)
        if "label" in labels.columns:
            folder_layout, files = folder_layout.without_classes(), without_features(files)
        files, time_dtypes = (
            with_features(files, labels.columns).filter(labels.keep),
            dict(labels.time_dtypes),
        )
        rejects, notes = [*rejects, *labels.rejects], [*notes, *labels.notes]
        folder_layout = replace(
            folder_layout, classes=folder_layout.classes.filter(pa.array(labels.keep))
        )
    absolute_boxes, classes = None, dict[str, tuple[str, ...]]()
    if options.boxes is not None:
        objects = box_columns(
            parse_input_path(options.boxes),
            files,
            listing.roots,
            first_label=options.label_offset,
            memory_bytes=common.memory_bytes,
        )
        files, absolute_boxes = with_features(files, objects.columns), objects.absolute
        own_features, classes = (
            object_features(own_features, feature_names(files)),
            {OBJECT_LABEL: objects.classes},
        )
        rejects, notes = [*rejects, *objects.rejects], [*notes, *objects.notes]
    elif (
        options.labels is None
        and common.label is not None
        and common.label not in feature_names(files)
    ):
        raise UsageError(
            f"{option('label', common.label)}: images have a label by their folders, or by a column of "
            f"{option('labels', 'FILE')}"
        )
    schema, schema_notes = _build_schema(files, time_dtypes, common, own_features, classes)
    if (
        folder_layout.class_names
        and "label" in schema
        and (names := schema["label"].classes) is not None
    ):
        is_known, unknown = reject_unknown_classes(files, folder_layout.classes, names)
        files = files.filter(is_known)
        rejects = [*rejects, *unknown]
    of_images = {feature.name for feature in own_features}
    column_schema = schema.select([name for name in schema.names if name not in of_images])
    files, column_rejects, rounding_notes = conform_columns(files, column_schema)
    notes += [*unlabelled_notes, *folder_layout.notes, *schema_notes, *rounding_notes]
    notes = [
        *listing.notes,
        *notes,
        *([] if options.rule is None else [f"images are {options.rule}"]),
    ]
    units = pack_file_units(
        record_sizes(files, partners).tolist(), IMAGE_UNIT_BYTES, IMAGE_UNIT_FILES
    )
    return ImageSource(
        schema,
        append_partners(files, partners),
        units,
        options,
        tuple(notes),
        (*rejects, *column_rejects),
        memory_bytes=common.memory_bytes,
        statistics=common.statistics,
        absolute_boxes=absolute_boxes,
    )


def _select_images(listing: Listing, annotations_path: str | None) -> tuple[FileTable, list[str]]:
    """Returns the files that are images by extension or, where that tells nothing, by their first bytes; the others
    counted by extension.
    """
    files, skipped, annotation_candidates = listing.files, Counter[str](), list[InputFile]()
    endings = map(full_extension, files.names())
    image_extensions = EXTENSIONS.keys() | _FOREIGN_EXTENSIONS
    unopened = NO_DATA_EXTENSIONS.union(listing.data_extensions) - EXTENSIONS.keys()
    keep = np.fromiter((ending in image_extensions for ending in endings), np.bool_, len(files))
    for file_id in np.flatnonzero(~keep).tolist():
        file = files[file_id]
        ending = full_extension(file.name)
        if (
            ending.split(".")[0] in unopened and not listing.is_named(file)
        ) or not _looks_like_image(file):
            skipped[ending] += annotations_path is None or not is_within(
                file.path, annotations_path
            )
            annotation_candidates += [file] * (
                annotations_path is None
                and ending in (*_TABLE_EXTENSIONS, "json", "xml")
                and len(annotation_candidates) < _MAX_INSPECTED_FILES
            )
        else:
            keep[file_id] = True
    tally = format_extension_counts(+skipped)
    if not keep.any():
        raise UsageError(f"no image among {len(files)} file(s){f': {tally}' if tally else ''}")
    files = files.filter(keep)
    return files, [
        *note_extensions("images", files, +skipped),
        *dict.fromkeys(_unread_annotation_notes(listing, files, annotation_candidates)),
    ]


def _unread_annotation_notes(
    listing: Listing, files: FileTable, candidates: Sequence[InputFile]
) -> Iterator[str]:
    """Yields notes on files beside the images that name these, which an option would read."""
    names = (
        [file.name.rpartition("/")[2].encode() for file in files[:_MAX_SEARCHED_NAMES]]
        if candidates
        else []
    )
    for file in candidates:
        head, ending, name = b"", full_extension(file.name), file.name
        with contextlib.suppress(OSError):  # it is not needed
            head = read_range(file.path, 0, HEAD_BYTES).tobytes()
        is_boxes = any(mark in head for mark in (b'"annotations"', b'"categories"', b"<bndbox>"))
        if not any(name in head for name in names) or not (is_boxes or ending in _TABLE_EXTENSIONS):
            continue
        root = listing.roots[file.root]
        path = f"{root.given.rstrip('/')}/{file.name}" if root.folder else file.path
        if ending == "xml":  # of Pascal VOC, one an image
            path, name = path.rpartition("/")[0], file.name.rpartition("/")[0] or "."
        option_name = "boxes" if is_boxes else "labels"
        yield f"{name} names images and is not read; {option(option_name, path)} takes {option_name} from it"


def _check_class_folders(classes: Sequence[str]) -> None:
    """Refuses folders of images and of their masks, which would become two classes.

    Raises:
        UsageError: there are such folders; it names them, and both ways on.
    """
    folders = {name.rpartition("/")[2].lower(): name for name in reversed(classes)}
    images, masks = (
        min(folders.keys() & words, default=None) for words in (_IMAGE_FOLDERS, _MASK_FOLDERS)
    )
    if images is None or masks is None:
        return
    raise UsageError(
        f"folders {folders[images]!r} and {folders[masks]!r} look like images and what is to be seen in each of them, "
        f"not like two classes: {option('pair', f'{folders[images]},{folders[masks]}')} puts both into one record, "
        f"{option('class_from', 'folders')} makes them classes"
    )


def _looks_like_image(file: InputFile) -> bool:
    head = read_range(file.path, 0, IMAGE_HEAD_BYTES).tobytes()
    return sniff_image(head) is not None or sniff_unsupported_image(head) is not None


def reject_oversized(
    files: FileTable, sizes: npt.NDArray[np.int64], common: PlanOptions
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """Returns ([files] whose records, of these sizes, fit into a quarter of memory, as each is held whole; the others
    as rejects).
    """
    limit = min(MAX_IMAGE_BYTES, common.memory_bytes // 4)
    message = f"bytes are more than one record may have ({limit}, a quarter of {option('memory')} and at most 2 GiB)"
    keep = sizes <= limit
    large = np.flatnonzero(~keep).tolist()
    return keep, [
        Reject(files[file_id].name, "", SIZE_FAULT, f"{sizes[file_id]} {message}")
        for file_id in large
    ]


def _build_schema(
    files: FileTable,
    time_dtypes: Mapping[str, str],
    common: PlanOptions,
    own_features: Sequence[Feature],
    classes: Mapping[str, tuple[str, ...]],
) -> tuple[Schema, list[str]]:
    """Returns the features of a record: the image's own, then label and class_name, then the labels file's columns, of
    which some are text that is times, of these dtypes. classes: of features of objects.
    """
    column_features = [column_feature(files, name) for name in feature_names(files)]
    column_features = [
        replace(feature, dtype=time_dtypes.get(feature.name, feature.dtype))
        for feature in column_features
    ]
    column_features = [
        replace(feature, classes=classes.get(feature.name, feature.classes))
        for feature in column_features
    ]
    of_images = {feature.name for feature in own_features}
    features = [*own_features[:-1], *column_features, own_features[-1]]
    schema = Schema(tuple(features), "label" if "label" in feature_names(files) else None)
    if fixed := of_images & set(common.dtypes):
        raise UsageError(
            f"{option('dtypes', min(fixed))}: this feature comes from the image itself and keeps its type"
        )
    schema = apply_dtypes(schema, common.dtypes)
    if common.schema is None:
        return schema, []
    for feature in common.schema:
        if feature.name in of_images and (feature.dtype, feature.shape) != (
            schema[feature.name].dtype,
            (),
        ):
            raise UsageError(
                f"the schema says that {feature.name!r} is {feature.describe()}; of images it is "
                f"{schema[feature.name].describe()}"
            )
    common, left_out = common.without_absent(schema.names, "the images")
    assert common.schema is not None
    declared, notes = check_declared_schema(common.schema, schema, "the images")
    if not len(declared):
        raise UsageError("the schema names no feature, so there is nothing to build")
    return declared, [*left_out, *notes]
