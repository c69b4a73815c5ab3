"""`recordmill read`: the command line of `pipelines.read`. Arguments in, a summary out; nothing is imported before it is needed."""

from __future__ import annotations

import argparse
import json
from typing import Any

_EPILOG = """\
examples:
  recordmill read shards --out table                            every split to Parquet: table/train-00000-of-00001.parquet, ...
  recordmill read shards --out arrays --to npy --split train    arrays/train/image.npy, ...: np.load(..., mmap_mode="r") opens them
  recordmill read 'logs/*.tfrecord.gz' --out table --features id,score
  recordmill read damaged.tfrecord --out table --max-rejects 10

INPUT is the folder of a build, or any TFRecord files: their features are then inferred over all records, or taken from --schema.

formats:
  parquet  real columns: scalars, lists, tensors as fixed-size lists (variable ones where they may be missing)
  npy      a folder per split with a file per feature; variable lengths as NAME.values.npy and NAME.row_splits.npy, text and bytes likewise,
           NAME.valid.npy where a feature may be missing; recordmill.reader.open_columns(FOLDER) opens all of them
  npz      the same in one file per split, if it fits --memory
  arrow    Arrow IPC files, which memory-map

Nothing shows in DIR until all of it is written and every record is accounted for. The files don't depend on threads, memory or runner.
With --runner the same runs as an Apache Beam pipeline; any flag that recordmill does not know is then handed to Beam.
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "read",
        help="a data set, or any TFRecord files, to Parquet, NumPy or Arrow",
        description="Write the records of a data set, or of any TFRecord files, as Parquet, NumPy or Arrow files, in bounded memory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, takes_beam_flags=True)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a data set's folder, or TFRecord files, folders of them, quoted globs or @list.txt")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder for the result")
    parser.add_argument("--to", choices=("parquet", "npy", "npz", "arrow"), default="parquet", help="the format (default parquet)")
    parser.add_argument("--features", metavar="A,B,...", help="only these, in this order; the others are skipped, not parsed")
    parser.add_argument("--split", metavar="NAME", help="only this split")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N records of each split")
    parser.add_argument("--schema", metavar="FILE", help="a schema.pbtxt (TensorFlow Metadata) that says what the records hold")
    parser.add_argument("--max-rejects", default="0", metavar="N|P%%", help="how many records may be unusable (default 0); they are listed in DIR/rejects")
    parser.add_argument("--overwrite", action="store_true", help="replace the result that DIR holds")
    parser.add_argument("--file-size", default="512MiB", metavar="SIZE", help="shards' bytes per Parquet or Arrow file (default 512MiB)")
    parser.add_argument("--memory", default="2GiB", metavar="SIZE", help="what the read may hold at once, beside the interpreter (default 2GiB)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="default: all cores")
    parser.add_argument("--runner", metavar="RUNNER", help="run as a Beam pipeline on this runner (default: threads of this process, without Beam)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    parser.add_argument("--json", action="store_true", help="print a machine-readable summary on stdout")


def run(args: argparse.Namespace) -> int:
    """Read and say what was written; 0 if it was committed."""
    from recordmill.pipelines.read import read
    from recordmill.schemas.errors import UsageError

    if args.beam_args and args.runner is None:
        raise UsageError(f"unrecognized arguments: {' '.join(args.beam_args)} (Beam's flags need --runner)")
    result = read(
        args.inputs,
        args.out,
        quiet=args.quiet,
        to=args.to,
        features=args.features,
        split=args.split,
        limit=args.limit,
        max_rejects=args.max_rejects,
        schema=args.schema,
        threads=args.threads,
        memory=args.memory,
        file_size=args.file_size,
        overwrite=args.overwrite,
        runner=args.runner,
        beam_args=args.beam_args,
    )
    if args.json:
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    elif not args.quiet:
        _summarise(result)
    return 0


def _summarise(result: Any) -> None:
    splits = ", ".join(f"{name} {count:,}" for name, count in result.records.items()) or "no records"
    print(f"{result.written:,} records to {result.to} in {result.out} ({splits}) in {result.seconds:.1f} s")
    for path in result.paths[:5]:
        print(f"  {path}")
    if len(result.paths) > 5:
        print(f"  ... and {len(result.paths) - 5} more")
    for note in result.notes:
        print(f"note: {note}")
    if result.rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(result.reject_reasons.items()))
        print(f"{result.rejected:,} records rejected ({reasons}); see {result.out}/rejects")
