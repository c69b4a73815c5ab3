"""All commands, and what else has options, with these."""

from __future__ import annotations

from collections.abc import Mapping

from recordmill.pipelines.options.build import BUILD
from recordmill.pipelines.options.declare import Option, Options
from recordmill.pipelines.options.look import BENCH, CLEAN, DOCTOR, HEAD, INSPECT, OPEN, STATUS, VERIFY
from recordmill.pipelines.options.read import READ
from recordmill.pipelines.options.transform import APPLY

COMMANDS: Mapping[str, Options] = {
    "build": BUILD,
    "transform": APPLY,
    "read": READ,
    "head": HEAD,
    "inspect": INSPECT,
    "bench": BENCH,
    "verify": VERIFY,
    "doctor": DOCTOR,
    "status": STATUS,
    "clean": CLEAN,
}
CALLS: Mapping[str, Options] = {**COMMANDS, "open": OPEN}  # what Python has, too


def keywords_of(command: str) -> tuple[Option, ...]:
    """The options of a command, or of `open`, that are keywords in Python."""
    return tuple(option for option in CALLS[command] if not option.shell_only)


def flags_of(command: str) -> tuple[Option, ...]:
    """The options of a command that are flags."""
    return tuple(option for option in COMMANDS[command] if not option.keyword_only)
