"""`recordmill status`: the command line of `pipelines.remote.status`: what OUT holds and which jobs are at work
there.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

_EPILOG = """\
examples:
  recordmill status shards           the data set, if there is one, and each run that works there, or did
  recordmill status s3://data/flowers

A run whose engine is Flink is asked about by its REST interface; of other engines only the note of the job is shown.
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "status",
        run,
        usage="recordmill status OUT... [options]",
        summary=summary,
        description="Say whether OUT holds a data set, and what becomes of the runs that work there: on this machine, "
        "or as an engine's job.",
        inputs=("OUT", "a folder that builds or reads write to, also in a store"),
        examples=_EPILOG,
    )


def run(args: argparse.Namespace) -> int:
    """Say it; 0."""
    from recordmill.pipelines.options.command_line import given
    from recordmill.pipelines.remote.status import status

    found = [status(out, **given(args)) for out in args.inputs]
    if args.json:
        print(json.dumps([one.to_json() for one in found], indent=1))
        return 0
    for one in found:
        records = ", ".join(f"{name} {count:,}" for name, count in one.records.items())
        print(f"{one.out}: {f'generation {one.generation}: {records} records' if one.generation else 'no data set'}")
        for state in one.runs:
            print(f"  {state}")
    return 0
