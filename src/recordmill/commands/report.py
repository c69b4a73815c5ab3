"""`recordmill report`: a data set as one HTML file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.commands.main import Command

if TYPE_CHECKING:
    from recordmill.base.progress import ProgressArgument
    from recordmill.reader.report.report import Report
    from recordmill.schemas.feature import Schema
    from recordmill.shards.catalog import Inputs

_DEFAULT_NAME = "report.html"
_REPORT_HELP = """\
examples:
  recordmill report shards                    writes report.html here
  recordmill report shards -o shards.html --overwrite
  recordmill report 'old/*.tfrecord' --split train --columns image,label

The file holds everything it shows: no script, and nothing is loaded from elsewhere, so it can be mailed and opens
without a network. Counts and ranges are those of all records; sample records, images and sizes are of at most 1,000
records, which the data set's fingerprint draws. Values of records stand in it: it is as confidential as they are.
"""


def report(
    inputs: Inputs,
    *,
    split: str | None = None,
    columns: Sequence[str] | str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    storage_requests: int | None = None,
    progress: ProgressArgument = None,
    quiet: bool = True,
) -> Report:
    """Write a data set, or any TFRecord files, as one HTML file.

    split, columns: only these. schema: of foreign files, if it is known. out: the file, `report.html` if none is
    named; overwrite: it may be there.

    Raises:
        UsageError: nothing there, or `out` is or can't be. DataError: a record is damaged.
    """
    from recordmill.base.display import Display
    from recordmill.base.progress import to_progress
    from recordmill.reader.dataset import open
    from recordmill.reader.report.report import make_report
    from recordmill.reader.statistics import expected_records
    from recordmill.storage.folders import check_output_file

    target = check_output_file(_DEFAULT_NAME if out is None else out, overwrite)
    with Display(counters := to_progress(progress), quiet):
        counters.begin("convert")
        dataset = open(
            inputs,
            split,
            columns,
            schema=schema,
            threads=threads,
            storage_requests=storage_requests,
        )
        counters.total = expected_records(dataset)
        page = make_report(dataset, lambda records: counters.advance(records=records))
    page.save(target, overwrite=overwrite)
    return page


def run_report(args: argparse.Namespace) -> int:
    """Make it, and say where it is."""
    from recordmill.options.parser import options_from_args

    options = options_from_args(args)
    report(args.inputs, quiet=args.quiet, **options)
    print(os.fspath(options.get("out", _DEFAULT_NAME)))
    return 0


REPORT = Command(
    run_report,
    usage="recordmill report INPUT... [options]",
    description="Show a data set as one HTML file: splits and classes, features with their histograms, sample "
    "records and images, what fills the disk, what was rejected and how it was made.",
    inputs=("INPUT", "a data set's folder, or TFRecord files, folders of them, or quoted globs"),
    examples=_REPORT_HELP,
)
