"""Options of Beam are checked before a run."""

from pathlib import Path

import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.commands.main import run
from recordmill.pipelines.beam_run import check_runner


@pytest.mark.parametrize(
    ("runner", "flags", "message"),
    [
        ("FlinkRunner", ["--object-reuse"], "unknown option --object-reuse"),
        (None, ["--paralelism=2"], "unknown option --paralelism=2"),
        ("FlinkRunner", ["--num-shard=8"], "unknown option --num-shard=8.*--num-shards"),
        ("FlinkRuner", [], 'runner="FlinkRuner": there are .*; did you mean FlinkRunner'),
        ("my.Runner", [], "No module named 'my'"),
    ],
)
def test_mistyped_beam_flag_names_the_closest_one(
    runner: str | None, flags: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_runner(runner, flags)


def test_stray_word_is_reported_without_the_flags_of_beam(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--runner=FlinkRunner", "--object_reuse", "--flink_master", "host:8081"]
    with pytest.raises(SystemExit):
        run(["build", "a.csv", "--out", "out", *flags, "b.csv"])
    assert "unrecognized arguments: b.csv;" in capsys.readouterr().err


def test_beam_args_as_one_text_are_refused(tmp_path: Path) -> None:
    for call in (recordmill.build, recordmill.read):
        with pytest.raises(
            UsageError, match=r"must be a list, not a text: beam_args=\['--a', '--b'\]"
        ):
            call("in.csv", tmp_path / "out", runner="FlinkRunner", beam_args="--a --b")
