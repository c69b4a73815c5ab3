"""The command `recordmill read`: writes records to Parquet, NumPy, Arrow or plain files.

`--help` must be fast, so the modules that a read needs are imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from recordmill.commands.main import Command

_READ_HELP = """\
examples:
  recordmill read shards --out table
      every split to Parquet: table/train-00000-of-00001.parquet, ...
  recordmill read shards --out arrays --to npy --split train
      arrays/train/image.npy, ...: np.load(..., mmap_mode="r") opens them
  recordmill read 'logs/*.tfrecord.gz' --out table --columns id,score
  recordmill read damaged.tfrecord --out table --max-rejects 10
  recordmill read shards --out images --to files
      images/train/cat/1.jpg, ... as they were before build, and images/train/metadata.jsonl
  recordmill read shards --out s3://bucket/table
      the same objects there, and table/_read.json, which names them and comes last
  recordmill read big/ --to npy --dry-run
      rows, columns, disk and memory, before anything is written
"""
_READ_HELP_ALL = """
INPUT is the folder of a build, or any TFRecord files: their features are then inferred over all records, or taken from
--schema.

formats:
{formats}

--where is evaluated by DuckDB on the features as they are stored, before conversions, and may name features that
--columns leaves out; a name such as image/height stands in double quotes. A record's own values decide: random(),
now() and queries inside it are refused.
From Python a pyarrow.compute expression serves as well, without DuckDB.

conversions:
  --decode-images --resize 224x224
      JPEG, PNG, GIF, BMP, WebP and TIFF, the first frame, without applying an EXIF rotation; the INPUTs stand before
      it. Without --resize images of one size are [height, width, channels]; of several sizes lists of rows of pixels in
      Parquet and Arrow, and an error in NumPy. 16 bits are cut to the upper 8. At most 67 million pixels each, and as
      large as --memory can hold: 12 bytes a pixel, in lists in Parquet 36 a value
  --decode-raw depth=float32[256,256]
      little-endian, row-major (as tf.io.decode_raw); depth=>float32[256,256] is big-endian;
      points=float32[-1,3] takes any number of points
  --decode-tensor embedding
      dtype and shape are those of the first record, which all others must have;
      embedding=float32[-1,4] says them, with a first dimension that varies
  --reshape boxes=[-1,4]
      a list to boxes of 4
  --pad tokens=128:0
      lists to int64 [128], filled up with 0
A record whose bytes or lengths do not fit is a bad one, named by file, record and byte (see --max-rejects).

Nothing shows in OUT until all of it is written and every record is accounted for. The files don't depend on threads,
memory or runner.
A read that is killed, stopped or out of disk goes on when the same command is given again, with the same OUT: the
outputs that it had finished are kept in OUT/_run-... if their inputs hold the same bytes still, and the files are those
of an undisturbed read. Another command begins anew. A read of one output, or of less than --file-size, keeps nothing.
With --runner the same runs as an Apache Beam pipeline; any flag that recordmill does not know is then handed to Beam.
"""


def _format_help() -> str:
    """Returns the text of `--help-all`, with the description of each output format."""
    from recordmill.records.writers.outputs import OUTPUTS

    return _READ_HELP_ALL.format(formats="\n".join(map(_format_output_help, OUTPUTS)))


def _format_output_help(output: Any) -> str:
    """Returns the name and the description of an output format, as indented lines."""
    first, *more_lines = output.description.split("\n")
    return "\n".join([f"  {output.name:7}  {first}", *(f"{'':11}{line}" for line in more_lines)])


def run_read(args: argparse.Namespace) -> int:
    """Reads the inputs and prints a summary. Returns 0.

    With `--dry-run` it only prints an estimate.
    """
    from recordmill.base.errors import UsageError
    from recordmill.options.flags import explain_unknown_flags, flag_spelling, render_entries
    from recordmill.options.parser import options_from_args

    options = options_from_args(args)
    if args.beam_args and "runner" not in options:
        suggestion = explain_unknown_flags(args.beam_args, "read")
        raise UsageError(
            f"unrecognized arguments: {' '.join(args.beam_args)}{suggestion}; Beam's flags need --runner"
        )
    if args.dry_run:
        return _dry_run(args, options)
    if args.out is None:
        raise UsageError(
            "--out OUT is needed: the folder for the result (or --dry-run, which writes nothing)"
        )
    from recordmill.base.display import completion_notice
    from recordmill.base.messages import render
    from recordmill.pipelines.read import read

    result = read(
        args.inputs, args.out, quiet=args.quiet, beam_args=tuple(args.beam_args), **options
    )
    spelling = flag_spelling(args.command)
    with completion_notice(result.out, lambda: True):
        if args.json:
            print(
                json.dumps(
                    render_entries(result.to_json(), spelling, "notes"),
                    indent=1,
                    ensure_ascii=False,
                )
            )
        elif not args.quiet:
            # The result is complete even if the reader of stderr has ended.
            with contextlib.suppress(OSError):
                lines = [render(line, spelling) for line in read_summary(result)]
                print("\n".join(lines), file=sys.stderr)
    return 0


def _dry_run(args: argparse.Namespace, options: dict[str, Any]) -> int:
    from recordmill.base.messages import render
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.pipelines.read import describe_estimate, dry_run

    estimate = dry_run(args.inputs, **options)
    spelling = flag_spelling(args.command)
    if args.json:
        report = render_entries(estimate.to_json(), spelling, "notes")
        print(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print(render(describe_estimate(estimate), spelling))
    return 0


def read_summary(result: Any) -> list[str]:
    """Returns the lines of the summary of a read.

    Args:
        result: The `ReadResult`.
    """
    from recordmill.base.messages import Message
    from recordmill.base.sizes import format_count
    from recordmill.shards.rejects import describe_reasons

    splits = (
        ", ".join(f"{name} {count:,}" for name, count in result.records.items()) or "no records"
    )
    records = format_count(result.written, "record")
    lines: list[str] = [
        f"{records} to {result.to} in {result.out} ({splits}) in {result.seconds:.1f} s"
    ]
    lines += [f"  {path}" for path in result.paths[:5]]
    if len(result.paths) > 5:
        lines.append(f"  ... and {len(result.paths) - 5} more")
    lines += [Message("note: {note}", note=note) for note in result.notes]
    if result.filtered:
        lines.append(f"{format_count(result.filtered, 'record')} filtered out")
    if result.rejected:
        reasons = describe_reasons(result.reject_reasons)
        lines.append(f"{result.rejected:,} rejected ({reasons}), listed in {result.out}/rejects")
    return lines


READ = Command(
    run_read,
    usage="recordmill read INPUT... --out OUT [options]",
    description="Write the records of a data set, or of any TFRecord files, as Parquet, NumPy, Arrow or plain "
    "files, in bounded memory.",
    inputs=(
        "INPUT",
        "a data set's folder, or TFRecord files, folders of them, quoted globs or @list.txt",
    ),
    examples=_READ_HELP,
    full_help=_format_help,
    takes_beam_flags=True,
)
