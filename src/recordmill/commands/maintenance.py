"""The commands `recordmill verify`, `doctor`, `status` and `clean`."""

from __future__ import annotations

import argparse
import json
import sys

from recordmill.commands.main import Command

_VERIFY_HELP = """\
examples:
  recordmill verify shards                 check every byte against the manifest
  recordmill verify 'old/*.tfrecord'       check the CRCs of any TFRecord files

Exit code: 0 if nothing is wrong; 1 if problems were found, which are listed on stdout with file and offset.
"""


def run_verify(args: argparse.Namespace) -> int:
    """Verifies the inputs and prints the problems.

    Returns:
        The exit code: 1 if there is a problem that was not repaired, else 0.
    """
    from recordmill.base.progress import Progress
    from recordmill.base.sizes import format_count
    from recordmill.options.command_line import options_from_args
    from recordmill.shards.verify import verify

    progress = Progress()
    findings = verify(args.inputs, progress=progress, quiet=args.quiet, **options_from_args(args))
    unmended = [finding for finding in findings if not finding.mended]
    if args.json:
        rows = [
            {"file": f.file, "place": f.place, "problem": f.problem, "mended": f.mended}
            for f in findings
        ]
        print(
            json.dumps(
                {"records": progress.records, "findings": rows}, indent=1, ensure_ascii=False
            )
        )
    else:
        for finding in findings:
            print(finding)
        if not args.quiet:
            verdict = format_count(len(unmended), "problem") if unmended else "nothing is wrong"
            print(f"{format_count(progress.records, 'record')} checked: {verdict}", file=sys.stderr)
    return 1 if unmended else 0


_DOCTOR_HELP = """\
examples:
  recordmill doctor --runner=FlinkRunner --flink_master=HOST:8081 --environment_type=EXTERNAL \\
      --environment_config=localhost:50000
  recordmill doctor photos/ --out /shared/shards --runner=FlinkRunner --flink_master=HOST:8081 ...
      also checks whether the workers see photos/ and /shared/shards

A separate job, which leaves no files, asks the workers. Builds and reads on an engine make the same checks before they
submit. Other flags are passed to Apache Beam.
"""


def run_doctor(args: argparse.Namespace) -> int:
    """Checks an engine and prints the findings.

    Returns:
        The exit code: 1 if something has to change before a job can run, else 0.
    """
    from recordmill.base.messages import render
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.pipelines.beam_run import check_runner
    from recordmill.pipelines.remote.preflight import doctor

    keywords = options_from_args(args)
    check_runner(keywords.get("runner"), args.beam_args)
    findings = doctor(args.inputs, beam_args=tuple(args.beam_args), **keywords)
    spelling = flag_spelling(args.command)
    if args.json:
        entries = [
            render_entries(finding.to_json(), spelling, "detail", "remedy") for finding in findings
        ]
        print(json.dumps(entries, indent=1))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'NO  '}{render(finding, spelling)}")
    return 0 if all(finding.ok for finding in findings) else 1


_STATUS_HELP = """\
examples:
  recordmill status shards           the data set, and each build or read that writes there or has been killed
  recordmill status s3://data/flowers

If the engine is Flink, its REST interface is asked for the state of the job. For other engines, only the name of the job
is shown.
"""


def run_status(args: argparse.Namespace) -> int:
    """Prints the state of output folders and of the runs that write to them. Returns 0."""
    from recordmill.base.messages import render
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.pipelines.remote.status import status

    # The options in the errors of jobs are those of builds and reads.
    spelling = flag_spelling("build")
    statuses = [status(out, **options_from_args(args)) for out in args.inputs]
    if args.json:
        reports = [out_status.to_json() for out_status in statuses]
        for report in reports:
            report["runs"] = [render_entries(run, spelling, "detail") for run in report["runs"]]
        print(json.dumps(reports, indent=1))
        return 0
    for out_status in statuses:
        records = ", ".join(f"{name} {count:,}" for name, count in out_status.records.items())
        print(
            f"{out_status.out}: {f'{records} records' if out_status.generation else 'no data set'}"
        )
        for run in out_status.runs:
            print(f"  {render(run, spelling)}")
    return 0


_CLEAN_HELP = """\
examples:
  recordmill clean shards                       list the files of killed builds and reads
  recordmill clean s3://data/flowers --remove   remove them, here from a store

Builds and reads clean up OUT when they begin. Use this command if you no longer write to OUT.
"""


def run_clean(args: argparse.Namespace) -> int:
    """Lists the files that killed runs have left in output folders. Returns 0.

    With `--remove` it also removes these files.
    """
    from recordmill.options.command_line import options_from_args
    from recordmill.shards.store_run import clean

    keywords = options_from_args(args)
    runs_by_out = {out: clean(out, **keywords) for out in args.inputs}
    removed = bool(keywords.get("remove"))
    if args.json:
        print(json.dumps({"removed": removed, "left": runs_by_out}, indent=1, ensure_ascii=False))
        return 0
    for runs in runs_by_out.values():
        for files in runs.values():
            print("\n".join(files))
    num_files = sum(len(files) for runs in runs_by_out.values() for files in runs.values())
    num_runs = sum(map(len, runs_by_out.values()))
    verdict = (
        "removed"
        if removed
        else "left there; --remove removes them"
        if num_files
        else "nothing to remove"
    )
    runs_text = f"{num_runs} killed run{'s' if num_runs != 1 else ''}"
    files_text = f"{num_files:,} file{'s' if num_files != 1 else ''}"
    print(f"{runs_text}, {files_text}: {verdict}", file=sys.stderr)
    return 0


VERIFY = Command(
    run_verify,
    usage="recordmill verify INPUT... [options]",
    description="Check a data set against its manifest (counts, sizes, digests, CRCs, sums, "
    "index, stray files), or any TFRecord files by their CRCs.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_VERIFY_HELP,
)


DOCTOR = Command(
    run_doctor,
    usage="recordmill doctor --runner RUNNER [--out OUT] [INPUT...] [options]",
    description="Check whether an engine (Flink, Spark, Dataflow, Prism) can run a build or a "
    "read: whether it answers, has free slots and accepts the flags, and whether its "
    "workers see OUT and INPUT and have the same versions installed.",
    inputs=(
        "INPUT",
        "files, folders, quoted globs or @list.txt to check, as for build and read; may "
        "be left out",
    ),
    examples=_DOCTOR_HELP,
    takes_beam_flags=True,
    needs_inputs=False,
)


STATUS = Command(
    run_status,
    usage="recordmill status OUT... [options]",
    description="Show whether OUT contains a data set, and the state of the builds and reads "
    "that write to it, on this machine or on an engine.",
    inputs=("OUT", "folder that builds or reads write to, also in a store"),
    examples=_STATUS_HELP,
)


CLEAN = Command(
    run_clean,
    usage="recordmill clean OUT... [options]",
    description="List the files that killed builds and reads have left in OUT. Files of a data "
    "set, and of builds and reads that may be running, are never listed.",
    inputs=("OUT", "folder that builds or reads write to, also in a store"),
    examples=_CLEAN_HELP,
)
