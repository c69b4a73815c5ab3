"""The command `recordmill stats`: statistics of the values of data sets and raw data."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.commands.main import Command, suggest_lazily

if TYPE_CHECKING:
    from recordmill.base.progress import ProgressArgument
    from recordmill.schemas.feature import Schema
    from recordmill.shards.catalog import Inputs
    from recordmill.statistics.dataset_statistics import DatasetStatistics

_STATS_HELP = """\
examples:
  recordmill stats shards                     statistics from the build
  recordmill stats 'old/*.tfrecord' --out old.pb
  recordmill stats flights.csv --columns dep_delay,carrier
  recordmill stats shards --json | jq .train

Counts, minima, maxima, means and deviations are exact. DISTINCT and MOST FREQUENT with a ~ are estimates, for features
with many values. The JSON also has quantiles and their errors.

--out writes a DatasetFeatureStatisticsList for TensorFlow Data Validation:
tfdv.visualize_statistics(tfdv.load_stats_binary("old.pb")). It shows one split at a time, which --split selects.
"""


@suggest_lazily
def stats(
    inputs: Inputs,
    *,
    split: str | None = None,
    columns: Sequence[str] | str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    recount: bool = False,
    max_rejects: str | int = 0,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    storage_requests: int | None = None,
    progress: ProgressArgument = None,
    quiet: bool = True,
) -> DatasetStatistics:
    """Returns statistics of a data set, of any TFRecord files, or of raw data.

    The statistics of a data set come from its build if it has stored any. Otherwise all records are
    read.

    Args:
        inputs: As in `open`, or raw data as in `build`.
        split: The split to include. None includes all.
        columns: Names of the features to include. None includes all.
        schema: The schema of files without a manifest, or of raw data. None infers it.
        recount: Reads the records even if the build has stored statistics.
        max_rejects: Maximum number of unusable records of raw data, as a number or a share such as
            "1%".
        out: A file for the statistics, in the format of TensorFlow Data Validation. None writes no
            file.
        overwrite: Replaces an existing file.
        threads: Number of threads. None means one per core.
        storage_requests: Maximum number of concurrent store requests.
        progress: A function that receives the progress, as in `build`.
        quiet: Shows no progress on the terminal.

    Returns:
        The statistics, by split and feature name.

    Raises:
        UsageError: The inputs do not exist, or an option does not fit them.
        DataError: A record is damaged.
        TooManyRejects: More records are unusable than `max_rejects` allows.

    Examples:
        >>> recordmill.stats("shards", split="train")["train"]["size"].max
        4.5
    """
    from recordmill.base.display import Display
    from recordmill.base.progress import to_progress
    from recordmill.pipelines.dry_run import count_raw, is_raw_input
    from recordmill.reader.dataset import open
    from recordmill.reader.statistics import (
        count_expected_records,
        count_statistics,
        read_stored_statistics,
    )
    from recordmill.shards.manifest import is_data_set
    from recordmill.statistics.dataset_statistics import DatasetStatistics
    from recordmill.storage.files import limit_requests, parse_input_paths, put_bytes
    from recordmill.storage.folders import check_output_file

    limit_requests(storage_requests)
    target = None if out is None else check_output_file(out, overwrite)
    paths = parse_input_paths(inputs)
    with Display(counters := to_progress(progress), quiet):
        counters.begin("convert")
        statistics: DatasetStatistics | None
        if not any(map(is_data_set, paths)) and is_raw_input(paths):
            schema_option = {} if schema is None else {"schema": schema}
            sketch = count_raw(
                paths, counters, max_rejects=max_rejects, threads=threads, **schema_option
            )
            statistics = DatasetStatistics.from_sketch(sketch).select_checked(split, columns)
        else:
            dataset = open(paths, split, columns, schema=schema, threads=threads).records
            counters.total = count_expected_records(dataset.catalog)
            statistics = None if recount else read_stored_statistics(dataset)
            if statistics is None:
                sketch = count_statistics(
                    dataset, lambda records: counters.advance(records=records)
                )
                statistics = DatasetStatistics.from_sketch(sketch).select_checked(
                    None, dataset.schema.names
                )
    if target is not None:
        put_bytes(target, statistics.to_bytes())
    return statistics


def run_stats(args: argparse.Namespace) -> int:
    """Prints the statistics of the inputs. Returns 0."""
    from recordmill.options.parser import options_from_args

    statistics = stats(args.inputs, quiet=args.quiet, **options_from_args(args))
    if args.json:
        print(json.dumps(statistics.to_json(), indent=1, ensure_ascii=False))
    else:
        for line in statistics.lines():
            print(line)
    return 0


STATS = Command(
    run_stats,
    usage="recordmill stats INPUT... [options]",
    description="Show statistics of each feature: missing values, range, mean, standard "
    "deviation, quantiles, distinct values and the most frequent values.",
    inputs=("INPUT", "folder of a data set, TFRecord files, or raw data as for build"),
    examples=_STATS_HELP,
)
