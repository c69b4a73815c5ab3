"""Everything a read can be told, checked once, in the user's own terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_size
from recordmill.exporting.plan import ReadOptions, default_threads
from recordmill.options.commands import fill, refuse_unserved
from recordmill.pipelines.convert_options import parse_images, parse_steps
from recordmill.pipelines.remote.flags import as_flags
from recordmill.records.columns.predicate import Predicate
from recordmill.records.writers.outputs import find_output
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.rejects import RejectBudget

_STEPS = ("decode_tensor", "decode_raw", "reshape", "pad", "pad_or_cut", "ragged")


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
    preflight: bool = True
    storage_requests: int | None = None


def make_settings(**given: Any) -> ReadSettings:
    """Settings from what the command line or a Python caller gives; `options.read` says what they are.

    Raises:
        UsageError: an option's value can't be served. TypeError: there is no such option.
    """
    values = fill("read", given)
    output = find_output(values.to)
    refuse_unserved("read", given, output=output.name)
    budget = RejectBudget.parse(values.max_rejects)
    images = parse_images(values.decode_images, values.resize, values.channels, ragged=output.holds_ragged)
    steps = {name: getattr(values, name) for name in _STEPS}
    plan = ReadOptions(
        to=values.to,
        columns=_names(values.columns),
        split=values.split,
        limit=values.limit,
        file_bytes=parse_size(values.file_size, "file_size"),
        lenient=budget != RejectBudget(),
        steps=images + parse_steps(**steps),
        where=None if values.where is None else Predicate(values.where),
        sample=values.sample,
        seed=values.seed,
        own=output.own_options(values),
    )
    threads, memory_bytes = _room(values.threads or 0, values.memory)
    return ReadSettings(
        plan,
        budget,
        load_schema(values.schema),
        threads,
        memory_bytes,
        values.overwrite,
        values.runner,
        as_flags(values.beam_args),
        values.preflight,
        values.storage_requests,
    )


def _room(threads: int, memory: str | int) -> tuple[int, int]:
    """How many threads may work in how many bytes."""
    if threads < 0:
        raise UsageError(f"{option('threads', threads)}: 0 (one per core) or more")
    memory_bytes = parse_size(memory, "memory")
    return default_threads(threads, memory_bytes), memory_bytes


def _names(columns: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = tuple(name.strip() for name in columns.split(",")) if isinstance(columns, str) else tuple(columns)
    if not names or "" in names:
        raise UsageError(f"{option('columns', columns)}: names with commas between them")
    if len(set(names)) < len(names):
        raise UsageError(f"{option('columns', columns)}: a feature is named twice")
    return names
