"""Likeness of two images: a hash of 256 bits of which look-alikes differ in few, and the correlation of small greys,
which decides.

The hash is the difference hash that N. Krawetz describes ("Kind of Like That", 2013), of 16 rows of 16 comparisons. An
image and its copy of another format, quality or size have hashes within `MAX_HASH_DISTANCE`; so have other images, of which
`correlate_rows` tells them. A part of an image, and its mirror image, are found by neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base.siphash import U64

if TYPE_CHECKING:
    from PIL import Image

HASH_WORDS = 4  # of 64 bits each
MAX_HASH_DISTANCE = 24
GREY_SIDE = 32
MIN_CORRELATION = 0.99
_HASH_SIDE = 16

_Float64s = npt.NDArray[np.float64]


def to_grey(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Returns the grey of an image of [height, width, channels]; alpha is left out."""
    from PIL import Image

    return (
        Image.fromarray(pixels[..., :3]).convert("L")
        if pixels.shape[2] >= 3
        else Image.fromarray(pixels[..., 0])
    )


def _average_blocks(grey: Image.Image, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Returns [height, width] means of the parts of equal size into which the image is cut."""
    from PIL import Image

    return np.asarray(grey.resize((width, height), Image.Resampling.BOX))


def difference_hash(grey: Image.Image) -> U64:
    """Returns [HASH_WORDS] bits that say where an image gets brighter from left to right."""
    small = _average_blocks(grey, _HASH_SIDE, _HASH_SIDE + 1)
    return np.packbits(small[:, 1:] > small[:, :-1]).view(np.uint64)


def shrink_grey(grey: Image.Image) -> npt.NDArray[np.uint8]:
    """Returns [GREY_SIDE * GREY_SIDE] the image in small, for `correlate_rows`."""
    return _average_blocks(grey, GREY_SIDE, GREY_SIDE).reshape(-1)


def correlate_rows(
    first_rows: npt.NDArray[np.uint8], second_rows: npt.NDArray[np.uint8]
) -> _Float64s:
    """Returns [n] Pearson's correlation of rows of [n, pixels]. Of two images of one colour each it is 1 if the
    colour is the same, else 0; of one such image and another 0.
    """
    first_deviations, second_deviations = (
        rows.astype(np.float64) - rows.mean(1, keepdims=True) for rows in (first_rows, second_rows)
    )
    norm = np.sqrt(
        (first_deviations * first_deviations).sum(1)
        * (second_deviations * second_deviations).sum(1)
    )
    is_equal = (first_rows == second_rows).all(1).astype(np.float64)
    correlation: _Float64s = np.divide(
        (first_deviations * second_deviations).sum(1), norm, out=is_equal, where=norm > 0
    )
    return correlation
