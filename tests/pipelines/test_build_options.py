"""What a build may be told: values of any sort of number, limits that follow from each other,
and what the manifest says of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordmill.base.errors import UsageError
from recordmill.pipelines.build_options import make_options
from recordmill.sources.csv.dialect import CsvOptions


def test_numpy_numbers_are_numbers() -> None:
    settings = make_options("out", seed=np.int64(3), num_shards=np.int32(2), threads=np.uint8(1))  # type: ignore[arg-type]
    assert (settings.order.seed, settings.shards.num_shards, settings.threads) == (3, 2, 1)
    assert type(settings.order.seed) is int


@pytest.mark.parametrize(
    "options",
    [{"seed": "3"}, {"seed": [1]}, {"split_seed": 1.5}, {"num_shards": 2.0}, {"threads": "2"}, {"memory": None}],
    ids=str,
)
def test_what_is_no_number_is_refused_with_the_options_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options)) + "="):
        make_options("out", **options)


def test_threads_are_no_more_than_the_memory_can_feed() -> None:
    assert make_options("out", threads=64, memory="128MiB").threads == 4
    assert make_options("out", threads=64, memory="2GiB").threads == 64


def test_what_decides_the_bytes_names_the_options_of_the_kind_and_nothing_absolute(tmp_path: Path) -> None:
    said = make_options(
        "out", options={"labels": str(tmp_path / "labels.csv"), "null_tokens": ("", "-")}
    ).source_options()["kind_options"]
    assert said == {"labels": "labels.csv", "null_tokens": ["", "-"]}
    comma, tab = (
        make_options("out", options=CsvOptions(delimiter=delimiter)).source_options() for delimiter in (",", "\t")
    )
    assert comma["kind_options"]["delimiter"] == ","
    assert comma != tab
