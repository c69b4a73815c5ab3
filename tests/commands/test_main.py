"""The command line suggests the closest word for a mistyped one.

Ctrl-C prints one line at any time after the start.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.runs import run_python

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.commands import main as commands


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", {"train": mixed_rows(40)})


def exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["raed", "IN"], "read"),
        (["read", "IN", "--to", "numpy"], "npy"),
        (["read", "IN", "--out", "x", "--column", "id"], "--columns"),
        (["read", "IN", "--out", "x", "--columns", "idd"], "id"),
        (["read", "IN", "--out", "x", "--compression", "ztsd"], "zstd"),
        (["read", "IN", "--out", "x", "--split", "trian"], "train"),
        (["read", "IN", "--out", "x", "--decode-raw", "matrx=int8"], "matrix"),
        (["head", "IN", "--column", "id"], "--columns"),
        (["head", "IN", "--columns", "idd"], "id"),
        (["inspect", "IN", "--inferfrom", "3"], "--infer-from"),
        (["inspect", "IN", "--emit", "scheme"], "schema"),
        (["verify", "IN", "--thread", "2"], "--threads"),
        (["build", "cvs", "IN", "--out", "x"], "csv"),
        (["build", "csv", "ROWS", "--out", "x", "--label", "Y"], "y"),
        (["build", "csv", "ROWS", "--out", "x", "--key", "idd"], "id"),
        (["build", "csv", "ROWS", "--out", "x", "--dtype", "idd=int8"], "id"),
        (["build", "csv", "ROWS", "--out", "x", "--column", "id"], "--columns"),
        (["build", "csv", "ROWS", "--out", "x", "--compression", "gz"], "gzip"),
        (["build", "csv", "ROWS", "--out", "x", "--rnner=FlinkRunner"], "--runner"),
        (
            ["build", "csv", "ROWS", "--out", "x", "--fit-on", "trian", "--transform", "STEPS"],
            "train",
        ),
        (["transform", "csv", "ROWS", "--wiht", "IN"], "--with"),
        (["bench", "IN", "--sed", "3", "--shufle", "global"], "--seconds, --shuffle"),
        (["clean", "IN", "--yse", "--jsn"], "--json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_mistyped_word_is_answered_with_the_closest_one(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], suggestion: str
) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n3,4\n")
    (tmp_path / "steps.yaml").write_text("id: zscore")
    files = {"ROWS": str(tmp_path / "rows.csv"), "STEPS": str(tmp_path / "steps.yaml")}
    places = {"IN": str(out), "x": str(tmp_path / "x"), **files}
    assert exit_code([places.get(word, word) for word in words]) == 2
    assert f"did you mean {suggestion}?" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_splits_above_one_suggest_no_negative_rest(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n")
    with pytest.raises(UsageError, match=r"sum to 1.1, and must sum to 1") as error:
        recordmill.build(tmp_path / "rows.csv", tmp_path / "out", splits="train=0.9,test=0.2")
    assert "rest=" not in str(error.value)


def test_local_runner_is_recognized_in_any_case() -> None:
    from recordmill.options.calls import is_local

    for name in (
        None,
        "directrunner",
        "DirectRunner",
        "Direct",
        "direct",
        "FNAPIRUNNER",
        "fnapirunner",
        "fn_api",
    ):
        assert is_local(name), name
    for name in ("FlinkRunner", "prismrunner", ""):
        assert not is_local(name), name


def test_option_of_another_command_is_reported_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n")
    assert (
        exit_code(
            [
                "build",
                str(tmp_path / "rows.csv"),
                "--out",
                str(tmp_path / "new"),
                "--file-size",
                "1MiB",
            ]
        )
        == 2
    )
    assert "--file-size is an option of `recordmill read`\n" in capsys.readouterr().err
    assert exit_code(["read", str(out), "--out", str(tmp_path / "new"), "--num-shards", "2"]) == 2
    assert (
        "--num-shards is an option of `recordmill build`; Beam's flags need --runner\n"
        in capsys.readouterr().err
    )
    assert exit_code(["inspect", str(out), "--with", "x", "--attach"]) == 2
    assert "--attach; --with is an option of `recordmill transform`\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["build", "transform", "read", "head", "inspect", "bench", "verify", "status", "clean"],
)
def test_unknown_flag_is_answered_with_help_all(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n")
    inputs = str(tmp_path / "rows.csv" if command == "build" else out)
    assert (
        exit_code(
            [command, inputs, *(["--out", str(tmp_path / "x")] * (command == "build")), "--attach"]
        )
        == 2
    )
    assert f"; `recordmill {command} --help-all` shows all options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "code", "end"),
    [
        (
            "--runner=FlinkRunner",
            1,
            'pip install "recordmill[beam]" (in a checkout: pip install ".[beam]")',
        ),
        ("--runer=FlinkRunner", 2, "Apache Beam is not installed; did you mean --runner?"),
    ],
)
def test_flag_for_beam_is_refused_before_the_plan_if_beam_is_not_installed(
    tmp_path: Path, flag: str, code: int, end: str
) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n")
    words = ["build", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out"), flag]
    script = f"""
import sys
sys.modules["apache_beam"] = None
import recordmill.pipelines.build as m
m.make_plan = lambda *a: sys.exit("planned")
from recordmill.__main__ import main
sys.exit(main({words!r}))
"""
    process = run_python("-c", script, check=False, timeout=300)
    assert process.returncode == code
    assert process.stderr.endswith(f"{end}\n")
    assert "planned" not in process.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "module", ["argparse", "recordmill.commands.build", "recordmill.pipelines.build", "pyarrow"]
)
def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / "rows.csv").write_text("id,y\n1,2\n")
    script = f"""
import os, runpy, signal, sys, time
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["recordmill", "build", {str(tmp_path / "rows.csv")!r}, "--out", {str(tmp_path / "out")!r}]
runpy.run_module("recordmill", run_name="__main__")
"""
    process = run_python("-c", script, check=False, timeout=300)
    assert (process.returncode, process.stderr) == (
        130,
        "recordmill: error: stopped; nothing was written\n",
    )
    assert not (tmp_path / "out").exists()


def test_thread_that_cannot_be_interrupted_does_not_keep_the_process() -> None:
    script = """
import runpy, sys, threading, time
import recordmill.commands.main as commands
def run(argv):
    threading.Thread(target=time.sleep, args=[1000], name="recordmill-0").start()
    raise KeyboardInterrupt
commands.run = run
sys.argv = ["recordmill", "build"]
runpy.run_module("recordmill", run_name="__main__")
"""
    process = run_python("-c", script, check=False, timeout=120)
    assert (process.returncode, process.stderr) == (
        130,
        "recordmill: error: stopped; nothing was written\n",
    )


def test_repeated_hangup_counts_once_and_a_later_one_interrupts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(commands, "_last_hangup", float("-inf"))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with pytest.raises(KeyboardInterrupt):
        commands._handle_signal(signal.SIGHUP, None)
    clock[0] += 0.1
    commands._handle_signal(signal.SIGHUP, None)
    clock[0] += 2
    with pytest.raises(KeyboardInterrupt):
        commands._handle_signal(signal.SIGHUP, None)


@pytest.mark.parametrize("command", ["stats", "inspect", "head"])
def test_characters_that_a_terminal_lacks_are_printed_as_escapes(
    command: str, tmp_path: Path
) -> None:
    recordmill.build({"n\u00e4me": ["\u65e5\u672c"]}, tmp_path / "out")
    words = [sys.executable, "-m", "recordmill", command, str(tmp_path / "out")]
    process = subprocess.run(
        words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "n\\xe4me" in process.stdout
    assert "\\u65e5\\u672c" in process.stdout


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("recordmill ins", ["inspect"]),
        ("recordmill build --split-s", ["--split-seed"]),
        ("recordmill read x --to par", ["parquet"]),
    ],
)
def test_shell_completes_commands_options_and_values(
    tmp_path: Path, line: str, completions: list[str]
) -> None:
    pytest.importorskip("argcomplete")
    output_path = tmp_path / "said"
    environ = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(output_path),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    subprocess.run([sys.executable, "-m", "recordmill"], env=environ, check=True)
    assert output_path.read_text().split("\013") == completions
