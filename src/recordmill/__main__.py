"""The command line: `recordmill build | read | head | inspect | verify`. Only argparse is imported before a command runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

_COMMANDS = ("build", "read", "head", "inspect", "verify")

_DESCRIPTION = "Raw images, text and CSV to shuffled TFRecord shards, and any TFRecords back to Parquet and NumPy."
_EPILOG = """\
  recordmill build photos/ --out shards        raw data to shards
  recordmill inspect shards                    what is in them
  recordmill read shards --out table --to parquet
  recordmill verify shards

recordmill COMMAND --help says more."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function of the arguments that gives the exit code."""
    parser = argparse.ArgumentParser("recordmill", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"recordmill {version('recordmill')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        import_module(f"recordmill.cli_{name}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 the data or the run failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    parser = make_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown and not (getattr(args, "takes_beam_flags", False) and all(flag.startswith("--") for flag in unknown if flag.startswith("-"))):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.beam_args = unknown
    from recordmill.schemas.errors import RecordmillError, UsageError

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(args.run(args))
    except UsageError as error:
        return _say(error, 2)
    except RecordmillError as error:
        return _say(error, 1)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if error.errno is None or error.strerror is None:
            raise
        return _say(f"{error.filename or 'a file'}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _say("stopped; nothing was written", 130)


def _say(error: object, code: int) -> int:
    print(f"recordmill: error: {error}", file=sys.stderr)
    return code


def _interrupt(signum: int, frame: object) -> None:
    """SIGTERM ends a run as Ctrl-C does: cleaned up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
