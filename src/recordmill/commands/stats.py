"""The command `recordmill stats`: statistics of the values of data sets and raw data."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from recordmill.base.arguments import suggest_keywords
from recordmill.commands.main import Command
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import StatsOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.base.progress import ProgressArgument
    from recordmill.options.keywords import StatsKeywords
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


@suggest_keywords
@with_keywords("stats")
def stats(
    inputs: Inputs,
    *,
    progress: ProgressArgument = None,
    quiet: bool = True,
    **options: Unpack[StatsKeywords],
) -> DatasetStatistics:
    """Returns statistics of a data set, of any TFRecord files, or of raw data.

    The statistics of a data set come from its build if it has stored any. Otherwise all records are
    read.

    Args:
        inputs: As in `open`, or raw data as in `build`.
        progress: A function that receives the progress, as in `build`.
        quiet: If True, no progress is shown on the terminal.
        **options: The options of `recordmill stats`, as keywords. docs/reference.md lists them.

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

    chosen = Values("stats", options)[StatsOptions]
    split, columns, schema = chosen.split, chosen.columns, chosen.schema
    limit_requests(chosen.storage_requests)
    target = None if chosen.out is None else check_output_file(chosen.out, chosen.overwrite)
    paths = parse_input_paths(inputs)
    with Display(counters := to_progress(progress), quiet):
        counters.begin("convert")
        statistics: DatasetStatistics | None
        if not any(map(is_data_set, paths)) and is_raw_input(paths):
            schema_option = {} if schema is None else {"schema": schema}
            sketch = count_raw(
                paths,
                counters,
                max_rejects=chosen.max_rejects,
                threads=chosen.threads,
                **schema_option,
            )
            statistics = DatasetStatistics.from_sketch(sketch).select_checked(split, columns)
        else:
            dataset = open(paths, split, columns, schema=schema, threads=chosen.threads).records
            counters.total = count_expected_records(dataset.catalog)
            statistics = None if chosen.recount else read_stored_statistics(dataset)
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
    from recordmill.options.command_line import options_from_args

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
