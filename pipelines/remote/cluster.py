"""Checks of an engine that need no job.

The checks find out whether the engine answers, whether it has free slots and memory, and whether
the flags fit it. This module also chooses the parallelism of a job on Flink.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.pipelines.remote.flink import EngineGone, Flink, Overview
from recordmill.storage.folders import exists


def get_parallelism(options: Any) -> int | None:
    """Returns the value of `--parallelism`, or None if it is not given."""
    value = options.get_all_options(drop_default=True, retain_unknown_options=True).get(
        "parallelism"
    )
    return None if value is None else int(value)


def with_parallelism(runner: str, beam_args: Sequence[str], options: Any) -> tuple[str, ...]:
    """Returns the flags for Beam, and adds the parallelism for Flink.

    If the flags don't contain it, the parallelism is the number of free slots. Flink's own default
    is 1.
    """
    from apache_beam.options.pipeline_options import FlinkRunnerOptions

    if "flink" not in runner.lower() or get_parallelism(options) is not None:
        return tuple(beam_args)
    flink = Flink.from_master(options.view_as(FlinkRunnerOptions).flink_master)
    try:
        overview = flink.get_overview() if flink is not None else None
        # If no job runs, all slots count: those of a job that has just ended become free a moment
        # later.
        free = 0 if overview is None else overview.free if overview.jobs else overview.slots
    except EngineGone:
        free = 0
    return (*beam_args, f"--parallelism={free}") if free else tuple(beam_args)


# A file in Beam's job servers. Its path has the engine and the version of the engine.
_POM = re.compile(
    r"META-INF/maven/org\.apache\.beam/beam-runners-(flink|spark)-([\d.]+)/pom\.properties"
)


@dataclass(frozen=True)
class ClusterFinding:
    """A result of a check.

    Attributes:
        what: The subject, such as "slots".
        detail: The observation.
        remedy: The change that the user should make. "" if nothing is wrong.
    """

    what: str
    detail: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """True if nothing has to change."""
        return not self.remedy

    @property
    def text(self) -> str:
        """The finding as a message, for `render`."""
        template = "{what}: {detail}; {remedy}" if self.remedy else "{what}: {detail}"
        return Message(template, what=self.what, detail=self.detail, remedy=self.remedy)

    def __str__(self) -> str:
        return str(self.text)

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable form that `--json` prints."""
        return {"what": self.what, "detail": self.detail, "ok": self.ok, "remedy": self.remedy}


def check_cluster(runner: str, options: Any) -> list[ClusterFinding]:
    """Checks the engine that the flags name, and returns all findings, good and bad."""
    from apache_beam.options.pipeline_options import (
        FlinkRunnerOptions,
        PortableOptions,
        PrismRunnerOptions,
        SetupOptions,
    )

    name = runner.lower()
    portable = options.view_as(PortableOptions)
    findings = _check_environment(
        portable, name, options.view_as(SetupOptions).setup_file is not None
    )
    if "prism" in name:
        location = options.view_as(PrismRunnerOptions).prism_location
        if location and "://" not in location and not exists(location):
            findings.append(
                ClusterFinding(
                    "Prism",
                    f"--prism_location {location} is not there",
                    "name the file of the program",
                )
            )
    if portable.job_endpoint and portable.job_endpoint != "embed":
        findings.append(_check_endpoint(portable.job_endpoint))
    flink_options = options.view_as(FlinkRunnerOptions)
    flink = (
        Flink.from_master(flink_options.flink_master)
        if "flink" in name or "portable" in name
        else None
    )
    if flink is None:
        return findings
    try:
        overview = flink.get_overview()
    except EngineGone as error:
        reason = str(error).removeprefix(f"{flink.url}/overview: ")
        remedy = "start Flink, or name its REST address: --flink_master=HOST:8081"
        return [
            *findings,
            ClusterFinding("Flink", f"{flink.url} does not answer ({reason})", remedy),
            # The version of the cluster is unknown, so more than this can't be checked.
            *_check_jar_exists(flink_options),
        ]
    findings.append(ClusterFinding("Flink", f"{overview.version} at {flink.url}"))
    findings.append(_check_slots(flink, overview, get_parallelism(options)))
    if "flink" in name:
        findings.append(_check_jar(flink_options, overview))
    if portable.environment_type == "LOOPBACK" and overview.task_managers > 1:
        detail = f"LOOPBACK serves one TaskManager, and there are {overview.task_managers}"
        remedy = (
            "--environment_type=PROCESS with recordmill-worker, or EXTERNAL "
            "with a worker pool next to each"
        )
        findings.append(ClusterFinding("workers", detail, remedy))
    return findings


def _check_slots(flink: Flink, overview: Overview, parallelism: int | None) -> ClusterFinding:
    detail = f"{overview.free} of {overview.slots} free, on {overview.task_managers} TaskManagers"
    if not overview.slots:
        return ClusterFinding(
            "slots",
            "there is no TaskManager",
            "start one, with taskmanager.numberOfTaskSlots slots",
        )
    if overview.free < (parallelism or 1):
        jobs = f"end the jobs that use the slots ({flink.url}/#/job/running)"
        fewer = f"use --parallelism={overview.free}, " if overview.free else ""
        return ClusterFinding(
            "slots",
            f"{parallelism or 1} are needed, {detail}",
            f"{fewer}start more TaskManagers, or {jobs}",
        )
    return ClusterFinding("slots", detail)


def _check_jar(options: Any, overview: Overview) -> ClusterFinding:
    jar = options.flink_job_server_jar
    # Beam builds a job server for each minor version, such as 1.19.
    version = ".".join(overview.version.split(".")[:2])
    if not jar:
        if str(options.flink_version) == version:
            return ClusterFinding("job server", f"Beam downloads that of Flink {version}")
        remedy = f"--flink_version={version}, or --flink_job_server_jar=FILE of one that is built for {version}"
        return ClusterFinding(
            "job server",
            f"Beam's default is for Flink {options.flink_version}, not {version}",
            remedy,
        )
    if "://" in jar:
        return ClusterFinding("job server", jar)
    if missing := _check_jar_exists(options):
        return missing[0]
    try:
        with zipfile.ZipFile(jar) as archive:
            engines = {
                match[1]: match[2] for name in archive.namelist() if (match := _POM.fullmatch(name))
            }
    except (OSError, zipfile.BadZipFile):
        return ClusterFinding(
            "job server", f"{jar} is not a jar", "name the jar of Beam's Flink job server"
        )
    if "flink" not in engines:
        jar_version = (
            f"Beam's job server for {', '.join(engines)}"
            if engines
            else "not known as Beam's job server"
        )
        return ClusterFinding(
            "job server",
            f"{jar} is {jar_version}",
            "" if not engines else ("name the jar for Flink"),
        )
    if engines["flink"] != version:
        remedy = (
            f"name one that is built for {version} (org.apache.beam:beam-runners-flink-{version})"
        )
        return ClusterFinding(
            "job server", f"{jar} is for Flink {engines['flink']}, the cluster is {version}", remedy
        )
    return ClusterFinding("job server", f"{jar}, for Flink {version}")


def _check_jar_exists(options: Any) -> list[ClusterFinding]:
    jar = options.flink_job_server_jar
    if not jar or "://" in jar or exists(jar):
        return []
    return [
        ClusterFinding("job server", f"--flink_job_server_jar {jar} is not there", "name the file")
    ]


def _check_endpoint(endpoint: str) -> ClusterFinding:
    import grpc

    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=10)
        except grpc.FutureTimeoutError:
            return ClusterFinding(
                "job server",
                f"nothing answers at --job_endpoint {endpoint}",
                "start it, or name another HOST:PORT",
            )
    return ClusterFinding("job server", f"answers at {endpoint}")


def _check_environment(portable: Any, runner: str, has_setup: bool) -> list[ClusterFinding]:
    kind, config = portable.environment_type, portable.environment_config
    if not any(word in runner for word in ("flink", "spark", "portable")):
        return []
    if kind == "EXTERNAL" and (not config or urlsplit(f"//{config}").port is None):
        return [
            ClusterFinding(
                "workers",
                f"--environment_config {config}",
                "name the worker pool: --environment_config=localhost:50000",
            )
        ]
    if kind == "PROCESS":
        try:
            command = json.loads(config or "")["command"]
        except (ValueError, KeyError, TypeError):
            remedy = '--environment_config=\'{"command": "/path/to/recordmill-worker"}\''
            return [
                ClusterFinding("workers", f"--environment_config {config} names no command", remedy)
            ]
        return [ClusterFinding("workers", f"the engine starts {command}")]
    if kind in (None, "DOCKER"):  # Beam's default is DOCKER
        detail = (
            f"containers of {config or 'the image of Beam, in which recordmill is not installed'}"
        )
        remedy = (
            "name one that has it (--environment_type=DOCKER --environment_config=IMAGE), or let the engine start "
            "recordmill-worker (--environment_type=PROCESS)"
        )
        return [ClusterFinding("workers", detail, "" if config or has_setup else remedy)]
    return [ClusterFinding("workers", f"{kind}{f' at {config}' if config else ''}")]


def refuse_findings(findings: Sequence[ClusterFinding]) -> None:
    """Raises UsageError with the first finding that needs a change."""
    for finding in findings:
        if not finding.ok:
            raise UsageError(str(finding))
