"""Rejects of builds and reads: files, counts and their limit.

The limit is checked at the end of a run. If the number of allowed rejects is known in advance, it
is also checked during the run. So a run that must fail ends early.
"""

from __future__ import annotations

import functools
import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from recordmill.base.documents import Count
from recordmill.base.errors import DataError, RecordmillError, Reject, UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count
from recordmill.storage.files import replace_file

# Maximum number of rejects in a message. The reject files list all of them.
_MAX_SHOWN = 10
# A process ends the run when the limit is exceeded by this number of rejects. So the report about a
# small input is complete, and a large input of rejects does not fill the disk.
REJECTS_BEYOND_BUDGET = 1000
# Readable words for the reasons of rejects. Reasons that are not listed are readable already.
_REASON_WORDS = {
    "binary": "not text",
    "box": "unusable box",
    "class": "unknown class",
    "columns": "wrong number of columns",
    "compression": "damaged compressed data",
    "convert": "not convertible",
    "corrupt": "damaged image",
    "crc": "wrong checksum",
    "decode": "undecodable image",
    "encoding": "wrong encoding",
    "format": "unknown image format",
    "frame": "damaged frame",
    "json": "not a JSON object",
    "memory": "too large for the memory",
    "null": "missing value",
    "parse": "not a valid record",
    "quotes": "stray quote",
    "range": "number out of range",
    "record": "does not fit the schema",
    "row-bytes": "too long row",
    "shape": "wrong shape",
    "size": "too large",
    "split": "no split",
    "too_long": "too long",
    "transform": "refused by the transform",
    "truncated": "cut off",
    "type": "wrong type",
}
_BUDGET = re.compile(r"(\d+)|(\d+(?:\.\d+)?)%")


def is_record_error(error: DataError) -> bool:
    """Returns whether an error is about one record, which `max_rejects` could leave out."""
    return error.place.startswith("record ")


def with_remedy(error: DataError) -> DataError:
    """Returns an error about a record with the advice to use `max_rejects`.

    With this option, the record would be a reject.
    """
    reason = Message(
        "{reason}; to leave out such records: {max_rejects}",
        reason=error.reason,
        max_rejects=option("max_rejects", "1%"),
    )
    return DataError(reason, source=error.source, place=error.place)


@dataclass(frozen=True)
class RejectBudget:
    """Limit for the rejects of a run, `--max-rejects N` or `--max-rejects P%`.

    >>> RejectBudget.parse("0.5%").allows(rejected=5, read=1000)
    True

    Attributes:
        count: Maximum number of rejects. Ignored if `percent` is set.
        percent: Maximum percentage of the records that were read.
    """

    count: int = 0
    percent: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> RejectBudget:
        """Parses the value of `max_rejects`.

        Raises:
            UsageError: The value is not a number or a percentage from 0% to 100%.
        """
        match = _BUDGET.fullmatch(str(text).strip())
        if match is None or (match[2] is not None and float(match[2]) > 100):
            raise UsageError(
                "{max_rejects}: give a number of records, as in 100, or a share of them, as "
                "in 0.5%",
                max_rejects=option("max_rejects", text),
            )
        return cls(int(match[1])) if match[1] is not None else cls(percent=float(match[2]))

    def allows(self, rejected: int, read: int) -> bool:
        return rejected <= (self.count if self.percent is None else read * self.percent / 100)

    def max_rejects(self, read: int | None) -> int | None:
        """Returns the maximum number of rejects.

        >>> RejectBudget.parse("0.5%").max_rejects(1000), RejectBudget.parse("7").max_rejects(None)
        (5, 7)

        Args:
            read: Number of records that will be read, or None if unknown.

        Returns:
            The number. None if the limit is a percentage and `read` is unknown.
        """
        if self.percent is None:
            return self.count
        return None if read is None else int(read * self.percent / 100)

    @property
    def option_value(self) -> int | str:
        """The limit in the form of the option `max_rejects`."""
        return self.count if self.percent is None else f"{self.percent:g}%"


def describe_reason(reason: str) -> str:
    """Returns a reason of rejects in readable words.

    >>> describe_reason("columns"), describe_reason("no file")
    ('wrong number of columns', 'no file')
    """
    return _REASON_WORDS.get(reason, reason)


def describe_reasons(counts: Mapping[str, int]) -> str:
    """Returns the reasons of rejects in readable words.

    If there are several reasons, each has its count.

    >>> describe_reasons({"crc": 2})
    'reason: wrong checksum'
    """
    if len(counts) == 1:
        return f"reason: {describe_reason(*counts)}"
    items = sorted(counts.items())
    return f"reasons: {', '.join(f'{count} {describe_reason(name)}' for name, count in items)}"


class TooManyRejects(RecordmillError):
    """More records were rejected than the limit allows, or all of them.

    Attributes:
        rejects: The first rejects.
        counts: Number of all rejects, by reason.
    """

    def __init__(self, message: str, rejects: Sequence[Reject], counts: Mapping[str, int]) -> None:
        super().__init__(message)
        self.rejects = tuple(rejects)
        self.counts = counts

    def __reduce__(self) -> tuple[object, ...]:
        return TooManyRejects, (self.args[0], self.rejects, self.counts)


@dataclass(frozen=True, slots=True)
class RejectSummary:
    """Counts of rejects, examples, and the files that list all of them.

    Summaries of several parts of a run are added with `+`.

    Attributes:
        counts: Number of rejects, by reason.
        first: The first rejects, at most 10.
        files: Paths of the files that list all rejects.
    """

    counts: Mapping[str, Count]
    first: tuple[Reject, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def empty(cls) -> RejectSummary:
        return cls({})

    def __add__(self, other: RejectSummary) -> RejectSummary:
        # A plain dict, because `asdict` can't copy a Counter.
        counts = dict(Counter(self.counts) + Counter(other.counts))
        return RejectSummary(
            counts, (self.first + other.first)[:_MAX_SHOWN], self.files + other.files
        )

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def check_budget(self, budget: RejectBudget, read: int) -> None:
        """Checks the limit at the end of a run.

        Args:
            budget: The limit.
            read: Number of records that were read.

        Raises:
            TooManyRejects: The limit is exceeded. The message shows the first rejects, and the
                option that would allow them.
        """
        if budget.allows(self.total, read):
            return
        remedy = (
            Message(
                "\nFix them, or allow them with {max_rejects}: they are then listed in rejects/.",
                max_rejects=option("max_rejects", self.total),
            )
            if self.total < read
            else ""
        )
        message = Message(
            "{total} of {read} records {were} rejected ({reasons}); {max_rejects} allows "
            "fewer, so nothing was written:",
            total=self.total,
            read=read,
            were="was" if self.total == 1 else "were",
            reasons=describe_reasons(self.counts),
            max_rejects=option("max_rejects", budget.option_value),
        )
        raise TooManyRejects(
            Message(
                "{message}{first}{remedy}", message=message, first=self._show_first(), remedy=remedy
            ),
            self.first,
            self.counts,
        )

    def check_limit(self, max_rejects: int, other_rejects: int = 0) -> None:
        """Checks the limit during a run. Some rejects beyond the limit are accepted.

        Args:
            max_rejects: Maximum number of rejects of the run.
            other_rejects: Number of rejects of other tasks of the run.

        Raises:
            TooManyRejects: The limit is exceeded by more than REJECTS_BEYOND_BUDGET.
        """
        if self.total + other_rejects > max_rejects + REJECTS_BEYOND_BUDGET:
            other_files = ", and of other files" if other_rejects else ""
            message = Message(
                "at least {total} records were rejected ({reasons}{other_files}); "
                "{max_rejects} allows {max_rejects2}, so the rest was not read, and "
                "nothing was written:",
                total=self.total + other_rejects,
                reasons=describe_reasons(self.counts),
                other_files=other_files,
                max_rejects=option("max_rejects"),
                max_rejects2=max_rejects,
            )
            raise TooManyRejects(
                Message("{message}{first}", message=message, first=self._show_first()),
                self.first,
                self.counts,
            )

    def check_any_left(self, read: int) -> None:
        """Raises TooManyRejects if no record is left.

        This holds for any limit, because an empty data set is useless.

        Args:
            read: Number of records that were read.
        """
        if self.total < read:
            return
        if read == 0:
            raise TooManyRejects("no record to write: the inputs hold none", (), self.counts)
        raise TooManyRejects(
            Message(
                "no record to write: all {read} were rejected ({reasons}):{first}",
                read=read,
                reasons=describe_reasons(self.counts),
                first=self._show_first(),
            ),
            self.first,
            self.counts,
        )

    def describe(self) -> str:
        """Returns the number of rejects and their reasons.

        >>> RejectSummary(Counter(crc=2, frame=1)).describe()
        '3 records (reasons: 2 wrong checksum, 1 damaged frame)'
        """
        return f"{format_count(self.total, 'record')} ({describe_reasons(self.counts)})"

    def _show_first(self) -> str:
        remainder = (
            f"\n  ... and {self.total - len(self.first)} more"
            if self.total > len(self.first)
            else ""
        )
        lines = [Message("\n  {reject}", reject=reject) for reject in self.first]
        return join_messages("", [*lines, remainder])


class _RejectCounter:
    """Counts the rejects of all tasks of a run in this process. Thread-safe.

    If a task is repeated, its new count replaces the count of the earlier attempt.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._total = 0

    def add(self, task_name: str, total: int) -> int:
        """Sets the number of rejects of a task.

        Args:
            total: Number of its rejects so far.

        Returns:
            Number of rejects of all other tasks of the run.
        """
        with self._lock:
            # the new total replaces the earlier total of this task
            other_rejects = self._total - self._counts.get(task_name, 0)
            self._counts[task_name], self._total = total, other_rejects + total
            return other_rejects


@functools.lru_cache(8)
def _find_counter(folder: str) -> _RejectCounter:
    """Returns the counter of the run that writes its reject files to a folder."""
    return _RejectCounter()


class RejectWriter:
    """Writes rejects to a JSON Lines file, which is created with the first reject.

    Args:
        path: Path of the file.
        max_rejects: Maximum number of rejects of the run. None if unknown.
        task_name: Name of the task, the same for all attempts. The rejects of all tasks with the
            same folder are counted together. If None, only the rejects of this writer are counted.
    """

    def __init__(
        self, path: Path, *, max_rejects: int | None = None, task_name: str | None = None
    ) -> None:
        self._path, self._max_rejects = path, max_rejects
        self._task_name, self._counter = (
            task_name or path.name,
            _find_counter(str(path.parent)) if task_name else _RejectCounter(),
        )
        self._file: TextIO | None = None
        self._rejected = RejectSummary.empty()
        # a new attempt begins with 0, also if an earlier one has counted rejects
        self._counter.add(self._task_name, 0)

    def write(self, rejects: Iterable[Reject]) -> int:
        """Writes rejects, and returns their number.

        Raises:
            TooManyRejects: All writers of the run in this process together have exceeded the limit,
                so that the run must fail.
        """
        new_rejects = list(rejects)
        if not new_rejects:
            return 0
        if self._file is None:
            self._file = io.TextIOWrapper(
                io.BufferedWriter(replace_file(self._path)),
                encoding="utf-8",
                errors="backslashreplace",
            )
            self._rejected += RejectSummary(Counter(), (), (str(self._path),))
        other_rejects = self._counter.add(self._task_name, self._rejected.total + len(new_rejects))
        # The run fails after this number of rejects, so no more are written.
        max_written = (
            None
            if self._max_rejects is None
            else max(
                self._max_rejects + REJECTS_BEYOND_BUDGET - other_rejects - self._rejected.total, 0
            )
        )
        self._file.writelines(
            json.dumps(asdict(reject), ensure_ascii=False) + "\n"
            for reject in new_rejects[:max_written]
        )
        self._rejected += RejectSummary(
            Counter(reject.reason for reject in new_rejects), tuple(new_rejects[:_MAX_SHOWN])
        )
        if self._max_rejects is not None:
            self._rejected.check_limit(self._max_rejects, other_rejects)
        return len(new_rejects)

    def close(self) -> RejectSummary:
        if self._file is not None:
            self._file.close()
        return self._rejected
