"""The commands `recordmill log`, `restore` and `compact`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.commands.main import Command

if TYPE_CHECKING:
    from recordmill.pipelines.generations import Generation

_OUT = ("OUT", "folder of a data set, also in a store")
_HEADER = ("GENERATION", "COMMITTED", "BY", "PARTS", "RECORDS", "SIZE")

_LOG_HELP = """\
examples:
  recordmill log shards            a line per generation that can be opened or restored
  recordmill log s3://data/flowers --json

In Python, recordmill.open("shards", generation=N) opens one of them.
"""


def run_log(args: argparse.Namespace) -> int:
    """Prints the generations of data sets. Returns 0."""
    from recordmill.options.command_line import options_from_args
    from recordmill.pipelines.generations import log

    keywords = options_from_args(args)
    logs = {out: log(out, **keywords) for out in args.inputs}
    if args.json:
        rows = {out: [one.to_json() for one in generations] for out, generations in logs.items()}
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return 0
    for out, generations in logs.items():
        if len(logs) > 1:
            print(f"{out}:")
        _print_generations(generations)
    return 0


_RESTORE_HELP = """\
examples:
  recordmill log shards
  recordmill restore shards --generation 3     make generation 3 the newest one again, as a new generation

Nothing is copied, and the generations before it stay as long as --keep-generations allows.
"""


def run_restore(args: argparse.Namespace) -> int:
    """Restores a generation and prints the new one. Returns 0."""
    from recordmill.options.command_line import options_from_args
    from recordmill.pipelines.generations import restore

    restored = restore(_only_out(args), **options_from_args(args))
    if args.json:
        print(json.dumps(restored.to_json(), indent=1, ensure_ascii=False))
    else:
        _print_generations([restored])
    return 0


_COMPACT_HELP = """\
examples:
  recordmill compact shards                           one part of all, with shards of the same size
  recordmill compact shards --shard-size 256MiB --compression gzip

The records are merged in the order of their keys, as one build of all inputs does. Readers can use the parts in the meantime.
OUT needs space for the new shards, and as much again for the merge.
"""


def run_compact(args: argparse.Namespace) -> int:
    """Joins the parts of a data set and prints the new generation. Returns 0."""
    from recordmill.options.command_line import options_from_args
    from recordmill.pipelines.generations import compact, log

    out, keywords = _only_out(args), options_from_args(args)
    before = log(out, storage_requests=keywords.get("storage_requests"))[-1]
    compacted = compact(out, quiet=args.quiet, **keywords)
    unchanged = compacted.generation == before.generation
    if args.json:
        report = {**compacted.to_json(), "unchanged": unchanged}
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return 0
    _print_generations([compacted])
    if unchanged and not args.quiet:
        print(f"{out} has one part already: nothing to do", file=sys.stderr)
    return 0


def _only_out(args: argparse.Namespace) -> str:
    """Returns the only OUT of a command.

    Raises:
        UsageError: There are several.
    """
    from recordmill.base.errors import UsageError

    if len(args.inputs) > 1:
        raise UsageError(f"{args.command} takes one OUT, not {len(args.inputs)}")
    return str(args.inputs[0])


def _print_generations(generations: Sequence[Generation]) -> None:
    from recordmill.base.sizes import format_size
    from recordmill.base.tables import table_lines

    rows = [
        (
            str(one.generation),
            one.finished,
            one.action,
            str(one.parts),
            ", ".join(f"{name} {count:,}" for name, count in one.records.items()),
            format_size(one.size_bytes),
        )
        for one in generations
    ]
    print("\n".join(table_lines(_HEADER, rows)))


LOG = Command(
    run_log,
    usage="recordmill log OUT... [options]",
    description="List the generations of a data set: when and by what each was made, its parts, "
    "records and size.",
    inputs=_OUT,
    examples=_LOG_HELP,
)


RESTORE = Command(
    run_restore,
    usage="recordmill restore OUT --generation N [options]",
    description="Make an earlier generation of a data set the newest one again.",
    inputs=_OUT,
    examples=_RESTORE_HELP,
)


COMPACT = Command(
    run_compact,
    usage="recordmill compact OUT [options]",
    description="Join all parts of a data set that has grown, so that it is as if it were built "
    "at once.",
    inputs=_OUT,
    examples=_COMPACT_HELP,
)
