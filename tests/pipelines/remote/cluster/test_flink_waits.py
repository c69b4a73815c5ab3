"""Users learn why a Flink job does not run.

Either hosts don't see OUT, or the job waits for a slot.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slot_holder
from driver import Driver, recordmill
from engines import shards
from flink_hosts import POOL, FlinkHosts
from hosts import END_WITH_PARENT, wait

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def take_all_slots(flink: FlinkHosts) -> Iterator[None]:
    """Runs another job, which uses all slots, inside the `with` block."""
    flags = [flag for flag in flink.flags if not flag.startswith("--parallelism")]
    command = [sys.executable, slot_holder.__file__, *flags, f"--parallelism={2 * flink.slots}"]
    with subprocess.Popen(
        [*END_WITH_PARENT, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as holder:
        try:
            wait(
                lambda: slot_holder.NAME in flink.live_jobs() and flink.count_free_slots() == 0,
                300,
                "a job that holds all slots",
            )
            yield
        finally:
            flink.cancel(slot_holder.NAME)
            holder.wait(120)


def test_job_without_a_slot_is_reported(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = (
        "csv",
        table,
        "--out",
        out,
        "--num-shards=6",
        "--splits=train=0.8,test=0.2",
        *flink.flags,
    )
    with take_all_slots(flink):
        code, err = Driver("build", *options).end()
        assert code == 2
        assert (
            f"slots: 2 are needed, 0 of 4 free, on 2 TaskManagers; start more TaskManagers, or end the jobs that use the slots ({flink.url}"
            in err
        )
        driver = Driver("build", *options, "--no-preflight")
        driver.wait_for(lambda: "on Flink: waits for slots" in driver.read_stderr())
        assert f"{flink.url}/#/job/running/" in driver.read_stderr()
    code, err = driver.end()
    assert code == 0, err
    assert shards(out) == shards(built)


def test_doctor_reports_folders_that_workers_of_pools_do_not_see(
    flink: FlinkHosts, table: Path
) -> None:
    pools = ("--environment_type=EXTERNAL", f"--environment_config=localhost:{POOL}")
    flags = [flag for flag in flink.flags if "environment" not in flag]
    output, err = recordmill("doctor", table, "--out", flink.hidden / "out", *flags, *pools)
    assert "ok  slots: 4 of 4 free, on 2 TaskManagers" in output, err
    assert "NO  --out: a worker on" in output
    assert "name a folder that all workers see" in output
    assert "NO  INPUT" not in output
    assert not (flink.hidden / "out").exists()
