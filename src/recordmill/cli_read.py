"""`recordmill read`: the command line of `pipelines.read`. Arguments in, a summary out;
nothing is imported before it is needed.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

_EPILOG = """\
examples:
  recordmill read shards --out table
      every split to Parquet: table/train-00000-of-00001.parquet, ...
  recordmill read shards --out arrays --to npy --split train
      arrays/train/image.npy, ...: np.load(..., mmap_mode="r") opens them
  recordmill read 'logs/*.tfrecord.gz' --out table --features id,score
  recordmill read damaged.tfrecord --out table --max-rejects 10
  recordmill read shards --out images --to files
      images/train/cat/1.jpg, ... as they were before build, and images/train/metadata.jsonl
  recordmill read big/ --to npy --dry-run
      rows, columns, disk and memory, before anything is written

INPUT is the folder of a build, or any TFRecord files: their features are then inferred over all records, or taken from
--schema.

formats:
  parquet  real columns: scalars, lists, tensors as fixed-size lists (variable ones where they may be missing)
           in row groups of --row-group-size, zstd level 1, dictionaries for texts and whole numbers, statistics,
           and the schema in the metadata
  npy      a folder per split with a file per feature; variable lengths as NAME.values.npy and NAME.row_splits.npy,
           text and bytes likewise, NAME.valid.npy where a feature may be missing;
           recordmill.reader.open_columns(FOLDER) opens all of them
  npz      the same in one file per split, if it fits --memory
  arrow    Arrow IPC files, which memory-map
  jsonl    a JSON object per line, for small sets: tensors as nested lists, bytes as base64, missing values as null
  csv      single numbers and texts with a header, for small sets; lists, tensors and bytes are refused by name
  files    a folder per split with a file per record, the bytes of one feature as they are, and metadata.jsonl, which
           holds the others as jsonl does; its first field is file_name, as Hugging Face's ImageFolder wants it (null
           where a record lacks the feature).
           The files are --file-feature, or the only bytes feature that holds images (the only one, if none does).
           --name-feature names them, or "source" as build wrote it (without the folder that said the split), or else
           the record's number in the split, from 0, in folders of 10,000.
           Names that lead out of the folder or that no system takes become the number; a name that is taken gets the
           number added. Both are counted

--where is evaluated by DuckDB on the features as they are stored, before conversions, and may name features that
--features leaves out; a name such as image/height stands in double quotes. A record's own values decide: random(),
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

Nothing shows in DIR until all of it is written and every record is accounted for. The files don't depend on threads,
memory or runner.
A read that is killed, stopped or out of disk goes on when the same command is given again, with the same DIR: what it
had finished (files, or --file-size of shards of arrays) is kept in DIR/_run-... if its inputs hold the same bytes
still, and the files are those of an undisturbed read.
Another command, or one with --runner, begins anew. A read of less than --file-size keeps nothing.
With --runner the same runs as an Apache Beam pipeline; any flag that recordmill does not know is then handed to Beam.
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "read",
        help="a data set, or any TFRecord files, to Parquet, NumPy, Arrow or plain files",
        description="Write the records of a data set, or of any TFRecord files, as Parquet, NumPy, Arrow or plain "
        "files, in bounded memory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, takes_beam_flags=True)
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a data set's folder, or TFRecord files, folders of them, quoted globs or @list.txt",
    )
    parser.add_argument("--out", metavar="DIR", help="the folder for the result (needed unless --dry-run)")
    parser.add_argument("--dry-run", action="store_true", help="say rows, columns, disk and memory; write nothing")
    parser.add_argument(
        "--to",
        choices=("parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"),
        default="parquet",
        help="the format (default parquet)",
    )
    parser.add_argument(
        "--features", metavar="A,B,...", help="only these, in this order; the others are skipped, not parsed"
    )
    parser.add_argument("--split", metavar="NAME", help="only this split")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="only the first N records of each split (of those left by --where and --sample)",
    )
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb)",
    )
    parser.add_argument(
        "--sample",
        type=float,
        metavar="P",
        help="only a random share of the records, from 0 to 1; the same for the same --seed",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --sample (default 0)")
    _add_conversions(parser)
    parser.add_argument(
        "--schema", metavar="FILE", help="a schema.pbtxt (TensorFlow Metadata) that says what the records hold"
    )
    parser.add_argument(
        "--max-rejects",
        default="0",
        metavar="N|P%",
        help="how many records may be unusable (default 0); they are listed in DIR/rejects",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the result that DIR holds")
    parser.add_argument(
        "--file-size", default="512MiB", metavar="SIZE", help="shards' bytes per Parquet or Arrow file (default 512MiB)"
    )
    parser.add_argument(
        "--row-group-rows",
        type=int,
        metavar="N",
        help="rows of a Parquet row group (default: as many as --row-group-size holds)",
    )
    parser.add_argument(
        "--row-group-size",
        default="64MiB",
        metavar="SIZE",
        help="a row group's Arrow memory (default and at most 64MiB)",
    )
    parser.add_argument(
        "--compression",
        default="zstd",
        metavar="CODEC[:LEVEL]",
        help="of Parquet: zstd (default, level 1), gzip, snappy, none",
    )
    parser.add_argument("--file-feature", metavar="NAME", help="of --to files: the bytes or text that become the files")
    parser.add_argument(
        "--name-feature",
        metavar="NAME",
        help="of --to files: the text or whole number that names them ('' for the record's number)",
    )
    parser.add_argument(
        "--memory",
        default="2GiB",
        metavar="SIZE",
        help="what the read may hold at once, beside the interpreter (default 2GiB)",
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="default: all cores")
    parser.add_argument(
        "--runner",
        metavar="RUNNER",
        help="run as a Beam pipeline on this runner (default: threads of this process, without Beam)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    parser.add_argument("--json", action="store_true", help="print a machine-readable summary on stdout")


def _add_conversions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversions (each may be given for several features; done in this order)")
    group.add_argument(
        "--decode-images",
        nargs="?",
        const=True,
        metavar="FEATURES",
        help="encoded images to uint8 [height, width, channels]; default: all features that hold them",
    )
    group.add_argument("--resize", metavar="HxW", help="bring the images to one size (bilinear, antialiased)")
    group.add_argument("--channels", type=int, metavar="N", help="1 gray, 3 RGB (default) or 4 RGBA")
    group.add_argument(
        "--decode-tensor",
        action="append",
        metavar="FEATURE[=DTYPE[SHAPE]]",
        help="bytes written by tf.io.serialize_tensor to a tensor",
    )
    group.add_argument(
        "--decode-raw",
        action="append",
        metavar="FEATURE=DTYPE[SHAPE]",
        help="bytes that are an array's memory to that array",
    )
    group.add_argument(
        "--reshape",
        action="append",
        metavar="FEATURE=[SHAPE]",
        help="the same values in another shape; -1: what follows, or varies",
    )
    group.add_argument(
        "--pad",
        action="append",
        metavar="FEATURE=LENGTH:VALUE",
        help="a list to a fixed length; a longer one is a bad record",
    )
    group.add_argument(
        "--pad-or-cut", action="append", metavar="FEATURE=LENGTH:VALUE", help="the same, but a longer one loses its end"
    )
    group.add_argument(
        "--ragged",
        action="append",
        metavar="FEATURE,...",
        help="a list of variable length, also if all records hold equally many items",
    )


def run(args: argparse.Namespace) -> int:
    """Read and say what was written, or would be; 0 if it was committed."""
    from recordmill.base.errors import UsageError

    if args.beam_args and args.runner is None:
        raise UsageError(f"unrecognized arguments: {' '.join(args.beam_args)} (Beam's flags need --runner)")
    if args.dry_run:
        return _dry_run(args)
    if args.out is None:
        raise UsageError("--out DIR is needed: the folder for the result (or --dry-run, which writes nothing)")
    from recordmill.pipelines.read import read

    result = read(args.inputs, args.out, quiet=args.quiet, **_options(args))
    if args.json:
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    elif not args.quiet:
        _summarise(result)
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What `make_settings` takes, as it stands in the arguments."""
    own = {"inputs", "out", "run", "takes_beam_flags", "quiet", "json", "dry_run"}
    return {name: value for name, value in vars(args).items() if name not in own}


def _dry_run(args: argparse.Namespace) -> int:
    from recordmill.pipelines.dry_run import describe_estimate, dry_run

    found = dry_run(args.inputs, **_options(args))
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if args.json else describe_estimate(found))
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
    if result.filtered:
        print(f"{result.filtered:,} records filtered out")
    if result.rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(result.reject_reasons.items()))
        print(f"{result.rejected:,} records rejected ({reasons}); see {result.out}/rejects")
