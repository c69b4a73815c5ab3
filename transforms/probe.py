"""The job that looks before another is submitted: from each worker that it meets what is installed there and whether
it sees what it will need, as the name of a counter, which every engine hands back.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recordmill.storage.files import read_range, stat
from recordmill.transforms.beam_types import (
    Create,
    FlatMap,
    PCollection,
    Pipeline,
    Reshuffle,
    counter,
)

PROBE_NAMESPACE = "recordmill.preflight"
PACKAGES = ("recordmill", "apache-beam", "numpy", "pyarrow", "tensorflow-metadata")
MUST_MATCH = ("python", "recordmill", "apache-beam", "numpy", "pyarrow")
_LONGEST = 300


@dataclass(frozen=True)
class ProbeRequest:
    """Questions for a worker. token: a file in the run's folder with that text, "" for none. inputs: (path, bytes) that
    it should see.
    """

    token: str = ""
    text: str = ""
    inputs: tuple[tuple[str, int], ...] = ()


def installed() -> dict[str, str]:
    """Returns versions by name: of Python major and minor, of packages the whole; "" where one is not there."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def probe_worker(_: int, wanted: ProbeRequest) -> dict[str, Any]:
    """Returns what this process has and sees; `out` and `inputs` say what is wrong, "" for nothing."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **installed(),
        "out": _see_token(wanted)[:_LONGEST],
        "inputs": _see_inputs(wanted)[:_LONGEST],
    }


def _see_token(wanted: ProbeRequest) -> str:
    if not wanted.token:
        return ""
    try:
        content = bytes(read_range(wanted.token).tobytes()).decode(errors="replace")
    except (OSError, ValueError) as error:
        return f"{wanted.token}: {getattr(error, 'strerror', None) or error}"
    return (
        ""
        if content == wanted.text
        else f"{wanted.token}: another folder of that name, not the one that is written to here"
    )


def _see_inputs(wanted: ProbeRequest) -> str:
    for path, size in wanted.inputs:
        try:
            size_there = stat(path).size_bytes
        except (OSError, ValueError) as error:
            return f"{path}: {getattr(error, 'strerror', None) or error}"
        if size_there != size:
            return f"{path}: {size_there:,} bytes there, {size:,} here"
    return ""


def count_facts(number: int, wanted: ProbeRequest) -> Iterator[int]:
    """Look, and count what was found."""
    counter(PROBE_NAMESPACE, json.dumps(probe_worker(number, wanted), sort_keys=True)).inc()
    yield number


def probe_workers(pipeline: Pipeline, wanted: ProbeRequest, looks: int) -> PCollection:
    """Probes the workers as often as told, spread over them."""
    return pipeline | Create(range(looks)) | Reshuffle() | FlatMap(count_facts, wanted)


def facts_of(metrics: Any) -> list[dict[str, Any]]:
    """Returns the workers' answers from a finished job's metrics; one entry for each process."""
    by_process = {}
    for result in metrics.query()["counters"]:
        if result.key.metric.namespace == PROBE_NAMESPACE:
            facts = json.loads(result.key.metric.name)
            by_process[facts["host"], facts["pid"]] = facts
    return list(by_process.values())
