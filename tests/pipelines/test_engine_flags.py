"""Flags of job servers pass, those of nobody are refused with what was probably meant."""

from __future__ import annotations

import pytest

from recordmill.base.errors import UsageError
from recordmill.pipelines.beam_run import check_runner


@pytest.mark.parametrize(
    "flag",
    [
        "--checkpointing_interval=1000",
        "--object_reuse",
        "--max_bundle_size=500",
        "--execution_mode_for_batch=BATCH_FORCED",
    ],
)
def test_flags_of_flinks_job_server_pass(flag: str) -> None:
    check_runner("FlinkRunner", [flag, "--parallelism=2", "--flink_master=localhost:8081"])


@pytest.mark.parametrize(
    ("runner", "flag", "meant"),
    [
        ("FlinkRunner", "--object_reus", "--object_reuse"),
        ("FlinkRunner", "--checkpointing_intervall=5", "--checkpointing_interval"),
        ("SparkRunner", "--cache_disable", "--cache_disabled"),
        (None, "--paralelism=2", ""),
        ("FlinkRunner", "--num-shard=8", "--num-shards"),
    ],
)
def test_a_slip_is_refused_with_what_was_meant(runner: str | None, flag: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown option {flag}.*{meant}"):
        check_runner(runner, [flag])


@pytest.mark.parametrize(
    ("flag", "says"),
    [("--max_bundle_size=many", "invalid int value"), ("--object_reuse=yes", "ignored explicit argument")],
)
def test_a_value_that_cannot_be_is_refused(flag: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_runner("FlinkRunner", [flag])


def test_flags_of_one_engine_are_none_of_anothers() -> None:
    with pytest.raises(UsageError, match="unknown option --object_reuse"):
        check_runner("SparkRunner", ["--object_reuse"])


def test_a_job_server_that_does_not_answer_is_said_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.pipelines.remote import flags

    monkeypatch.setattr(flags, "_ASKING_SEC", 0.5)
    with pytest.raises(UsageError, match="no job server answers there"):
        check_runner("PortableRunner", ["--job_endpoint=localhost:9", "--whatever=1"])


@pytest.mark.parametrize(
    ("runner", "meant"),
    [("FlinkRunnr", "; did you mean FlinkRunner?"), ("sparkrunnr", "; did you mean SparkRunner?"), ("zebra", "")],
)
def test_a_runner_that_is_mistyped_is_answered(runner: str, meant: str) -> None:
    with pytest.raises(UsageError) as told:
        check_runner(runner, [])
    assert str(told.value) == f"--runner {runner}: Beam has none of that name{meant}"


@pytest.mark.parametrize("runner", ["flink", "SPARKRUNNER", "DataflowRunner", "my.own.Runner"])
def test_a_runner_is_named_as_beam_reads_it(runner: str) -> None:
    check_runner(runner, [])
