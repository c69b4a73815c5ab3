"""`recordmill head`: the first records of a data set, or of any TFRecord files, as people read them."""

from __future__ import annotations

import argparse
from typing import Any

_EPILOG = """\
examples:
  recordmill head shards                       the first 5 records
  recordmill head shards --split test -n 1
  recordmill head shards --at 17               record 17, without reading the ones before it
  recordmill head old.tfrecord --features image/encoded,label
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "head",
        help="print the first records readably",
        description="Print records readably: images as format and size, long values cut. Records are numbered from 0.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a data set's folder, or TFRecord files, folders of them, or quoted globs",
    )
    parser.add_argument("-n", type=int, default=None, metavar="N", help="how many records (default 5; 1 with --at)")
    parser.add_argument("--at", type=int, metavar="I", help="begin with record I; negative numbers count from the end")
    parser.add_argument("--split", metavar="NAME", help="only this split")
    parser.add_argument("--features", metavar="A,B,...", help="only these features")


def run(args: argparse.Namespace) -> int:
    """Print the records."""
    from recordmill.base.errors import UsageError
    from recordmill.reader.dataset import open
    from recordmill.reader.inspect.show import show_value

    count = (5 if args.at is None else 1) if args.n is None else args.n
    if count < 0:
        raise UsageError(f"-n {count}: 0 or more")
    dataset = open(
        args.inputs, args.split, None if args.features is None else [name.strip() for name in args.features.split(",")]
    )
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
