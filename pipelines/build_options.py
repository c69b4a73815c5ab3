"""Everything a build can be told, checked once, in the user's own terms;
what decides the bytes is told apart from what doesn't.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.building.cuts import ShardOptions
from recordmill.building.order import DEFAULT_SPLIT, OrderOptions
from recordmill.building.plan import EXCHANGE_FILES, EXCHANGE_RUNNER
from recordmill.pipelines.sizes import parse_size, parse_splits
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.rejects import RejectBudget
from recordmill.storage.files import local_path, read_range

LEAST_MEMORY_BYTES = 128 << 20  # 128 MiB: two threads' batches, runs and pieces; less can't be kept
_THREAD_BYTES = 32 << 20  # 32 MiB: the least that one thread needs for a run's arena, a batch and what becomes of it


@dataclass(frozen=True)
class BuildOptions:
    """The options of `recordmill build`, whose `--help` says what each does;
    all have the default that is right on a laptop.
    """

    kind: str | None = None
    kind_options: Any = None
    schema: Schema | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None
    order: OrderOptions = field(default_factory=OrderOptions)
    shards: ShardOptions = field(default_factory=ShardOptions)
    compression: str = "none"
    name: str = "dataset"
    overwrite: bool = False
    budget: RejectBudget = field(default_factory=RejectBudget)
    threads: int = 1
    memory_bytes: int = 2 << 30
    exchange: str | None = None
    runner: str | None = None
    beam_args: tuple[str, ...] = ()
    follow_links: bool = False
    transform: Any = None
    transform_from: str | None = None
    fit_on: str = DEFAULT_SPLIT
    keep_raw: bool = False

    def told(self) -> dict[str, Any]:
        """What the sources were told that decides which records come out, for the manifest and its fingerprint."""
        return {
            "label": self.label,
            "dtypes": dict(sorted(self.dtypes.items())),
            "kind_options": _plain(self.kind_options),
        }


def make_options(
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    options: Any = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    label: str | None = None,
    splits: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    split_seed: int = 0,
    key: str | None = None,
    seed: int = 0,
    shuffle: bool = True,
    name: str | None = None,
    shard_size: str | int | None = None,
    num_shards: int | None = None,
    compression: str = "none",
    overwrite: bool = False,
    max_rejects: str | int = 0,
    threads: int | None = None,
    memory: str | int = "2GiB",
    exchange: str | None = None,
    runner: str | None = None,
    beam_args: tuple[str, ...] = (),
    follow_links: bool = False,
    transform: Any = None,
    transform_from: str | os.PathLike[str] | None = None,
    fit_on: str | None = None,
    keep_raw: bool = False,
    key_bits: int = 64,
) -> BuildOptions:
    """The options from what a user gave on the command line or in Python.

    Raises:
        UsageError: a value can't be, with the option's name and what to type instead.
    """
    if compression not in ("none", "gzip"):
        raise UsageError(f"--compression {compression}: none or gzip")
    if exchange not in (None, EXCHANGE_FILES, EXCHANGE_RUNNER):
        raise UsageError(f"--exchange {exchange}: files or runner")
    if key is not None and not shuffle:
        raise UsageError("--key says where records are shuffled to, and --no-shuffle keeps their order: give one")
    _check_transform(transform, transform_from, fit_on, keep_raw)
    memory_bytes = _memory(memory)
    return BuildOptions(
        kind=kind,
        kind_options=options,
        schema=schema if schema is None or isinstance(schema, Schema) else read_schema(schema),
        dtypes=dict(dtypes or {}),
        label=label,
        order=OrderOptions(
            _whole(seed, "--seed"),
            _whole(split_seed, "--split-seed"),
            shuffle,
            key,
            split_by,
            parse_splits(splits),
            key_bits,
        ),
        shards=_shards(shard_size, num_shards),
        compression=compression,
        name=_dataset_name(name, out),
        overwrite=overwrite,
        budget=RejectBudget.parse(max_rejects),
        threads=_threads(threads, memory_bytes),
        memory_bytes=memory_bytes,
        exchange=exchange,
        runner=runner,
        beam_args=tuple(beam_args),
        follow_links=follow_links,
        transform=transform,
        transform_from=None if transform_from is None else os.fspath(transform_from),
        fit_on=DEFAULT_SPLIT if fit_on is None else fit_on,
        keep_raw=keep_raw,
    )


def _check_transform(transform: Any, transform_from: Any, fit_on: str | None, keep_raw: bool) -> None:
    if transform is not None and transform_from is not None:
        raise UsageError("--transform fits one, and --transform-from takes one as it is: give one of them")
    if transform is None and (fit_on is not None or keep_raw):
        raise UsageError(f"{'--keep-raw' if keep_raw else '--fit-on'} needs --transform")


def _plain(value: Any) -> Any:
    """The value as JSON has it; a path, such as that of a label file, as its last name,
    since manifests name nothing absolute.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | os.PathLike):
        return os.path.basename(value) if os.path.isabs(value) or os.path.exists(value) else os.fspath(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _shards(shard_size: str | int | None, num_shards: int | None) -> ShardOptions:
    if shard_size is not None and num_shards is not None:
        raise UsageError("--shard-size and --num-shards exclude each other: give one")
    if shard_size is not None:
        return ShardOptions(parse_size(shard_size, "--shard-size"))
    return ShardOptions(num_shards=None if num_shards is None else _whole(num_shards, "--num-shards"))


def _memory(memory: str | int) -> int:
    memory_bytes = parse_size(memory, "--memory")
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise UsageError(f"--memory {memory}: at least {LEAST_MEMORY_BYTES >> 20}MiB")
    return memory_bytes


def _threads(threads: int | None, memory_bytes: int) -> int:
    """As many as asked for, or as there are cores, but no more than the memory can feed."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is not None:
        count = _whole(threads, "--threads")
    if count < 1:
        raise UsageError(f"--threads {threads}: at least 1")
    return min(count, memory_bytes // _THREAD_BYTES)


def _whole(value: Any, option: str) -> int:
    """The number as Python's own int, whatever counts as one (NumPy's do)."""
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{option} {value!r}: a whole number") from None


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema of a schema.pbtxt; UsageError or DataError names the file."""
    path = local_path(path)
    try:
        text = read_range(path).tobytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"--schema {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text; --schema takes a schema.pbtxt", source=os.fspath(path)) from None
    return from_pbtxt(text, os.fspath(path))


def _dataset_name(name: str | None, out: str | os.PathLike[str]) -> str:
    """The name given, or OUT's own in the letters that TensorFlow Datasets takes."""
    try:
        os.path.abspath(out).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"--out {os.fspath(out)!a}: the name is no UTF-8, which Beam and the manifest need; name another folder"
        ) from None
    if name is not None:
        if not name.isidentifier() or not name.isascii():
            raise UsageError(
                f"--name {name}: letters, digits and _ only, not beginning with a digit (TensorFlow Datasets "
                "takes no other)"
            )
        return name
    own = "".join(
        letter if letter.isascii() and letter.isalnum() else "_" for letter in Path(out).resolve().name.lower()
    ).strip("_")
    return own if own.isidentifier() else f"dataset_{own}".rstrip("_")
