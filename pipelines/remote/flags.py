"""Flags for Beam and for an engine's job server: what passes, and what is a slip."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Sequence

from recordmill.base.errors import UsageError
from recordmill.base.option_names import there_are
from recordmill.options.commands import about_unknown, flags_of
from recordmill.transforms.local_run import no_log_of_beam

_OF_SERVERS = re.compile(r"--(parallelism|[a-z0-9]+(_[a-z0-9]+)+)(=.*)?", re.DOTALL)


def as_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The flags; UsageError for a text, whose letters would be taken for them.

    >>> as_flags(["--parallelism=2"])
    ('--parallelism=2',)
    """
    if isinstance(given, str):
        raise UsageError(f"beam_args is a text; give a list: beam_args={given.split()}")
    return tuple(given)


def check_flags(arguments: Sequence[str], runner: str | None) -> None:
    """Checks that somebody knows these flags: Beam passes over those that nobody knows. A job server of Flink or Spark
    has flags of its own, which it checks itself: words with underscores, and `--parallelism`.

    Raises:
        UsageError: a flag is unknown, or its value can't be.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    given = [argument for argument in arguments if argument]
    has_server = any(engine in (runner or "").lower() for engine in ("flink", "spark", "portable"))
    unknown: list[str] = []
    known: list[str] = []

    def look(parser: argparse.ArgumentParser) -> None:
        left = parser.parse_known_args(given)[1]
        words = [word for word in left if word.startswith("-")] or left
        unknown.extend(word for word in words if not (has_server and _OF_SERVERS.fullmatch(word)))
        known.extend(re.findall(r"--\w+", parser.format_help()))

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), no_log_of_beam():
            PipelineOptions(given).get_all_options(add_extra_args_fn=look)
    except SystemExit:
        raise UsageError(said.getvalue().rpartition("error: ")[2].strip()) from None
    if unknown:
        own = [flag for name in ("build", "read") for option in flags_of(name) for flag in option.all_flags]
        meant = about_unknown(unknown, "build", [*own, *dict.fromkeys(known)])
        raise UsageError(f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{meant}")


def check_name(runner: str) -> None:
    """UsageError unless Beam has that runner, as it reads names, or it is a class that can be imported."""
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        create_runner(runner)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"--runner {runner}: can't be imported: {error}") from None
    except ValueError:
        raise UsageError(f"--runner {runner}: {there_are(runner, StandardOptions.KNOWN_RUNNER_NAMES)}") from None
