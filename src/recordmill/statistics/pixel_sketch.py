"""`PixelSketch`: the colours of encoded images. Of all of them where the build has decoded each to check it; else of a
sample, the images of least hash: one of `SAMPLE_RATIO`, but LEAST_DECODED of a data set at least and MOST_DECODED at most.

Which images these are, their bytes alone decide, and an image that occurs several times counts as often: so two
sketches add up to that of all images. Sums are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image
from recordmill.base.siphash import U64
from recordmill.records.images.pixels import SUMS, PixelSums, decode_pixels

SAMPLE_RATIO = 256  # one of so many: decoding takes five times as long as all else that a build does with an image
MIN_DECODED = (
    8  # of a data set, and LEAST_OF_SPLIT of a split: they take 2 % of a build of 2,000 images
)
MIN_DECODED_OF_SPLIT = 4
MAX_DECODED = (
    1024  # of a split: means of images vary by some 40, so that of all is within 1.3, mostly
)
MAX_PENDING_BYTES = (
    4 << 20
)  # 4 MiB: of encoded images that are decoded when it is clear that they are in the sample
_NO_PIXELS: PixelSums = np.zeros(SUMS, np.int64)
_ALL_HASHES = (1 << 64) - 1
_SAMPLE_HASH = np.uint64(_ALL_HASHES // SAMPLE_RATIO)


@dataclass(slots=True)
class _Image:
    """An image of the sample. count: how often it occurs. data: as it is encoded, until it is decoded."""

    count: int
    sums: PixelSums
    data: Bytes | None = None


@dataclass(frozen=True)
class PixelTotal:
    """Sums of the pixels of images that were decoded, all (is_complete) or a sample; of red, green and blue."""

    images: int
    is_complete: bool
    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]

    @classmethod
    def from_sums(cls, images: int, is_complete: bool, totals: list[int]) -> PixelTotal:
        """totals: [SUMS]."""
        middle = 1 + SUMS // 2
        return cls(images, is_complete, totals[0], tuple(totals[1:middle]), tuple(totals[middle:]))


@dataclass
class PixelSketch:
    """Values of a bytes feature. least, most: images of the sample. waiting_bytes: of those that wait to be decoded."""

    min_images: int
    max_images: int
    max_pending_bytes: int
    _decoded_totals: list[int] = field(
        default_factory=lambda: [0] * (1 + SUMS)
    )  # images, and their sums
    _images: dict[int, _Image] = field(default_factory=dict)
    _max_hash: int = _ALL_HASHES  # no hash above it is in the sample
    _pending_bytes: int = 0  # bytes

    @classmethod
    def of_features(cls, count: int, splits: int, max_values: int) -> PixelSketch:
        """Returns one of so many features, of all splits. most: values that are kept of each."""
        min_images = max(MIN_DECODED // splits, MIN_DECODED_OF_SPLIT)
        return cls(min_images, min(MAX_DECODED, max_values // 4), MAX_PENDING_BYTES // count)

    def add(self, hashes: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Counts the values data[starts[i]:ends[i]], of these hashes: [values]."""
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
            self._put(hash_, _Image(count, _NO_PIXELS, value.copy() if is_image else None))
        self._decode(self.max_pending_bytes)

    def add_sums(self, sums: PixelSums) -> None:
        """Counts images that others have decoded, [images, SUMS]; those without pixels could not be."""
        decoded = sums[sums[:, 0] > 0]
        self._decoded_totals[0] += len(decoded)
        for column, total in enumerate(
            decoded.astype(object).sum(0).tolist() if len(decoded) else [], 1
        ):
            self._decoded_totals[column] += total

    def _keep(self, new_hashes: U64) -> U64:
        """Drops images that leave the sample when these come, and returns the hashes of the others, ascending."""
        own_hashes = np.fromiter(self._images, np.uint64, len(self._images))
        hashes = np.union1d(own_hashes, new_hashes)
        sampled_count = int(np.searchsorted(hashes, _SAMPLE_HASH, "right"))
        kept_hashes = hashes[: min(max(sampled_count, self.min_images), self.max_images)]
        if sampled_count < self.min_images <= len(hashes) or len(kept_hashes) == self.max_images:
            self._max_hash = int(kept_hashes[-1])
        elif sampled_count >= self.min_images:
            self._max_hash = int(_SAMPLE_HASH)
        for hash_ in own_hashes[own_hashes > kept_hashes[-1]].tolist():
            self._pending_bytes -= _pending_size(self._images.pop(hash_))
        return kept_hashes

    def _put(self, hash_: int, image: _Image) -> None:
        self._images[hash_] = image
        self._pending_bytes += _pending_size(image)

    def _decode(self, max_pending_bytes: int) -> None:
        """Decode until no more bytes wait, those of least hash first, which stay in the sample most likely."""
        if self._pending_bytes <= max_pending_bytes:
            return
        for hash_ in sorted(self._images):
            image = self._images[hash_]
            if image.data is not None:
                self._pending_bytes -= _pending_size(image)
                image.sums, image.data = decode_pixels(image.data), None
                if self._pending_bytes <= max_pending_bytes // 2:
                    return

    def merge(self, source: PixelSketch) -> None:
        """Adds what another one has counted, which is not used any more."""
        assert (self.min_images, self.max_images) == (source.min_images, source.max_images)
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

    def __getstate__(self) -> dict[str, Any]:
        self._decode(0)
        return self.__dict__

    def total(self) -> PixelTotal | None:
        """Returns the sums of all images that were decoded; None of none."""
        if self._decoded_totals[0]:
            return PixelTotal.from_sums(self._decoded_totals[0], True, self._decoded_totals[1:])
        self._decode(0)
        decoded = [image for image in self._images.values() if image.sums[0]]
        images = sum(image.count for image in decoded)
        totals = [
            sum(image.count * int(image.sums[column]) for image in decoded)
            for column in range(SUMS)
        ]
        return PixelTotal.from_sums(images, False, totals) if images else None


def _pending_size(image: _Image) -> int:
    return 0 if image.data is None else len(image.data)
