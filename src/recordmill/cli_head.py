"""`recordmill head`: the first records of a data set, or of any TFRecord files, as people read them."""

from __future__ import annotations

import argparse
from typing import Any

_EPILOG = """\
examples:
  recordmill head shards                       the first 5 records
  recordmill head shards --split test -n 1
  recordmill head shards --at 17               record 17, without reading the ones before it
  recordmill head old.tfrecord --columns image/encoded,label
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "head",
        run,
        usage="recordmill head INPUT... [options]",
        summary=summary,
        description="Print records readably: images as format and size, long values cut. Records are numbered from 0.",
        inputs=("INPUT", "a data set's folder, or TFRecord files, folders of them, or quoted globs"),
        examples=_EPILOG,
    )


def run(args: argparse.Namespace) -> int:
    """Print the records."""
    from recordmill.base.errors import UsageError
    from recordmill.pipelines.options.command_line import given
    from recordmill.reader.dataset import open
    from recordmill.reader.display import show_value

    count = (5 if args.at is None else 1) if args.n is None else args.n
    if count < 0:
        raise UsageError(f"-n {count}: 0 or more")
    dataset = open(args.inputs, **given(args))
    if args.at is None:
        first, table = 0, dataset.head(count)
    else:
        first = args.at if args.at >= 0 else args.at + len(dataset)
        if not 0 <= first < len(dataset):
            raise UsageError(f"--at {args.at}: there are {len(dataset):,} records, numbered from 0")
        table = dataset.to_table(first, first + count)
    width = max((len(name) for name in dataset.schema.names), default=0)
    columns = [(feature, table.column(feature.name).combine_chunks()) for feature in dataset.schema]
    for row in range(table.num_rows):
        print(f"record {first + row}")
        for feature, column in columns:
            print(f"  {feature.name:<{width}}  {show_value(column.slice(row, 1), feature)}")
    if not table.num_rows:
        print("no records")
    return 0
