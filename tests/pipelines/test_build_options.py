"""Options of a build are checked once.

Their values in a manifest don't depend on the machine.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordmill.base.errors import UsageError
from recordmill.base.machine import count_cores
from recordmill.pipelines.build_options import (
    choose_build_threads,
    make_options,
    to_json_value,
)


def test_options_have_defaults_and_derived_values(tmp_path: Path) -> None:
    options = make_options(tmp_path / "cats")
    assert options.name == "cats"
    assert options.schema is None
    assert options.shards.is_default
    assert options.budget.count == 0
    assert options.threads == choose_build_threads(None, options.run.memory)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_shards", 0),
        ("shard_size", 0),
        ("max_rejects", "many"),
        ("memory", "1kB"),
        ("compression", "rar"),
        ("threads", -1),
    ],
)
def test_impossible_value_is_refused_by_the_name_of_its_option(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(UsageError, match=name):
        make_options(tmp_path / "out", **{name: value})


def test_unknown_option_names_the_closest_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="build has no option num_shard; did you mean num_shards"):
        make_options(tmp_path / "out", num_shard=3)


def test_threads_need_memory() -> None:
    assert choose_build_threads(8, 64 << 20) == 2
    assert choose_build_threads(2, 1 << 40) == 2
    assert choose_build_threads(0, 1 << 40) == choose_build_threads(None, 1 << 40) == count_cores()


def test_manifest_has_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "labels.csv").touch()
    value = {
        "b": tmp_path / "x" / "labels.csv",
        "a": ("sub/labels.csv", 1.5, True, None),
        "c": "no/file",
        "d": {3},
    }
    assert to_json_value(value) == {
        "a": ["labels.csv", 1.5, True, None],
        "b": "labels.csv",
        "c": "no/file",
        "d": "{3}",
    }
    assert list(to_json_value(value)) == ["a", "b", "c", "d"]


def test_numpy_numbers_are_accepted_as_options() -> None:
    settings = make_options("out", seed=np.int64(3), num_shards=np.int32(2), threads=np.uint8(1))  # type: ignore[arg-type]
    assert (settings.order.seed, settings.shards.num_shards, settings.threads) == (3, 2, 1)
    assert type(settings.order.seed) is int


@pytest.mark.parametrize(
    "options",
    [
        {"seed": "3"},
        {"seed": [1]},
        {"split_seed": 1.5},
        {"num_shards": 2.0},
        {"threads": "2"},
        {"memory": None},
    ],
    ids=str,
)
def test_option_that_is_not_a_number_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options)) + "(=| is a whole number, not )"):
        make_options("out", **options)


def test_threads_are_limited_by_the_memory() -> None:
    assert make_options("out", threads=64, memory="128MiB").threads == 4
    assert make_options("out", threads=64, memory="2GiB").threads == 64


def test_recorded_options_hold_no_absolute_path(
    tmp_path: Path,
) -> None:
    options = make_options("out", labels=tmp_path / "labels.csv", null_tokens=("", "-"))
    assert options.source_options()["kind_options"] == {
        "labels": "labels.csv",
        "null_tokens": ["", "-"],
    }
