"""Flags for Beam and for an engine's job server: what passes, and what is a slip.

Beam warns of unknown flags and goes on; a mistyped flag, or an INPUT that slipped in behind one, must not pass. What a
job server knows it tells itself where one runs (`--job_endpoint`), else lists of what they know are at hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from recordmill.base.errors import UsageError
from recordmill.base.people.nearest import there_are
from recordmill.pipelines.options.commands import about_unknown, flags_of
from recordmill.pipelines.remote.server_flags import known_flags

_ASKING_SEC = 10.0
_FORMS: dict[str, dict[str, Any]] = {
    "": {},
    "#": {"type": int},
    "?": {"action": "store_true"},
    "*": {"action": "append"},
}


class _Options(Protocol):
    """A class of Beam's options, which adds its flags to a parser."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None: ...


def as_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The flags; UsageError for a text, whose letters would be taken for them.

    >>> as_flags(["--parallelism=2"])
    ('--parallelism=2',)
    """
    if isinstance(given, str):
        raise UsageError(f"beam_args is a text; give a list: beam_args={given.split()}")
    return tuple(given)


def check_flags(arguments: Sequence[str], runner: str | None, options: type[_Options]) -> None:
    """That Beam or the runner's job server knows these flags.

    Raises:
        UsageError: a flag is unknown, or its value can't be; or the job server that is named does not answer.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for known in options.__subclasses__():
        if known.__module__.startswith("apache_beam"):
            known._add_argparse_args(parser)
    given = [argument for argument in arguments if argument]
    of_beam, unknown = parser.parse_known_args(given)
    # a server is asked only where there is something to ask
    for name, form in _of_server(runner, getattr(of_beam, "job_endpoint", None) if unknown else None).items():
        parser.add_argument(f"--{name}", **_FORMS[form])
    _, unknown = parser.parse_known_args(given)
    if unknown:
        raise UsageError(_unknown(unknown, [word for action in parser._actions for word in action.option_strings]))


def _unknown(unknown: Sequence[str], known: Sequence[str]) -> str:
    own = [flag for name in ("build", "read") for option in flags_of(name) for flag in option.all_flags]
    meant = about_unknown(unknown, "build", [*own, *known])
    return f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{meant}"


def _of_server(runner: str | None, endpoint: str | None) -> Mapping[str, str]:
    """Name to form of what the runner's job server knows."""
    if runner is None:
        return {}
    listed = known_flags(runner)
    if not endpoint or endpoint == "embed":
        return listed
    return {**listed, **ask_server(endpoint)}


def ask_server(endpoint: str) -> dict[str, str]:
    """Name to form of the flags that a running job server tells; none where it tells nothing of its flags.

    Raises:
        UsageError: nobody answers there.
    """
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_ASKING_SEC)
        except grpc.FutureTimeoutError:
            raise UsageError(
                f"--job_endpoint {endpoint}: no job server answers there; start it, or name another HOST:PORT"
            ) from None
        try:
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            told = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(request, timeout=_ASKING_SEC)
        except grpc.RpcError:  # Prism has no such call
            return {}
    kinds = beam_job_api_pb2.PipelineOptionType
    forms = {kinds.BOOLEAN: "?", kinds.INTEGER: "#", kinds.ARRAY: "*"}
    return {option.name: forms.get(option.type, "") for option in told.options}


def check_name(runner: str) -> None:
    """UsageError unless Beam has that runner, as it reads names, or it is a class that can be imported."""
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        create_runner(runner)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"--runner {runner}: can't be imported: {error}") from None
    except ValueError:
        raise UsageError(f"--runner {runner}: {there_are(runner, StandardOptions.KNOWN_RUNNER_NAMES)}") from None


class _Parser(argparse.ArgumentParser):
    """Lets two option classes define the same flag, as Beam's own do, and raises what is wrong."""

    def add_argument(self, *names: Any, **settings: Any) -> Any:
        try:
            return super().add_argument(*names, **settings)
        except argparse.ArgumentError:
            return None

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
