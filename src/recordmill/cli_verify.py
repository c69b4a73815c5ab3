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


def add_parser(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.pipelines.options.command_line import add_command

    add_command(
        commands,
        "verify",
        run,
        usage="recordmill verify INPUT... [options]",
        summary=summary,
        description="Check a data set against its manifest (count, size, digest, CRCs, sums, index, stray files), or "
        "any TFRecord files by their CRCs.",
        inputs=("INPUT", "a data set's folder, or TFRecord files, folders of them, or quoted globs"),
        examples=_EPILOG,
    )


def run(args: argparse.Namespace) -> int:
    """Verify and say what is wrong; 1 if anything is that was not mended."""
    from recordmill.base.progress import Progress
    from recordmill.pipelines.display import Display
    from recordmill.pipelines.options.command_line import given
    from recordmill.shards.verify import verify

    progress = Progress()
    progress.begin("verify")
    with Display(progress, args.quiet):
        found = verify(
            args.inputs,
            **given(args),
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
            print(f"{progress.records:,} records checked: {verdict}", file=sys.stderr)
    return 1 if wrong else 0
