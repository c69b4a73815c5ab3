"""Determines the types that conversions leave open, from some of the records.

Also suggests conversions for a read that decodes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.base.threads import thread_map
from recordmill.records.columns.convert import ConversionStep, DecodeTensor
from recordmill.records.columns.decode_images import (
    DecodeImages,
    looks_like_image,
    read_image_sizes,
)
from recordmill.records.protobuf.tensor_proto import read_dtype_and_shape
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import pieces_of
from recordmill.shards.loading.batches import Load, decode_load, loads
from recordmill.shards.loading.salvage import salvage
from recordmill.shards.pieces import Piece, Span

# Of up to 8 MiB each, which is enough to find every feature that most records have.
MAX_SNIFFED_LOADS = 4


@dataclass(frozen=True)
class UnresolvedTensor:
    """Conversion of tensors. The first tensor determines dtype and shape."""

    feature: str


@dataclass(frozen=True)
class UnresolvedImages:
    """Conversion of images.

    Attributes:
        feature: Name of the feature. None converts all features that contain images.
        size: (height, width) of the result. None keeps the size of the images.
        channels: Number of channels.
        ragged: Images may differ in size.
    """

    feature: str | None
    size: tuple[int, int] | None
    channels: int
    ragged: bool = True


UnresolvedStep = UnresolvedTensor | UnresolvedImages


@dataclass(frozen=True)
class RecordBatches:
    """Records of the inputs, read in order to decide something.

    Attributes:
        files: The input files.
        pieces: The pieces of each split.
        schema: Schema of the records.
        lenient: Damaged records are left out.
        threads: Number of threads.
    """

    files: Sequence[ShardFile]
    pieces: Sequence[Sequence[Piece | Span]]
    schema: Schema
    lenient: bool
    threads: int

    def read(
        self, names: tuple[str, ...], max_loads: int | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Reads some features of the records.

        Args:
            names: Names of the features.
            max_loads: Maximum number of loads to read. None reads all.

        Yields:
            (path of the file, batch).
        """
        schema = self.schema.select(names)

        def decode(load: Load) -> tuple[str, Sequence[pa.RecordBatch]]:
            return load.file.path, salvage(load, schema).batches if self.lenient else decode_load(
                load, schema
            )

        pieces = (
            pieces_of(self.files, split_pieces, lenient=self.lenient)
            for split_pieces in self.pieces
        )
        all_loads = loads(self.files, itertools.chain.from_iterable(pieces), lenient=self.lenient)
        selected_loads = itertools.islice(all_loads, max_loads)
        for path, batches in thread_map(
            decode, selected_loads, self.threads if max_loads is None else 1
        ):
            yield from ((path, batch) for batch in batches)


def resolve_steps(
    steps: Sequence[ConversionStep | UnresolvedStep], records: RecordBatches
) -> tuple[ConversionStep, ...]:
    """Returns the steps with all types determined.

    Raises:
        UsageError: A feature does not exist, or no record has a value.
        DataError: The first value is not a tensor.
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
    _check_name(step.feature, "decode_tensor", records.schema)
    if records.schema[step.feature].shape or records.schema[step.feature].dtype not in (
        "bytes",
        "string",
    ):
        # The check of DecodeTensor explains why this feature is not suitable.
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
                    f"{option('decode_tensor', step.feature)}: {error.reason}", source=path
                )
                if not records.lenient:
                    raise last_error from None
                continue
            return DecodeTensor(step.feature, dtype, shape)
    raise last_error or UsageError(
        f"{option('decode_tensor', step.feature)}: no record has it; say what it would be, as in "
        f"{step.feature}=float32[28,28]"
    )


def _choose_image_features(step: UnresolvedImages, records: RecordBatches) -> Sequence[str]:
    """Returns the feature in the step, or all features with images."""
    if step.feature is not None:
        _check_name(step.feature, "decode_images", records.schema)
        return [step.feature]
    candidates = tuple(
        feature.name for feature in records.schema if feature.dtype == "bytes" and not feature.shape
    )
    if not (features := find_image_features(candidates, records)):
        if lists := [
            feature.name for feature in records.schema if feature.dtype == "bytes" and feature.shape
        ]:
            raise UsageError(
                f"{option('decode_images')}: no feature holds one encoded image a record; {lists[0]!r} is a list of "
                "byte strings, which is not decoded"
            )
        raise UsageError(
            f"{option('decode_images')}: no feature holds encoded images; the bytes features are "
            f"{', '.join(candidates) or 'none'}"
        )
    return features


def find_image_features(candidates: tuple[str, ...], records: RecordBatches) -> Sequence[str]:
    """Returns the candidates with values that look like images.

    Only the first value of each batch is inspected, and only in a few batches. `candidates` are
    bytes features with one value per record.
    """
    names_with_images = set()
    for _, batch in records.read(candidates, MAX_SNIFFED_LOADS) if candidates else ():
        for name, column in zip(candidates, batch.columns, strict=True):
            present = column.drop_null()
            if len(present) and looks_like_image(present[0].as_py()):
                names_with_images.add(name)
    return [name for name in candidates if name in names_with_images]


def _resolve_images(step: UnresolvedImages, name: str, records: RecordBatches) -> DecodeImages:
    """Determines the size of images. Reads images until two of them differ."""
    if step.size is not None:
        return DecodeImages(name, *step.size, step.channels, resize=True)
    any_size = DecodeImages(name, None, None, step.channels)
    feature = records.schema[name]
    any_size.output_feature(feature)
    sizes: set[tuple[int, int]] = set()
    for _, batch in records.read((name,)):
        sizes |= read_image_sizes(batch.column(0), feature)
        if len(sizes) > 1:
            break
    if len(sizes) == 1:
        return DecodeImages(name, *sizes.pop(), step.channels)
    if sizes and not step.ragged:
        example_sizes = " and ".join(f"{height} x {width}" for height, width in sorted(sizes)[:2])
        raise UsageError(
            f"{option('decode_images', name)}: the images differ in size ({example_sizes}), so no one array holds them; "
            f"{option('resize', 'HxW')} makes them equal, or use {option('to', 'parquet')}"
        )
    return any_size


def _check_name(name: str, keyword: str, schema: Schema) -> None:
    if name not in schema:
        raise UsageError(
            f"{option(keyword, name)}: no such feature; {available_names(name, schema.names)}"
        )


def suggest_conversions(records: RecordBatches, schema: Schema) -> list[str]:
    """Returns a note for each bytes feature of the output that contains images."""
    names = tuple(
        f.name for f in schema if f.dtype == "bytes" and not f.shape and f.name in records.schema
    )
    # An error is reported when the records are read.
    with contextlib.suppress(DataError):
        image_features = find_image_features(names, records)
        return [
            f"{name} holds encoded images: {option('decode_images', name)} makes pixels of them"
            for name in image_features
        ]
    return []
