"""The options that several commands share."""

from __future__ import annotations

from dataclasses import replace

from recordmill.base.machine import MEMORY_BYTES
from recordmill.pipelines.options.declare import NAMES, OFF, REPEATED, SIZE, SWITCH, WHOLE, Option

RUN = "the run"
_SCHEMA_TYPE = "Schema | str | os.PathLike[str]"

SCHEMA = Option(
    "schema",
    "a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred",
    metavar="FILE",
    annotation=_SCHEMA_TYPE,
    common=True,
    decides=True,
)
MAX_REJECTS = Option(
    "max_rejects",
    "how many records may be unusable; they are listed in OUT/rejects",
    default=0,
    metavar="N|P%",
    annotation="str | int",
    common=True,
)
OVERWRITE = Option("overwrite", "replace what OUT holds", form=SWITCH, default=False, common=True)
MEMORY = Option(
    "memory",
    "what may be held at once, beside the interpreter",
    form=SIZE,
    default=f"{MEMORY_BYTES >> 30}GiB",
    metavar="SIZE",
    group=RUN,
    common=True,
)
THREADS = Option(
    "threads",
    "how many threads work",
    form=WHOLE,
    told_default="all cores",
    metavar="N",
    group=RUN,
    common=True,
)
STORAGE_REQUESTS = Option(
    "storage_requests",
    "how many requests to object stores this process has under way at once; from Python it holds until it is said anew",
    form=WHOLE,
    told_default="64",
    metavar="N",
    group=RUN,
)
RUNNER = Option(
    "runner",
    "the Apache Beam runner; flags that recordmill does not know are handed to it",
    metavar="RUNNER",
    group=RUN,
)
BEAM_ARGS = Option(
    "beam_args",
    "flags for Beam's runner, from Python; on the command line they are given as they are",
    form=REPEATED,
    default=(),
    annotation="Sequence[str]",
    group=RUN,
    keyword_only=True,
)
PREFLIGHT = Option(
    "preflight",
    "with a --runner: don't look first whether its workers see OUT and INPUT and have the same versions",
    form=OFF,
    default=True,
    group=RUN,
    needs=("runner",),
)
DETACH = Option(
    "detach",
    "with a --runner: return when the engine has the job; `recordmill status OUT` says what becomes of it",
    form=SWITCH,
    default=False,
    group=RUN,
    shell_only=True,
    needs=("runner",),
)
QUIET = Option(
    "quiet", "no progress and no summary", form=SWITCH, default=False, group=RUN, common=True, shell_only=True
)
JSON = Option(
    "json",
    "print a machine-readable result on stdout",
    form=SWITCH,
    default=False,
    group=RUN,
    common=True,
    shell_only=True,
)
SPLIT = Option("split", "only this split", metavar="NAME", common=True, decides=True)
COLUMNS = Option(
    "columns",
    "only these features, in this order; the others are skipped, not parsed",
    form=NAMES,
    metavar="A,B,...",
    common=True,
    decides=True,
)


def grouped(option: Option, group: str, **changes: object) -> Option:
    """The shared option under another heading, or with a help that is truer there."""
    return replace(option, group=group, **changes)  # type: ignore[arg-type]
