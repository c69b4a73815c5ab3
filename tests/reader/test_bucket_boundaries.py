"""`Bucketed("statistics")`: the boundaries that a pass over the data would find, without one, for all that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recordmill
from recordmill import Bucketed
from recordmill.base.errors import UsageError
from recordmill.reader.batches.grouping import weighted_quantiles
from recordmill.reader.dataset import Dataset
from recordmill.reader.mixture import Mixture

pytest.importorskip("apache_beam", reason="building needs Apache Beam")

ROWS = 900


def table(seed: int, rows: int = ROWS, scale: float = 20) -> pa.Table:
    random = np.random.default_rng(seed)
    lengths = random.gamma(2, scale, rows).astype(np.int64)
    return pa.table({
        "id": pa.array(np.arange(rows)),
        "words": pa.array([["w"] * n for n in lengths.tolist()], pa.list_(pa.string())),
        "notes": pa.array([None if n % 11 == 0 else ["w"] * n for n in lengths.tolist()], pa.list_(pa.string())),
        "points": pa.array([[[1.0, 2.0]] * (n % 9) for n in lengths.tolist()], pa.list_(pa.list_(pa.float32(), 2))),
        "nested": pa.array([[["a"], ["b", "c"]]] * rows, pa.list_(pa.list_(pa.string()))),
    })  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lists") / "out"
    recordmill.build(table(1), out, splits="train=0.8,test=0.2")
    return out


def rows_of(batches: Any, feature: str = "words") -> list[tuple[list[int], tuple[int, ...]]]:
    return [(np.asarray(batch["id"]).tolist(), tuple(batch[feature].shape)) for batch in batches]


def how(*arguments: Any, feature: str = "words", **options: Any) -> dict[str, Any]:
    return {"shuffle": True, "seed": 3, "collate": {feature: Bucketed(*arguments, **options)}}


@pytest.mark.parametrize("feature", ["words", "points"])
@pytest.mark.parametrize("buckets", [1, 4, 8, 10])
def test_they_are_those_of_a_pass_over_one_split(
    built: Path, feature: str, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = recordmill.open(built, "train")
    passed = rows_of(ds.select(["id", feature]).batches(32, **how(buckets=buckets, feature=feature)), feature)
    monkeypatch.setattr(Dataset, "record_batches", None)  # no record is read for them
    ds = recordmill.open(built, "train").select(["id", feature])
    found = rows_of(ds.batches(32, **how("statistics", buckets=buckets, feature=feature)), feature)
    assert found == passed
    assert len({shape[1] for _, shape in found}) > (buckets > 1)


def test_of_several_splits_each_counts_by_its_records(built: Path) -> None:
    ds = recordmill.open(built)
    counted = ds.stored_lengths("notes")
    assert counted is not None
    lengths = np.array([len(one or ()) for one in ds.to_table().column("notes").to_pylist()])
    assert counted[1].sum() == pytest.approx(ROWS)
    boundaries = weighted_quantiles(*counted, 8)
    counts = np.bincount(np.searchsorted(boundaries, lengths))
    assert boundaries[-1] == lengths.max()
    assert counts.max() - counts.min() < 0.06 * ROWS


def test_of_a_mixture_each_data_set_counts_by_its_weight(built: Path, tmp_path: Path) -> None:
    recordmill.build(table(2, 300, 60), tmp_path / "long")
    short, long = (recordmill.open(out, "train").select(["id", "words"]) for out in (built, tmp_path / "long"))
    mixed = recordmill.mixture([(short, 1), (long, 3)])
    assert isinstance(mixed, Mixture)
    counted = mixed.stored_lengths("words")
    assert counted is not None
    middle, _ = weighted_quantiles(*counted, 2)
    below = [np.mean([len(one) <= middle for one in ds.to_table().column("words").to_pylist()]) for ds in (short, long)]
    assert (below[0] + 3 * below[1]) / 4 == pytest.approx(0.5, abs=0.02)
    found = rows_of(mixed.batches(20, **how("statistics", buckets=2)))
    assert {shape[1] for _, shape in found} <= {*weighted_quantiles(*counted, 2)}


def test_tensorflow_gets_the_same_batches(built: Path) -> None:
    pytest.importorskip("tensorflow")
    ds = recordmill.open(built, "test").select(["id", "words"])
    expected = rows_of(ds.batches(16, **how("statistics")))
    assert [(ids, shape) for ids, shape in rows_of(ds.to_tf(16, **how("statistics")))] == expected


def test_a_state_goes_on_with_the_same_boundaries(built: Path) -> None:
    ds = recordmill.open(built, "train").select(["id", "words"])
    running = ds.batches(16, **how("statistics"))
    next(running)
    rest = rows_of(ds.batches(16, **how("statistics"), state=running.state()))
    assert rest == rows_of(running)
    with pytest.raises(UsageError, match="boundaries"):
        ds.batches(16, **how((8, 16)), state=ds_state(ds))


def ds_state(ds: Any) -> Any:
    running = ds.batches(16, **how("statistics"))
    next(running)
    return running.state()


def test_where_there_are_no_statistics_it_is_said_what_to_do(built: Path, tmp_path: Path) -> None:
    recordmill.build(table(3, 50), tmp_path / "out", stats=False)
    without = recordmill.open(tmp_path / "out")
    whole = recordmill.open(built, "train")
    for ds, feature in (
        (without, "words"),
        (whole.filter("id < 100"), "words"),
        (whole, "nested"),
        (recordmill.mixture([(whole.select(["words"]), 1), (without.select(["words"]), 1)], stop="all"), "words"),
    ):
        with pytest.raises(UsageError, match=r"no statistics say how long .* one pass over the feature finds them"):
            ds.batches(8, **how("statistics", feature=feature))
    with pytest.raises(UsageError, match='boundaries are lengths or "statistics"'):
        Bucketed("auto")  # type: ignore[arg-type]
    assert len(rows_of(without.select(["id", "words"]).batches(8, **how()))) == 7
