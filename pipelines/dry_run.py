"""`read --dry-run`: the inputs and options of a read to a `ReadEstimate`, without anything being written."""

from __future__ import annotations

from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import show_size
from recordmill.exporting.estimate import ReadEstimate, estimate
from recordmill.exporting.plan import plan_read, read_peak_bytes
from recordmill.options.commands import refuse_unserved
from recordmill.pipelines.read_options import make_settings
from recordmill.records.writers.outputs import find_output
from recordmill.shards.catalog import Inputs


def dry_run(inputs: Inputs, **options: Any) -> ReadEstimate:
    """What `read` with these options would write.

    Raises:
        UsageError: an option or an input can't be served. DataError: a record that was looked at is damaged.
    """
    settings = make_settings(**options)
    refuse_unserved("read", {**options, "dry_run": True})
    plan = plan_read(inputs, settings.plan, schema=settings.schema, threads=settings.threads)
    found = estimate(plan, read_peak_bytes(settings.threads))
    check_fits(found, settings.memory_bytes)
    return found


def check_fits(found: ReadEstimate, memory_bytes: int) -> None:
    """Raises UsageError for an output whose readers would need more memory than the read may take."""
    if find_output(found.to).loads_whole and found.disk_bytes > memory_bytes:
        raise UsageError(
            f"{option('to', found.to)}: the arrays take about {show_size(found.disk_bytes)}, more than the "
            f"{show_size(memory_bytes)} of {option('memory')}; use {option('to', 'npy')}"
        )


def describe_estimate(found: ReadEstimate) -> str:
    """The estimate as lines for people."""
    splits = ", ".join(f"{name} {count:,}" for name, count in found.records.items()) or "no records"
    what = "folder" if find_output(found.to).has_layout else "output"
    lines = [
        f"{found.rows:,} records ({splits}) would be written to {found.outputs} "
        f"{what}{'s' if found.outputs != 1 else ''} of {found.to}"
    ]
    width = max((len(column.feature.name) for column in found.columns), default=0)
    for column in found.columns:
        shape = ", ".join("?" if size is None else f"{size:,}" for size in column.shape)
        missing = "" if column.feature.required else ", may be missing"
        lines.append(
            f"  {column.feature.name:{width}}  {column.feature.dtype} [{shape}]{missing}: "
            f"{'' if column.exact else 'about '}{show_size(column.bytes)}"
        )
    lines.append(
        f"disk: about {show_size(found.disk_bytes)} (from {found.sampled:,} records looked at); memory: at "
        f"most {show_size(found.memory_bytes)}"
    )
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)
