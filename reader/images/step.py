"""`ResizedImages`: a column of encoded images to one of tensors, for who reads tables; `rows` is for batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.images.header import BadImage
from recordmill.reader.images.options import Images, RandomCrop
from recordmill.reader.images.rows import decoded
from recordmill.records.columns.convert import Faults, build
from recordmill.records.columns.parts import take_apart
from recordmill.schemas.feature import Feature


@dataclass(frozen=True)
class ResizedImages:
    """One image feature, and what is wanted of it."""

    feature: str
    wanted: Images

    def output(self, feature: Feature) -> Feature:
        if feature.shape or feature.dtype != "bytes":
            raise UsageError(
                f"decode_images: {feature.name!r} is {feature.describe()}; only a single bytes value is an image"
            )
        return replace(feature, dtype=self.wanted.numpy_dtype.name, shape=self.wanted.shape)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        if isinstance(self.wanted.crop, RandomCrop):
            raise UsageError(
                f"decode_images: {feature.name!r} is cut at random, otherwise in each epoch, which only batches, to_tf "
                'and to_torch have: open it with crop="center" or none, or without this feature'
            )
        out = self.output(feature)
        parts = take_apart(column, replace(feature, required=True))
        present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        splits = parts.splits[0]
        pixels = np.empty((int(present.sum()), *self.wanted.shape), self.wanted.numpy_dtype)
        faults, good = [], np.ones(len(column), np.bool_)
        done = 0
        for row in np.flatnonzero(present).tolist():
            try:
                pixels[done] = decoded(parts.values[splits[row] : splits[row + 1]], self.wanted)
                done += 1
            except BadImage as error:
                faults.append((row, error.message))
                good[row] = False
        counts = np.zeros(int(good.sum()), np.int64)
        return build(pa.array(pixels[:done].reshape(-1)), counts, present[good], out), faults
