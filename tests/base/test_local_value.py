"""Handles of objects of this process, and the progress that steps receive as an argument."""

import pickle
import subprocess
import sys

import pytest

from recordmill.base.errors import RecordmillError
from recordmill.base.local_value import LocalValue
from recordmill.base.progress import Progress


class Value:
    pass


def in_another_process(program: str, pickled: bytes) -> str:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import pickle, sys; value = pickle.load(sys.stdin.buffer); {program}",
        ],
        input=pickled,
        capture_output=True,
        check=True,
    ).stdout.decode()


def test_a_handle_loads_the_object_itself_and_keeps_it_not_alive() -> None:
    value = Value()
    handle = pickle.loads(pickle.dumps(LocalValue.of(value)))
    assert handle.load() is handle.find() is value
    del value
    assert handle.find() is None
    with pytest.raises(RecordmillError, match="has no Value for this step"):
        handle.load()


def test_another_process_has_no_such_object() -> None:
    value = Value()
    assert in_another_process("print(value.find())", pickle.dumps(LocalValue.of(value))) == "None\n"


def test_a_step_of_this_process_counts_for_the_run_itself() -> None:
    progress = Progress()
    assert pickle.loads(pickle.dumps(progress)) is progress


def test_a_step_of_another_process_has_counters_of_its_own() -> None:
    progress = Progress()
    progress.advance(records=3)
    progress.cancel()
    program = "value.advance(records=1); print(value.records)"
    assert in_another_process(program, pickle.dumps(progress)) == "1\n"
