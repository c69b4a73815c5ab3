"""Entry point of the command line.

It finds the command, parses its arguments, runs it and reports errors.

Only argparse is imported before a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import ParamSpec, TextIO, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_COMMANDS = {
    "build": "convert raw data or TFRecord files to shuffled TFRecord shards",
    "transform": "convert new data with the transform of a data set",
    "read": "convert a data set or any TFRecord files to Parquet, NumPy, Arrow or other files",
    "head": "print records in readable form",
    "inspect": "show the features, ranges, counts and sizes of a data set or any TFRecord files",
    "report": "write an HTML file with the classes, histograms and sample records of a data set",
    "stats": "summarize the values of a data set, TFRecord files or raw data",
    "check": "compare a data set with another one, a schema or rules, and find duplicate records",
    "bench": "measure the speed of training batches and find the bottleneck",
    "verify": "check every byte of a data set against its manifest",
    "doctor": "check whether a build or a read can run on an engine, and what to change",
    "status": "list the contents of an output folder, and the jobs that write to it",
    "clean": "remove the files that killed builds and reads left in an output folder",
    "log": "list the generations of a data set",
    "restore": "make an earlier generation of a data set the newest one again",
    "compact": "join the parts of a data set that has grown",
}
# Commands that do not need pandas, and the options that may run other code, which may need it.
_WITHOUT_PANDAS: dict[str, tuple[str, ...]] = {
    "head": (),
    "inspect": (),
    "read": (),
    "verify": (),
    "build": ("parser", "transform", "transform_from", "runner"),
}
# At the end of a terminal, the shell and the kernel each send a SIGHUP, within a second.
_HANGUP_REPEAT_SEC = 1
_last_hangup = float("-inf")  # time of the last SIGHUP
_SHARED_MODULES = {  # modules with several commands
    "transform": "build",
    "head": "inspect",
    "verify": "maintenance",
    "doctor": "maintenance",
    "status": "maintenance",
    "clean": "maintenance",
    "log": "generations",
    "restore": "generations",
    "compact": "generations",
}

_DESCRIPTION = "Convert raw data to shuffled TFRecord shards, and any TFRecord files to Parquet, NumPy and other files."
_EPILOG = """\
  recordmill build photos/ --out shards        convert raw data to shards
  recordmill inspect shards                    show the features
  recordmill read shards --out table --to parquet
  recordmill verify shards

To see the options of a command: recordmill COMMAND --help"""


@dataclass(frozen=True)
class Command:
    """A command: its help texts and the function that runs it.

    Attributes:
        run: Receives the parsed arguments and returns the exit code.
        usage: The usage line.
        description: The text below the usage line.
        inputs: (metavar, help) of the positional arguments.
        examples: Text after the options.
        full_help: Returns the text that `--help-all` adds after the examples.
        takes_beam_flags: True if unknown flags are passed to Apache Beam. If False, they are an
            error.
        needs_inputs: True if at least one positional argument is required.
        failure_code: The exit code if the data or the machine causes an error.
    """

    run: Callable[[argparse.Namespace], int]
    usage: str
    description: str
    inputs: tuple[str, str]
    examples: str
    full_help: Callable[[], str] = str
    takes_beam_flags: bool = False
    needs_inputs: bool = True
    failure_code: int = 1


def make_parser(command: str) -> argparse.ArgumentParser:
    """Returns a parser that knows all commands, but the options of only one.

    The options of other commands are left out, because their modules are slow to import. The parsed
    arguments have an attribute `run`, which is `Command.run` of the command.

    Args:
        command: Name of the command to parse with its options.
    """
    parser = argparse.ArgumentParser(
        "recordmill",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        if name == command:
            from recordmill.options.command_line import add_command

            module = import_module(f"recordmill.commands.{_SHARED_MODULES.get(name, name)}")
            add_command(commands, name, getattr(module, name.upper()), summary)
        else:
            commands.add_parser(name, help=summary)
    return parser


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from importlib.metadata import version

        print(f"recordmill {version('recordmill')}")
        parser.exit()


def run(argv: Sequence[str] | None = None) -> int:
    """Parses the arguments, runs the command and reports its errors.

    Args:
        argv: The arguments. None means the arguments of this process. In this case the command may
            change settings of the process.

    Returns:
        The exit code.

    Raises:
        KeyboardInterrupt: The command was interrupted. The message describes the files that remain.
        SystemExit: The arguments are invalid, or `--help` or `--version` was requested.
    """
    _open_standard_streams()
    # Hides TensorFlow's messages about the processor. TensorFlow reads this when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Python allows signal handlers to be set in the main thread only.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handle_signal)
        # With nohup, SIGHUP is ignored, so that the command continues without its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, _handle_signal)
    is_process = argv is None
    if is_process and "_ARGCOMPLETE" in os.environ:
        _complete_line(os.environ.get("COMP_LINE", ""))
    argv = sys.argv[1:] if argv is None else argv
    command = _find_command_name(argv)
    parser = make_parser(command)
    _check_command(parser, command)
    args, unknown = parser.parse_known_args(argv)
    from recordmill.base.messages import redact_passwords

    if (
        invalid := _find_stray_words(unknown)
        if getattr(args, "takes_beam_flags", False)
        else unknown
    ):
        from recordmill.options.flags import explain_unknown_flags

        parser.error(
            redact_passwords(
                f"unrecognized arguments: {' '.join(invalid)}{explain_unknown_flags(invalid, args.command)}"
            )
        )
    args.beam_args = unknown
    if getattr(args, "quiet", False):
        sys.meta_path.insert(0, SilentImportFinder())
    if (
        is_process
        and command in _WITHOUT_PANDAS
        and vars(args).keys().isdisjoint(_WITHOUT_PANDAS[command])
    ):
        sys.meta_path.insert(0, PandasBlocker())
    return _run_command(args, is_process)


def _find_command_name(argv: Sequence[str]) -> str:
    """Returns the first argument that is not an option, or ""."""
    return next((word for word in argv if not word.startswith("-")), "")


def _complete_line(line: str) -> None:
    """Prints completions of a line for the shell, and ends the process.

    Does nothing if argcomplete is not installed.
    """
    with contextlib.suppress(ImportError):
        import_module("argcomplete").autocomplete(make_parser(_find_command_name(line.split()[1:])))


class SilentImportFinder:
    """Import hook that silences TensorFlow while it is imported.

    TensorFlow's libraries print messages to stderr before they read any setting.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module spec of TensorFlow, or None for any other module.

        Python calls this method for each import (`importlib.abc.MetaPathFinder`). The loader of the
        spec redirects stderr to the null device while it loads TensorFlow.
        """
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_silently(module: ModuleType) -> None:
                stderr_copy, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, 2)
                try:
                    load(module)
                finally:
                    os.dup2(stderr_copy, 2)
                    os.close(stderr_copy)
                    os.close(devnull)

            spec.loader.exec_module = load_silently  # type: ignore[method-assign]
        return spec


class PandasBlocker:
    """Import hook that makes pandas look as if it were not installed.

    Otherwise pyarrow imports pandas before it creates its first array. That takes longer than all
    other imports.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Returns None, so that Python continues with its other finders.

        Python calls this method for each import (`importlib.abc.MetaPathFinder`).

        Raises:
            ModuleNotFoundError: The module is pandas.
        """
        if name == "pandas":
            raise ModuleNotFoundError("no module is to need pandas here", name=name)


def _check_command(parser: argparse.ArgumentParser, command: str) -> None:
    """Ends the process with an error if there is no such command.

    The error message suggests a similar command.
    """
    if command and command not in _COMMANDS:
        from recordmill.base.option_names import did_you_mean

        parser.error(
            f"no command {command!r}: one of {', '.join(_COMMANDS)}{did_you_mean(command, _COMMANDS)}"
        )


def _run_command(args: argparse.Namespace, is_process: bool) -> int:
    """Runs the command, prints its error if it fails, and returns the exit code.

    Args:
        args: The parsed arguments.
        is_process: True if the process runs only this command. If memory runs out, the process may
            then end without cleanup, because the destructors of TensorFlow could wait forever.
    """
    from recordmill.base.errors import RecordmillError, UsageError
    from recordmill.base.machine import find_exhausted_limit

    try:
        with _warnings_as_notes():
            code = int(args.run(args))
        sys.stdout.flush()  # a closed pipe or a full disk raises here, where it can be reported
        return code
    except UsageError as error:
        return _report_error(error, 2, args)
    except RecordmillError as error:
        return _report_error(error, args.failure_code, args)
    except BrokenPipeError:
        # Python flushes stdout at exit, which must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if (reached := find_exhausted_limit(error)) is not None:
            code = _report_error(_LIMIT_MESSAGES[reached.value], args.failure_code, args)
            # When memory runs out, TensorFlow keeps its locks, and its destructors wait for them.
            # So the process ends without running destructors.
            if is_process:
                with contextlib.suppress(OSError):
                    sys.stdout.flush()
                os._exit(code)
            return code
        if not isinstance(error, OSError) or error.errno is None or error.strerror is None:
            raise
        return _report_error(
            f"{error.filename or 'a file, or standard output'}: {error.strerror}",
            args.failure_code,
            args,
        )


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Prints warnings about the data as notes.

    A note lacks the line of code that a Python warning shows.
    """
    from recordmill.base.errors import DataWarning
    from recordmill.base.messages import redact_passwords

    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DataWarning):
                print(f"note: {redact_passwords(str(message))}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_note
        yield


_NO_MEMORY = "out of memory: use less --memory, fewer --threads or a larger machine"
_LIMIT_MESSAGES = {  # by the exhausted resource
    "memory": _NO_MEMORY,
    "library": f"{_NO_MEMORY} (a library could not be loaded; `ulimit -v` may limit the address space)",
    "threads": "no more threads can be started: use fewer --threads, or raise the "
    "limit (`ulimit -u`, `ulimit -v`, or the limit of processes of the "
    "container)",
}


def _find_stray_words(unknown: Sequence[str]) -> list[str]:
    """Returns the words that are neither a Beam flag nor its value.

    Such a word may be an INPUT that the parser did not understand. It must not be passed to Beam.

    >>> _find_stray_words(["--runner", "Flink", "extra"])
    ['extra']
    """
    return [
        word
        for previous, word in zip(["", *unknown], unknown, strict=False)
        if not (word.startswith("--") or (previous.startswith("--") and "=" not in previous))
    ]


def _open_standard_streams() -> None:
    """Opens the standard streams that the caller has closed, for example with `2>&-`.

    Otherwise a data file could get the descriptor of stderr, and messages would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # The encoding of a terminal may lack characters of the data.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report_error(error: object, code: int, args: argparse.Namespace) -> int:
    """Prints an error as one line to stderr and returns `code`.

    With `--json`, an object with the error and the options that it names is also printed to stdout.
    """
    from recordmill.base.messages import Message, as_message, render
    from recordmill.options.flags import flag_spelling

    message, parts = render(error, flag_spelling(args.command)), as_message(error)
    with contextlib.suppress(OSError):  # stderr may be a pipe whose reader has ended
        print(f"recordmill: error: {message}", file=sys.stderr)
    if getattr(args, "json", False):
        mentions = parts.mentions() if isinstance(parts, Message) else []
        details = {
            "message": message,
            "options": list(dict.fromkeys(mention.name for mention in mentions)),
            "file": getattr(error, "source", ""),
            "place": getattr(error, "place", ""),
        }
        with contextlib.suppress(OSError):
            print(json.dumps({"error": {"code": code, **details}}), flush=True)
    return code


def _handle_signal(signum: int, frame: object) -> None:
    """Raises KeyboardInterrupt, so that the command ends and cleans up as after Ctrl-C.

    The signal is SIGTERM, or SIGHUP when the terminal is closed. A SIGHUP shortly after another one
    is ignored.
    """
    global _last_hangup
    # A second SIGHUP would interrupt the cleanup that the first one has started.
    if signum == signal.SIGHUP:
        previous, _last_hangup = _last_hangup, time.monotonic()
        if _last_hangup - previous < _HANGUP_REPEAT_SEC:
            return
    raise KeyboardInterrupt
