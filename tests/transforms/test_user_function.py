"""A user's own function: told by its own line when it fails, sent to workers by value, refused by name where it can't
be, and never a value of a feature in an error.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.build import build
from recordmill.transforms.tft.user_function import load_function, send_by_value

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
    made = tmp_path / "mine.py"
    made.write_text(MODULE)
    return made


def test_a_function_travels_by_value_with_what_it_uses(path: Path) -> None:
    from apache_beam.internal import pickler

    function = load_function(str(path))
    send_by_value(function)
    sent = pickler.dumps(function)
    path.unlink()
    code = f"from apache_beam.internal import pickler; print(pickler.loads({sent!r})({{'x': 2}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "{'y': 42}\n"


def test_what_cannot_travel_is_refused_by_its_name_before_anything_runs(path: Path, tmp_path: Path) -> None:
    message = r"'STREAM', which streams uses, can't be sent to workers \(TypeError: .*\); make it inside the function"
    with pytest.raises(UsageError, match=message):
        build({"x": [1, 2]}, tmp_path / "out", transform=f"{path}:streams")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", r"line 2, in <module>: `y = x / 0`: ZeroDivisionError: division by zero"),
        ("x = 1\ndef f(:\n", r"line 2: `def f\(:`: SyntaxError"),
        ("import no_such_module\n", r"line 1, in <module>: `import no_such_module`: ModuleNotFoundError"),
        ("preprocessing_fn = 3\n", "has no function preprocessing_fn$"),
    ],
)
def test_a_module_that_fails_is_told_by_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "bad.py"), "bad.py", "./bad.py"):
        with pytest.raises(UsageError, match=message):
            load_function(path)


def test_an_analysis_that_fails_on_a_record_does_not_show_it(path: Path, tmp_path: Path) -> None:
    data = {"x": list(range(40)), "text": ["7"] * 39 + ["a secret"]}
    with pytest.raises(DataError, match="the transform can't be fitted on split 'train'") as caught:
        build(data, tmp_path / "out", transform=f"{path}:parses")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert not (tmp_path / "out").exists()
    done = recordmill.build({**data, "text": ["7"] * 40}, tmp_path / "out", transform=f"{path}:parses")
    assert recordmill.open(done.out).to_numpy()["y"].tolist() == [7] * 40
