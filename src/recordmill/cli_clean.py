"""`recordmill clean`: the command line of `pipelines.clean`, which lists what dead runs left, and removes it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

_EPILOG = """\
examples:
  recordmill clean shards                       what killed builds and reads left there
  recordmill clean s3://data/flowers --remove   the same in a store, and remove it

Builds and reads clean up by themselves when they begin; this is for an OUT that nobody writes to any more.
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "clean",
        run,
        usage="recordmill clean OUT... [options]",
        summary=summary,
        description="List what builds and reads that were killed left in OUT. Nothing of a data set, nor of a run that "
        "may be alive, is among it.",
        inputs=("OUT", "a folder that builds or reads write to, also in a store"),
        examples=_EPILOG,
    )


def run(args: argparse.Namespace) -> int:
    """List, and remove where it is wanted; 0."""
    from recordmill.pipelines.clean import clean
    from recordmill.pipelines.options.command_line import given

    keywords = given(args)
    found = {out: clean(out, **keywords) for out in args.inputs}
    removed = bool(keywords.get("remove"))
    if args.json:
        print(json.dumps({"removed": removed, "left": found}, indent=1, ensure_ascii=False))
        return 0
    for of_out in found.values():
        for left in of_out.values():
            print("\n".join(left))
    count = sum(len(left) for of_out in found.values() for left in of_out.values())
    dead = sum(map(len, found.values()))
    verdict = "removed" if removed else "left there; --remove removes them" if count else "nothing to remove"
    print(
        f"{dead} dead run{'s' if dead != 1 else ''}, {count:,} file{'s' if count != 1 else ''}: {verdict}",
        file=sys.stderr,
    )
    return 0
