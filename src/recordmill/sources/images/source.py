"""Source of image files, with labels from folders and labels files.

The plan inspects the names of files. If an extension is unclear, it also reads the first bytes of
the file. `reading` then reads each image once, during the build.

Every record has the features `image` (the original bytes), `format`, `height`, `width`, `channels`,
and `source` (name of the file relative to its input). If folders or a labels file contain classes,
it has `label` and `class_name`. All other columns of a labels file are features, too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image, sniff_unsupported_image
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.records.images.header import FORMATS_BY_EXTENSION, TOO_LARGE
from recordmill.records.images.rewrite import RewriteRule
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common import layout
from recordmill.sources.common.content import (
    NO_DATA_EXTENSIONS,
    find_yolo_folders,
    format_extension_counts,
    full_extension,
    note_extensions,
    read_head_for_message,
)
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    Chunk,
    PlanOptions,
    Unit,
    pack_file_units,
)
from recordmill.sources.common.layout import (
    FolderLayout,
    exclude_unlabelled_files,
    reject_unknown_classes,
    resolve_class_rule,
)
from recordmill.sources.images.box_columns import OBJECT_LABEL, read_box_columns
from recordmill.sources.images.box_table import is_box_table
from recordmill.sources.images.boxes import object_features
from recordmill.sources.images.labels_file import LabelRequest, read_label_columns
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.pairs import append_partners, pair_feature, pair_files, record_sizes
from recordmill.sources.images.reading import (
    DECODE_MEMORY_DIVISOR,
    FEATURE_PREFIX,
    column_feature,
    conform_columns,
    feature_names,
    read_images,
    with_features,
    with_folder_labels,
    without_features,
)
from recordmill.sources.images.voc import read_image_set_splits
from recordmill.sources.values.schema_unifier import apply_dtypes, check_declared_schema
from recordmill.storage.file_table import FileTable, InputFile, null_mask
from recordmill.storage.files import parse_input_path, read_range
from recordmill.storage.folders import real_path
from recordmill.storage.listing import InputRoot, Listing
from recordmill.storage.walk import is_within

STRUCTURE_CHECK, DECODE_CHECK = "structure", "decode"
REJECT_MISSING, IGNORE_MISSING = "reject", "ignore"
# One chunk per unit. A unit has no setup costs, and small units are distributed more evenly over
# the threads.
IMAGE_UNIT_BYTES = BATCH_BYTES
IMAGE_UNIT_FILES = 8192  # files per unit: bounds the Python objects of a unit with tiny images
# 2 GiB less 1 MiB, since a serialized Example must be smaller than 2 GiB
MAX_IMAGE_BYTES = (1 << 31) - (1 << 20)

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
# names of folders with images, and of folders with masks next to them, in lower case
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
# Pairs of folders that image-to-image models use, if the files in both have the same names.
_PAIRED_FOLDERS = (
    ("input", "target"),
    ("inputs", "targets"),
    ("input", "output"),
    ("source", "target"),
    ("lr", "hr"),
    ("lq", "hq"),
    ("lq", "gt"),
    ("noisy", "clean"),
    ("blur", "sharp"),
    ("blurred", "sharp"),
    ("hazy", "clear"),
    ("hazy", "gt"),
)
_MAX_INSPECTED_FILES = 8  # other files that are searched for names of images
_MAX_SEARCHED_NAMES = 100  # names of images to search for
_TABLE_EXTENSIONS = ("csv", "tsv", "jsonl")  # formats of the option `labels`


@dataclass(frozen=True)
class ImageSource:
    """A source of image files.

    Attributes:
        files: The files. Their columns contain the features that do not come from the image itself.
        memory_bytes: Memory of the build.
        statistics: Whether the pixels of images that a check decodes are summed up.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    options: ImageOptions
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    statistics: bool = False

    @property
    def kind(self) -> str:
        return "images"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the checked images of a unit, with their original or rewritten bytes.

        Raises:
            DataError: A file has changed since it was listed, or can't be read.
        """
        yield from self.read_files(range(unit.begin_file, unit.end_file))

    @property
    def is_record_per_file(self) -> bool:
        # A rewritten image may be much larger than its file. Sorted runs bound the memory for this,
        # but shards in the order of files don't. With boxes, a file may have rejects in addition to
        # its record.
        options = self.options
        return options.pair is None and rewrite_rule(options) is None and options.boxes is None

    def read_files(self, ordinals: Sequence[int]) -> Iterator[Chunk]:
        """Yields the images of some files, in the order of `ordinals`.

        Raises:
            DataError: A file has changed since it was listed, or can't be read.
        """
        options = self.options
        yield from read_images(
            self.files,
            ordinals,
            self.schema,
            decode_bytes=self.memory_bytes // DECODE_MEMORY_DIVISOR,
            max_pixels=options.max_pixels,
            decode=options.check == DECODE_CHECK,
            with_pixels=self.statistics,
            pair="" if options.pair is None else pair_feature(options.pair).name,
            rule=rewrite_rule(options),
        )


def rewrite_rule(options: ImageOptions) -> RewriteRule | None:
    """Returns the rule that rewrites images, or None if their bytes are kept.

    Raises:
        UsageError: A size or a format is invalid.
    """
    return RewriteRule.from_options(options.resize, options.resize_mode, options.reencode)


def plan_images(
    listing: Listing, options: ImageOptions | None = None, common: PlanOptions | None = None
) -> ImageSource:
    """Plans the images of a listing.

    Raises:
        UsageError: There is no image, an option does not fit, or only some of the files are in
            folders called like splits.
        DataError: The labels file or the annotations can't be read, or don't fit the schema.
    """
    options, common = options or ImageOptions(), common or PlanOptions()
    rule = rewrite_rule(options)  # raises UsageError before any file is read
    annotations_path = options.labels if options.boxes is None else options.boxes
    files, notes = _select_images(
        listing, None if annotations_path is None else real_path(parse_input_path(annotations_path))
    )
    partners: FileTable | None = None
    own_features, unpaired = OWN_FEATURES, list[Reject]()
    if options.pair is not None:
        files, partners, unpaired = pair_files(
            files, options.pair, [*IMAGE_FEATURE_NAMES, "label", "class_name"]
        )
        own_features = (*OWN_FEATURES[:1], pair_feature(options.pair), *OWN_FEATURES[1:])
    fits, large = reject_oversized(files, record_sizes(files, partners), common)
    files, folder_layout, unlabelled_notes = _label_by_folders(
        files.filter(fits), listing.roots, options
    )
    images = _LabelledImages(files, folder_layout, own_features, (*unpaired, *large), tuple(notes))
    if options.labels is not None:
        images = _add_labels_file(images, listing.roots, options, common)
    if options.boxes is not None:
        images = _add_objects(images, listing.roots, options, common)
    elif (
        options.labels is None
        and common.label is not None
        and common.label not in feature_names(images.files)
    ):
        raise UsageError(
            "{label}: images have a label by their folders, or by a column of {labels}",
            label=option("label", common.label),
            labels=option("labels", "FILE"),
        )
    files, rejects = common.drop_known(images.files, images.rejects)
    images = replace(images, files=files, rejects=rejects)
    schema, schema_notes = _build_schema(images, common)
    files, class_rejects = _drop_unknown_classes(images, schema)
    own_names = {feature.name for feature in images.own_features}
    column_schema = schema.select([name for name in schema.names if name not in own_names])
    files, column_rejects, rounding_notes = conform_columns(files, column_schema)
    return ImageSource(
        schema=schema,
        files=append_partners(files, partners),
        units=pack_file_units(
            record_sizes(files, partners).tolist(), IMAGE_UNIT_BYTES, IMAGE_UNIT_FILES
        ),
        options=options,
        notes=(
            *listing.notes,
            *images.notes,
            *unlabelled_notes,
            *images.layout.notes,
            *schema_notes,
            *rounding_notes,
            *([] if rule is None else [f"images are {rule}"]),
        ),
        plan_rejects=(*images.rejects, *class_rejects, *column_rejects),
        memory_bytes=common.memory_bytes,
        statistics=common.collects_statistics,
    )


@dataclass(frozen=True)
class _LabelledImages:
    """Images with the features that do not come from the images themselves.

    Attributes:
        files: The images. Their columns contain these features.
        layout: The classes by folders, if nothing else determines them.
        own_features: The features that come from the images themselves.
        rejects: Files and annotations that can't be used.
        notes: Notes for the user.
        time_dtypes: Dtypes of text columns that contain times, by feature name.
        classes: Class names of object features, by feature name.
    """

    files: FileTable
    layout: FolderLayout
    own_features: tuple[Feature, ...]
    rejects: tuple[Reject, ...]
    notes: tuple[str, ...]
    time_dtypes: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _label_by_folders(
    files: FileTable, roots: Sequence[InputRoot], options: ImageOptions
) -> tuple[FileTable, FolderLayout, tuple[str, ...]]:
    """Adds the splits and classes that the folders determine.

    Returns:
        (remaining images, their layout, notes on images that were left out).
    """
    files, folder_layout, notes = exclude_unlabelled_files(
        files,
        roots,
        split_from=options.split_from,
        class_from=resolve_class_rule(options.class_from, options.label_regex)
        if options.boxes is None
        else layout.NO_LAYOUT,
        unlabelled=options.unlabelled if options.labels is None else layout.KEEP_UNLABELLED,
    )
    has_annotations = options.labels is not None or options.boxes is not None
    if not has_annotations and options.pair is None and options.class_from == layout.AUTO_LAYOUT:
        _check_class_folders(folder_layout.class_names, files)
    if options.pair is not None and not folder_layout.class_names:
        folder_layout = folder_layout.without_classes()
    files = with_folder_labels(files.with_splits(folder_layout.splits), folder_layout)
    return files, folder_layout, notes


def _add_labels_file(
    images: _LabelledImages,
    roots: Sequence[InputRoot],
    options: ImageOptions,
    common: PlanOptions,
) -> _LabelledImages:
    """Returns the images with the columns of the labels file.

    The label of this file replaces the label from the folders.
    """
    assert options.labels is not None
    files, folder_layout = images.files, images.layout
    reserved_names = {feature.name for feature in images.own_features}
    request = LabelRequest(
        path=os.fspath(options.labels),
        path_column=options.labels_path_column,
        dialect=options.dialect,
        label=common.label,
        reject=options.missing == REJECT_MISSING,
        reserved_names=frozenset(reserved_names.union(feature_names(files))),
        dtypes=common.dtypes,
    )
    labels = read_label_columns(request, files, roots)
    if "label" in labels.columns:
        folder_layout, files = folder_layout.without_classes(), without_features(files)
    return replace(
        images,
        files=with_features(files, labels.columns).filter(labels.keep),
        layout=folder_layout,
        rejects=(*images.rejects, *labels.rejects),
        notes=(*images.notes, *labels.notes),
        time_dtypes=labels.time_dtypes,
    )


def _add_objects(
    images: _LabelledImages,
    roots: Sequence[InputRoot],
    options: ImageOptions,
    common: PlanOptions,
) -> _LabelledImages:
    """Returns the images with the objects in annotations and the splits of Pascal VOC."""
    assert options.boxes is not None
    objects = read_box_columns(
        parse_input_path(options.boxes),
        images.files,
        roots,
        first_label=options.label_offset,
        memory_bytes=common.memory_bytes,
        unit=options.box_unit,
        dialect=options.dialect,
    )
    files, split_notes = with_features(images.files, objects.columns), list[str]()
    for name, column in objects.hidden.items():
        files = files.with_column(name, column)
    if options.split_from == layout.AUTO_LAYOUT and null_mask(files.splits).all():
        splits, split_notes = read_image_set_splits(objects.folder, files)
        files = files if splits is None else files.with_splits(splits)
    return replace(
        images,
        files=files.filter(objects.keep),
        own_features=object_features(images.own_features, feature_names(files)),
        rejects=(*images.rejects, *objects.rejects),
        notes=(*images.notes, *split_notes, *objects.notes),
        classes={OBJECT_LABEL: objects.classes},
    )


def _drop_unknown_classes(
    images: _LabelledImages, schema: Schema
) -> tuple[FileTable, list[Reject]]:
    """Drops the images in folders that are not a class of the schema.

    Returns:
        (remaining images, a reject for each other one).
    """
    if not images.layout.class_names or "label" not in schema or schema["label"].classes is None:
        return images.files, []
    folder_classes = images.files.column(f"{FEATURE_PREFIX}class_name")
    is_known, rejects = reject_unknown_classes(
        images.files, folder_classes, schema["label"].classes
    )
    return images.files.filter(is_known), rejects


def _select_images(listing: Listing, annotations_path: str | None) -> tuple[FileTable, list[str]]:
    """Selects images by extension or, if that is unclear, by their first bytes.

    Args:
        listing: All files.
        annotations_path: A file or folder with labels or boxes, which the notes do not mention.
            None if there is none.

    Returns:
        (images, notes on the other files).

    Raises:
        UsageError: There is no image.
    """
    files, skipped, annotation_candidates = listing.files, Counter[str](), list[InputFile]()
    endings = map(full_extension, files.names())
    image_extensions = FORMATS_BY_EXTENSION.keys() | _FOREIGN_EXTENSIONS
    # files with these extensions are only opened if the user names them
    unopened = NO_DATA_EXTENSIONS.union(listing.data_extensions) - FORMATS_BY_EXTENSION.keys()
    keep = np.fromiter((ending in image_extensions for ending in endings), np.bool_, len(files))
    for file_id in np.flatnonzero(~keep).tolist():
        file = files[file_id]
        ending = full_extension(file.name)
        if (
            ending.split(".")[0] in unopened and not listing.is_explicit(file)
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
        archives = [
            name
            for name in listing.files.names()
            if name.lower().endswith((".zip", ".tar", ".tgz", ".tar.gz"))
        ]
        remedy = f"; if {archives[0]} has them, give the archive as the INPUT" if archives else ""
        raise UsageError(
            f"no image among {len(files)} file(s){f': {tally}' if tally else ''}{remedy}"
        )
    files = files.filter(keep)
    yolo_notes = []
    # A text file has no name of an image, so it is not among the candidates.
    if skipped["txt"] and annotations_path is None and (yolo := find_yolo_folders(listing)):
        message = "{labels} has boxes in the format of YOLO, but was not used. To use them: {boxes}"
        yolo_notes.append(Message(message, labels=yolo[1], boxes=option("boxes", yolo[1])))
    return files, [
        *note_extensions("images", files, +skipped),
        *yolo_notes,
        *dict.fromkeys(_unread_annotation_notes(listing, files, annotation_candidates)),
    ]


def _unread_annotation_notes(
    listing: Listing, files: FileTable, candidates: Sequence[InputFile]
) -> Iterator[str]:
    """Yields notes on files that look like annotations but that no option reads.

    Args:
        listing: All files.
        files: The images.
        candidates: Files that may be annotations.
    """
    names = (
        [file.name.rpartition("/")[2].encode() for file in files[:_MAX_SEARCHED_NAMES]]
        if candidates
        else []
    )
    for file in candidates:
        head, ending, name = read_head_for_message(file), full_extension(file.name), file.name
        is_table = ending in _TABLE_EXTENSIONS
        is_boxes = (
            is_box_table(head, ending)
            if is_table
            else any(mark in head for mark in (b'"annotations"', b'"categories"', b"<bndbox>"))
        )
        is_named = any(name in head for name in names) or (is_table and _has_ids(head, names))
        if not is_named or not (is_boxes or is_table) or "submission" in name.lower():
            continue
        root = listing.roots[file.root]
        path = f"{root.argument.rstrip('/')}/{file.name}" if root.is_folder else file.path
        if ending == "xml":  # Pascal VOC has a file per image, so the option needs the folder
            path, name = path.rpartition("/")[0], file.name.rpartition("/")[0] or "."
        option_name = "boxes" if is_boxes else "labels"
        yield Message(
            "{name} lists images but was not used. Add {option} ({option_name})",
            name=name,
            option=option(option_name, path),
            option_name=option_name,
        )


def _find_paired_folders(classes: Sequence[str], files: FileTable) -> tuple[str, str] | None:
    """Returns the names of the two folders of an image-to-image data set, or None.

    Each image is in one of them, and an image of the same name is in the other one.
    """
    folders = {part.lower(): part for name in classes for part in name.split("/")}
    for pair in _PAIRED_FOLDERS:
        if not folders.keys() >= {*pair}:
            continue
        names: tuple[set[str], set[str]] = set(), set()
        for name in files.names():
            *parts, base = name.split("/")
            side = next((index for index in (0, 1) if folders[pair[index]] in parts), None)
            if side is None:
                break
            parts.remove(folders[pair[side]])
            names[side].add("/".join([*parts, base.rpartition(".")[0]]))
        else:
            if names[0] == names[1]:
                return folders[pair[0]], folders[pair[1]]
    return None


def _has_ids(head: bytes, names: Sequence[bytes]) -> bool:
    """Returns whether rows begin with the names of images without their extensions."""
    stems = {name.rpartition(b".")[0] for name in names}
    ids = {re.split(rb"[,;\t]", line, maxsplit=1)[0].strip(b'" ') for line in head.splitlines()[1:]}
    return len(stems & ids) >= min(2, len(stems))


def _check_class_folders(classes: Sequence[str], files: FileTable) -> None:
    """Raises UsageError if two class folders look like images and their masks.

    The message names both folders, and the two options to choose from.
    """
    folders = {name.rpartition("/")[2].lower(): name for name in reversed(classes)}
    images, masks = (
        min(folders.keys() & words, default=None) for words in (_IMAGE_FOLDERS, _MASK_FOLDERS)
    )
    if images is not None and masks is not None:
        pair = (folders[images], folders[masks])
        meaning = "images and their masks"
    elif (model_folders := _find_paired_folders(classes, files)) is not None:
        pair, meaning = model_folders, "images and the outputs of a model"
    else:
        return
    raise UsageError(
        "folders {pair} and {pair2} look like {meaning}, not like two classes: "
        "{pair3} puts both into one record, {class_from} makes them classes",
        pair=repr(pair[0]),
        pair2=repr(pair[1]),
        meaning=meaning,
        pair3=option("pair", ",".join(pair)),
        class_from=option("class_from", "folders"),
    )


def _looks_like_image(file: InputFile) -> bool:
    head = read_range(file.path, 0, IMAGE_HEAD_BYTES).tobytes()
    return sniff_image(head) is not None or sniff_unsupported_image(head) is not None


def reject_oversized(
    files: FileTable, sizes: npt.NDArray[np.int64], common: PlanOptions
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """Rejects files with records that are too large.

    The limit is a quarter of the memory, and at most MAX_IMAGE_BYTES, because a complete record is
    in memory.

    Args:
        files: The files.
        sizes: [files] Bytes of the record of each file.
        common: Options that all kinds of input share.

    Returns:
        ([files] mask of the files that fit, rejects of the others).
    """
    limit = min(MAX_IMAGE_BYTES, common.memory_bytes // 4)
    message = Message(
        "bytes are more than one record may have ({limit}, a quarter of {memory} and "
        "at most 2 GiB)",
        limit=limit,
        memory=option("memory"),
    )
    keep = sizes <= limit
    large = np.flatnonzero(~keep).tolist()
    return keep, [
        Reject(
            files[file_id].name,
            "",
            TOO_LARGE,
            Message("{sizes} {message}", sizes=sizes[file_id], message=message),
        )
        for file_id in large
    ]


def _build_schema(images: _LabelledImages, common: PlanOptions) -> tuple[Schema, list[str]]:
    """Returns the schema of the records, and notes.

    The order is: features of the image, label, class_name, columns of the labels file. `source` is
    the last one.

    Raises:
        UsageError: A declared dtype or schema does not fit images.
        DataError: A required feature is missing.
    """
    files, own_features = images.files, images.own_features
    column_features = [
        replace(
            feature,
            dtype=images.time_dtypes.get(feature.name, feature.dtype),
            classes=images.classes.get(feature.name, feature.classes),
        )
        for feature in (column_feature(files, name) for name in feature_names(files))
    ]
    own_names = {feature.name for feature in own_features}
    features = [*own_features[:-1], *column_features, own_features[-1]]
    schema = Schema(tuple(features), "label" if "label" in feature_names(files) else None)
    if overridden := own_names & set(common.dtypes):
        raise UsageError(
            "{dtypes}: this feature comes from the image itself and keeps its type",
            dtypes=option("dtypes", min(overridden)),
        )
    schema = apply_dtypes(schema, common.dtypes)
    if common.schema is None:
        return schema, []
    for feature in common.schema:
        if feature.name in own_names and (feature.dtype, feature.shape) != (
            schema[feature.name].dtype,
            (),
        ):
            raise UsageError(
                f"the schema declares {feature.name!r} as {feature.describe()}, but "
                f"for images it is {schema[feature.name].describe()}"
            )
    common, absent_notes = common.drop_absent_features(schema.names, "the images")
    assert common.schema is not None
    declared, notes = check_declared_schema(common.schema, schema, "the images")
    if not len(declared):
        raise UsageError("the schema names no feature, so there is nothing to build")
    return declared, [*absent_notes, *notes]
