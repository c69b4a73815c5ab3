"""`recordmill build`: the command line of `pipelines.build`. Arguments in, a summary out;
nothing is imported before it is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

KINDS = ("images", "csv", "jsonl", "text", "parquet", "tfrecord")

_EPILOG = """\
examples:
  recordmill build images photos/ --out shards
      photos/train/cat/1.jpg, photos/test/dog/7.png: splits and classes from folders
  recordmill build images photos/ --labels labels.csv --out shards
  recordmill build csv 'flights-*.csv' --out shards --label carrier --splits train=0.9,validation=0.1
  recordmill build jsonl questions.jsonl.gz --out shards --dtype score=float64
  recordmill build text reviews/ --out shards
      reviews/pos/1.txt, reviews/neg/2.txt: a document a file, classes from folders
  recordmill build tfrecord old/*.tfrecord --out shards --num-shards 16

The same inputs, options and seed give the same bytes, whatever the threads, the memory or the machine.
Any flag that recordmill does not know is handed to Apache Beam, for example
--runner=FlinkRunner --flink_master=HOST:8081.
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "build",
        help="raw images, text, CSV, JSONL, Parquet or TFRecords to shuffled TFRecord shards",
        usage="recordmill build [KIND] INPUT... --out OUT [options]",
        description="Raw data to a data set of shuffled TFRecord shards with a manifest. Nothing shows in OUT until "
        "all is written and accounted for.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, takes_beam_flags=True)
    add_arguments(parser)
    _add_transform_options(parser.add_argument_group("transform"))


def add_arguments(parser: Any) -> None:
    """The arguments of whatever builds a data set."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="[KIND] INPUT",
        help=f"KIND is one of {', '.join(KINDS)}, else told from the content; INPUT is a file, a folder, a quoted "
        "glob or @list.txt",
    )
    parser.add_argument("--out", required=True, metavar="OUT", help="the folder of the data set")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the data set that OUT holds; readers of the old one can finish",
    )
    _add_record_options(parser.add_argument_group("records"))
    _add_order_options(parser.add_argument_group("order and splits"))
    _add_shard_options(parser.add_argument_group("shards"))
    _add_image_options(parser.add_argument_group("images"))
    _add_csv_options(parser.add_argument_group("CSV"))
    _add_text_options(parser.add_argument_group("JSONL and text"))
    _add_parquet_options(parser.add_argument_group("Parquet"))
    _add_run_options(parser.add_argument_group("the run"))


def _add_record_options(group: Any) -> None:
    group.add_argument(
        "--schema",
        metavar="FILE",
        help="a schema.pbtxt (TensorFlow Metadata); without it the types are inferred over all the data",
    )
    group.add_argument(
        "--dtype",
        action="append",
        default=[],
        metavar="FEATURE=DTYPE",
        help="instead of the inferred type: price=float64, image=uint8[28,28]; repeatable",
    )
    group.add_argument(
        "--label",
        metavar="COLUMN",
        help="the label: strings become class numbers, and readers return it as y by default",
    )
    group.add_argument(
        "--max-rejects",
        default="0",
        metavar="N|P%",
        help="how many records may be unusable (default 0); they are listed in OUT/rejects",
    )
    group.add_argument(
        "--follow-links", action="store_true", help="follow symbolic links that lead out of an INPUT folder"
    )


def _add_order_options(group: Any) -> None:
    group.add_argument("--seed", type=int, default=0, help="of the shuffle (default 0)")
    group.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the input")
    group.add_argument(
        "--key",
        metavar="COLUMN",
        help="shuffle by a hash of this column, so that a record keeps its place and split when others are added",
    )
    group.add_argument(
        "--splits",
        metavar="NAME=P,...",
        help="divide at random: train=0.9,validation=0.1; default: what folders say, else all is train",
    )
    group.add_argument(
        "--split-from",
        choices=("auto", "folders", "names", "none"),
        help="what names the split, where --splits is not given (default auto)",
    )
    group.add_argument(
        "--split-by", metavar="COLUMN", help="keep records with equal values of this column in one split"
    )
    group.add_argument("--split-seed", type=int, default=0, help="of the division into splits (default 0)")


def _add_shard_options(group: Any) -> None:
    group.add_argument("--shard-size", metavar="SIZE", help="of each shard, before compression (default 128MiB)")
    group.add_argument("--num-shards", type=int, metavar="N", help="exactly N shards per split, instead")
    group.add_argument("--compression", choices=("none", "gzip"), default="none", help="of the shards (default none)")
    group.add_argument("--name", help="of the data set (default: OUT's own name)")


def _add_transform_options(group: Any) -> None:
    group.add_argument(
        "--transform",
        metavar="FILE",
        help="what to make of the records: transform.yaml, a mapping of features to steps, or transform.py[:FUNCTION], "
        "a preprocessing_fn of tf.Transform",
    )
    group.add_argument("--fit-on", metavar="SPLIT", help="the split whose records it is fitted on (default train)")
    group.add_argument("--keep-raw", action="store_true", help="keep the features as they were, too, as raw/NAME")
    group.add_argument("--transform-from", metavar="OUT", help="take the transform of that data set as it is")


def _add_image_options(group: Any) -> None:
    group.add_argument(
        "--labels",
        metavar="FILE",
        help="a CSV or JSONL file with a row per image: its path, and columns that become features",
    )
    group.add_argument(
        "--labels-path-column",
        metavar="COLUMN",
        help="the column of paths (default: file_name, filename, path, image, ...)",
    )
    group.add_argument(
        "--missing",
        choices=("reject", "ignore"),
        help="what becomes of rows without a file and files without a row (default reject)",
    )
    group.add_argument(
        "--check",
        choices=("structure", "decode"),
        help="how images are checked: the container is complete (default), or every pixel decodes",
    )
    group.add_argument(
        "--max-pixels", type=int, metavar="N", help="reject images with more pixels, before decoding them"
    )
    group.add_argument("--class-from", choices=("auto", "folders", "none"), help="what names the class (default auto)")


def _add_csv_options(group: Any) -> None:
    group.add_argument("--delimiter", metavar="C", help="one character, or 'tab' (default: told from the content)")
    group.add_argument("--quote", metavar="C", help="one character, or 'none' (default: the double quote)")
    group.add_argument("--escape", metavar="C", help="a character that makes the next one literal")
    group.add_argument(
        "--null",
        dest="null_tokens",
        action="append",
        metavar="TOKEN",
        help="how a missing value is written (default: empty and NA); repeatable",
    )
    group.add_argument(
        "--no-header", dest="header", action="store_const", const=False, help="the first row is data; needs --names"
    )
    group.add_argument("--names", metavar="A,B,...", help="the columns' names, in place of the header's")
    group.add_argument("--comment", metavar="C", help="lines that start with it are skipped")
    group.add_argument("--skip-lines", type=int, metavar="N", help="lines to skip at the start of each file")
    group.add_argument(
        "--columns", choices=("union", "strict"), help="files with other columns: take all (default), or refuse"
    )
    group.add_argument("--trim", action="store_const", const=True, help="drop blanks around fields")
    group.add_argument(
        "--max-row-bytes",
        metavar="SIZE",
        help="a longer row is rejected (default 16MiB): what an unclosed quote can swallow",
    )


def _add_text_options(group: Any) -> None:
    group.add_argument("--encoding", help="of text, JSONL and CSV files (default utf-8)")
    group.add_argument(
        "--text-mode",
        dest="mode",
        choices=("auto", "lines", "documents"),
        help="text: a record is a line, or a file (default: told from the files)",
    )
    group.add_argument(
        "--no-blank-lines",
        dest="blank_lines",
        action="store_const",
        const=False,
        help="text: lines of nothing but white space are no records",
    )
    group.add_argument("--max-line-bytes", metavar="SIZE", help="a longer line, or text document, is rejected")


def _add_parquet_options(group: Any) -> None:
    group.add_argument("--select", metavar="A,B,...", help="only these columns")


def _add_run_options(group: Any) -> None:
    group.add_argument(
        "--memory",
        default="2GiB",
        metavar="SIZE",
        help="what the build may hold at once, beside the interpreter (default 2GiB)",
    )
    group.add_argument("--threads", type=int, metavar="N", help="default: all cores")
    group.add_argument("--runner", metavar="RUNNER", help="the Beam runner (default: FnApiRunner, in this process)")
    group.add_argument(
        "--exchange",
        choices=("files", "runner"),
        help="how records reach their shards: in files all workers see (default), or through the runner, which "
        "must hold them",
    )
    group.add_argument("--quiet", action="store_true", help="no progress and no summary")
    group.add_argument("--json", action="store_true", help="print a machine-readable summary on stdout")


# Options of one kind, by the field of its option object; the value is how the text becomes the field's.
_KIND_FIELDS = (
    *("labels", "labels_path_column", "missing", "check", "max_pixels", "class_from", "split_from"),
    *(
        "delimiter",
        "quote",
        "escape",
        "null_tokens",
        "header",
        "names",
        "comment",
        "skip_lines",
        "columns",
        "trim",
        "max_row_bytes",
    ),
    *("encoding", "mode", "blank_lines", "max_line_bytes", "select"),
)


def run(args: argparse.Namespace) -> int:
    """Build and say what was built; 0 if a data set was committed."""
    from recordmill.pipelines.build import build
    from recordmill.pipelines.sizes import parse_dtypes

    kind, inputs = _kind(args.inputs)
    result = build(
        inputs,
        args.out,
        quiet=args.quiet,
        kind=kind,
        options=_kind_options(args) or None,
        schema=args.schema,
        dtypes=parse_dtypes(args.dtype),
        label=args.label,
        splits=args.splits,
        split_by=args.split_by,
        split_seed=args.split_seed,
        key=args.key,
        seed=args.seed,
        shuffle=args.shuffle,
        name=args.name,
        shard_size=args.shard_size,
        num_shards=args.num_shards,
        compression=args.compression,
        overwrite=args.overwrite,
        max_rejects=args.max_rejects,
        threads=args.threads,
        memory=args.memory,
        exchange=args.exchange,
        runner=args.runner,
        beam_args=tuple(args.beam_args),
        follow_links=args.follow_links,
        transform=args.transform,
        transform_from=args.transform_from,
        fit_on=args.fit_on,
        keep_raw=args.keep_raw,
    )
    if args.json:
        print(json.dumps(result.to_json()))  # in ASCII: whatever the names and the terminal's encoding
    elif not args.quiet:
        with contextlib.suppress(OSError):  # nobody reads stderr any more: the data set is complete all the same
            print("\n".join(summary(result)), file=sys.stderr)
    return 0


def summary(result: Any) -> list[str]:
    """What was built, for people."""
    from recordmill.pipelines.sizes import show_size

    size = sum(shard.bytes for _, _, shard in result.manifest.shards())
    lines = [f"note: {note}" for note in result.notes]
    accounts = f"{result.read:,} records read, {result.read - result.rejected:,} written, {result.rejected:,} rejected"
    lines.append(f"{result.out}: {result.kind}, {accounts}, in {result.seconds:.1f} s")
    for split, count in result.records.items():
        shards = len(result.manifest.shards(split))
        lines.append(f"  {split}: {count:,} records in {shards:,} shard{'s' if shards != 1 else ''}")
    lines.append(
        f"  {len(result.schema)} features, {show_size(size)}"
        + (f", label {result.schema.label}" if result.schema.label else "")
    )
    lines += [f"  rejects: {path}" for path in result.rejects]
    return lines


def _kind(inputs: list[str]) -> tuple[str | None, list[str]]:
    """A first word that is a kind is the kind, if an INPUT follows; `./csv` names a folder called csv."""
    if inputs[0] in KINDS and len(inputs) > 1:
        return inputs[0], inputs[1:]
    return None, inputs


def _kind_options(args: argparse.Namespace) -> dict[str, Any]:
    from recordmill.pipelines.sizes import parse_size

    given = {name: getattr(args, name) for name in _KIND_FIELDS if getattr(args, name) is not None}
    for name in ("max_row_bytes", "max_line_bytes"):
        if name in given:
            given[name] = parse_size(given[name], "--" + name.replace("_", "-"))
    for name in ("delimiter", "quote", "escape", "comment"):
        if name in given:
            given[name] = {"tab": "\t", "\\t": "\t", "none": None}.get(given[name], given[name])
    for name in ("null_tokens", "names", "select"):
        if name in given:
            given[name] = tuple(given[name] if name == "null_tokens" else given[name].split(","))
    return given
