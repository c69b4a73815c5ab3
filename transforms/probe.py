"""Probes of the workers of an engine, before a job is submitted.

Each probed worker reports its versions of the packages, and whether it sees the files that it will
need. The report is the name of a counter, because every engine returns counters.
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
_MAX_MESSAGE_LENGTH = 300  # characters: a report must fit into the name of a counter


@dataclass(frozen=True)
class ProbeRequest:
    """The files that a worker must be able to see.

    Attributes:
        token: Path of a file in the run's folder that the worker must be able to read, or "" for
            none.
        text: The expected content of this file.
        inputs: (path, size in bytes) of input files that the worker must see.
    """

    token: str = ""
    text: str = ""
    inputs: tuple[tuple[str, int], ...] = ()


def find_versions() -> dict[str, str]:
    """Returns the installed version of Python and of each of PACKAGES, by name.

    The version of Python is only "major.minor". The version of a missing package is "".
    """
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def probe_worker(_: int, request: ProbeRequest) -> dict[str, Any]:
    """Checks this process, and returns its report.

    Returns:
        A dict with `host`, `pid` and the versions by package name. `out` and `inputs` are error
        messages about the file in the run folder and the input files, or "" if all can be read.
    """
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
    """Probes this worker, and yields the number of the probe.

    The report becomes the name of a counter, as JSON. The value of the counter has no meaning.

    Args:
        probe_number: Any number. It makes Beam distribute the probes.
        request: The files that the worker must be able to see.
    """
    counter(PROBE_NAMESPACE, json.dumps(probe_worker(probe_number, request), sort_keys=True)).inc()
    yield probe_number


def probe_workers(pipeline: Pipeline, request: ProbeRequest, count: int) -> PCollection:
    """Adds `count` probes to a pipeline, distributed over its workers.

    Returns:
        The output of the probes, which has no meaning. The reports are in the metrics of the job.
    """
    return pipeline | Create(range(count)) | Reshuffle() | FlatMap(report_probe, request)


def collect_probe_results(metrics: Any) -> list[dict[str, Any]]:
    """Returns the reports of the workers from the metrics of a finished job.

    There is one report for each process, even if it was probed several times.
    """
    by_process = {}
    for result in metrics.query()["counters"]:
        if result.key.metric.namespace == PROBE_NAMESPACE:
            facts = json.loads(result.key.metric.name)
            by_process[facts["host"], facts["pid"]] = facts
    return list(by_process.values())
