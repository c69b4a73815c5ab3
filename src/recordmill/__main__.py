"""The command line: `recordmill build | transform | read | head | inspect | verify`.
Only argparse is imported before a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

_COMMANDS = ("build", "transform", "read", "head", "inspect", "verify")

_DESCRIPTION = "Raw images, text and CSV to shuffled TFRecord shards, and any TFRecords back to Parquet and NumPy."
_EPILOG = """\
  recordmill build photos/ --out shards        raw data to shards
  recordmill inspect shards                    what is in them
  recordmill read shards --out table --to parquet
  recordmill verify shards

recordmill COMMAND --help says more."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function of the arguments that gives the exit code."""
    parser = argparse.ArgumentParser(
        "recordmill", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"recordmill {version('recordmill')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        import_module(f"recordmill.cli_{name}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 the data or the run failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    _open_standard_streams()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        parser = make_parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown and not (getattr(args, "takes_beam_flags", False) and _are_flags(unknown)):
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        args.beam_args = unknown
        return _run(args)
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "stopped; nothing was written", 130)


def _run(args: argparse.Namespace) -> int:
    from recordmill.base.errors import RecordmillError, UsageError

    try:
        code = int(args.run(args))
        sys.stdout.flush()  # here, where a reader that has gone, or a full disk, can still be told
        return code
    except UsageError as error:
        return _say(error, 2)
    except RecordmillError as error:
        return _say(error, 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno is None or error.strerror is None:
            raise
        return _say(f"{error.filename or 'a file'}: {error.strerror}", 1)
    except MemoryError:
        return _say("out of memory: give less --memory or fewer --threads, or a larger machine", 1)


def _are_flags(unknown: Sequence[str]) -> bool:
    """Whether these may be Beam's: `--flag`, `--flag=value`, or `--flag value`. A stray word may be an INPUT, which
    must not be lost.
    """
    return all(
        word.startswith("--") or (before.startswith("--") and "=" not in before)
        for before, word in zip(["", *unknown], unknown, strict=False)
    )


def _open_standard_streams() -> None:
    """Open what the caller has closed (`2>&-`):
    else a data file would get the number of stderr, and its messages with it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _say(error: object, code: int) -> int:
    with contextlib.suppress(OSError):  # stderr may be a pipe that nobody reads any more
        print(f"recordmill: error: {error}", file=sys.stderr)
    return code


def _interrupt(signum: int, frame: object) -> None:
    """SIGTERM ends a run as Ctrl-C does: cleaned up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
