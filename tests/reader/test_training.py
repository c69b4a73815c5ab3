"""Functions of `map` are applied to batches in the order of the calls.

They change neither the order of the records nor their division into batches.
"""

from typing import Any

import numpy as np
import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.base.errors import MissingExtraError
from recordmill.reader import training
from recordmill.reader.dataset import Dataset, open


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("set")
    return open(write_data_set(folder / "out", {"train": mixed_rows(40)}, shards=2))


def add_one(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] + 1}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] * 2}


def test_functions_are_applied_in_the_order_of_the_calls(ds: Dataset) -> None:
    first, *_ = ds.map(add_one).map(double).batches(10, shuffle=False)
    assert first["id"].tolist() == [2 * (number + 1) for number in range(10)]
    first, *_ = ds.map(double).map(add_one).batches(10, shuffle=False)
    assert first["id"].tolist() == [2 * number + 1 for number in range(10)]


def test_option_map_is_applied_after_the_functions_of_the_data_set(ds: Dataset) -> None:
    mapped = ds.map(add_one).batches(10, shuffle=False, map=double)
    assert next(iter(mapped))["id"].tolist() == [2 * (number + 1) for number in range(10)]


def test_mapped_data_set_yields_the_batches_of_the_data_set(ds: Dataset) -> None:
    plain = [batch["id"] for batch in ds.batches(7, shuffle="global", seed=3)]
    mapped = [batch["id"] for batch in ds.map(add_one).batches(7, shuffle="global", seed=3)]
    assert len(plain) == len(mapped)
    assert all(
        (numbers + 1 == mapped_numbers).all()
        for numbers, mapped_numbers in zip(plain, mapped, strict=True)
    )


def test_record_batches_are_decoded_in_order_from_any_record(ds: Dataset) -> None:
    for start, stop in ((0, None), (13, 29), (39, 40), (40, 40)):
        numbers = [
            number
            for batch in ds.record_batches(start, stop)
            for number in batch.column("id").to_pylist()
        ]
        assert numbers == list(range(40))[start:stop]


def test_output_without_its_package_names_the_extra(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Any:
        raise ImportError(name, name=name)

    monkeypatch.setattr(training, "import_module", fail)
    with pytest.raises(MissingExtraError, match=r"recordmill\[torch\]"):
        ds.to_torch(4)


def test_length_and_schema_are_those_of_the_records(ds: Dataset) -> None:
    assert len(ds.filter("id < 5")) == 5
    assert ds.select(["id"]).schema.names == ("id",)
    assert np.array(ds.select(["id"]).to_numpy()["id"]).tolist() == list(range(40))
