"""`recordmill verify`: the command line of `shards.verify`;
exit code 0 if nothing is wrong, 1 and the list if something is.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

_EPILOG = """\
examples:
  recordmill verify shards                 everything that the manifest promises, byte by byte
  recordmill verify 'old/*.tfrecord'       frames and CRCs of any TFRecord files

Exit code: 0 nothing is wrong; 1 the list of what is wrong stands on stdout, with file and offset.
"""


def add_parser(commands: Any) -> None:
    """Add the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "verify",
        help="check every byte of a data set against its manifest",
        description="Check a data set against its manifest (count, size, SHA-256, CRCs, sums, index, stray files), or "
        "any TFRecord files by their CRCs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a data set's folder, or TFRecord files, folders of them, or quoted globs",
    )
    parser.add_argument(
        "--mend",
        action="store_true",
        help="write manifest.json and schema.pbtxt anew where they differ from the manifest",
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="shards checked at once (default: all cores)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary, only what is wrong")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify and say what is wrong; 1 if anything is that was not mended."""
    from recordmill.base.progress import Progress
    from recordmill.pipelines.display import Display
    from recordmill.shards.verify import verify

    progress = Progress()
    progress.begin("verify")
    with Display(progress, args.quiet):
        found = verify(
            args.inputs,
            threads=args.threads,
            mend=args.mend,
            progress=lambda records: progress.advance(records=records),
        )
    wrong = [finding for finding in found if not finding.mended]
    if args.json:
        findings = [{"file": f.file, "place": f.place, "problem": f.problem, "mended": f.mended} for f in found]
        print(json.dumps({"records": progress.records, "findings": findings}, indent=1, ensure_ascii=False))
    else:
        for finding in found:
            print(finding)
        if not args.quiet:
            verdict = f"{len(wrong)} problem{'s' if len(wrong) != 1 else ''}" if wrong else "nothing is wrong"
            print(f"{progress.records:,} records checked: {verdict}", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0
