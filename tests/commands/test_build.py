"""`recordmill build` prints one line per mistake and ends with the right exit code.

This holds for signals and closed streams, too.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit.runs import run_python

import recordmill
from recordmill.__main__ import main
from recordmill.base.machine import SystemLimit, find_exhausted_limit


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("id,x\n" + "".join(f"{i},a\n" for i in range(20)))
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.csv"
    path.write_text("id,x\n" + "1,2\n" * 20 + "1,2,3\n" * 12)
    return path


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "recordmill", "build", *map(str, words)]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False)


def test_summary_goes_to_stderr_and_json_to_stdout(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out = (
        ["build", str(rows), "--out", str(tmp_path / "öut"), "--overwrite"],
        str(tmp_path / "öut"),
    )
    assert main([*words, "--num-shards", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "20 records read, 20 written, 0 rejected" in printed.err
    assert "train: 20 records in 2 shards" in printed.err
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert printed.out.isascii()
    assert {
        "out": out,
        "kind": "csv",
        "read": 20,
        "records": {"train": 20},
    }.items() <= summary.items()
    assert (printed.err, main([*words, "--quiet"]), capsys.readouterr()) == ("", 0, ("", ""))


def test_kind_word_is_an_input_if_it_is_the_only_one(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "1.txt").write_text("one\n")
    assert main(["build", "text", str(rows), "--out", "as-text", "--quiet"]) == 0
    assert len(recordmill.open("as-text")) == 21
    assert main(["build", "csv", "--out", "folder", "--quiet"]) == 0
    assert len(recordmill.open("folder")) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonsense=1"], "--nonsense=1"),
        (["--direct_num_workers=abc"], "invalid int value: 'abc'"),
        (["--splits", "my split=1"], "split name 'my split'"),
        (["--num-shards", "100001"], "at most 100000"),
        (["--shard-size", "0"], "at least one byte"),
        (["--delimiter", "ab"], "delimiter"),
        (["--columns", "nosuch"], "nosuch"),
        (["--schema", "nowhere.pbtxt"], "nowhere.pbtxt"),
        (["--max-rejects", "-1"], "--max-rejects -1"),
        (["--seed", str(2**70)], f"--seed {2**70}: must be from -2**63 to 2**63 - 1"),
    ],
    ids=str,
)
def test_wrong_option_is_reported_in_one_line(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["build", "csv", str(rows), "--out", str(tmp_path / "out"), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1
    assert lines[0].startswith("recordmill: error: ")
    assert message in lines[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [["--overwrite"], ["--streaming"], ["--runner=FnApiRunner"]], ids=str
)
def test_input_after_a_flag_is_refused_by_name(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    words = ["build", str(rows), "--out", str(tmp_path / "out"), *flags, str(rows)]
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    assert str(rows) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_many_rejects_show_the_first_ones(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["build", "csv", str(broken), "--out", str(out)]) == 1
    err = capsys.readouterr().err
    assert (
        "12 of 32 records were rejected (reason: wrong number of columns); --max-rejects 0 allows fewer"
        in err
    )
    assert "broken.csv: line 22" in err
    assert "... and 2 more" in err
    assert "--max-rejects 12" in err
    assert not out.exists()
    assert main(["build", "csv", str(broken), "--out", str(out), "--max-rejects", "30%"]) == 1
    assert main(["build", "csv", str(broken), "--out", str(out), "--max-rejects", "12"]) == 0
    err = capsys.readouterr().err
    assert "32 records read, 20 written, 12 rejected (reason: wrong number of columns), in" in err
    (rejects_path,) = (
        line.removeprefix("  rejects: ")
        for line in err.splitlines()
        if line.startswith("  rejects: ")
    )
    assert len(Path(rejects_path).read_text().splitlines()) == 12


def test_build_of_only_bad_rows_prints_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("id,x\n" + "1,2,3\n" * 3)
    for budget in ("0", "100%"):
        assert (
            main(
                [
                    "build",
                    "csv",
                    str(tmp_path / "rows.csv"),
                    "--out",
                    str(tmp_path / "out"),
                    "--max-rejects",
                    budget,
                ]
            )
            == 1
        )
        err = capsys.readouterr().err
        assert "rows.csv: line 2" in err
        assert "--max-rejects 3" not in err
    assert not (tmp_path / "out").exists()


def test_out_that_holds_a_data_set_is_refused(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", str(rows), "--out", str(tmp_path / "out") + "/", "--quiet"]
    assert [main(words), main(words), main([*words, "--overwrite"])] == [0, 2, 0]
    assert "--overwrite replaces it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("can't start new thread"),
            "no more threads can be started: use fewer --threads",
        ),
        (
            ImportError("x.so: failed to map segment from shared object"),
            "out of memory: use less --memory",
        ),
        (MemoryError(), "out of memory: use less --memory"),
    ],
)
def test_system_limit_is_reported_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    message: str,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    (tmp_path / "a.csv").write_text("id\n1\n")
    monkeypatch.setattr(threading.Thread, "start", fail)
    assert (
        main(["build", "csv", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out"), "--quiet"])
        == 1
    )
    assert f"recordmill: error: {message}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux keeps the limit of address space"
)
@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'array'"),
        SystemError("error return without exception set"),
        AttributeError("module 'tfx_bsl.sketches' has no attribute 'X'"),
    ],
)
def test_library_that_cannot_be_loaded_is_reported(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    import resource

    assert find_exhausted_limit(error) is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert find_exhausted_limit(error) is SystemLimit.LIBRARY
    assert find_exhausted_limit(ModuleNotFoundError("No module named 'x'")) is None


@pytest.mark.sweep
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux keeps the limit of address space"
)
# With about 3 GiB, TensorFlow ends the process itself if it cannot start its own threads.
@pytest.mark.parametrize(
    ("kind", "mebibytes"), [("rows", 700), ("rows", 1400), ("transform", 1024)]
)
def test_limit_of_the_address_space_is_reported_in_one_line(
    rows: Path, tmp_path: Path, mebibytes: int, kind: str
) -> None:
    words = [rows, "--out", tmp_path / "out", "--quiet", "--threads", "1"]
    if kind == "transform":
        pytest.importorskip("tensorflow_transform", reason="fits a transform")
        (tmp_path / "transform.yaml").write_text("id: zscore\nx: keep\n")
        words += ["--transform", tmp_path / "transform.yaml"]
    limited_command = [
        "sh",
        "-c",
        f'ulimit -v {mebibytes << 10} && exec "$0" "$@"',
        *command(*words),
    ]
    process = subprocess.run(limited_command, capture_output=True, text=True, check=False)
    assert "Traceback" not in process.stderr, process.stderr
    if process.returncode:
        assert process.returncode == 1, process.stderr
        assert re.match(
            "recordmill: error: (out of memory|no more threads can be started)", process.stderr
        ), process.stderr
        # The memory may not be enough to remove the files of the run.
        names = [path.name for path in (tmp_path / "out").glob("*")]
        assert all(name.startswith("_run-") for name in names)
        subprocess.run(command(*words), check=True)
        assert not list((tmp_path / "out").glob("_run-*"))
    assert len(recordmill.open(tmp_path / "out")) == 20


@pytest.mark.sweep
def test_closed_streams_cause_no_traceback(rows: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(rows, "--out", tmp_path / "a", "--json", "--quiet"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
    for number, redirections in enumerate(["2>&-", ">&- 2>&- <&-"]):
        out = tmp_path / str(number)
        words = " ".join(command(rows, "--out", out, "--json", "--quiet"))
        result = subprocess.run(
            ["sh", "-c", f"{words} {redirections}"], capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, ""), redirections
        assert recordmill.verify(out) == []


@pytest.mark.parametrize(
    ("stage", "stop"),
    [("read", signal.SIGINT), ("write", signal.SIGHUP)]
    + [
        pytest.param(*case, marks=pytest.mark.sweep)
        for case in (
            ("plan", signal.SIGINT),
            ("plan", signal.SIGTERM),
            ("read", signal.SIGTERM),
            ("write", signal.SIGINT),
            ("write", signal.SIGTERM),
        )
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_signal_ends_a_build_with_130_and_leaves_nothing(
    tmp_path: Path, stop: signal.Signals, stage: str
) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    path.write_text(
        "id,t\n" + "".join(f"{i},some text to make it longer\n" for i in range(400_000))
    )
    pause = {
        "plan": "import recordmill.sources.csv.source as m; plan = m.scan_files; m.scan_files = lambda *a, **k: "
        "(mark(), time.sleep(60))",
        "read": "import recordmill.building.ingest as m; encode = m.encode_chunk; m.encode_chunk = lambda *a: (mark(), "
        "time.sleep(0.2), encode(*a))[2]",
        "write": "import recordmill.building.shard_writer as m; cut = m.merge; m.merge = lambda *a: slow(cut(*a))",
    }[stage]
    script = f"""
import sys, time
from recordmill.__main__ import main
def mark():
    open({str(tmp_path / "mark")!r}, "w").close()
def slow(rounds):
    for merged in rounds:
        mark()
        time.sleep(0.2)
        yield merged
{pause}
sys.exit(main(["build", {str(path)!r}, "--out", {str(out)!r}, "--memory", "128MiB", "--num-shards", "1"]))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "mark").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "recordmill: error: stopped; nothing was written"
    assert "Traceback" not in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        *(
            ("build", name)
            for name in ("pipelines.build._make_result", "commands.build.build_summary")
        ),
        ("read", "commands.read.read_summary"),
        *(
            (name, moment)
            for name in ("build", "read")
            for moment in ("shards.run.RunFolder.close", "Display.__exit__")
        ),
    ],
)
def test_signal_in_the_last_moments_reports_a_complete_result(
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    moment: str,
) -> None:
    recordmill.build(rows, tmp_path / "set")

    def stop(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    moment = f"recordmill.{moment}".replace("recordmill.Display", "recordmill.base.display.Display")
    monkeypatch.setattr(moment, stop)
    source, out = tmp_path / "set" if command == "read" else rows, tmp_path / "out"
    assert main([command, str(source), "--out", str(out)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"recordmill: error: stopped, but {out} was complete already"
    )
    check = recordmill.build if command == "read" else recordmill.open
    assert check(out, *([tmp_path / "again"] if command == "read" else []))


@pytest.mark.sweep
def test_signals_at_exit_do_not_disturb_a_finished_build(rows: Path, tmp_path: Path) -> None:
    script = f"""
import atexit, os, signal, sys
from recordmill.__main__ import main
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    atexit.register(os.kill, os.getpid(), number)
sys.argv[1:] = ["build", {str(rows)!r}, "--out", {str(tmp_path / "out")!r}, "--quiet"]
sys.exit(main())
"""
    process = run_python("-c", script, check=False)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_silences_the_libraries_of_tensorflow(tmp_path: Path, quiet: bool) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'I0000 port.cc: oneDNN is on\\n')\n"
    )
    script = f"""
import sys
from recordmill.commands import main
sys.path.insert(0, {str(tmp_path)!r})
main._run_command = lambda args, is_process: __import__("tensorflow") and sys.stderr.write("own") and 0
sys.exit(main.run(["build", "x", "--out", "y"{', "--quiet"' if quiet else ""}]))
"""
    process = run_python("-c", script)
    assert process.stderr == ("own" if quiet else "I0000 port.cc: oneDNN is on\nown")


@pytest.mark.parametrize("has_odd_parent", [True, False])
def test_out_whose_name_is_not_utf8_is_refused(
    rows: Path, tmp_path: Path, has_odd_parent: bool
) -> None:
    odd_path = os.fsencode(tmp_path) + b"/\xff"
    if has_odd_parent:
        os.mkdir(odd_path)
    words = [*map(os.fsencode, command(rows, "--out")), b"ds" if has_odd_parent else odd_path]
    process = subprocess.run(
        words, capture_output=True, check=False, cwd=odd_path if has_odd_parent else None
    )
    assert process.returncode == 2
    assert (
        b"--out ds: the name '\\xff' in its path is not UTF-8" if has_odd_parent else b"not UTF-8"
    ) in process.stderr
