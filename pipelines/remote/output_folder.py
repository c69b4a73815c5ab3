"""What a build, or a read, on an engine writes into OUT: its own while that is at work, removed when it has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from recordmill.pipelines.remote.submission import MayBeRunning
from recordmill.shards.store_run import StoreRun

if TYPE_CHECKING:
    from recordmill.building.workers.shared_files import SharedFolder


@contextlib.contextmanager
def remove_on_failure(
    job_folder: SharedFolder | None, keeps: Callable[[BaseException], bool] = lambda error: False
) -> Iterator[StoreRun | None]:
    """Holds the lease of a build or a read in a store, which it gives, and where what dead runs left is removed first.
    None: where a folder holds the run. What failed is removed when its jobs have ended, and stays where that is not
    known. keeps: whether what an error has ended is to go on some day.
    """
    if job_folder is None or not job_folder.is_remote:
        yield None
        return
    with StoreRun(job_folder.out, job_folder.id) as run:
        run.remove_dead()
        try:
            yield run
        except MayBeRunning:
            raise
        except BaseException as error:
            if keeps(error) and not run.has_committed:
                run.release()
            else:
                run.close()
            raise
