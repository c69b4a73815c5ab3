"""Which part of an image is kept: a `Box`, from its size and what is wanted of it; a random one from a key and the
record's number, so that neither the order nor threads matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from recordmill.reader.images.options import Images, RandomCrop

_ATTEMPTS = 10
_STEP, _FIRST, _SECOND, _WORD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


class Box(NamedTuple):
    """In pixels of the image as it stands."""

    top: int
    left: int
    height: int
    width: int


def box_of(height: int, width: int, wanted: Images, key: int, number: int) -> Box:
    """The part of an image [height, width] that is kept.

    key: of the seed and the epoch. number: of the record among all.
    """
    if wanted.crop is None:
        return Box(0, 0, height, width)
    if wanted.crop == "center":
        return _center(height, width, wanted.width / wanted.height)
    return _random(height, width, wanted.crop, _draws(key, number))


def _center(height: int, width: int, ratio: float) -> Box:
    """
    >>> _center(100, 300, 1.0), _center(100, 30, 0.5)
    (Box(top=0, left=100, height=100, width=100), Box(top=20, left=0, height=60, width=30))
    """
    own_height = min(max(int(width / ratio), 1), height)
    own_width = min(max(int(height * ratio), 1), width)
    return Box((height - own_height) // 2, (width - own_width) // 2, own_height, own_width)


def _random(height: int, width: int, crop: RandomCrop, draws: Iterator[float]) -> Box:
    low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    for _ in range(_ATTEMPTS):
        area = height * width * (crop.area[0] + (crop.area[1] - crop.area[0]) * next(draws))
        ratio = math.exp(low + (high - low) * next(draws))
        own_width, own_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < own_width <= width and 0 < own_height <= height:
            top = int(next(draws) * (height - own_height + 1))
            return Box(top, int(next(draws) * (width - own_width + 1)), own_height, own_width)
    return _center(height, width, min(max(width / height, crop.ratio[0]), crop.ratio[1]))


def _draws(key: int, number: int) -> Iterator[float]:
    """Numbers in [0, 1): SplitMix64 from a state that key and number decide."""
    state = (key + number * _STEP) & _WORD
    state = _mixed(state)
    while True:
        state = (state + _STEP) & _WORD
        yield (_mixed(state) >> 11) / (1 << 53)


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)
