"""Records whose images are to be decoded, cut so that memory holds what becomes of them: each part with what it takes,
told from the images' headers.

Where it is cut depends on the images alone. How many parts are under way at once depends on what they take and on
--memory; one image that alone takes more than that is an error which says how much it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.exporting.converting import Kept
from recordmill.exporting.plan import ReadPlan
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.tfrecord.frames import Int64s

_PART_BYTES = 1 << 20  # 1 MiB of pixels, or one image: Parquet takes 36 times that to write it


def image_parts(plan: ReadPlan, kept: Kept) -> Iterator[tuple[Kept, int]]:
    """(records of kept, the bytes that decoding, converting and writing them takes), in order.

    Raises:
        DataError: an image takes more than the plan has.
    """
    result, work = np.zeros((2, kept.batch.num_rows), np.int64)
    for step in plan.steps:
        if isinstance(step, DecodeImages):
            pixels, needed = step.costs(
                kept.batch.column(plan.selected.names.index(step.feature)), plan.selected[step.feature]
            )
            takes = _takes(plan, pixels, needed)
            if plan.image_bytes and (takes > plan.image_bytes).any():
                raise _too_large(plan, kept, step, int(np.argmax(takes > plan.image_bytes)), takes)
            result, work = result + pixels, np.maximum(work, needed)
    start = 0
    encoded = int(kept.batch.nbytes)
    for part in kept.cut(_stops(result)):
        rows = slice(start, start + part.batch.num_rows)
        yield part, encoded + int(_takes(plan, result[rows].sum(), work[rows].max(initial=0)))
        start = rows.stop


def _takes(plan: ReadPlan, pixels: Int64s, work: Int64s) -> Int64s:
    """The bytes that images take at most: while they are decoded, beside those that were, or while they are written."""
    decoding = work + 2 * pixels
    takes: Int64s = np.maximum(decoding, pixels * (1 + plan.options.output.value_bytes))
    return takes


def _stops(pixels: Int64s) -> Int64s:
    """The rows before which parts end."""
    ends = np.cumsum(pixels)
    stops, start = [], 0
    while start < len(pixels):
        before = int(ends[start - 1]) if start else 0
        start = max(int(np.searchsorted(ends, before + _PART_BYTES, "right")), start + 1)
        stops.append(start)
    return np.array(stops or [0], np.int64)


def _too_large(plan: ReadPlan, kept: Kept, step: DecodeImages, row: int, takes: Int64s) -> DataError:
    others = plan.memory_bytes - plan.image_bytes
    written = plan.options.output.value_bytes > 0
    reason = (
        f"feature {step.feature!r}: an image takes {(int(takes[row]) >> 20) + 1} MiB to "
        f"decode{' and write' if written else ''}, more than {option('memory', f'{plan.memory_bytes >> 20}MiB')} "
        f"leaves; {option('memory', f'{(int(takes[row]) + others >> 20) + 1}MiB')} is enough"
    )
    if written:
        reason += (
            f", and {option('to', 'arrow')} takes less"
            if step.resize
            else f", and {option('to', 'arrow')} or {option('resize', 'HxW')} takes less"
        )
    return DataError(reason, source=kept.part.file.path, place=kept.part.place(int(kept.rows[row])))
