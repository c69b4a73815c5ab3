"""`recordmill transform`: new data through the transform of another data set; a build without a fit."""

from __future__ import annotations

import argparse
from typing import Any

from recordmill import cli_build

_EXAMPLES = """\
examples:
  recordmill build csv 'trips-2025-*.csv' --out shards --transform transform.yaml
  recordmill transform csv 'trips-2026-*.csv' --with shards --out newer
      the same means, vocabularies and buckets; nothing is fitted

The new data has the columns of the old one, and is read with its types.
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "transform",
        run,
        usage="recordmill transform [KIND] INPUT... --with OUT --out NEW [options]",
        summary=summary,
        description="Raw data to a data set, through the transform that the data set OUT was built with, as it is.",
        inputs=cli_build.inputs(),
        examples=_EXAMPLES,
        takes_beam_flags=True,
    )


def run(args: argparse.Namespace) -> int:
    """Build with the transform; 0 if a data set was committed."""
    from recordmill.base.errors import UsageError

    if "transform_from" not in args:
        raise UsageError(f"--with OUT is needed: the data set whose transform is applied{cli_build.beside(args)}")
    return cli_build.run(args)
