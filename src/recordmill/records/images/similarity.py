"""Likeness of two images: a hash of 256 bits of which look-alikes differ in few, and the correlation of small greys,
which decides.

The hash is the difference hash that N. Krawetz describes ("Kind of Like That", 2013), of 16 rows of 16 comparisons. An
image and its copy of another format, quality or size have hashes within `NEAR_BITS`; so have other images, of which
`correlations` tells them. A part of an image, and its mirror image, are found by neither.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.siphash import U64

HASH_WORDS = 4  # of 64 bits each
NEAR_BITS = 24
GREY_SIDE = 32
NEAR_CORRELATION = 0.99
_SIDE = 16
_LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue: ITU-R BT.601

_Floats = npt.NDArray[np.float64]


def luma(pixels: npt.NDArray[np.uint8]) -> _Floats:
    """Returns [height, width] the grey of each pixel of an image of [height, width, channels]; alpha is left out."""
    channels = pixels.shape[2]
    return pixels[..., :3] @ _LUMA if channels >= 3 else pixels[..., 0].astype(np.float64)


def shrink(grey: _Floats, height: int, width: int) -> _Floats:
    """Returns [height, width] means of the parts of equal size into which the image is cut, also at fractions of
    pixels.
    """
    return _means(_means(grey, height).T, width).T


def _means(rows: _Floats, count: int) -> _Floats:
    """Returns [count, ...] means of so many equal stretches of the first axis."""
    sums = np.zeros((len(rows) + 1, *rows.shape[1:]))
    np.cumsum(rows, 0, out=sums[1:])
    edges = np.linspace(0, len(rows), count + 1)
    whole = np.minimum(edges.astype(np.int64), len(rows) - 1)
    at_edges = sums[whole] + (edges - whole)[:, None] * rows[whole]
    means: _Floats = np.diff(at_edges, axis=0) * (count / len(rows))
    return means


def difference_hash(grey: _Floats) -> U64:
    """Returns [HASH_WORDS] bits that say where an image of [height, width] gets brighter from left to right."""
    small = shrink(grey, _SIDE, _SIDE + 1)
    return np.packbits(small[:, 1:] > small[:, :-1]).view(np.uint64)


def small_grey(grey: _Floats) -> npt.NDArray[np.uint8]:
    """Returns [GREY_SIDE * GREY_SIDE] the image in small, for `correlations`."""
    return np.rint(shrink(grey, GREY_SIDE, GREY_SIDE)).clip(0, 255).astype(np.uint8).reshape(-1)


def distances(ones: U64, others: U64) -> npt.NDArray[np.int64]:
    """Returns [...] in how many bits hashes of [..., HASH_WORDS] differ."""
    bits: npt.NDArray[np.int64] = np.unpackbits((ones ^ others).view(np.uint8), -1).sum(-1, dtype=np.int64)
    return bits


def correlations(ones: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> _Floats:
    """Returns [n] Pearson's correlation of rows of [n, pixels]. Of two images of one colour each it is 1 if the
    colour is the same, else 0; of one such image and another 0.
    """
    first, second = (rows.astype(np.float64) - rows.mean(1, keepdims=True) for rows in (ones, others))
    product = np.sqrt((first * first).sum(1) * (second * second).sum(1))
    same = (ones == others).all(1).astype(np.float64)
    correlation: _Floats = np.divide((first * second).sum(1), product, out=same, where=product > 0)
    return correlation
