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
      writes every split to Parquet: table/train-00000-of-00001.parquet, ...
  recordmill read shards --out arrays --to npy --split train
      writes arrays/train/image.npy, ...; open them with np.load(..., mmap_mode="r")
  recordmill read 'logs/*.tfrecord.gz' --out table --columns id,score
  recordmill read damaged.tfrecord --out table --max-rejects 10
  recordmill read shards --out images --to files
      images/train/cat/1.jpg, ... as they were before the build, and images/train/metadata.jsonl
  recordmill read shards --out s3://bucket/table
      writes the same files to a store, and at last table/_read.json with their names
  recordmill read big/ --to npy --dry-run
      shows rows, columns, disk space and memory, and writes nothing
"""
_READ_HELP_ALL = """
INPUT is the folder of a build, or any TFRecord files. The features of such files are inferred from all records, or come
from --schema.

formats:
{formats}

DuckDB evaluates --where on the features as they are stored, before conversions. The condition may use features that
--columns leaves out. Put a name such as image/height into double quotes. The result must depend only on the record, so
random(), now() and subqueries are refused. In Python, where= also takes a pyarrow.compute expression, without DuckDB.

conversions:
  --decode-images --resize 224x224
      decodes JPEG, PNG, GIF, BMP, WebP and TIFF: the first frame, without EXIF rotation. Write the INPUTs before this
      option. Without --resize, images of one size become [height, width, channels]. Images of several sizes become
      lists of rows of pixels in Parquet and Arrow, and are an error in NumPy. Of 16 bits, the upper 8 are kept. An
      image may have 67 million pixels, if it fits --memory: 12 bytes per pixel, or 36 per value for lists in Parquet
  --decode-raw depth=float32[256,256]
      decodes little-endian, row-major arrays, as tf.io.decode_raw does; depth=>float32[256,256] is big-endian, and
      points=float32[-1,3] accepts any number of points
  --decode-tensor embedding
      decodes tensors of the dtype and shape of the first record, which all others must have, too;
      embedding=float32[-1,4] sets them, here with a first dimension that varies
  --reshape boxes=[-1,4]
      turns a list into boxes of 4 values
  --pad tokens=128:0
      turns lists into int64 [128], padded with 0
A record whose bytes or lengths do not fit is a reject, which is named with file, record and byte (see --max-rejects).

OUT shows nothing until all files are written and all records are counted. The files do not depend on the threads,
memory and runner.
If a read is killed, stopped or out of disk space, repeat the same command with the same OUT to resume it. Finished
outputs are kept in OUT/_run-... if their inputs have not changed, and the result is the same as without interruption.
Another command starts from the beginning. A read of one output, or of less than --file-size, keeps nothing.
With --runner, the read runs as an Apache Beam pipeline, and other flags are passed to Beam.
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
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import explain_unknown_flags, flag_spelling, render_entries

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
    from recordmill.pipelines.read import dry_run

    estimate = dry_run(args.inputs, **options)
    spelling = flag_spelling(args.command)
    if args.json:
        report = render_entries(estimate.to_json(), spelling, "notes")
        print(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print(render(estimate.describe(), spelling))
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
    description="Convert the records of a data set or of any TFRecord files to Parquet, NumPy, "
    "Arrow or other files, in bounded memory.",
    inputs=(
        "INPUT",
        "folder of a data set, or TFRecord files, folders of them, quoted globs or @list.txt",
    ),
    examples=_READ_HELP,
    full_help=_format_help,
    takes_beam_flags=True,
)
