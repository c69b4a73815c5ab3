"""The commands `recordmill build` and `recordmill transform`.

`--help` must be fast, so the modules that a build needs are imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter
from typing import Any

from recordmill.commands.main import Command

_BUILD_HELP = """\
examples:
  recordmill build images photos/ --out shards
      splits and classes come from the folders: photos/train/cat/1.jpg, photos/test/dog/7.png
  recordmill build images photos/ --labels labels.csv --out shards
  recordmill build csv 'flights-*.csv' --out shards --label carrier --splits train=0.9,validation=0.1
  recordmill build jsonl questions.jsonl.gz --out shards --dtype score=float64
  recordmill build text reviews/ --out shards
      each file is a document, and classes come from the folders: reviews/pos/1.txt, reviews/neg/2.txt
  recordmill build tfrecord old/*.tfrecord --out shards --num-shards 16
  recordmill build incoming/ --out shards --append
      adds the files of incoming/ that the data set does not have yet

The same inputs, options and seed give the same bytes, for any number of threads, memory and machine.
Other flags are passed to Apache Beam, for example --runner=FlinkRunner --flink_master=HOST:8081.
"""


def describe_inputs() -> tuple[str, str]:
    """Returns (metavar, help) of the positional arguments."""
    from recordmill.sources.registry import KIND_NAMES

    return "[KIND] INPUT", (
        f"KIND is one of {', '.join(KIND_NAMES)}, and is detected from the content if left out; INPUT is a file, a folder, a quoted "
        "glob or @list.txt"
    )


def run_build_command(args: argparse.Namespace) -> int:
    """Builds a data set and prints a summary. Returns 0.

    With `--dry-run` it only prints a preview, and with `--detach` it only submits the build.
    """
    from recordmill.base.display import completion_notice
    from recordmill.base.errors import UsageError
    from recordmill.base.messages import render
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.pipelines.build import build

    if args.dry_run:
        return _preview(args)
    if args.out is None:
        raise UsageError(
            f"--out OUT is needed: the folder of the data set{_explain_unknown_flags(args)}"
        )
    kind, paths = _split_kind(args.inputs)
    if args.detach:
        return _submit(args, kind, paths)
    result = build(
        paths,
        args.out,
        quiet=args.quiet,
        kind=kind,
        beam_args=tuple(args.beam_args),
        **options_from_args(args),
    )
    spelling = flag_spelling(args.command)
    with completion_notice(result.out, lambda: True):
        if args.json:
            # JSON in ASCII does not depend on the encoding of the terminal
            print(json.dumps(render_entries(result.to_json(), spelling, "notes")))
        elif not args.quiet:
            # The data set is complete even if the reader of stderr has ended.
            with contextlib.suppress(OSError):
                lines = [render(line, spelling) for line in build_summary(result)]
                print("\n".join(lines), file=sys.stderr)
    return 0


def _preview(args: argparse.Namespace) -> int:
    """Plans a build and prints a preview, without writing anything. Returns 0.

    Raises:
        UsageError: The build could not run with these options or inputs.
    """
    from recordmill.base.messages import render
    from recordmill.base.sizes import format_count, format_size
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.pipelines.dry_run import preview
    from recordmill.reader.display import iter_record_lines
    from recordmill.shards.run import check_output_folder
    from recordmill.storage.files import parse_output_path

    kind, paths = _split_kind(args.inputs)
    options = options_from_args(args)
    may_exist = any(options.get(name) for name in ("overwrite", "if_changed", "append"))
    if args.out is not None:
        check_output_folder(parse_output_path(args.out), may_exist)
    estimate = preview(paths, args.out, kind=kind, beam_args=tuple(args.beam_args), **options)
    spelling = flag_spelling(args.command)
    if args.json:
        print(json.dumps(render_entries(estimate.to_json(), spelling, "notes")))
        return 0
    for note in estimate.notes:
        print(f"note: {render(note, spelling)}")
    records = "" if estimate.records is None else f", {format_count(estimate.records, 'record')}"
    print(
        f"{estimate.kind}: {format_count(estimate.files, 'file')}, {format_size(estimate.size_bytes)}{records}"
    )
    print(
        f"about {format_count(estimate.shards, 'shard')} in {', '.join(estimate.splits)}; rejects so far: {estimate.rejects:,}"
    )
    print(
        f"about {estimate.seconds:.1f} s after the start, within {format_size(estimate.memory_bytes)} of memory"
    )
    width = max(map(len, estimate.schema.names))
    for feature in estimate.schema:
        print(
            f"  {feature.name:<{width}}  {feature.describe()}{' (label)' * (feature.name == estimate.schema.label)}"
        )
    print("\n".join(iter_record_lines(estimate.first, estimate.schema)))
    print("nothing was written")
    return 0


def _explain_unknown_flags(args: argparse.Namespace) -> str:
    """Returns a hint about unknown flags to append to an error message, or "".

    The error is about a missing flag. An unknown flag may be its misspelled name.
    """
    from recordmill.options.flags import explain_unknown_flags

    return explain_unknown_flags(args.beam_args, args.command) if args.beam_args else ""


def _submit(args: argparse.Namespace, kind: str | None, paths: list[str]) -> int:
    """Submits the build to an engine and prints its jobs. Returns 0."""
    from recordmill.options.command_line import options_from_args
    from recordmill.pipelines.build import submit

    submitted = submit(
        paths,
        args.out,
        quiet=args.quiet,
        kind=kind,
        beam_args=tuple(args.beam_args),
        **options_from_args(args),
    )
    if args.json:
        print(json.dumps(submitted.to_json()))
    elif not args.quiet:
        for run in submitted.runs:
            print(f"submitted: {run}", file=sys.stderr)
        print(f"`recordmill status {args.out}` shows its state", file=sys.stderr)
    return 0


def build_summary(result: Any) -> list[str]:
    """Returns the lines of the summary of a build.

    Args:
        result: The `BuildResult`.
    """
    from recordmill.base.messages import Message
    from recordmill.base.sizes import format_count, format_size
    from recordmill.shards.rejects import describe_reasons

    size = result.manifest.size_bytes
    lines: list[str] = [Message("note: {note}", note=note) for note in result.notes]
    read, written = format_count(result.read, "record"), result.read - result.rejected
    counts_text = f"{read} read, {written:,} written, {result.rejected:,} rejected"
    if result.rejected:
        counts_text += f" ({describe_reasons(result.reject_reasons)})"
    if result.unchanged and result.appended:
        return [*lines, f"{result.out}: nothing to append, all inputs are part of the data set"]
    if result.unchanged:
        return [
            f"{result.out}: already built from the same inputs and options: {result.kind}, {counts_text}"
        ]
    appended = ", appended" if result.appended else ""
    lines.append(f"{result.out}: {result.kind}, {counts_text}{appended}, in {result.seconds:.1f} s")
    for split, count in result.records.items():
        shards = format_count(result.manifest.shard_counts[split], "shard")
        lines.append(f"  {split}: {format_count(count, 'record')} in {shards}")
    lines.append(
        f"  {format_count(len(result.schema), 'feature')}, {format_size(size)}"
        + (f", label {result.schema.label}" if result.schema.label else "")
    )
    lines += [*_format_class_counts(result), *(f"  rejects: {path}" for path in result.rejects)]
    return lines


def _format_class_counts(result: Any) -> list[str]:
    """Returns a line with the five largest classes of the label, over all splits.

    The list is empty if the label has no class names, or if there are no statistics.
    """
    from recordmill.base.sizes import format_percent
    from recordmill.shards.manifest import read_statistics
    from recordmill.statistics.dataset_statistics import DatasetStatistics
    from recordmill.statistics.feature_statistics import format_value

    schema = result.schema
    if schema.label is None or schema[schema.label].classes is None:
        return []
    data = read_statistics(result.manifest, str(result.out))
    statistics = {} if data is None else DatasetStatistics.from_bytes(data)
    counts = Counter[str]()
    for features in statistics.values():
        counts.update(features[schema.label].top_values)
    total = sum(counts.values())
    texts = [
        f"{format_value(value, schema[schema.label])} {n:,} ({format_percent(n / total)})"
        for value, n in counts.most_common(5)
    ]
    return [f"  classes: {', '.join(texts)}{', ...' if len(counts) > 5 else ''}"] if texts else []


def _split_kind(inputs: list[str]) -> tuple[str | None, list[str]]:
    """Separates the kind of the inputs, such as `csv`, from their paths.

    The first word is the kind if it names one and an input follows. To name a folder called csv,
    users write `./csv`.

    Returns:
        (kind or None, inputs).

    Raises:
        UsageError: The first word is neither a kind nor a file, but similar to a kind.
    """
    from recordmill.base.errors import UsageError
    from recordmill.base.option_names import did_you_mean
    from recordmill.sources.registry import KIND_NAMES
    from recordmill.storage.folders import name_exists

    if len(inputs) == 1:
        return None, inputs
    if inputs[0] in KIND_NAMES:
        return inputs[0], inputs[1:]
    suggestion = did_you_mean(inputs[0], KIND_NAMES)
    if suggestion and inputs[0].isalnum() and not name_exists(inputs[0]):
        raise UsageError(f"{inputs[0]} is neither a kind nor a file{suggestion}")
    return None, inputs


_TRANSFORM_HELP = """\
examples:
  recordmill build csv 'trips-2025-*.csv' --out shards --transform transform.yaml
  recordmill transform csv 'trips-2026-*.csv' --with shards --out newer
      uses the means, vocabularies and buckets of `shards`

The new data must have the columns of the old data, and is read with the same types.
"""


def run_transform(args: argparse.Namespace) -> int:
    """Builds a data set with the transform of another one. Returns 0.

    Raises:
        UsageError: The flag `--with` is missing.
        RecordmillError: The build failed, as in `run_build_command`.
    """
    from recordmill.base.errors import UsageError

    if "transform_from" not in args:
        raise UsageError(
            f"--with OUT is needed: the data set whose transform is applied{_explain_unknown_flags(args)}"
        )
    return run_build_command(args)


BUILD = Command(
    run_build_command,
    usage="recordmill build [KIND] INPUT... --out OUT [options]",
    description="Convert raw data to a data set of shuffled TFRecord shards. OUT shows nothing "
    "until all records are written and counted.",
    inputs=describe_inputs(),
    examples=_BUILD_HELP,
    takes_beam_flags=True,
)


TRANSFORM = Command(
    run_transform,
    usage="recordmill transform [KIND] INPUT... --with OUT --out NEW [options]",
    description="Convert raw data to a data set with the transform of another data set. Nothing "
    "is fitted.",
    inputs=describe_inputs(),
    examples=_TRANSFORM_HELP,
    takes_beam_flags=True,
)
