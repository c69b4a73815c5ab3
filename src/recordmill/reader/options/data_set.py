"""The options of `recordmill.open`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from recordmill.base.sizes import parse_size
from recordmill.options.declare import Options, declare, redeclare
from recordmill.options.parsers import parse_positive
from recordmill.options.shared import Shared
from recordmill.reader.options.images import ImageSpec

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class OpenOptions(Options, heading="conversions", decides=True):
    """The options of `recordmill.open`."""

    split: str | None = redeclare(Shared)
    columns: str | Sequence[str] | None = redeclare(Shared)
    schema: Schema | str | os.PathLike[str] | None = redeclare(
        Shared,
        help="schema of files without a manifest, or the path of a schema.pbtxt; nothing is inferred",
    )
    threads: int | None = redeclare(Shared)
    infer_from: str | int | None = redeclare(
        Shared,
        help="infer the schema from a sample: N records, taken from the start of each file, or N files, as in '20files'. A later record that does not fit it is an error when it is read",
    )
    where: str | pc.Expression | None = redeclare(
        Shared,
        help="only records that meet a condition: SQL for DuckDB, or a pyarrow.compute expression. It refers to the features as stored, also those that columns leaves out. The other records are numbered from 0",
    )
    cache: str | os.PathLike[str] | None = redeclare(
        Shared,
        help="local folder that keeps blocks read from an object store, with their CRCs; several processes may share it",
    )
    cache_bytes: int = redeclare(Shared, parse=parse_size)
    storage_requests: int | None = redeclare(Shared)
    decode_raw: Mapping[str, str] | Sequence[str] | str | None = redeclare(
        Shared,
        keyword_type="Mapping[str, str] | Sequence[str] | str | None",
        help="decode bytes that are the memory of an array, as in {'depth': 'float32[256,256]'} or 'depth=float32[256,256]'. A dtype alone is a scalar, [-1,4] has a variable first dimension, and '>float32' is big-endian. where and filter see the stored features",
    )
    reshape: Mapping[str, str | Sequence[int]] | Sequence[str] | str | None = redeclare(
        Shared,
        keyword_type="Mapping[str, str | Sequence[int]] | Sequence[str] | str | None",
        help="give the values another shape after decode_raw, as in {'boxes': [-1, 4]} or 'boxes=[-1,4]'. The number of values stays the same",
    )
    pad: Mapping[str, str] | Sequence[str] | str | None = redeclare(
        Shared,
        keyword_type="Mapping[str, str] | Sequence[str] | str | None",
        help="pad lists to a fixed length, as in {'tokens': '128:0'} or 'tokens=128:0'; a longer list is an error",
    )
    ragged: str | Sequence[str] | None = redeclare(Shared)
    decode_images: ImageSpec | None = declare(
        "decode images: (height, width), True, `Images(...)`, or a dict of these by feature name. If no feature is named, the first records determine which features are images. Lists of images become lists of arrays. The same option of batches, to_tf and to_torch overrides it",
        default=None,
    )
    class_names: bool = redeclare(Shared, help="return classes as names instead of numbers")
    generation: int | None = declare(
        "generation of a data set that grows or was replaced; `recordmill.log` lists them",
        default=None,
        parse=parse_positive,
        default_text="the newest",
    )
