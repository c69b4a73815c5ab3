"""Similarity of two images.

Each image has a hash of 256 bits, which differs in few bits for similar images. The hash is the
difference hash of N. Krawetz ("Kind of Like That", 2013), with 16 rows of 16 comparisons. The
hashes of an image and of its copy in another format, quality or size differ in at most
MAX_HASH_DISTANCE bits. This is also true for some different images, so the correlation of small
grey images decides. Crops and mirror images are not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base.siphash import U64

if TYPE_CHECKING:
    from PIL import Image

# A hash consists of 4 words of 64 bits.
HASH_WORDS = 4
# number of bits in which the hashes of similar images may differ
MAX_HASH_DISTANCE = 24
GREY_SIDE = 32
MIN_CORRELATION = 0.99
_HASH_SIDE = 16

_Float64s = npt.NDArray[np.float64]


def to_grey(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Converts an image [height, width, channels] to grey values. Alpha is ignored."""
    from PIL import Image

    return (
        Image.fromarray(pixels[..., :3]).convert("L")
        if pixels.shape[2] >= 3
        else Image.fromarray(pixels[..., 0])
    )


def _average_blocks(grey: Image.Image, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Divides an image into [height, width] blocks, and returns the mean value of each."""
    from PIL import Image

    return np.asarray(grey.resize((width, height), Image.Resampling.BOX))


def difference_hash(grey: Image.Image) -> U64:
    """Returns the hash of a grey image, uint64 [HASH_WORDS].

    Each bit shows whether the image gets brighter from left to right at a position.
    """
    # 16 comparisons need 17 columns.
    small = _average_blocks(grey, _HASH_SIDE, _HASH_SIDE + 1)
    return np.packbits(small[:, 1:] > small[:, :-1]).view(np.uint64)


def shrink_grey(grey: Image.Image) -> npt.NDArray[np.uint8]:
    """Shrinks a grey image to GREY_SIDE x GREY_SIDE pixels, for `correlate_rows`.

    Returns:
        uint8 [GREY_SIDE * GREY_SIDE].
    """
    return _average_blocks(grey, GREY_SIDE, GREY_SIDE).reshape(-1)


def correlate_rows(
    first_rows: npt.NDArray[np.uint8], second_rows: npt.NDArray[np.uint8]
) -> _Float64s:
    """Returns Pearson's correlation of row i of both arrays, for each i, [n].

    The correlation of two images of a single colour is 1 if the colours are equal, else 0. The
    correlation of one such image with any other image is 0.

    Args:
        first_rows: [n, pixels].
        second_rows: [n, pixels].
    """
    first_deviations, second_deviations = (
        rows.astype(np.float64) - rows.mean(1, keepdims=True) for rows in (first_rows, second_rows)
    )
    norm = np.sqrt(
        (first_deviations * first_deviations).sum(1)
        * (second_deviations * second_deviations).sum(1)
    )
    is_equal = (first_rows == second_rows).all(1).astype(np.float64)
    # Images of a single colour have no deviations, so their correlation is undefined.
    return np.divide(
        (first_deviations * second_deviations).sum(1), norm, out=is_equal, where=norm > 0
    )
