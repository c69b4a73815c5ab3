"""`recordmill transform`: new data through the transform of another data set; a build without a fit."""

from __future__ import annotations

import argparse
from typing import Any

from recordmill import cli_build

_EPILOG = """\
examples:
  recordmill build csv 'trips-2025-*.csv' --out shards --transform transform.yaml
  recordmill transform csv 'trips-2026-*.csv' --with shards --out newer
      the same means, vocabularies and buckets; nothing is fitted

The new data has the columns of the old one, and is read with its types.
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "transform",
        help="new data to shards by the transform of a data set",
        usage="recordmill transform [KIND] INPUT... --with OUT --out NEW [options]",
        description="Raw data to a data set, through the transform that the data set OUT was built with, as it is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, takes_beam_flags=True, transform=None, fit_on=None, keep_raw=False)
    parser.add_argument(
        "--with", dest="transform_from", required=True, metavar="OUT", help="the data set whose transform is applied"
    )
    cli_build.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Build with the transform; 0 if a data set was committed."""
    return cli_build.run(args)
