"""NumPy batches have the requested form.

Lists are padded or dense. Labels and weights are separate, numbers can be joined to one matrix, and
a function can be mapped over the batches.
"""

import operator
import pickle
from typing import Any

import numpy as np
import pytest
from kit.data_sets import mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.reader import OneHot, Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.records.columns.ragged import Ragged, Strings

ROWS = 50
TOKENS = [list(range(i % 4)) if i % 11 != 3 else [] for i in range(ROWS)]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open(
        write_data_set(
            tmp_path_factory.mktemp("forms") / "out", {"train": mixed_rows(ROWS)}, shards=2
        )
    )


@pytest.mark.parametrize(
    ("collation", "length"),
    [
        ("padded", 3),
        (Padded(2, value=-1, lengths=True), 2),
        (Padded(multiple=8, lengths=True), 8),
        (Padded(5), 5),
    ],
)
def test_lists_are_padded_and_lengths_are_returned_on_request(
    ds: Dataset, collation: Any, length: int
) -> None:
    fill = collation.value if isinstance(collation, Padded) else 0
    start = 0
    for batch in ds.batches(20, shuffle=False, collate={"tokens": collation}):
        rows = TOKENS[start : start + 20]
        start += 20
        assert batch["tokens"].tolist() == [(row + [fill] * length)[:length] for row in rows]
        has_lengths = isinstance(collation, Padded) and collation.lengths
        assert batch.get("tokens/length", np.array([])).tolist() == [
            len(row) for row in rows if has_lengths
        ]


def test_lists_of_one_length_become_dense_arrays(ds: Dataset) -> None:
    for batch in ds.batches(1, shuffle=False, collate={"boxes": "dense", "tokens": "ragged"}):
        assert batch["boxes"].shape[0] == 1
        assert batch["boxes"].shape[2:] == (4,)
    with pytest.raises(DataError, match="'boxes' has rows of 0 to 2 items in one batch"):
        list(ds.batches(10, collate={"boxes": "dense"}))


def test_nulls_are_masked_or_marked_in_a_valid_array(ds: Dataset) -> None:
    options = {"shuffle": False, "collate": "padded"}
    masked_batch, valid_batch = (
        next(ds.batches(20, **options)),
        next(ds.batches(20, **options, nulls="valid")),
    )
    missing = {"maybe": 0, "flag": False, "payload": b"", "when": np.datetime64(0, "us")}
    assert set(valid_batch) - set(masked_batch) == {f"{name}/valid" for name in missing}
    for name, fill in missing.items():
        valid = valid_batch[f"{name}/valid"]
        assert not valid.all()
        assert (valid_batch[name][~valid] == fill).all()
        assert valid_batch[name][valid].tolist() == [
            value for value in masked_batch[name].tolist() if value is not None
        ]
        assert not isinstance(valid_batch[name], np.ma.MaskedArray)
    with pytest.raises(UsageError, match="nulls="):
        ds.batches(8, nulls="NaN")
    jax = pytest.importorskip("jax", reason="needs jax, which is no dependency")
    assert (
        jax.numpy.asarray(valid_batch["maybe"])[~valid_batch["maybe/valid"]].tolist() == [0.0] * 7
    )


def arrays_of(column: Any) -> list[np.ndarray[Any, Any]]:
    """Returns the arrays of numbers and of objects in a column."""
    if isinstance(column, Ragged):
        return [column.row_splits, *arrays_of(column.values)]
    if isinstance(column, Strings):
        return [column.row_splits]
    return [column]


@pytest.mark.parametrize("batch_size", [4, 64])
@pytest.mark.parametrize("shuffle", [False, "window", "global"])
@pytest.mark.parametrize("options", [{}, {"nulls": "valid"}, {"collate": "padded"}, {"ids": True}])
def test_arrays_of_batches_are_writable_and_changes_stay_in_their_batch(
    ds: Dataset, options: dict[str, Any], shuffle: Any, batch_size: int
) -> None:
    options = {**options, "shuffle": shuffle, "seed": 1}
    expected = [batch["id"].tolist() for batch in ds.batches(batch_size, **options)]
    ids = []
    for batch in ds.batches(batch_size, **options):
        ids.append(batch["id"].tolist())
        for column in batch.values():
            for array in arrays_of(column):
                assert array.flags.writeable
                array[...] = array[:1].copy()  # also sets the mask of a masked array
        assert len(set(batch["id"].tolist())) == 1
        batch["id"].__dlpack__()  # jax.numpy.from_dlpack calls this method
    assert ids == expected

    def add_in_place(batch: dict[str, Any]) -> Any:
        batch["id"] += 1
        return batch

    mapped = ds.batches(batch_size, **options, map=add_in_place)
    assert [(batch["id"] - 1).tolist() for batch in mapped] == expected


def test_labels_and_weights_are_separate_from_the_features(ds: Dataset) -> None:
    x, y, weights = next(ds.batches(8, shuffle=False, label="label", weights="exact"))
    assert y.tolist() == [i % 3 for i in range(8)]
    assert weights.tolist() == [i + 1e-12 for i in range(8)]
    assert {"label", "exact"}.isdisjoint(x)
    x, y = next(ds.select(["matrix", "label"]).batches(8, shuffle=False, label="label"))
    assert x.shape == (8, 2, 3)
    with pytest.raises(DataError, match="maybe"):
        list(ds.batches(8, label="maybe"))


def test_matrix_joins_numeric_features(ds: Dataset) -> None:
    x, y, weights = next(
        ds.batches(
            ROWS,
            shuffle=False,
            label=True,
            weights="exact",
            matrix=["maybe", "matrix", "flag", "id"],
        )
    )
    columns = ds.to_numpy()
    flag = [np.nan if value is None else value for value in columns["flag"].tolist()]  # type: ignore[union-attr]
    parts = [
        columns["maybe"].filled(np.nan),
        columns["matrix"].reshape(ROWS, 6),
        flag,
        columns["id"],
    ]  # type: ignore[union-attr]
    assert x.dtype == np.float32
    assert np.array_equal(x, np.column_stack(parts).astype(np.float32), equal_nan=True)
    assert (y.tolist(), weights.tolist()) == (columns["label"].tolist(), columns["exact"].tolist())  # type: ignore[union-attr]
    batch = next(ds.batches(8, matrix=("id", "label"), ids=True, pad_remainder=True))
    assert sorted(batch) == ["mask", "matrix", "record/index", "record/shard"]


def test_single_collation_applies_to_all_lists(ds: Dataset) -> None:
    collations: dict[str, Any] = dict.fromkeys(["tokens", "words", "nested", "boxes"], Padded(3))
    single_batch, dict_batch = (
        next(ds.batches(20, shuffle=False, collate=collation))
        for collation in (Padded(3), collations)
    )
    assert sorted(single_batch) == sorted(ds.columns)
    assert all(
        np.array_equal(single_batch[name], dict_batch[name])
        for name in ("tokens", "words", "boxes")
    )
    x, _ = next(ds[["tokens", "label"]].batches(20, label=True, collate="padded"))
    assert x.shape == (20, 3)


def test_map_function_is_applied_to_batches_and_its_error_names_the_batch(ds: Dataset) -> None:

    def tens(batch: dict[str, Any]) -> Any:
        if 33 in batch["id"]:
            raise StopIteration("no 33")
        return batch["id"] * 10

    plain = [batch["id"] for batch in ds.batches(4, seed=5)]
    index = next(index for index, batch in enumerate(plain) if 33 in batch)
    run = ds.batches(4, seed=5, map=tens)
    assert len(run) == len(plain)
    results = [next(run).tolist() for _ in range(index)]
    assert results == [(batch * 10).tolist() for batch in plain[:index]]
    with pytest.raises(
        RecordmillError, match=f"map: batch {index} of this iteration: StopIteration: no 33"
    ) as error:
        next(run)
    assert isinstance(error.value.__cause__, StopIteration)
    # The failed batch counts as done for the state, the length and the next batches.
    assert len(run) == len(plain) - index - 1
    remaining = ds.batches(4, seed=5, state=run.state(), map=lambda batch: batch["id"])
    rest = [batch.tolist() for batch in plain[index + 1 :]]
    assert [batch.tolist() for batch in remaining] == rest
    assert [(batch / 10).tolist() for batch in run] == rest
    # A resumed iterator counts from the start of the iteration.
    resumed = ds.batches(4, seed=5, start_step=index, map=tens)
    with pytest.raises(RecordmillError, match=f"map: batch {index} of this iteration"):
        next(resumed)
    x, y = next(ds.batches(4, seed=5, label=True, map=lambda pair: (sorted(pair[0]), pair[1])))
    assert "label" not in x
    assert len(y) == 4


def test_mapped_data_set_only_yields_batches(ds: Dataset) -> None:
    mapped = pickle.loads(pickle.dumps(ds.map(operator.itemgetter("id")).map(abs)))
    plain = [-batch["id"] for batch in ds.batches(8, seed=2)]
    for batches in (
        mapped.map(operator.neg).batches(8, seed=2),
        mapped.batches(8, seed=2, map=operator.neg),
    ):
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in plain]
    assert [batch.numpy().tolist() for batch in mapped.to_tf(8, seed=2)] == [
        (-batch).tolist() for batch in plain
    ]
    zipped = recordmill.zip([ds.select(["id"]), ds.select(["label"])])
    x, _ = next(
        zipped.map(lambda pair: (pair[0] * 2, pair[1])).batches(8, shuffle=False, label="label")
    )
    assert x.tolist() == [*range(0, 16, 2)]
    with pytest.raises(AttributeError, match="after map has no 'to_numpy', because"):
        mapped.to_numpy()
    for source in (ds, mapped):
        with pytest.raises(UsageError, match="map is a function of a batch, not 5"):
            source.map(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate": OneHot(3)}, "'tokens' is int32 .*: one_hot takes one whole number"),
        ({"matrix": "id"}, "matrix is a list of features, as in .*, not 'id'"),
        ({"matrix": ["id", "nope"]}, "no feature 'nope' is selected"),
        ({"matrix": ["id", "tokens"]}, "matrix: 'tokens' is int32 .*, not a number"),
        ({"matrix": ["id", "when"]}, "matrix: 'when' is timestamp"),
        ({"matrix": ["id", "label"], "label": True}, "'label' is named twice"),
        ({"matrix": ["id"], "label": "matrix"}, "matrix adds the feature 'matrix'"),
        (
            {"matrix": ["id"], "collate": {"tokens": "padded"}},
            "'tokens' is not a selected feature",
        ),
        ({"matrix": ["id"], "collate": "padded"}, "none of the selected features is a list"),
        ({"on_bad": "ignore"}, "on_bad=.ignore.: must be one of error, skip"),
        ({"map": "double"}, "map is a function of a batch"),
        ({"label": "nope"}, "label 'nope' is not a selected feature"),
        ({"weights": "exact"}, "weights= needs label="),
        (
            {"collate": {"id": "padded"}},
            "'id' is not a selected list; there are tokens, words, nested, boxes",
        ),
        ({"collate": {"tokens": "packed"}}, "not 'packed'"),
        ({"decode_images": (0, 3)}, "at least 1"),
        ({"decode_images": (3, 3), "channels": 2}, "channels"),
        ({"decode_images": (3, 3)}, "no feature holds encoded images"),
        ({"collate": ["tokens"]}, "collate is one of these for all lists, or a dict"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": 64.0}, "batch_size is a whole number, not 64.0"),
        ({"batch_size": "64"}, "batch_size is a whole number, not '64'"),
        ({"batch_size": True}, "batch_size is a whole number, not True"),
        ({"seed": 1.5}, "seed is a whole number, not 1.5"),
        ({"shuffle": True, "seed": None}, "seed is a whole number, not None"),
        ({"epochs": -1}, "epochs"),
        ({"epochs": 2.5}, "epochs is a whole number, not 2.5"),
        ({"shuffle": "all"}, "shuffle is"),
        ({"num_hosts": 0}, "num_hosts"),
        ({"num_hosts": 2.0}, "num_hosts is a whole number"),
        ({"num_hosts": 2, "host_index": 2}, "host_index must be from 0 to 1"),
        ({"shuffle": "window", "window_bytes": 0}, "window_bytes"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"drop_remainder": True, "pad_remainder": True}, "give one of them"),
        ({"state": {}}, "state has no 'format'"),
        ({"state": 5}, r"state must be a mapping, as `state\(\)` returns it, not 5"),
        ({"state": "{}"}, "state must be a mapping"),
    ],
)
def test_wrong_batch_option_is_refused_by_name(
    ds: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ds.batches(**{"batch_size": 8, "shuffle": False, **options})


def test_batches_without_features_are_refused(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="no feature is selected"):
        ds.select([]).batches(8)
