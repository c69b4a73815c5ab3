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
    """Sums of the pixels of images that were decoded, all (is_whole) or a sample; of red, green and blue."""

    images: int
    is_whole: bool
    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]

    @classmethod
    def of(cls, images: int, is_whole: bool, totals: list[int]) -> PixelTotal:
        """totals: [SUMS]."""
        middle = 1 + SUMS // 2
        return cls(images, is_whole, totals[0], tuple(totals[1:middle]), tuple(totals[middle:]))


@dataclass
class PixelSketch:
    """Values of a bytes feature. least, most: images of the sample. waiting_bytes: of those that wait to be decoded."""

    least: int
    most: int
    waiting_bytes: int
    _whole: list[int] = field(default_factory=lambda: [0] * (1 + SUMS))  # images, and their sums
    _images: dict[int, _Image] = field(default_factory=dict)
    _bound: int = _ALL_HASHES  # no hash above it is in the sample
    _waiting: int = 0  # bytes

    @classmethod
    def of_features(cls, count: int, splits: int, most: int) -> PixelSketch:
        """Returns one of so many features, of all splits. most: values that are kept of each."""
        least = max(MIN_DECODED // splits, MIN_DECODED_OF_SPLIT)
        return cls(least, min(MAX_DECODED, most // 4), MAX_PENDING_BYTES // count)

    def add(self, hashes: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Counts the values data[starts[i]:ends[i]], of these hashes: [values]."""
        near = np.flatnonzero(hashes <= np.uint64(self._bound))
        if not len(near):
            return
        new, places, counts = np.unique(hashes[near], return_index=True, return_counts=True)
        kept = self._keep(new)
        inside = new <= kept[-1]
        for one, at, count in zip(
            new[inside].tolist(),
            near[places[inside]].tolist(),
            counts[inside].tolist(),
            strict=True,
        ):
            if (known := self._images.get(one)) is not None:
                known.count += count
                continue
            value = data[starts[at] : ends[at]]
            is_image = sniff_image(value[:IMAGE_HEAD_BYTES].tobytes()) is not None
            self._put(one, _Image(count, _NO_PIXELS, value.copy() if is_image else None))
        self._decode(self.waiting_bytes)

    def add_sums(self, sums: PixelSums) -> None:
        """Counts images that others have decoded, [images, SUMS]; those without pixels could not be."""
        known = sums[sums[:, 0] > 0]
        self._whole[0] += len(known)
        for at, total in enumerate(known.astype(object).sum(0).tolist() if len(known) else [], 1):
            self._whole[at] += total

    def _keep(self, new: U64) -> U64:
        """Drops images that leave the sample when these come, and returns the hashes of the others, ascending."""
        known = np.fromiter(self._images, np.uint64, len(self._images))
        hashes = np.union1d(known, new)
        of_share = int(np.searchsorted(hashes, _SAMPLE_HASH, "right"))
        kept = hashes[: min(max(of_share, self.least), self.most)]
        if of_share < self.least <= len(hashes) or len(kept) == self.most:
            self._bound = int(kept[-1])
        elif of_share >= self.least:
            self._bound = int(_SAMPLE_HASH)
        for one in known[known > kept[-1]].tolist():
            self._waiting -= _pending_size(self._images.pop(one))
        return kept

    def _put(self, one: int, image: _Image) -> None:
        self._images[one] = image
        self._waiting += _pending_size(image)

    def _decode(self, most_bytes: int) -> None:
        """Decode until no more bytes wait, those of least hash first, which stay in the sample most likely."""
        if self._waiting <= most_bytes:
            return
        for one in sorted(self._images):
            image = self._images[one]
            if image.data is not None:
                self._waiting -= _pending_size(image)
                image.sums, image.data = decode_pixels(image.data), None
                if self._waiting <= most_bytes // 2:
                    return

    def merge(self, other: PixelSketch) -> None:
        """Adds what another one has counted, which is not used any more."""
        assert (self.least, self.most) == (other.least, other.most)
        self._whole = [
            mine + others for mine, others in zip(self._whole, other._whole, strict=True)
        ]
        if not other._images:
            return
        kept = int(self._keep(np.array(sorted(other._images), np.uint64))[-1])
        for one, image in other._images.items():
            if one > kept:
                continue
            if (known := self._images.get(one)) is not None:
                known.count += image.count
            else:
                self._put(one, image)
        self._decode(self.waiting_bytes)

    def __getstate__(self) -> dict[str, Any]:
        self._decode(0)
        return self.__dict__

    def total(self) -> PixelTotal | None:
        """Returns the sums of all images that were decoded; None of none."""
        if self._whole[0]:
            return PixelTotal.of(self._whole[0], True, self._whole[1:])
        self._decode(0)
        known = [image for image in self._images.values() if image.sums[0]]
        images = sum(image.count for image in known)
        totals = [sum(image.count * int(image.sums[at]) for image in known) for at in range(SUMS)]
        return PixelTotal.of(images, False, totals) if images else None


def _pending_size(image: _Image) -> int:
    return 0 if image.data is None else len(image.data)
