"""The tables of docs/scaling.md, by the formulas of `build_scaling` and `read_scaling`.

python docs/make_scaling.py          prints them
python docs/make_scaling.py PAGE     puts them into the page, behind the lines that name this program
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from build_scaling import (
    MOST_BUCKETS,
    RECORD_FILE_MEMORY,
    Build,
    most_files_in_workers,
    most_merged_bytes,
    most_planned_bytes,
)
from read_scaling import Read, most_piece_bytes, most_read_bytes

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.sizes import show_size
from recordmill.building.cuts import GROWN_SHARDS, MOST_SHARDS, ShardOptions
from recordmill.building.workers.survey import FAN_IN

MARK, END = "<!-- python docs/make_scaling.py docs/scaling.md: %s -->\n", "<!-- end -->\n"
SIZES = {"100 GB": 10**11, "1 TB": 10**12, "10 TB": 10**13, "100 TB": 10**14}
ROWS: dict[str, Callable[[Build], str]] = {
    "records of 1,000 bytes": lambda one: f"{one.records:,}",
    "input files of 1 GiB": lambda one: f"{one.files:,}",
    "size of a shard": lambda one: show_size(one.shard_bytes),
    "shards": lambda one: f"{one.shards:,}",
    "runs": lambda one: f"{one.runs:,}",
    "merges of runs": lambda one: f"{one.merges:,}",
    "slices of shards": lambda one: f"{one.slices:,}",
    "elements through the engine": lambda one: f"{one.elements:,}",
    "ranges read of runs": lambda one: f"{one.reads:,}",
    "objects put or copied": lambda one: f"{one.writes:,}",
    "fetched for a shard, times its size": lambda one: f"{one.over_read:.2f}",
    "bytes read by workers": lambda one: show_size(one.bytes_read),
    "bytes written by workers": lambda one: show_size(one.bytes_written),
    "temporary files in OUT": lambda one: show_size(one.scratch_bytes),
    "manifest": lambda one: show_size(one.manifest_bytes),
    "pages of its entries": lambda one: show_size(one.pages_bytes) if one.pages else "none",
    "memory of the manifest, while it is read": lambda one: show_size(one.manifest_memory),
    "all indexes": lambda one: show_size(one.index_bytes),
    "list of inputs": lambda one: show_size(one.inputs_bytes),
    "plan, as each worker process fetches it": lambda one: show_size(one.plan_bytes),
    "list of runs and shards, as each worker process fetches it": lambda one: show_size(one.layout_bytes),
    "lists of files and units, of which workers read slices": lambda one: show_size(one.lists_bytes),
    "memory of the plan in the driver": lambda one: show_size(one.driver_memory),
    "memory of the plan in each worker process": lambda one: show_size(one.plan_memory),
    "statistics of all runs in OUT, at most": lambda one: show_size(one.statistics_bytes),
    "memory of statistics in each thread that reads, at most": lambda one: show_size(one.sketch_memory),
    "additional memory: statistics in the survey": lambda one: show_size(one.statistics_memory),
    "additional memory: making shards": lambda one: show_size(one.layout_memory),
    "additional memory: survey": lambda one: show_size(one.survey_memory),
    "additional memory: last step": lambda one: show_size(one.last_memory),
}


READ_ROWS: dict[str, Callable[[Read], str]] = {
    "jobs, and output files": lambda one: f"{one.jobs:,}",
    "elements through the engine": lambda one: f"{one.elements:,}",
    "index entries that workers read": lambda one: show_size(one.index_bytes),
    "plan, as each worker process fetches it": lambda one: show_size(one.plan_bytes),
    "lists of jobs and shards, of which workers read slices": lambda one: show_size(one.lists_bytes),
    "memory of the plan in the driver": lambda one: show_size(one.driver_memory),
    "memory of the plan in each worker process": lambda one: show_size(one.plan_memory),
    "list of output files": lambda one: show_size(one.list_bytes),
    "additional memory: last step": lambda one: show_size(one.last_memory),
}


def tables() -> dict[str, str]:
    """The tables, in Markdown, by what they are of."""
    builds = [Build(size) for size in SIZES.values()]
    reads = [Read(one.framed_bytes, one.shard_bytes) for one in builds]
    head = ["", *SIZES]
    return {
        "build": _table(head, [[name, *map(show, builds)] for name, show in ROWS.items()]),
        "read": _table(head, [[name, *map(show, reads)] for name, show in READ_ROWS.items()]),
        "limits": _table(["beyond", "what happens", "what helps"], walls()),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def walls() -> list[Sequence[str]]:
    """(limit, what happens beyond it, what helps) with the default options, in the order of inputs, then of bytes."""
    shard, memory = ShardOptions.shard_bytes, show_size(DEFAULT_MEMORY_BYTES)
    return [
        (
            f"{DEFAULT_MEMORY_BYTES // RECORD_FILE_MEMORY:,} input files of TFRecords",
            f"the list of them takes {memory} in the driver while it plans, in addition to `--memory`",
            "fewer and larger files, or more memory for the driver",
        ),
        (
            f"{most_files_in_workers():,} input files",
            f"the list of them and of digests takes {memory} in the worker that commits, in addition to `--memory`",
            "fewer and larger files, or more memory in workers",
        ),
        (
            f"{show_size(GROWN_SHARDS * shard)} of input files",
            f"shards are larger than {show_size(shard)}, so that they are no more than {GROWN_SHARDS:,}",
            "nothing is needed; `--shard-size` sets another size",
        ),
        (
            f"{show_size(MOST_BUCKETS * shard)} in a split, with `--shard-size {show_size(shard)}`",
            f"more shards than the {MOST_BUCKETS:,} buckets of keys: more than twice a shard's size is fetched for it",
            "no `--shard-size`, or a larger one",
        ),
        (
            f"{show_size(MOST_SHARDS * shard)} in a split, with `--shard-size {show_size(shard)}`",
            f"refused: more than {MOST_SHARDS:,} shards; the message names a `--shard-size` that works",
            "no `--shard-size`, or that",
        ),
        (
            f"{show_size(most_planned_bytes())}",
            f"the list of units alone takes {memory} in the driver, in addition to `--memory`",
            "more memory for the driver, or several data sets",
        ),
        (
            f"{show_size(most_merged_bytes())}",
            f"a shard is merged from more than {FAN_IN:,} files, because runs are merged once only",
            "a larger `--memory`, which makes larger runs",
        ),
        (
            f"{show_size(most_piece_bytes(DEFAULT_MEMORY_BYTES))} of input of a read that has no index",
            f"the list of their pieces alone takes {memory} in the driver, in addition to `--memory`",
            "more memory for the driver, or one `--split` at a time",
        ),
        (
            f"{show_size(most_read_bytes(DEFAULT_MEMORY_BYTES))} of a data set that is read",
            f"the list of output files takes {memory} in the last step and in the driver, in addition to `--memory`",
            "a larger `--file-size`, or one `--split` at a time",
        ),
    ]


def in_page(page: str) -> str:
    """The page with the tables as they are now."""
    for name, table in tables().items():
        before, mark, after = page.partition(MARK % name)
        _, end, rest = after.partition(END)
        assert mark, f"no line {MARK % name!r}"
        assert end, f"no line {END!r}"
        page = f"{before}{mark}{table}{end}{rest}"
    return page


if __name__ == "__main__":
    if sys.argv[1:]:
        path = Path(sys.argv[1])
        path.write_text(in_page(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write("\n".join(tables().values()))
