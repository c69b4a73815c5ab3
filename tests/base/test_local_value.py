"""A handle leads to its object in the same process, and to nothing in another process.

Progress that is unpickled in another process counts from zero.
"""

import pickle
import subprocess
import sys

import pytest

from recordmill.base.errors import RecordmillError
from recordmill.base.local_value import LocalValue
from recordmill.base.progress import Progress


class Value:
    pass


def run_in_child(program: str, pickled: bytes) -> str:
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


def test_handle_loads_the_same_object_and_does_not_keep_it_alive() -> None:
    value = Value()
    handle = pickle.loads(pickle.dumps(LocalValue.of(value)))
    assert handle.load() is handle.find() is value
    del value
    assert handle.find() is None
    with pytest.raises(RecordmillError, match="has no Value for this step"):
        handle.load()


def test_handle_finds_nothing_in_another_process() -> None:
    value = Value()
    assert run_in_child("print(value.find())", pickle.dumps(LocalValue.of(value))) == "None\n"


def test_progress_unpickled_in_the_same_process_is_the_same_object() -> None:
    progress = Progress()
    assert pickle.loads(pickle.dumps(progress)) is progress


def test_progress_unpickled_in_another_process_counts_from_zero() -> None:
    progress = Progress()
    progress.advance(records=3)
    progress.cancel()
    program = "value.advance(records=1); print(value.records)"
    assert run_in_child(program, pickle.dumps(progress)) == "1\n"
