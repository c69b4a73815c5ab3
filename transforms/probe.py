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
_MAX_MESSAGE_LENGTH = 300


@dataclass(frozen=True)
class ProbeRequest:
    """Questions for a worker. token: a file in the run's folder with that text, "" for none. inputs: (path, bytes) that
    it should see.
    """

    token: str = ""
    text: str = ""
    inputs: tuple[tuple[str, int], ...] = ()


def find_versions() -> dict[str, str]:
    """Returns versions by name: of Python major and minor, of packages the whole; "" where one is not there."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def probe_worker(_: int, request: ProbeRequest) -> dict[str, Any]:
    """Returns what this process has and sees; `out` and `inputs` say what is wrong, "" for nothing."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **find_versions(),
        "out": _check_token(request)[:_MAX_MESSAGE_LENGTH],
        "inputs": _check_inputs(request)[:_MAX_MESSAGE_LENGTH],
    }


def _check_token(request: ProbeRequest) -> str:
    if not request.token:
        return ""
    try:
        content = bytes(read_range(request.token).tobytes()).decode(errors="replace")
    except (OSError, ValueError) as error:
        return f"{request.token}: {getattr(error, 'strerror', None) or error}"
    return (
        ""
        if content == request.text
        else f"{request.token}: another folder of that name, not the one that is written to here"
    )


def _check_inputs(request: ProbeRequest) -> str:
    for path, size in request.inputs:
        try:
            actual_size = stat(path).size_bytes
        except (OSError, ValueError) as error:
            return f"{path}: {getattr(error, 'strerror', None) or error}"
        if actual_size != size:
            return f"{path}: {actual_size:,} bytes there, {size:,} here"
    return ""


def report_probe(probe_number: int, request: ProbeRequest) -> Iterator[int]:
    """Look, and count what was found."""
    counter(PROBE_NAMESPACE, json.dumps(probe_worker(probe_number, request), sort_keys=True)).inc()
    yield probe_number


def probe_workers(pipeline: Pipeline, request: ProbeRequest, count: int) -> PCollection:
    """Probes the workers as often as told, spread over them."""
    return pipeline | Create(range(count)) | Reshuffle() | FlatMap(report_probe, request)


def collect_probe_results(metrics: Any) -> list[dict[str, Any]]:
    """Returns the workers' answers from a finished job's metrics; one entry for each process."""
    by_process = {}
    for result in metrics.query()["counters"]:
        if result.key.metric.namespace == PROBE_NAMESPACE:
            facts = json.loads(result.key.metric.name)
            by_process[facts["host"], facts["pid"]] = facts
    return list(by_process.values())
