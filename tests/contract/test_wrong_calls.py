"""Wrong arguments in Python raise one sentence with the mistake and a right value."""

import errno
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.options.calls import CALLS as OPTIONS
from recordmill.options.calls import Values
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
    "select": (lambda ds: ds.select(5), r"features must be a list, as in \['n', 'y'\], not 5"),
    "select of statistics": (
        lambda ds: ds.statistics.select(["train"], ["m"]),
        "no feature 'm'; there are n, y",
    ),
    "drop": (lambda ds: ds.drop(5), r"features must be a list, as in \['n', 'y'\], not 5"),
    "zip": (lambda ds: recordmill.zip(5), "zip takes a list of two or more data sets"),
    "mixture": (lambda ds: recordmill.mixture(5), "a mixture takes a list of pairs"),
    "example": (lambda ds: recordmill.example(5), "example takes a dict"),
    "parse_example": (lambda ds: recordmill.parse_example(5), "parse_example takes the bytes"),
    "columns": (
        lambda ds: recordmill.open(ds.records.catalog.root, columns=5),
        "columns is a list",
    ),
    **{
        f"{function.__name__}({value})": (
            lambda ds, function=function, value=value: function(value),
            "an input is a path, as in 'data', or a list of paths",
        )
        for function in (recordmill.open, recordmill.inspect, recordmill.stats, recordmill.check)
        for value in (5, None, [5], b"data")
    },
    "verify": (lambda ds: recordmill.verify(5), "an input is a path"),
    "dtype": (
        lambda ds: recordmill.Feature("x", "zzz"),
        "feature 'x': unknown dtype 'zzz'; one of bool, int8,",
    ),
    "shape": (lambda ds: recordmill.Feature("x", "int8", (-1,)), "'x': .* negative dimension"),
    "classes": (
        lambda ds: recordmill.Feature("x", "int64", classes="ab"),
        "'x': class names are a list of texts, not 'ab'",
    ),
    "label of a schema": (
        lambda ds: recordmill.Schema((recordmill.Feature("x", "int8"),), label="y"),
        "label 'y' is not a feature; there are x",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrong_argument_is_one_sentence(ds: Dataset, call: str) -> None:
    function, message = CALLS[call]
    with pytest.raises(UsageError, match=message) as error:
        function(ds)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", OPTIONS)
@pytest.mark.parametrize("value", [np.array([1, 2]), np.array(["n", "y"]), np.array([])], ids=str)
def test_array_for_an_option_is_accepted_as_a_list_or_refused_by_name(
    call: str, value: np.ndarray[Any, Any]
) -> None:
    for option in OPTIONS[call].keywords:
        message = ""
        try:
            Values(call, {option.name: value})
        except UsageError as error:
            message = str(error)
        assert not message or option.name in message


@pytest.mark.parametrize("value", [np.array(1), np.array([1]), pa.array([1])], ids=str)
def test_array_of_numbers_for_a_list_of_texts_is_refused_by_name(
    tmp_path: Path, value: object
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"^build: null_tokens is text or a list of texts, not "):
        recordmill.build(tmp_path / "in.csv", tmp_path / "out", null_tokens=value)


def test_array_of_names_is_accepted_as_a_list_of_features(ds: Dataset) -> None:
    names = np.array(["n", "y"])
    assert recordmill.open(ds.records.catalog.root, columns=names[:1]).schema.names == ("n",)
    assert next(iter(ds.batches(4, matrix=names)))["matrix"].shape == (4, 2)
    assert next(iter(ds.batches(4, seed=np.array(3), epochs=np.int64(1)))).keys() == {"n", "y"}
    with pytest.raises(UsageError, match=r"^shuffle must not be an array: array\(\[1, 2\]\)$"):
        ds.batches(4, shuffle=np.array([1, 2]))
    with pytest.raises(UsageError, match=r"^on_bad must be one of error, skip, not array"):
        ds.batches(4, on_bad=np.array([1, 2]))


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
        (lambda out: recordmill.report(out, colums="n"), "did you mean columns"),
        (lambda out: recordmill.zip([], dataset=1), "did you mean datasets"),
        (lambda out: recordmill.Feature("a", dype="int8"), "did you mean dtype"),
        (lambda out: recordmill.open(out).to_numpy(memmap=out), "did you mean memmap_dir"),
        (lambda out: recordmill.open(out).to_parquet(out, compresion="gzip"), "mean compression"),
        (lambda out: recordmill.open(out).statistics.select(split="a"), "did you mean splits"),
    ],
)
def test_unknown_keyword_names_the_closest_one(
    ds: Dataset, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(ds.records.catalog.root)


PUBLIC_CALLS: dict[str, dict[str, Any]] = {
    "open": {"inputs": "data"},
    "build": {"source": {"a": [1]}, "out": "new"},
    "read": {"inputs": "data", "out": "new"},
    "inspect": {"inputs": "data"},
    "stats": {"inputs": "data"},
    "report": {"inputs": "data"},
    "check": {"inputs": "data"},
    "verify": {"inputs": "data"},
    "status": {"out": "data"},
    "clean": {"out": "data"},
    "zip": {"datasets": []},
    "mixture": {"datasets": []},
    "hosts": {"of": 1},
    "example": {"values": {}},
    "parse_example": {"data": b""},
    "serving_objects": {"path": "data"},
    "Images": {"height": 4, "width": 4},
    "RandomCrop": {},
    "Padded": {},
    "Packed": {"length": 4},
    "Bucketed": {"boundaries": [2]},
    "OneHot": {},
    "Feature": {"name": "a", "dtype": "int8"},
    "Schema": {"features": ()},
    "Dataset.head": {},
    "Dataset.take": {"records": [0]},
    "Dataset.sample": {},
    "Dataset.select": {"columns": ["n"]},
    "Dataset.drop": {"columns": ["n"]},
    "Dataset.rename": {"names": {}},
    "Dataset.filter": {"what": "n > 1"},
    "Dataset.map": {"function": len},
    "Dataset.to_table": {},
    "Dataset.to_batches": {},
    "Dataset.to_numpy": {},
    "Dataset.to_npy": {"folder": "new"},
    "Dataset.to_parquet": {"path": "new"},
    "Dataset.normalization": {},
    "Dataset.class_weights": {},
    "Dataset.batches": {"batch_size": 4},
}
# Beginnings of our sentences in a plain ValueError or TypeError.
OWN_SENTENCES = (
    "records are addressed by",
    "feature 'a': ",
    "label 'zzz' is no",
    "message is",
)


@pytest.mark.parametrize("name", PUBLIC_CALLS)
def test_argument_of_any_other_type_is_one_sentence(
    ds: Dataset, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ds.records.catalog.root)
    path, _, attribute = name.rpartition(".")
    function = getattr(ds if path else recordmill, attribute)
    parameters = inspect.signature(function).parameters
    raw_errors = []
    for argument in parameters:
        for value in (5, None, 1.5, "zzz", b"x", ["zzz", 5], {"zzz": 5}, object()):
            try:
                function(**{**PUBLIC_CALLS[name], argument: value})
            except recordmill.RecordmillError:
                pass
            except Exception as error:
                if not str(error).startswith(OWN_SENTENCES):
                    raw_errors.append((argument, value, error))
    assert not raw_errors


def test_the_error_names_the_argument_its_type_and_its_value(ds: Dataset, tmp_path: Path) -> None:
    for call, message in {
        lambda: recordmill.build({"a": [1]}, 5): "build: out is a path, not 5",
        lambda: recordmill.open(
            ds.records.catalog.root, schema=5
        ): "schema is a Schema or the path of a schema.pbtxt, not",
        lambda: ds.filter(
            5
        ): "filter takes a condition (SQL text, or a pyarrow expression), a mask or",
        lambda: ds.to_batches("4"): "batch_rows is a whole number, not '4'",
        lambda: recordmill.RandomCrop(area=[1]): "RandomCrop: area is a list of 2 numbers, not [1]",
        lambda: recordmill.open("a\0b"): "'a\\x00b' is not a path: no name of a file has a NUL",
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value).startswith(message)


def test_file_in_place_of_the_folder_of_arrays_is_one_sentence(ds: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file, or below one: name a new or empty folder"):
            ds.to_npy(folder)


def test_repr_of_batches_points_keras_users_to_to_keras(ds: Dataset) -> None:
    assert "for model.fit use ds.to_keras(...)" in repr(ds.batches(4))


def test_disk_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    # A descriptor for reading refuses writes, like a broken disk.
    reader = os.fdopen(os.open(file, os.O_RDONLY), "rb", buffering=0)
    with reader, pytest.raises(OSError, match="Bad file descriptor") as error:
        write_all(_Writer(reader.fileno()), b"x")  # type: ignore[arg-type]
    assert (error.value.errno, error.value.filename) == (errno.EBADF, str(file))


class _Writer:
    """Writer for any descriptor, with no check of its mode.

    Files of Python check the mode first, so they would raise another error.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)
