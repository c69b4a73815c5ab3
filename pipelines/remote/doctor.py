"""`doctor`: whether a build or a read would run on an engine, looked at without one; what `preflight` refuses, as a
list.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.option_names import option, spelled
from recordmill.base.progress import Progress
from recordmill.pipelines.remote.cluster import Finding, check_cluster
from recordmill.pipelines.remote.preflight import Seen, ask_workers, check_given, put_token, some_of, take_away
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.shards.manifest import RUN_PREFIX
from recordmill.shards.run import RunFolder, check_out
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.storage.files import bound_requests, is_remote, output_path
from recordmill.storage.folders import join
from recordmill.storage.listing import list_inputs


def doctor(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    runner: str | None = None,
    beam_args: Sequence[str] = (),
    overwrite: bool = False,
    storage_requests: int | None = None,
) -> list[Finding]:
    """What was looked at, good and bad: `finding.ok`, and `finding.remedy` says what to change.

    inputs, out: as `build` takes them; what is not given is not looked at. A folder that was made for OUT is removed.
    storage_requests: how many requests to stores may be under way at once; None: as before, 64 at first.

    Raises:
        UsageError: no runner is given.
    """
    runner = check_given(runner)
    bound_requests(storage_requests)
    found = check_cluster(runner, pipeline_options(runner, beam_args))
    seen, listed = _inputs(inputs)
    found += listed
    folder, path = None, ""
    if out is not None:
        folder, path, told = _out(output_path(out), overwrite)
        found.append(told)
    try:
        if all(finding.ok for finding in found if finding.what not in ("INPUT", "OUT")):
            found += ask_workers(runner, beam_args, Seen(path, seen), Progress())
    finally:
        if folder is not None:
            folder.close()
    return found


def _inputs(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[tuple[tuple[str, int], ...], list[Finding]]:
    given = [os.fspath(one) for one in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)]
    if not given:
        return (), []
    try:
        files = list_inputs(given, data_extensions=DATA_EXTENSIONS).files
    except (RecordmillError, OSError) as error:
        return (), [Finding("INPUT", str(error), "name what is there")]
    files_here = f"{len(files):,} file{'s' * (len(files) != 1)} here"
    return some_of(files), [Finding("INPUT", files_here)]


def _out(out: str, overwrite: bool) -> tuple[RunFolder | None, str, Finding]:
    """(the folder of a run, its path, "" where there can be none; what was found): it is written to."""
    folder = None
    try:
        base = check_out(out, overwrite)
        if is_remote(out):
            path = join(out, f"{RUN_PREFIX}{uuid.uuid4().hex[:12]}")
            take_away(put_token(path, ""))
        else:
            folder = RunFolder.create(out)
            path = str(folder.path.absolute())
    except (UsageError, OSError) as error:
        text = (
            f"{out}: {error.strerror}"
            if isinstance(error, OSError)
            else str(error).removeprefix(f"{spelled(option('out', out))}: ")
        )
        told, _, remedy = text.partition("; ")
        return None, "", Finding("OUT", told, remedy or "name another folder, or allow this one to be written to")
    holds = "a data set, which would be replaced" if base else "no data set"
    return folder, path, Finding("OUT", f"{out}: can be written to, holds {holds}")
