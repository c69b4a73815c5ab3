"""Over how many slots of Flink a job is spread: as many as are free, unless it is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recordmill.engines.flink import EngineGone, Flink


def parallelism_of(options: Any) -> int | None:
    """What `--parallelism` says; None where it is not given."""
    for index, word in enumerate(options._flags):
        if word.startswith("--parallelism="):
            return int(word.partition("=")[2])
        if word == "--parallelism" and index + 1 < len(options._flags):
            return int(options._flags[index + 1])
    return None


def with_parallelism(runner: str, beam_args: Sequence[str], options: Any) -> tuple[str, ...]:
    """The flags, with as much parallelism as Flink has free slots where none is given: Flink's own default is 1."""
    from apache_beam.options.pipeline_options import FlinkRunnerOptions

    if "flink" not in runner.lower() or parallelism_of(options) is not None:
        return tuple(beam_args)
    flink = Flink.of_master(options.view_as(FlinkRunnerOptions).flink_master)
    try:
        found = flink.overview() if flink is not None else None
        # slots of a job that has ended are given back a moment later
        free = 0 if found is None else found.free if found.jobs else found.slots
    except (EngineGone, AttributeError, KeyError, TypeError, ValueError):
        free = 0
    return (*beam_args, f"--parallelism={free}") if free else tuple(beam_args)
