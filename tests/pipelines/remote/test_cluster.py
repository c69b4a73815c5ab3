"""The free slots of a cluster are counted, and a silent master is reported."""

import pytest
from kit.flink_server import flink_server
from kit.preflights import PROCESS

from recordmill.base.errors import UsageError
from recordmill.pipelines.remote.cluster import check_cluster, refuse_findings, with_parallelism
from recordmill.pipelines.remote.submission import pipeline_options


def test_silent_master_and_missing_jar_are_reported() -> None:
    options = pipeline_options(
        "FlinkRunner", ("--flink_master=127.0.0.1:9", "--flink_job_server_jar=/no.jar", *PROCESS)
    )
    findings = check_cluster("FlinkRunner", options)
    assert [finding.what for finding in findings if not finding.ok] == ["Flink", "job server"]
    with pytest.raises(
        UsageError, match=r"127.0.0.1:9 does not answer .*; start Flink, or name its REST address"
    ):
        refuse_findings(findings)


def test_parallelism_defaults_to_the_free_slots() -> None:
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        assert with_parallelism(
            "FlinkRunner", (master,), pipeline_options("FlinkRunner", (master,))
        )[1:] == ("--parallelism=2",)
        for parallelism in (("--parallelism=1",), ("--parallelism", "1")):
            flags = (master, *parallelism)
            assert (
                with_parallelism("FlinkRunner", flags, pipeline_options("FlinkRunner", flags))
                == flags
            )
