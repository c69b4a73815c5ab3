"""The commands `recordmill inspect` and `recordmill head`: show the contents of files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from recordmill.commands.main import Command

_MAX_FINDINGS = 20  # findings that are printed; the JSON has all

_INSPECT_HELP = """\
examples:
  recordmill inspect shards
  recordmill inspect 'old/*.tfrecord' --infer-from 10000     or --infer-from 20files
  recordmill inspect shards --json | jq .features
  recordmill inspect 'old/*.tfrecord' --emit reader > read_old.py
      a program that reads these files with tf.data: python read_old.py
  recordmill inspect 'old/*.tfrecord' --emit schema > schema.pbtxt

--emit prints one of these instead of the report:
  schema      a schema.pbtxt of TensorFlow Metadata
  parse-spec  the features for tf.io.parse_example, as Python source
  reader      a Python program that needs only TensorFlow, returns batches of tensors, and checks the number of records
              of each file

If there is no schema, features are inferred. A features.json of TensorFlow Datasets (with its *.labels.txt) or a
schema.pbtxt next to the files (also in transformed_metadata/ or metadata/, as tf.Transform writes it) then adds the true
dtypes, shapes and class names, as far as the records agree. The report says which file was used. A schema in --schema is
used as it is. Differences between records (types, numbers of values, presence) are listed with file and record.
Features that no schema fits are shown as conflicts, and `read` stops at them.

Some binary values of each batch are examined: encoded images and their sizes, serialized tensors and Examples, known
file formats. The bytes of raw arrays can't be recognized. If all values have the same length, a guess is shown, but
nothing is decoded.

A damaged record is an error. With --max-rejects N or P%, damaged records are left out, and the report counts them.

Every record is read, so ranges and presence are exact. With --infer-from, fewer records are read, and the report says
which.
"""


def run_inspect(args: argparse.Namespace) -> int:
    """Inspects the inputs and prints the summary. Returns 0.

    With `--emit` it prints a schema or a program instead.
    """
    from recordmill.base.messages import render
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.reader.inspect.summary import inspect

    if args.emit is not None:
        return _emit(args)
    summary = inspect(args.inputs, quiet=args.quiet, **options_from_args(args))
    spelling = flag_spelling(args.command)
    if args.json:
        report = render_entries(summary.to_json(), spelling, "notes", "tfds_refusals")
        print(json.dumps(report, indent=1, ensure_ascii=False, default=_to_json_default))
    else:
        for line in inspect_lines(summary):
            print(render(line, spelling))
    return 0


def _emit(args: argparse.Namespace) -> int:
    """Prints the text that `--emit` requests: a schema, a parsing specification or a program."""
    from recordmill.base.errors import UsageError
    from recordmill.options.command_line import options_from_args
    from recordmill.reader.dataset import open
    from recordmill.reader.inspect.emit import emit

    if args.json:
        raise UsageError("--emit prints text: leave out --json")
    if "max_rejects" in args:
        raise UsageError("--emit describes files without damage: leave out --max-rejects")
    print(emit(args.emit, open(args.inputs, **options_from_args(args)), args.inputs), end="")
    return 0


def _to_json_default(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def inspect_lines(summary: Any) -> Iterator[str]:
    """Yields the lines of a summary: counts, a table of the features, and findings.

    Args:
        summary: The result of `reader.inspect.summary.inspect`.
    """
    from recordmill.base.messages import Message
    from recordmill.base.sizes import format_size
    from recordmill.base.tables import table_lines

    size = sum(split["bytes"] for split in summary.splits.values())
    shards = sum(split["shards"] for split in summary.splits.values())
    compression = ", ".join(summary.compression) or "none"
    message = "" if summary.schema.message == "Example" else f", {summary.schema.message} records"
    yield (
        f"{summary.name}: {summary.records:,} records in {_count_files(shards)}, {format_size(size)}, compression "
        f"{compression}{message}"
    )
    for name, figures in summary.splits.items():
        yield f"  {name}: {figures['records']:,} records, {_count_files(figures['shards'])}, {format_size(figures['bytes'])}"
    yield ""
    yield from table_lines(
        ("FEATURE", "TYPE", "STORED AS", "PRESENT", "RANGE", "EXAMPLES"),
        [*(_feature_row(summary, feature) for feature in summary.schema), *_conflict_rows(summary)],
        ("PRESENT",),
    )
    yield ""
    if summary.statistics is not None:
        yield "Statistics of all records (from the build):"
        yield from summary.statistics.lines()
        yield ""
    if summary.sampled is not None:
        yield (
            f"this is based on {summary.looked_at:,} records only (--infer-from): {summary.sampled}"
        )
    if summary.rejected.total:
        yield f"damaged records, which are not included: {summary.rejected.describe()}"
        yield from (Message("  {reject}", reject=reject) for reject in summary.rejected.first)
    if summary.schema.label is not None:
        classes = summary.schema[summary.schema.label].classes
        yield f"label: {summary.schema.label}" + (
            ""
            if classes is None
            else f", {len(classes)} classes: {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}"
        )
    if summary.refusals is not None:
        yield (
            "TensorFlow Datasets reads every feature"
            if not summary.refusals
            else "TensorFlow Datasets does not read:"
        )
        yield from (Message("  {refusal}", refusal=refusal) for refusal in summary.refusals)
    yield from _finding_lines(
        "no schema fits all records:", [finding for finding in summary.findings if finding.conflict]
    )
    yield from _finding_lines(
        "differs from record to record:",
        [finding for finding in summary.findings if not finding.conflict],
    )
    yield from _content_lines(summary)
    for note in summary.notes:
        yield Message("note: {note}", note=note)


def _finding_lines(title: str, findings: Sequence[Any]) -> Iterator[str]:
    if findings:
        yield title
        yield from (f"  {finding}" for finding in findings[:_MAX_FINDINGS])
    if len(findings) > _MAX_FINDINGS:
        yield f"  ... and {len(findings) - _MAX_FINDINGS:,} more (--json lists all)"


def _content_lines(summary: Any) -> Iterator[str]:
    """Yields a line for each binary feature that an option of `read` could decode."""
    for name, texts in summary.guesses().items():
        size = summary.features[name].sizes[0]
        yield (
            f"{name}: always {size:,} bytes. If this is an array: --decode-raw "
            f"{quote(f'{name}={texts[0]}')}"
        )
        if len(texts) > 1:
            yield f"  or {', '.join(texts[1:])}"
    for name, stats in summary.features.items():
        if stats.contents is not None and any(
            kind.startswith("TensorProto") for kind in stats.contents.kinds
        ):
            yield f"{name}: written by tf.io.serialize_tensor; read it with --decode-tensor {quote(name)}"


def _conflict_rows(summary: Any) -> Iterator[tuple[str, ...]]:
    for name, kinds in summary.conflicts.items():
        yield name, "conflict", ", ".join(kinds), "see below", "", ""


def _count_files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _feature_row(summary: Any, feature: Any) -> tuple[str, ...]:
    from recordmill.base.sizes import format_percent, format_size_range

    stats = summary.features[feature.name]
    present = "all" if stats.present == stats.rows else format_percent(stats.present / stats.rows)
    ranges = [
        _range_text("length", stats.lengths),
        "" if stats.sizes is None else format_size_range(*stats.sizes),
        _range_text("", stats.values),
        "" if stats.contents is None else stats.contents.describe(),
    ]
    raw = ", raw" if feature.raw else ""
    return (
        feature.name,
        feature.describe(),
        feature.kind + raw,
        present if stats.rows else "-",
        "; ".join(filter(None, ranges)),
        " | ".join(stats.examples),
    )


def _range_text(label: str, span: Any) -> str:
    if span is None:
        return ""
    minimum, maximum = (f"{value:g}" if isinstance(value, float) else str(value) for value in span)
    return (
        f"{label} {minimum}".strip()
        if minimum == maximum
        else f"{label} {minimum} to {maximum}".strip()
    )


_HEAD_HELP = """\
examples:
  recordmill head shards                       the first 5 records
  recordmill head shards --split test -n 1
  recordmill head shards --at 17               record 17; the records before it are not read
  recordmill head old.tfrecord --columns image/encoded,label
"""


def run_head(args: argparse.Namespace) -> int:
    """Prints the first records, or the records from `--at` on. Returns 0."""
    from recordmill.base.errors import UsageError
    from recordmill.options.command_line import options_from_args
    from recordmill.reader.dataset import open
    from recordmill.reader.display import iter_record_lines

    count = (5 if args.at is None else 1) if args.n is None else args.n
    if count < 0:
        raise UsageError(f"-n {count}: must be 0 or more")
    dataset = open(args.inputs, **options_from_args(args))
    if args.at is None:
        first, table = 0, dataset.head(count)
    else:
        first = args.at if args.at >= 0 else args.at + len(dataset)
        if not 0 <= first < len(dataset):
            raise UsageError(f"--at {args.at}: there are {len(dataset):,} records, numbered from 0")
        table = dataset.to_table(first, first + count)
    for line in iter_record_lines(table, dataset.schema, first):
        print(line)
    if not table.num_rows:
        print("no records")
    return 0


INSPECT = Command(
    run_inspect,
    usage="recordmill inspect INPUT... [options]",
    description="Show a table of the features with type, shape, presence, range and examples, "
    "and the counts, sizes and compression of the files.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_INSPECT_HELP,
)


HEAD = Command(
    run_head,
    usage="recordmill head INPUT... [options]",
    description="Print records in readable form. Images are shown as format and size, and long "
    "values are cut. Records are numbered from 0.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_HEAD_HELP,
)
