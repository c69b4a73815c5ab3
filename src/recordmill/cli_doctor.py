"""`recordmill doctor`: the command line of `pipelines.remote.doctor`; exit code 0 if a job would run, 1 if something
has to change.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

_EPILOG = """\
examples:
  recordmill doctor --runner=FlinkRunner --flink_master=HOST:8081 --environment_type=EXTERNAL \\
      --environment_config=localhost:50000
  recordmill doctor photos/ --out /shared/shards --runner=FlinkRunner --flink_master=HOST:8081 ...
      also whether the workers see photos/ and /shared/shards

A job of its own, which leaves nothing behind, asks the workers. Builds and reads on an engine look at the same before
they submit. Any flag that recordmill does not know is handed to Apache Beam.
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "doctor",
        run,
        usage="recordmill doctor --runner RUNNER [--out OUT] [INPUT...] [options]",
        summary=summary,
        description="Look whether an engine answers, has free slots, fits the flags, and whether its workers see OUT "
        "and INPUT and have the same versions installed.",
        inputs=("INPUT", "files, folders, quoted globs or @list.txt, as build and read take them; none: not looked at"),
        examples=_EPILOG,
        takes_beam_flags=True,
        needs_inputs=False,
    )


def run(args: argparse.Namespace) -> int:
    """Look; 1 if something has to change."""
    from recordmill.pipelines.beam_run import check_runner
    from recordmill.pipelines.options.command_line import given
    from recordmill.pipelines.remote.doctor import doctor

    keywords = given(args)
    check_runner(keywords.get("runner"), args.beam_args)
    found = doctor(args.inputs, beam_args=tuple(args.beam_args), **keywords)
    if args.json:
        print(json.dumps([finding.to_json() for finding in found], indent=1))
    else:
        for finding in found:
            print(f"{'ok  ' if finding.ok else 'NO  '}{finding}")
    return 0 if all(finding.ok for finding in found) else 1
