"""An error in a user function is reported with its line, and without values.

The function is sent to workers by value.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.runs import run_python

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.build import build
from recordmill.transforms.tft.user_function import (
    GuardedFunction,
    load_function,
    register_pickling_by_value,
)

MODULE = """
import tensorflow as tf
import tensorflow_transform as tft

OFFSET = 40
STREAM = (number for number in range(3))

def helper(x):
    return x + OFFSET

def preprocessing_fn(inputs):
    return {"y": helper(inputs["x"])}

def streams(inputs):
    return {"y": inputs["x"] + next(STREAM)}

def parses(inputs):
    return {"y": tf.zeros_like(inputs["x"]) + tf.cast(tft.mean(tf.strings.to_number(inputs["text"])), tf.int64)}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    module_path = tmp_path / "mine.py"
    module_path.write_text(MODULE)
    return module_path


def test_pickled_function_runs_in_another_process_without_its_module(path: Path) -> None:
    from apache_beam.internal import pickler

    function = load_function(str(path))
    register_pickling_by_value(function)
    pickled = pickler.dumps(function)
    path.unlink()
    code = (
        f"from apache_beam.internal import pickler; print(pickler.loads({pickled!r})({{'x': 2}}))"
    )
    process = run_python("-c", code, check=False, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout == "{'y': 42}\n"


def test_global_that_cannot_be_pickled_is_refused_by_name_before_the_build(
    path: Path, tmp_path: Path
) -> None:
    message = r"'STREAM', which streams uses, can't be sent to workers \(TypeError: .*\); make it inside the function"
    with pytest.raises(UsageError, match=message):
        build({"x": [1, 2]}, tmp_path / "out", transform=f"{path}:streams")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = 1\ny = x / 0\n",
            r"line 2, in <module>: `y = x / 0`: ZeroDivisionError: division by zero",
        ),
        ("x = 1\ndef f(:\n", r"line 2: `def f\(:`: SyntaxError"),
        (
            "import no_such_module\n",
            r"line 1, in <module>: `import no_such_module`: ModuleNotFoundError",
        ),
        ("preprocessing_fn = 3\n", "has no function preprocessing_fn$"),
    ],
)
def test_module_that_fails_is_reported_with_line_and_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "bad.py"), "bad.py", "./bad.py"):
        with pytest.raises(UsageError, match=message):
            load_function(path)


@pytest.mark.sweep
def test_failed_analysis_does_not_reveal_values_of_records(path: Path, tmp_path: Path) -> None:
    data = {"x": list(range(40)), "text": ["7"] * 39 + ["a secret"]}
    with pytest.raises(DataError, match="the transform can't be fitted on split 'train'") as error:
        build(data, tmp_path / "out", transform=f"{path}:parses")
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__
    assert not (tmp_path / "out").exists()
    result = recordmill.build(
        {**data, "text": ["7"] * 40}, tmp_path / "out", transform=f"{path}:parses"
    )
    assert recordmill.open(result.out).to_numpy()["y"].tolist() == [7] * 40


def test_module_or_function_that_calls_exit_is_an_error(tmp_path: Path) -> None:
    """With exit code 0, a command would succeed without a data set."""
    path = tmp_path / "mine.py"
    path.write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(UsageError, match=r"line 3, in <module>: `sys.exit\(0\)`: SystemExit: 0"):
        load_function(str(path))
    path.write_text("import sys\n\ndef preprocessing_fn(inputs):\n    sys.exit(0)\n")
    with pytest.raises(
        UsageError, match=r"line 4, in preprocessing_fn: `sys.exit\(0\)`: SystemExit: 0"
    ):
        GuardedFunction(load_function(str(path)))({})


def test_vocabulary_file_of_a_user_is_stored_with_the_transform(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "words.txt").write_text("a\nb\nc\n")

    def preprocessing_fn(inputs: Any) -> Any:
        word, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        start = tf.lookup.TextFileInitializer(
            str(tmp_path / "words.txt"), tf.string, word, tf.int64, line
        )
        return {"number": tf.lookup.StaticHashTable(start, -1).lookup(inputs["word"])}

    data = {"word": ["c", "x", "a"]}
    result = build(data, tmp_path / "out", transform=preprocessing_fn, shuffle=False)
    assert recordmill.open(result.out).to_table()["number"].to_pylist() == [2, -1, 0]
    assert str(tmp_path) not in json.dumps(result.manifest.transform)
    (tmp_path / "words.txt").write_text("a\na\n")
    with pytest.raises(
        DataError, match=r"can't be fitted on split 'train': FailedPreconditionError in operation"
    ):
        build(data, tmp_path / "twice", transform=preprocessing_fn)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(
        DataError, match=r"can't be fitted on split 'train': FileNotFoundError in operation"
    ):
        build(data, tmp_path / "gone", transform=preprocessing_fn)
    (tmp_path / "out").rename(tmp_path / "moved")
    second = build(data, tmp_path / "again", transform_from=tmp_path / "moved", shuffle=False)
    assert recordmill.open(second.out).to_table()["number"].to_pylist() == [2, -1, 0]


LOOPS = {
    "Python": """
def preprocessing_fn(inputs):
    print("loops", flush=True)
    while True:
        pass
""",
    "a call": """
import time
def preprocessing_fn(inputs):
    print("loops", flush=True)
    time.sleep(1000)
""",
    "a graph": """
import tensorflow as tf
import tensorflow_transform as tft
def preprocessing_fn(inputs):
    value = tf.cast(inputs["x"], tf.float32)
    said = tf.py_function(lambda value: (print("loops", flush=True), value)[1], [value], tf.float32)
    said.set_shape(value.shape)
    endless = tf.while_loop(lambda value: True, lambda value: value * 1.0, [said])[0]
    return {"y": endless - tft.mean(endless)}
""",
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("loop", "stop", "times"),
    [
        ("Python", signal.SIGTERM, 1),
        ("a call", signal.SIGINT, 1),
        ("a call", signal.SIGHUP, 2),
        ("a graph", signal.SIGTERM, 1),
        ("a graph", signal.SIGHUP, 1),
        ("a graph", signal.SIGINT, 2),
    ],
)
def test_signal_ends_a_user_function_that_never_returns(
    tmp_path: Path, loop: str, stop: signal.Signals, times: int
) -> None:
    (tmp_path / "x.csv").write_text("x\n1\n2\n")
    (tmp_path / "mine.py").write_text(LOOPS[loop])
    command = [
        sys.executable,
        "-m",
        "recordmill",
        "build",
        "x.csv",
        "--out",
        "out",
        "--transform",
        "mine.py",
    ]
    child = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "loops\n"
        for _ in range(times):
            child.send_signal(stop)
            time.sleep(1.5)  # a terminal that ends sends SIGHUP twice
        _, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert stderr.splitlines()[-1] == "recordmill: error: stopped; nothing was written"
    assert not list((tmp_path / "out").glob("*"))
