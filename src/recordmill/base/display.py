"""Display of progress for users.

A terminal or a notebook shows one line that is rewritten. Any other stream gets a plain line every
ten seconds. Nothing is shown if the display is quiet.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TextIO

from recordmill.base.progress import Progress, ProgressUpdate, RunCancelled
from recordmill.base.sizes import format_duration


@contextlib.contextmanager
def completion_notice(
    out: object, *checks: Callable[[], bool]
) -> Iterator[list[Callable[[], bool]]]:
    """Corrects the message of Ctrl-C if the output of the `with` block is complete.

    Without this, Ctrl-C at the end of a run would be reported as "nothing was written".

    Args:
        out: The output, as the error message names it.
        checks: Functions that return True if the output is complete.

    Yields:
        The list of the checks. The block may append more.

    Raises:
        KeyboardInterrupt: The block was interrupted. The message of an interrupt is only replaced
            if it is empty and a check returns True.
    """
    completion_checks = [*checks]
    try:
        yield completion_checks
    except KeyboardInterrupt as stop:
        if not str(stop) and any(is_complete() for is_complete in completion_checks):
            raise KeyboardInterrupt(f"stopped, but {out} was complete already") from None
        raise


_STAGE_TEXTS = {
    "plan": "planning",
    "parse": "parsing files",
    "classes": "counting classes",
    "read": "reading",
    "write": "writing shards",
    "resume": "checking the finished outputs",
    "convert": "reading",
    "verify": "verifying",
}
# seconds between updates of a line that is rewritten, and between plain lines
_REFRESH_SECONDS, _PLAIN_LINE_SECONDS = 0.2, 10.0


class Display:
    """Shows a `Progress` to the user while a `with` block runs.

    The progress appears on a stream, and is passed to the callback of `progress`. A slow or broken
    stream never delays or stops the work. If the callback raises an error, the work is stopped, and
    the error is raised at the end of the block.

    Args:
        progress: The counters to show. Its `on_update` is called about five times a second, from a
            thread of the display.
        quiet: Whether to show nothing. The callback is called in any case.
        stream: The stream for the lines. None means standard error.
    """

    def __init__(
        self, progress: Progress, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._progress, self._quiet = progress, quiet
        self._stream = stream or sys.stderr
        self._rewrites_line = _is_terminal(self._stream) or _is_notebook(self._stream)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._refresh, name="recordmill-progress", daemon=True
        )
        self._width, self._last_text = 0, ""
        self._failure: BaseException | None = None

    def __enter__(self) -> Display:
        if not self._quiet or self._progress.on_update is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._rewrites_line and self._width:
            self._write("\r" + " " * self._width + "\r")
        if error is None and self._failure is None:
            self._notify()  # the callback also gets the final counts
        # If the callback failed, the block was stopped by RunCancelled. The cause is the callback's
        # error. Any other error of the block has its own cause.
        if self._failure is not None and (error is None or isinstance(error, RunCancelled)):
            raise self._failure from None

    def print_line(self, text: str) -> None:
        """Prints a line that later updates of the progress don't overwrite.

        Does nothing if the display is quiet.
        """
        if not self._quiet:
            self._write(("\r" if self._rewrites_line else "") + text.ljust(self._width) + "\n")

    def _refresh(self) -> None:
        last_line_time = time.monotonic()
        while not self._stop.wait(_REFRESH_SECONDS):
            self._notify()
            if not self._quiet and (
                self._rewrites_line or time.monotonic() - last_line_time >= _PLAIN_LINE_SECONDS
            ):
                last_line_time = time.monotonic()
                self._show_line(describe_progress(self._progress))

    def _notify(self) -> None:
        """Passes the progress to the user's callback, unless the callback has failed before."""
        progress = self._progress
        if progress.on_update is None or self._failure is not None:
            return
        try:
            progress.on_update(
                ProgressUpdate(
                    progress.stage,
                    progress.records,
                    progress.total,
                    progress.unit,
                    describe_progress(progress),
                )
            )
        except BaseException as error:  # raised by `__exit__` in the thread of the block
            self._failure = error
            progress.fail(error)

    def _show_line(self, text: str) -> None:
        if _is_terminal(self._stream):
            # A line that reaches the edge would wrap, and could not be rewritten.
            text = _shorten_line(text, shutil.get_terminal_size().columns - 1)
        if self._rewrites_line and text == self._last_text:
            return  # a notebook stores every line that it receives
        self._write("\r" + text.ljust(self._width) if self._rewrites_line else text + "\n")
        self._last_text, self._width = text, len(text)

    def _write(self, text: str) -> None:
        # A closed, broken or missing stream must not stop the work.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
            self._stream.flush()


def describe_progress(progress: Progress) -> str:
    """Returns a line such as `reading 120,000 of 1,000,000 (12 %), 410,000 records/s, 2 s left`.

    While an engine does the work, the line is the engine's own text.
    """
    if progress.engine_text:
        return progress.engine_text
    # The minimum avoids a division by zero right after a stage has begun.
    elapsed = max(time.monotonic() - progress.stage_started, 1e-6)
    rate = progress.records / elapsed
    parts = [f"{_STAGE_TEXTS.get(progress.stage, progress.stage)} {progress.records:,}"]
    if progress.total:
        parts[0] += f" of {progress.total:,} ({100 * progress.records // progress.total} %)"
    parts.append(f"{rate:,.0f} {progress.unit}/s")
    if progress.rejects:
        parts.append(f"{progress.rejects:,} rejected")
    if progress.total and rate > 0 and progress.records < progress.total:
        parts.append(f"{format_duration(max((progress.total - progress.records) / rate, 1))} left")
    stage = _STAGE_TEXTS.get(progress.stage, progress.stage)
    if progress.records:
        return ", ".join(parts)
    return " ".join(
        filter(
            None,
            (f"{stage} ...", progress.activity, format_duration(elapsed) if elapsed >= 1 else ""),
        )
    )


def _shorten_line(text: str, width: int) -> str:
    """Returns a line without its last parts, so that it fits.

    >>> _shorten_line("reading 120 of 1,000 (12 %), 41 records/s, 2 s left", 45)
    'reading 120 of 1,000 (12 %), 41 records/s'
    """
    while len(text) > width and ", " in text:
        text = text.rpartition(", ")[0]
    return text[:width]


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _is_notebook(stream: TextIO) -> bool:
    """Returns whether the stream belongs to a notebook, which can rewrite a line."""
    return type(stream).__module__.split(".")[0] == "ipykernel"
