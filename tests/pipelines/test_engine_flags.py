"""Flags of job servers pass, those of nobody are refused with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.commands.main import run
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


@pytest.mark.parametrize(
    ("runner", "says"),
    [
        ("FlinkRuner", "--runner FlinkRuner: there are .*; did you mean FlinkRunner"),
        ("my.Runner", "No module named 'my'"),
    ],
)
def test_a_runner_that_there_is_not_is_refused(runner: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_runner(runner, [])


def test_a_stray_word_is_named_without_the_flags_of_beam(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--runner=FlinkRunner", "--object_reuse", "--flink_master", "host:8081"]
    with pytest.raises(SystemExit):
        run(["build", "a.csv", "--out", "out", *flags, "b.csv"])
    assert "unrecognized arguments: b.csv;" in capsys.readouterr().err


def test_flags_that_are_one_text_are_refused(tmp_path: Path) -> None:
    for call in (recordmill.build, recordmill.read):
        with pytest.raises(UsageError, match=r"give a list: beam_args=\['--a', '--b'\]"):
            call("in.csv", tmp_path / "out", runner="FlinkRunner", beam_args="--a --b")


def test_flags_of_one_engine_are_none_of_anothers() -> None:
    with pytest.raises(UsageError, match="unknown option --object_reuse"):
        check_runner("SparkRunner", ["--object_reuse"])
