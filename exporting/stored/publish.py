"""The commit of a read to a store: the outputs, which the run made on this machine, become objects below `data-<id>/`,
and then `_reads/<generation>.json` is put, if no other read has put that one. `_read.json`, which people and other
tools look at, is a copy of it. What it replaces is removed behind that, since tools that list the folder would read
both.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import both
from recordmill.exporting.job import Keeping, OutputAccount, Publication
from recordmill.exporting.plan import SUMMARY_NAME
from recordmill.exporting.replacing import REJECTS
from recordmill.exporting.resume import is_resumable
from recordmill.exporting.stored.uploads import Uploads
from recordmill.shards.dead_runs import ABOUT_NAME
from recordmill.shards.manifest import DATA_PREFIX, RUN_PREFIX, is_data_set
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import RESULTS, StoreRun, objects_of, result_name, result_numbers, results, work_folder
from recordmill.storage.files import listed_objects, put_object, remove_objects
from recordmill.storage.folders import join, remove_file
from recordmill.storage.strict_json import read_bounded

_OURS = (RUN_PREFIX, DATA_PREFIX, f"{REJECTS}/", f"{RESULTS}/")

_log = logging.getLogger(__name__)


def begin_in_store(out: str, overwrite: bool) -> tuple[RunFolder, int]:
    """(a run folder on this machine, the generation that the read follows; 0: none).

    Raises:
        UsageError: OUT holds a data set, an earlier result (without overwrite), or anything else, or can't be reached.
    """
    try:
        is_taken, there = both(lambda: is_data_set(out), lambda: results(out))
        if is_taken:
            raise UsageError(f"{out} holds a data set of recordmill; name another folder for {option('out')}")
        if there:
            _finish(out, there)
            if not overwrite:
                raise UsageError(f"{out} already holds the result of a read; {option('overwrite', True)} replaces it")
        else:
            strange = next((item.name for item in listed_objects(out) if not item.name.startswith(_OURS)), None)
            if strange is not None:
                raise UsageError(
                    f"{out} is not empty ({strange}, ...); name a new or an empty folder for {option('out')}"
                )
    except OSError as error:
        raise UsageError(f"{option('out', out)}: {error.strerror}") from None
    except DataError as error:
        raise UsageError(f"{error}: not what a read writes; remove it, or name another folder") from None

    def goes_on(run: Path) -> bool:  # unless it has committed without hearing of it
        return is_resumable(run) and f"{DATA_PREFIX}{run.name.removeprefix(RUN_PREFIX)}" not in there.values()

    return RunFolder.create(work_folder(out), keep=goes_on, index=False), max(there, default=0)


@dataclass(frozen=True)
class Uploaded(Publication):
    """What this machine makes, as objects. base: the generation of results at OUT that this one follows."""

    uploads: Uploads
    base: int

    @property
    def keeping(self) -> Keeping:
        return Keeping(is_durable=self.uploads.finished is not None, follow=self.uploads.follow)

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputAccount]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        uploads, number = self.uploads, self.base + 1
        out, run, data = uploads.out, uploads.run, uploads.data
        outputs, rejects = uploads.put_all()
        text = _text({**summary, "folder": data, "files": [*outputs, *rejects]})
        _, uploads.is_settled = both(uploads.check, lambda: run.may_commit(self.base, result_numbers))
        uploads.is_settled = uploads.is_settled and run.commit(result_name(number), text)
        if not uploads.is_settled:
            raise _came_second(out)
        _tidy(uploads.folder, out, {number: data}, text)
        return join(out, data), tuple(join(out, name) for name in rejects)


@dataclass(frozen=True)
class Placed(Publication):
    """What workers have put into the run's data folder in the store. base: as of `Uploaded`. Nothing is removed here
    where another read was first.
    """

    run: StoreRun
    folder: RunFolder
    base: int

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputAccount]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        run, number = self.run, self.base + 1
        out, data = run.out, f"{DATA_PREFIX}{run.id}"
        rejects = [path for result in results for path in result.rejected.files]
        names = [f"{data}/{result.output}" for result in results] + [path.removeprefix(f"{out}/") for path in rejects]
        text = _text({**summary, "folder": data, "files": names})
        if not (run.may_commit(self.base, result_numbers) and run.commit(result_name(number), text)):
            raise _came_second(out)
        _tidy(self.folder, out, {number: data}, text)
        return join(out, data), tuple(rejects)


def _came_second(out: str) -> RecordmillError:
    return RecordmillError(
        f"{out}: another read wrote its result there while this one ran; nothing of this one was kept"
    )


def _text(summary: Mapping[str, Any]) -> bytes:
    document = {"format": "recordmill read", "version": 1, **summary}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _tidy(folder: RunFolder, out: str, own: Mapping[int, str], text: bytes) -> None:
    """What follows a commit and can't undo it. own: its generation to its folder."""
    try:
        with contextlib.suppress(OSError):
            remove_file(folder.path / ABOUT_NAME, missing_ok=True)  # nothing is left to go on with
        there = results(out, own)
        if [max(there, default=0)] == [*own]:  # else a later one does it
            _finish(out, there, text)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped, but {out} was complete already") from None
    except (OSError, RecordmillError) as error:
        _log.warning("%s: the result is complete, but tidying up after it failed (%s)", out, error)


def _finish(out: str, there: Mapping[int, str], text: bytes | None = None) -> None:
    """Make `_read.json` what the newest result's own file says, and remove what it replaced; the file of the generation
    before stays, so that no read which began before it can take its number. there: as `results` gives it. text: what
    the file says, if that is known, and that no read has finished it.
    """
    generation = max(there)
    if text is None:
        newest, said = both(lambda: read_bounded(join(out, result_name(generation))), lambda: _said(out))
    else:
        newest, said = text, b""
    if said != newest:
        put_object(join(out, SUMMARY_NAME), newest)
    older = [(number, name) for number, name in there.items() if number < generation]
    remove_objects(out, [key for _, name in older for key in objects_of(out, name)])
    remove_objects(out, [result_name(number) for number, _ in older if number < generation - 1])


def _said(out: str) -> bytes:
    with contextlib.suppress(FileNotFoundError, DataError):
        return read_bounded(join(out, SUMMARY_NAME))
    return b""
