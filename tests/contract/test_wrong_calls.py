"""Wrong arguments of Python calls give one sentence: what is wrong, and a right value."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset
from recordmill.storage.disk_files import write_all


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("calls") / "out"
    recordmill.build({"n": np.arange(8), "y": np.arange(8) % 2}, out, label="y")
    return recordmill.open(out)


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "matrix=True": (lambda ds: ds.batches(4, matrix=True), "matrix is a list of features"),
    "matrix=5": (lambda ds: ds.batches(4, matrix=5), "matrix is a list of features"),
    "collate=pad": (lambda ds: ds.batches(4, collate="pad"), "did you mean padded"),
    "collate of no list": (
        lambda ds: ds.batches(4, collate="padded"),
        "collate='padded': none of the selected features is a list. .* pass {name: mode}",
    ),
    "map of two": (
        lambda ds: ds.map(lambda x, y: (x, y)).to_keras(4),
        r"map is a function of one argument, the batch, .*\(x, y\).*f\(\*batch\)",
    ),
    "map= of two": (lambda ds: ds.batches(4, map=lambda x, y: x), "one argument, the batch"),
    "normalization": (lambda ds: ds.normalization(["n"]), r"one feature, not \['n'\]"),
    "class_weights": (lambda ds: ds.class_weights(["y"]), r"one feature, not \['y'\]"),
    "select": (lambda ds: ds.select(5), r"list of features, as in \['n', 'y'\], not 5"),
    "drop": (lambda ds: ds.drop(5), r"list of features, as in \['n', 'y'\], not 5"),
    "zip": (lambda ds: recordmill.zip(5), "zip takes a list of two or more data sets"),
    "mixture": (lambda ds: recordmill.mixture(5), "a mixture takes a list of pairs"),
    "example": (lambda ds: recordmill.example(5), "example takes a dict"),
    "parse_example": (lambda ds: recordmill.parse_example(5), "parse_example takes the bytes"),
    "columns": (lambda ds: recordmill.open(ds.catalog.root, columns=5), "columns is a list"),
    **{
        f"{function.__name__}({value})": (
            lambda ds, function=function, value=value: function(value),
            "an input is a path, as in 'data', or a list of paths",
        )
        for function in (recordmill.open, recordmill.inspect, recordmill.stats, recordmill.check)
        for value in (5, None, [5], b"data")
    },
    "verify": (lambda ds: recordmill.verify(5), "an input is a path"),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrong_argument_is_one_sentence(ds: Dataset, call: str) -> None:
    function, message = CALLS[call]
    with pytest.raises(UsageError, match=message) as error:
        function(ds)
    assert "\n" not in str(error.value)


def test_rules_or_data_of_a_wrong_type_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expect=\[1\]: rules are the path of a YAML file or a"):
        recordmill.build({"n": [1]}, tmp_path / "a", expect=[1])
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match=r"of type Series, because it has no column names: give a"):
        recordmill.build(pandas.Series([1, 2]), tmp_path / "b")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: recordmill.open(out, decode_image=True), "did you mean decode_images"),
        (lambda out: recordmill.inspect(out, max_reject=1), "did you mean max_rejects"),
        (lambda out: recordmill.stats(out, recont=True), "did you mean recount"),
        (lambda out: recordmill.check(out, agianst=out), "did you mean against"),
        (lambda out: recordmill.verify(out, mnd=True), "did you mean mend"),
        (lambda out: recordmill.Images(24, 24, orientaton=True), "did you mean orientation"),
        (lambda out: recordmill.Padded(8, vale=1), "did you mean value"),
    ],
)
def test_unknown_keyword_names_the_closest_one(
    ds: Dataset, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(ds.catalog.root)


def test_repr_of_batches_points_keras_users_to_to_keras(ds: Dataset) -> None:
    assert "model.fit takes ds.to_keras(...)" in repr(ds.batches(4))


def test_disk_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    # a descriptor for reading refuses to write, as a broken disk does
    reader = os.fdopen(os.open(file, os.O_RDONLY), "rb", buffering=0)
    with reader, pytest.raises(OSError, match="Bad file descriptor") as error:
        write_all(_Writer(reader.fileno()), b"x")  # type: ignore[arg-type]
    assert (error.value.errno, error.value.filename) == (errno.EBADF, str(file))


class _Writer:
    """A file that writes to any descriptor, because Python's own checks the mode first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)
