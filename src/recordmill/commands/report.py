"""The command `recordmill report`: writes a data set as one HTML file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.commands.main import Command, suggest_lazily

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

The file has no scripts and loads nothing else, so you can send it by mail and open it without a network. Counts and
ranges are of all records. Sample records, images and sizes are of at most 1,000 records, which the fingerprint of the
data set determines. The file contains values of records, so it is as confidential as they are.
"""


@suggest_lazily
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
    """Writes a report on a data set or TFRecord files as one HTML file.

    Args:
        inputs: The output folder of a build, or TFRecord files, as in `open`.
        split: The split to include. None includes all.
        columns: Names of the features to include. None includes all.
        schema: The schema of files without a manifest. None infers it.
        out: The file. None means `report.html` in the current folder.
        overwrite: Replaces an existing file.
        threads: Number of threads. None means one per core.
        storage_requests: Maximum number of concurrent store requests.
        progress: A function that receives the progress, as in `build`.
        quiet: Shows no progress on the terminal.

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
        counters.total = count_expected_records(dataset.records.catalog)
        page = make_report(dataset.records, lambda records: counters.advance(records=records))
    page.save(target, overwrite=overwrite)
    return page


def run_report(args: argparse.Namespace) -> int:
    """Writes the report and prints the path of its file. Returns 0."""
    from recordmill.options.parser import options_from_args

    options = options_from_args(args)
    report(args.inputs, quiet=args.quiet, **options)
    print(os.fspath(options.get("out", _DEFAULT_NAME)))
    return 0


REPORT = Command(
    run_report,
    usage="recordmill report INPUT... [options]",
    description="Write one HTML file about a data set: splits and classes, features with their "
    "histograms, sample records and images, sizes, rejects, and how it was made.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_REPORT_HELP,
)
