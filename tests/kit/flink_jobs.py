"""Run folders of jobs on a simulated Flink server."""

from pathlib import Path

from recordmill.pipelines.remote.flink import JobNote
from recordmill.shards.dead_runs import JOB_NOTE_NAME
from recordmill.shards.run import RunFolder

JOB = "0" * 31 + "1"


def orphan(out: Path, note: JobNote) -> Path:
    """Returns the run folder of a driver that was killed during its job."""
    folder = RunFolder.create(out, uses_engine=True)
    (folder.path / JOB_NOTE_NAME).write_bytes(note.to_json())
    folder.release()
    return folder.path
