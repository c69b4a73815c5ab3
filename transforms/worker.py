"""The program `recordmill-worker`: a Python worker for engines that start one as a process.

Such engines run with `--environment_type=PROCESS`. The program receives the engine's endpoints, and
becomes Beam's SDK harness, the process that runs the Python code of a job. No code of recordmill
runs here.

Beam's container starts its harness by a program that no Python package contains. This program does
the same on a host where recordmill is installed already. Beam's worker pool has one set of worker
names per TaskManager of Flink. In contrast, this program can serve several TaskManagers on one
host, and it ends with the TaskManager that started it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def run_worker(argv: Sequence[str] | None = None) -> None:
    """Replaces this process by the SDK harness that the engine requested.

    The function does not return.

    Args:
        argv: The flags from the engine. None means the flags of this process.
    """
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2 as api
    from apache_beam.portability.api import beam_provision_api_pb2_grpc as services
    from apache_beam.portability.api import endpoints_pb2
    from google.protobuf import json_format, text_format

    parser = argparse.ArgumentParser("recordmill-worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--id", required=True, help="the worker's name, given by the engine")
    for name in ("provision", "control", "logging", "artifact", "status"):
        parser.add_argument(
            f"--{name}_endpoint", required=name == "provision", default="", help="of the engine"
        )
    args, _ = parser.parse_known_args(argv)

    metadata = (("worker_id", args.id),)
    with grpc.insecure_channel(args.provision_endpoint) as channel:
        service = services.ProvisionServiceStub(channel)
        info = service.GetProvisionInfo(
            api.GetProvisionInfoRequest(), metadata=metadata, timeout=60
        ).info

    def endpoint(flag_url: str, announced_url: str) -> str:
        descriptor = endpoints_pb2.ApiServiceDescriptor(url=flag_url or announced_url)
        return str(text_format.MessageToString(descriptor, as_one_line=True))

    environment = {
        **os.environ,
        "WORKER_ID": args.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "CONTROL_API_SERVICE_DESCRIPTOR": endpoint(
            args.control_endpoint, info.control_endpoint.url
        ),
        "LOGGING_API_SERVICE_DESCRIPTOR": endpoint(
            args.logging_endpoint, info.logging_endpoint.url
        ),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.status_endpoint.url:
        environment["STATUS_API_SERVICE_DESCRIPTOR"] = endpoint(
            args.status_endpoint, info.status_endpoint.url
        )
    harness = [sys.executable, "-m", "apache_beam.runners.worker.sdk_worker_main"]
    # The harness replaces this process, because the engine ends this process when it is done.
    os.execve(sys.executable, harness, environment)


if __name__ == "__main__":
    run_worker()
