"""Sketch of the colours of encoded images.

The sketch adds up the red, green and blue values of the pixels, and their squares. If the build has
decoded all images to check them, all images count. Otherwise a sample is decoded: the images with
the lowest hashes of their bytes. The sample has one of SAMPLE_RATIO images, but at least
MIN_DECODED for a data set, and at most MAX_DECODED for a split.

Only the bytes of the images determine the sample, and each occurrence of an image counts. Therefore
the sum of two sketches is the sketch of all their images. All sums are exact integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image
from recordmill.base.siphash import U64
from recordmill.records.images.pixels import NUM_PIXEL_SUMS, PixelSums, sum_encoded_pixels

# One of 256 images is decoded, because decoding takes five times as long as all other work on an
# image.
SAMPLE_RATIO = 256
# Smallest number of decoded images of a data set, and of a split. They take 2 % of the time of a
# build of 2,000 images.
MIN_DECODED = 8
MIN_DECODED_OF_SPLIT = 4
# Largest number of decoded images of a split. The mean colours of images vary by about 40, so the
# error of their mean is usually below 40 / sqrt(1024) = 1.3.
MAX_DECODED = 1024
# Size of the encoded images that may wait to be decoded, in all sketches of a data set.
MAX_PENDING_BYTES = 4 << 20
_NO_PIXELS: PixelSums = np.zeros(NUM_PIXEL_SUMS, np.int64)
_ALL_HASHES = (1 << 64) - 1
_SAMPLE_HASH = np.uint64(_ALL_HASHES // SAMPLE_RATIO)


@dataclass(slots=True)
class _SampledImage:
    """An image in the sample, which may not be decoded yet.

    Attributes:
        count: The number of occurrences of the image.
        sums: The sums of its pixels. 0 while it is not decoded, and if it can't be decoded.
        data: The encoded image. None once it is decoded, or if the value is not an image.
    """

    count: int
    sums: PixelSums
    data: Bytes | None = None


@dataclass(frozen=True)
class PixelTotal:
    """Sums of the pixels of all decoded images.

    Attributes:
        images: The number of decoded images.
        is_complete: True if all images were decoded. False if only a sample was.
        pixels: The number of pixels.
        sums: [3] The sums of the red, the green and the blue values.
        squares: [3] The sums of the squares of these values.
    """

    images: int
    is_complete: bool
    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]

    @classmethod
    def from_sums(cls, images: int, is_complete: bool, totals: list[int]) -> PixelTotal:
        """Creates the total from a list of NUM_PIXEL_SUMS numbers.

        Args:
            images: The number of decoded images.
            is_complete: True if all images were decoded.
            totals: The number of pixels, the three sums, and the three sums of squares.
        """
        middle = 1 + NUM_PIXEL_SUMS // 2
        return cls(images, is_complete, totals[0], tuple(totals[1:middle]), tuple(totals[middle:]))


@dataclass
class PixelSketch:
    """Sketch of the images in a bytes feature of one split.

    Attributes:
        min_images: The smallest number of images in the sample. If the split has fewer images, all
            of them are in the sample.
        max_images: The largest number of images in the sample.
        max_pending_bytes: The encoded bytes that may wait to be decoded. Waiting is useful, because
            an image may leave the sample before it is decoded.
    """

    min_images: int
    max_images: int
    max_pending_bytes: int
    # The number of images that the caller has decoded (`add_sums`), and the sums of their pixels.
    _decoded_totals: list[int] = field(default_factory=lambda: [0] * (1 + NUM_PIXEL_SUMS))
    _images: dict[int, _SampledImage] = field(default_factory=dict)  # the sample, by hash
    _max_hash: int = _ALL_HASHES  # images with a higher hash are not in the sample
    _pending_bytes: int = 0

    @classmethod
    def of_features(cls, count: int, splits: int, max_values: int) -> PixelSketch:
        """Creates the sketch for one bytes feature of one split.

        Args:
            count: The number of such sketches, which share MAX_PENDING_BYTES.
            splits: The number of splits.
            max_values: The number of different values that a sketch of a feature keeps.
        """
        min_images = max(MIN_DECODED // splits, MIN_DECODED_OF_SPLIT)
        return cls(min_images, min(MAX_DECODED, max_values // 4), MAX_PENDING_BYTES // count)

    def add(self, hashes: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Counts binary values. Values that are not images are ignored.

        Args:
            hashes: [values] The hash of each value.
            data: The bytes of all values.
            starts: [values] The start of each value in `data`.
            ends: [values] The end of each value in `data`.
        """
        candidates = np.flatnonzero(hashes <= np.uint64(self._max_hash))
        if not len(candidates):
            return
        new_hashes, places, counts = np.unique(
            hashes[candidates], return_index=True, return_counts=True
        )
        kept_hashes = self._keep(new_hashes)
        inside = new_hashes <= kept_hashes[-1]
        for hash_, index, count in zip(
            new_hashes[inside].tolist(),
            candidates[places[inside]].tolist(),
            counts[inside].tolist(),
            strict=True,
        ):
            if (existing := self._images.get(hash_)) is not None:
                existing.count += count
                continue
            value = data[starts[index] : ends[index]]
            is_image = sniff_image(value[:IMAGE_HEAD_BYTES].tobytes()) is not None
            # `data` belongs to the batch, so the image is copied.
            self._put(hash_, _SampledImage(count, _NO_PIXELS, value.copy() if is_image else None))
        self._decode(self.max_pending_bytes)

    def add_sums(self, sums: PixelSums) -> None:
        """Counts images that the caller has decoded.

        Args:
            sums: [images, NUM_PIXEL_SUMS] The pixel sums of each image. A row with 0 pixels is an
                image that could not be decoded, and is ignored.
        """
        decoded = sums[sums[:, 0] > 0]
        self._decoded_totals[0] += len(decoded)
        for column, total in enumerate(
            decoded.astype(object).sum(0).tolist() if len(decoded) else [], 1
        ):
            self._decoded_totals[column] += total

    def _keep(self, new_hashes: U64) -> U64:
        """Makes space in the sample for images with new hashes.

        The images that no longer belong to the sample are dropped. The caller must add the new
        images.

        Returns:
            The hashes of the new sample, ascending.
        """
        own_hashes = np.fromiter(self._images, np.uint64, len(self._images))
        hashes = np.union1d(own_hashes, new_hashes)
        # Hashes are uniform, so about one of SAMPLE_RATIO images has a hash up to _SAMPLE_HASH.
        sampled_count = int(np.searchsorted(hashes, _SAMPLE_HASH, "right"))
        kept_hashes = hashes[: min(max(sampled_count, self.min_images), self.max_images)]
        if sampled_count < self.min_images <= len(hashes) or len(kept_hashes) == self.max_images:
            self._max_hash = int(kept_hashes[-1])
        elif sampled_count >= self.min_images:
            self._max_hash = int(_SAMPLE_HASH)
        for hash_ in own_hashes[own_hashes > kept_hashes[-1]].tolist():
            self._pending_bytes -= _pending_size(self._images.pop(hash_))
        return kept_hashes

    def _put(self, hash_: int, image: _SampledImage) -> None:
        self._images[hash_] = image
        self._pending_bytes += _pending_size(image)

    def _decode(self, max_pending_bytes: int) -> None:
        """Decodes pending images if they have more than `max_pending_bytes`.

        Stops when at most half of `max_pending_bytes` is pending. The images with the lowest hashes
        are decoded first, because they are most likely to stay in the sample.
        """
        if self._pending_bytes <= max_pending_bytes:
            return
        for hash_ in sorted(self._images):
            image = self._images[hash_]
            if image.data is not None:
                self._pending_bytes -= _pending_size(image)
                image.sums, image.data = sum_encoded_pixels(image.data), None
                if self._pending_bytes <= max_pending_bytes // 2:
                    return

    def merge(self, source: PixelSketch) -> None:
        """Adds the counts and images of another sketch, which may have larger limits.

        The caller must not use `source` after this call, because both sketches share its images.
        """
        assert self.min_images <= source.min_images
        assert self.max_images <= source.max_images
        self._decoded_totals = [
            own_total + source_total
            for own_total, source_total in zip(
                self._decoded_totals, source._decoded_totals, strict=True
            )
        ]
        if not source._images:
            return
        max_hash = int(self._keep(np.array(sorted(source._images), np.uint64))[-1])
        for hash_, image in source._images.items():
            if hash_ > max_hash:
                continue
            if (existing := self._images.get(hash_)) is not None:
                existing.count += image.count
            else:
                self._put(hash_, image)
        self._decode(self.max_pending_bytes)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as arrays by name, for a file. `from_arrays` reads them.

        Waiting images are decoded now.
        """
        self._decode(0)
        images = sorted(self._images.items())
        return {
            "limits": np.array(
                [self.min_images, self.max_images, self.max_pending_bytes], np.int64
            ),
            # The sums of many images may exceed 64 bits.
            "decoded_totals": np.frombuffer(json.dumps(self._decoded_totals).encode(), np.uint8),
            "hashes": np.array([hash_ for hash_, _ in images], np.uint64),
            "counts": np.array([image.count for _, image in images], np.int64),
            "sums": np.array([image.sums for _, image in images], np.int64).reshape(-1),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> PixelSketch:
        """Creates a sketch from the arrays of `to_arrays`."""
        sums = arrays["sums"].reshape(-1, NUM_PIXEL_SUMS)
        images = zip(arrays["hashes"].tolist(), arrays["counts"].tolist(), sums, strict=True)
        sketch = cls(*arrays["limits"].tolist())
        sketch._decoded_totals = json.loads(arrays["decoded_totals"].tobytes())
        sketch._images = {hash_: _SampledImage(count, row) for hash_, count, row in images}
        return sketch

    def __getstate__(self) -> dict[str, Any]:
        self._decode(0)
        return self.__dict__

    def total(self) -> PixelTotal | None:
        """Returns the sums of all decoded images. None if no image was decoded.

        Waiting images are decoded now.
        """
        if self._decoded_totals[0]:
            return PixelTotal.from_sums(self._decoded_totals[0], True, self._decoded_totals[1:])
        self._decode(0)
        decoded = [image for image in self._images.values() if image.sums[0]]
        images = sum(image.count for image in decoded)
        totals = [
            sum(image.count * int(image.sums[column]) for image in decoded)
            for column in range(NUM_PIXEL_SUMS)
        ]
        return PixelTotal.from_sums(images, False, totals) if images else None


def _pending_size(image: _SampledImage) -> int:
    return 0 if image.data is None else len(image.data)
