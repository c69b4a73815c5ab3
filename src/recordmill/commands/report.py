"""The command `recordmill report`: writes a data set as one HTML file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from recordmill.base.arguments import suggest_keywords
from recordmill.commands.main import Command
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import ReportOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.base.progress import ProgressArgument
    from recordmill.options.keywords import ReportKeywords
    from recordmill.reader.report.report import Report
    from recordmill.shards.catalog import Inputs

_DEFAULT_NAME = "report.html"
_REPORT_HELP = """\
examples:
  recordmill report shards                    writes report.html here
  recordmill report shards -o shards.html --overwrite
  recordmill report 'old/*.tfrecord' --split train --columns image,label

The file has no scripts and loads nothing else, so you can send it by mail and open it without a network. Counts and
ranges are of all records. Sample records, images and sizes are of at most 1,000 records, which the fingerprint of the
data set determines. The file contains values of records, so it is as confidential as they are.
"""


@suggest_keywords
@with_keywords("report")
def report(
    inputs: Inputs,
    *,
    progress: ProgressArgument = None,
    quiet: bool = True,
    **options: Unpack[ReportKeywords],
) -> Report:
    """Writes a report on a data set or TFRecord files as one HTML file.

    Args:
        inputs: The output folder of a build, or TFRecord files, as in `open`.
        progress: A function that receives the progress, as in `build`.
        quiet: If True, no progress is shown on the terminal.
        **options: The options of `recordmill report`, as keywords. docs/reference.md lists them.

    Returns:
        The report.

    Raises:
        UsageError: The inputs do not exist, or the file exists already or can't be written.
        DataError: A record is damaged.
    """
    from recordmill.base.display import Display
    from recordmill.base.progress import to_progress
    from recordmill.reader.dataset import open
    from recordmill.reader.report.report import make_report
    from recordmill.reader.statistics import count_expected_records
    from recordmill.storage.folders import check_output_file

    chosen = Values("report", options)[ReportOptions]
    target = check_output_file(
        _DEFAULT_NAME if chosen.out is None else chosen.out, chosen.overwrite
    )
    with Display(counters := to_progress(progress), quiet):
        counters.begin("convert")
        dataset = open(
            inputs,
            chosen.split,
            chosen.columns,
            schema=chosen.schema,
            threads=chosen.threads,
            storage_requests=chosen.storage_requests,
        )
        counters.total = count_expected_records(dataset.records.catalog)
        page = make_report(dataset.records, lambda records: counters.advance(records=records))
    page.save(target, overwrite=chosen.overwrite)
    return page


def run_report(args: argparse.Namespace) -> int:
    """Writes the report and prints the path of its file. Returns 0."""
    from recordmill.options.command_line import options_from_args
    from recordmill.storage.files import parse_output_path

    options = options_from_args(args)
    report(args.inputs, quiet=args.quiet, **options)
    print(parse_output_path(options.get("out", _DEFAULT_NAME)))
    return 0


REPORT = Command(
    run_report,
    usage="recordmill report INPUT... [options]",
    description="Write one HTML file about a data set: splits and classes, features with their "
    "histograms, sample records and images, sizes, rejects, and how it was made.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_REPORT_HELP,
)
