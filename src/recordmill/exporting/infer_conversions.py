"""Inference of dtypes, shapes and image sizes for conversions.

A conversion of tensors or images needs a dtype, a shape or an image size. If the user does not
specify them, they are determined from some of the records. This module also suggests conversions
for features that contain images.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.base.threads import thread_map
from recordmill.records.columns.convert import ConversionStep, DecodeTensor
from recordmill.records.columns.decode_images import (
    DecodeImages,
    looks_like_image,
    read_image_sizes,
)
from recordmill.records.protobuf.tensor_proto import read_dtype_and_shape
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import resolve
from recordmill.shards.loading.decode import decode_frames, salvage
from recordmill.shards.pieces import FrameRead, Piece, iter_piece_reads

# Pieces that are read to find images or to inspect names. 4 pieces of up to 8 MiB contain a value
# of each feature that most records have.
MAX_SNIFFED_PARTS = 4


@dataclass(frozen=True)
class UnresolvedTensor:
    """Conversion of the tensors in a feature, with unknown dtype and shape.

    The first tensor of the inputs determines both.

    Attributes:
        feature: Name of the feature.
    """

    feature: str


@dataclass(frozen=True)
class UnresolvedImages:
    """Conversion of encoded images to pixels, with unknown features or sizes.

    Attributes:
        feature: Name of the feature. None means all features that contain images.
        size: (height, width) of all images after the conversion, which resizes them. If None, each
            image keeps its size.
        channels: Number of channels of the pixels.
        ragged: True if images may have different sizes. Otherwise such images are an error.
    """

    feature: str | None
    size: tuple[int, int] | None
    channels: int
    ragged: bool = True


UnresolvedStep = UnresolvedTensor | UnresolvedImages


@dataclass(frozen=True)
class RecordBatches:
    """Records of the inputs, for decisions during the plan.

    Attributes:
        files: The input files.
        pieces: The pieces of each split.
        schema: Schema of the records.
        lenient: True if damaged records are left out. Otherwise they are an error.
        threads: Number of threads for decoding.
    """

    files: Sequence[ShardFile]
    pieces: Sequence[Sequence[Piece]]
    schema: Schema
    lenient: bool
    threads: int

    def read(
        self, names: tuple[str, ...], max_parts: int | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields batches with some features, in the order of the records.

        Records are read only as far as the caller consumes the batches.

        Args:
            names: Names of the features.
            max_parts: Maximum number of pieces, or batches of a stream, to read. If None,
                everything is read.

        Yields:
            (path of the file, batch).

        Raises:
            DataError: A record is damaged, and `lenient` is false.
        """
        schema = self.schema.select(names)

        def decode(read: FrameRead) -> tuple[str, Sequence[pa.RecordBatch]]:
            frames = read()
            file = self.files[frames.file]
            return file.path, (
                salvage(frames, file.name, schema).batches
                if self.lenient
                else (decode_frames(frames, schema),)
            )

        pieces = itertools.chain.from_iterable(self.pieces)
        reads = iter_piece_reads(self.files, resolve(self.files, pieces, lenient=self.lenient))
        for path, batches in thread_map(
            decode, itertools.islice(reads, max_parts), self.threads if max_parts is None else 1
        ):
            yield from ((path, batch) for batch in batches)


def resolve_steps(
    steps: Sequence[ConversionStep | UnresolvedStep], records: RecordBatches
) -> tuple[ConversionStep, ...]:
    """Returns the conversions with all types, reading records if necessary.

    Args:
        steps: The conversions. An `UnresolvedImages` without a feature becomes one step for each
            feature with images.
        records: The records before the conversions.

    Raises:
        UsageError: A feature does not exist, contains no value or no image, or the images differ in
            size although this is not allowed.
        DataError: The first value of a tensor feature is not a tensor. If the read is lenient, this
            is only raised if no value is a tensor.
    """
    resolved: list[ConversionStep] = []
    for step in steps:
        if isinstance(step, UnresolvedTensor):
            resolved.append(_resolve_tensor(step, records))
        elif isinstance(step, UnresolvedImages):
            resolved += [
                _resolve_images(step, name, records)
                for name in _choose_image_features(step, records)
            ]
        else:
            resolved.append(step)
    return tuple(resolved)


def _resolve_tensor(step: UnresolvedTensor, records: RecordBatches) -> DecodeTensor:
    """Returns the conversion with the dtype and shape of the first tensor."""
    _check_name(step.feature, "decode_tensor", records.schema)
    if records.schema[step.feature].shape or records.schema[step.feature].dtype not in (
        "bytes",
        "string",
    ):
        # The dtype is arbitrary, because the check of `DecodeTensor` refuses this feature.
        return DecodeTensor(step.feature, "uint8", ())
    last_error: DataError | None = None
    for path, batch in records.read((step.feature,)):
        for value in batch.column(0).drop_null():
            payload = value.as_py()
            try:
                dtype, shape = read_dtype_and_shape(
                    payload.encode() if isinstance(payload, str) else payload
                )
            except DataError as error:
                last_error = DataError(
                    "{decode_tensor}: {reason}",
                    decode_tensor=option("decode_tensor", step.feature),
                    reason=error.reason,
                    source=path,
                )
                if not records.lenient:
                    raise last_error from None
                continue
            return DecodeTensor(step.feature, dtype, shape)
    raise last_error or UsageError(
        "{decode_tensor}: no record has this feature; give its dtype and shape, as "
        "in {feature}=float32[28,28]",
        decode_tensor=option("decode_tensor", step.feature),
        feature=step.feature,
    )


def _choose_image_features(step: UnresolvedImages, records: RecordBatches) -> Sequence[str]:
    """Returns the feature that the step names, or all features with images."""
    if step.feature is not None:
        _check_name(step.feature, "decode_images", records.schema)
        return [step.feature]
    candidates = tuple(feature.name for feature in records.schema if _may_hold_images(feature))
    if not (features := find_image_features(candidates, records)):
        raise UsageError(
            "{decode_images}: no feature holds encoded images; the bytes features are {candidates}",
            decode_images=option("decode_images"),
            candidates=", ".join(candidates) or "none",
        )
    return features


def _may_hold_images(feature: Feature) -> bool:
    return feature.dtype == "bytes" and len(feature.shape) <= 1


def find_image_features(candidates: tuple[str, ...], records: RecordBatches) -> Sequence[str]:
    """Returns the features that contain encoded images.

    Only the first value of each batch is inspected, in the first few batches.

    Args:
        candidates: Names of bytes features with one value per record, or a list of values.
        records: The records to inspect.
    """
    names_with_images = set()
    for _, batch in records.read(candidates, MAX_SNIFFED_PARTS) if candidates else ():
        for name, column in zip(candidates, batch.columns, strict=True):
            values = pc.list_flatten(column) if records.schema[name].shape else column
            present = values.drop_null()
            if len(present) and looks_like_image(present[0].as_py()):
                names_with_images.add(name)
    return [name for name in candidates if name in names_with_images]


def _resolve_images(step: UnresolvedImages, name: str, records: RecordBatches) -> DecodeImages:
    """Returns the conversion of an image feature, with the size of the images.

    If the user has not requested a size, but all images have the same size, the conversion has this
    size. To find it, images are read until two sizes differ.

    Raises:
        UsageError: The sizes differ, and the output format or a list requires equal sizes. Or
            there is no image in any list.
    """
    if step.size is not None:
        return DecodeImages(name, *step.size, step.channels, resize=True)
    any_size = DecodeImages(name, None, None, step.channels)
    feature = records.schema[name]
    any_size.output_feature(feature)  # raises an error if the feature can't contain images
    sizes: set[tuple[int, int]] = set()
    for _, batch in records.read((name,)):
        sizes |= read_image_sizes(batch.column(0), feature)
        if len(sizes) > 1:
            break
    if len(sizes) == 1:
        return DecodeImages(name, *sizes.pop(), step.channels)
    if not sizes:
        if feature.shape:
            raise UsageError(
                "{decode_images}: no record has an image, so the size is unknown; use {resize}",
                decode_images=option("decode_images", name),
                resize=option("resize", "HxW"),
            )
        return any_size
    if step.ragged and not feature.shape:
        return any_size
    example_sizes = " and ".join(f"{height} x {width}" for height, width in sorted(sizes)[:2])
    # Parquet and Arrow can store images of different sizes, but not in a list.
    container, alternative = (
        ("a list", "")
        if feature.shape
        else ("an array", Message(", or {to}", to=option("to", "parquet")))
    )
    raise UsageError(
        "{decode_images}: the images differ in size ({example_sizes}), and {container} needs images "
        "of one size; use {resize}{alternative}",
        decode_images=option("decode_images", name),
        example_sizes=example_sizes,
        container=container,
        resize=option("resize", "HxW"),
        alternative=alternative,
    )


def _check_name(name: str, keyword: str, schema: Schema) -> None:
    if name not in schema:
        raise UsageError(
            "{option}: no such feature; {available_names}",
            option=option(keyword, name),
            available_names=available_names(name, schema.names),
        )


def suggest_conversions(records: RecordBatches, schema: Schema) -> list[str]:
    """Returns notes that suggest to decode the encoded images in the outputs.

    There is a note for each output feature that contains encoded images.

    Args:
        records: The records before the conversions.
        schema: Schema of the outputs.
    """
    names = tuple(f.name for f in schema if _may_hold_images(f) and f.name in records.schema)
    # A damaged record is no error here, because the read itself reports it.
    with contextlib.suppress(DataError):
        image_features = find_image_features(names, records)
        return [
            Message(
                "{name} holds encoded images. To get pixels: {decode_images}",
                name=name,
                decode_images=option("decode_images", name),
            )
            for name in image_features
        ]
    return []
