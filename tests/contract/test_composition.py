"""Views of data sets never change each other.

A data set has records, which are an immutable value. Mixtures and zips have the records of data
sets.
"""

import ast
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import mixed_rows, write_data_set
from rooms import ROOT, parse_module

import recordmill
from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset
from recordmill.reader.mixture import Mixture
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.zip import Zip

READER = ROOT / "src" / "recordmill" / "reader"


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return recordmill.open(
        write_data_set(
            tmp_path_factory.mktemp("made") / "out",
            {"train": mixed_rows(30), "test": mixed_rows(9)},
        )
    )


@pytest.fixture(scope="module")
def faces(ds: Dataset) -> list[Any]:
    train = recordmill.open(ds.records.catalog.root or "", "train")
    return [
        ds,
        recordmill.mixture([(train, 1), (recordmill.open(ds.records.catalog.root, "test"), 1)]),
        recordmill.zip([ds.select(["id"]), ds.select(["name"])]),
    ]


@pytest.mark.parametrize("path", sorted(READER.rglob("*.py")), ids=lambda path: path.stem)
def test_module_of_the_reader_uses_no_dict_of_an_object(path: Path) -> None:
    lines = [
        node.lineno
        for node in ast.walk(parse_module(path))
        if isinstance(node, ast.Attribute) and node.attr == "__dict__"
    ]
    assert not lines, f"{path}: pass the value to the constructor, or share the object that has it"


def test_dataset_mixture_and_zip_have_records_and_nothing_else(faces: list[Any]) -> None:
    for face in faces:
        assert [*vars(face)] == ["records"]
        assert [base.__name__ for base in type(face).__bases__] == ["Trainable"]
    assert [type(face) for face in faces] == [Dataset, Mixture, Zip]


def test_records_are_frozen_and_have_each_member_that_training_uses(faces: list[Any]) -> None:
    members = {name for name in dir(Fetchable) if not name.startswith("_")}
    for face in faces:
        assert members <= set(dir(face.records))
        with pytest.raises(dataclasses.FrozenInstanceError):
            face.records.threads = 1


def test_view_leaves_the_data_set_as_it_is(ds: Dataset) -> None:
    before, columns = pickle.dumps(ds.records.columns), ds.columns
    view = ds.filter("id < 5").select(["name"]).rename({"name": "called"}).filter([0, 2])
    assert view["called"].tolist() == [ds[0]["name"], ds[2]["name"]]
    assert (len(ds), ds.columns, pickle.dumps(ds.records.columns)) == (39, columns, before)


def test_views_of_the_same_records_know_their_numbers_together(ds: Dataset) -> None:
    view = ds.filter("id < 5")
    names, narrower = view.select(["name"]), view.filter("id > 1")
    assert len(view) == 10
    assert names.records.filter.known_matching is view.records.filter.known_matching
    assert narrower.records.filter.known_matching is None
    assert narrower.records.open_files is names.records.open_files is ds.records.open_files


def test_data_set_in_another_process_knows_schema_and_matching_records(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(30)})
    files = [file.path for file in recordmill.open(out).records.catalog.files]
    ds = recordmill.open(files, where="id < 5")
    assert len(ds) == 5
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.records.open_files.known_schema == ds.full_schema
    assert len(copy.records.filter.known_matching) == 5
    assert copy.records.fingerprint == ds.fingerprint


def test_mixture_of_mixtures_is_refused(faces: list[Any]) -> None:
    _, mixed, _ = faces
    with pytest.raises(UsageError, match=r"a mixture takes .* as open\(\) returns it"):
        recordmill.mixture([(mixed, 1)])
