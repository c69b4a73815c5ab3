"""Everything a read can be told, checked once, in the user's own terms."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from recordmill.base.errors import UsageError
from recordmill.exporting.choices.file_layout import FileRequest
from recordmill.exporting.plan import NPY, NPZ, ReadOptions, default_threads
from recordmill.pipelines.convert_options import Specs, parse_images, parse_steps
from recordmill.pipelines.sizes import parse_size
from recordmill.records.columns.where import Where
from recordmill.records.writers.parquet import ROW_GROUP_BYTES, ParquetWriteOptions
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.rejects import RejectBudget
from recordmill.storage.files import local_path, read_range


@dataclass(frozen=True)
class ReadSettings:
    """plan: what decides the output; the others do not change a byte of it."""

    plan: ReadOptions
    budget: RejectBudget
    schema: Schema | None
    threads: int
    memory_bytes: int
    overwrite: bool
    runner: str | None
    beam_args: tuple[str, ...]


def make_settings(
    *,
    to: str = "parquet",
    features: Sequence[str] | str | None = None,
    split: str | None = None,
    limit: int | None = None,
    max_rejects: str | int = 0,
    schema: Schema | str | os.PathLike[str] | None = None,
    threads: int = 0,
    memory: str | int = "2GiB",
    file_size: str | int = "512MiB",
    overwrite: bool = False,
    runner: str | None = None,
    beam_args: Sequence[str] = (),
    decode_raw: Specs = None,
    decode_tensor: Specs = None,
    reshape: Specs = None,
    pad: Specs = None,
    pad_or_cut: Specs = None,
    ragged: Specs = None,
    decode_images: Sequence[str] | str | bool | None = None,
    resize: str | tuple[int, int] | None = None,
    channels: int | None = None,
    where: str | pc.Expression | None = None,
    sample: float | None = None,
    seed: int = 0,
    row_group_rows: int | None = None,
    row_group_size: str | int = ROW_GROUP_BYTES,
    compression: str = "zstd",
    file_feature: str | None = None,
    name_feature: str | None = None,
    **unknown: Any,
) -> ReadSettings:
    """Settings from what the command line or a Python caller gives.

    decode_raw, decode_tensor, reshape, pad, pad_or_cut, ragged: one or several conversions, written as on the command
    line. decode_images: True, or the features that hold images; resize: "HxW" or (height, width).
    file_feature, name_feature: of to="files": what becomes the files, and what names them ("" for the record's number).

    Raises:
        UsageError: an option's value can't be served. TypeError: there is no such option.
    """
    if unknown:
        raise TypeError(f"read has no option {', '.join(unknown)}")
    budget = RejectBudget.parse(max_rejects)
    images = parse_images(decode_images, resize, channels, ragged=to not in (NPY, NPZ))
    plan = ReadOptions(
        to=to, features=_names(features), split=split, limit=limit, file_bytes=parse_size(file_size, "--file-size"),
        lenient=budget != RejectBudget(),
        steps=images + parse_steps(
            decode_tensor=decode_tensor, decode_raw=decode_raw, reshape=reshape, pad=pad, pad_or_cut=pad_or_cut,
            ragged=ragged,
        ),
        where=None if where is None else Where(where), sample=sample, seed=seed,
        parquet=_parquet(row_group_rows, row_group_size, compression), files=FileRequest(file_feature, name_feature),
    )  # fmt: skip
    threads, memory_bytes = _room(threads, memory)
    return ReadSettings(plan, budget, _schema(schema), threads, memory_bytes, overwrite, runner, tuple(beam_args))


def _room(threads: int, memory: str | int) -> tuple[int, int]:
    """How many threads may work in how many bytes."""
    if threads < 0:
        raise UsageError(f"--threads {threads}: 0 (one per core) or more")
    memory_bytes = parse_size(memory, "--memory")
    return default_threads(threads, memory_bytes), memory_bytes


def _parquet(rows: int | None, size: str | int, compression: str) -> ParquetWriteOptions:
    name, colon, level = compression.partition(":")
    if colon and not level.isdecimal():
        raise UsageError(f"--compression {compression}: a name, or a name and a level as in zstd:9")
    return ParquetWriteOptions(rows, parse_size(size, "--row-group-size"), name, int(level) if colon else None)


def _names(features: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if features is None:
        return None
    names = tuple(name.strip() for name in features.split(",")) if isinstance(features, str) else tuple(features)
    if not names or "" in names:
        raise UsageError(f"--features {features}: names with commas between them")
    if len(set(names)) < len(names):
        raise UsageError(f"--features {features}: a feature is named twice")
    return names


def _schema(schema: Schema | str | os.PathLike[str] | None) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    try:
        text = read_range(local_path(schema)).tobytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--schema {os.fspath(schema)}: {error}") from None
    return from_pbtxt(text, os.fspath(schema))
