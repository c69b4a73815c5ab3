"""`to_tf` collates as `batches` does: same batches, values and shapes."""

from typing import Any

import numpy as np
import pytest
from kit.batches import tensor_to_list
from kit.data_sets import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.reader import Bucketed, OneHot, Packed, Padded, Ragged
from recordmill.reader.dataset import Dataset, open

tf = pytest.importorskip("tensorflow")

ROWS = 203
ANY_WAY: dict[str, Any] = {
    "padded": {
        "tokens": "padded",
        "words": "padded",
        "nested": "padded",
        "boxes": Padded(multiple=4, lengths=True),
    },
    "of one length": {
        "tokens": Padded(2, value=-1),
        "words": Padded(3, value="-", lengths=True),
        "nested": Padded(2),
        "boxes": Padded(5, value=0.5),
    },
    "one hot": {"label": "one_hot", "id": OneHot(ROWS)},
}
ONE_ORDER: dict[str, Any] = {
    "bucketed": {"tokens": Bucketed((1, 2), steps=3), "boxes": "padded"},
    "bucketed by text": {"words": Bucketed(buckets=2, steps=4), "tokens": Padded(3)},
    "bucketed by nested": {"nested": Bucketed((1,), length=2, value=-1)},
    "packed": {"tokens": Packed(5), "boxes": Packed(6, value=-1)},
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open(
        write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": mixed_rows(ROWS)}, shards=2)
    )


def plain(value: Any, missing: Any = b"") -> Any:
    """A NumPy value as lists, as TensorFlow has it: text as bytes, what is missing as nothing."""
    if isinstance(value, Ragged):
        return [[] if row is None else plain(row, missing) for row in value.to_list()]
    if isinstance(value, list):
        return [plain(item, missing) for item in value]
    if np.ma.isMaskedArray(value):
        return plain(value.filled(0))
    if isinstance(value, np.ndarray):
        return (
            [plain(item, missing) for item in value] if value.dtype.hasobject else _numbers(value)
        )
    return value.encode() if isinstance(value, str) else missing if value is None else value


def _numbers(value: np.ndarray) -> Any:
    return (value.view(np.int64) if value.dtype.kind == "M" else value).tolist()


def same(theirs: Any, ours: dict[str, Any]) -> None:
    assert set(ours) <= set(theirs)
    assert all(name.endswith("/valid") for name in set(theirs) - set(ours))
    for name, value in ours.items():
        assert plain(value, b"" if name == "payload" else []) == tensor_to_list(theirs[name]), name


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("how", [*ANY_WAY, *ONE_ORDER])
def test_to_tf_collates_like_batches(ds: Dataset, how: str) -> None:
    collate = {**ANY_WAY, **ONE_ORDER}[how]
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "collate": collate}
    ours = list(ds.batches(16, **options))
    theirs = list(ds.to_tf(16, label=False, **options))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        same(other, mine)


def test_to_tf_makes_lists_of_one_length_dense(ds: Dataset) -> None:
    few = ds.select(["id", "boxes", "words"])
    for batch in few.to_tf(1, shuffle=False, label=False, collate={"boxes": "dense"}):
        assert batch["boxes"].shape == (1, int(batch["id"][0]) % 3, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="dense"):
        list(few.to_tf(10, label=False, collate={"boxes": "dense"}))


def test_to_tf_knows_the_static_shapes(ds: Dataset) -> None:
    def shapes(**options: Any) -> Any:
        return {
            name: spec.shape.as_list()
            for name, spec in ds.to_tf(8, label=False, **options).element_spec.items()
        }

    tokens = Padded(7, lengths=True)
    fixed = shapes(
        drop_remainder=True, collate={"tokens": tokens, "label": "one_hot", "boxes": "padded"}
    )
    assert fixed["tokens"] == [8, 7]
    assert fixed["tokens/length"] == [8]
    assert fixed["label"] == [8, 3]
    assert fixed["boxes"] == [8, None, 4]
    packed = shapes(collate={"tokens": Packed(9)})
    assert packed["tokens"] == packed["tokens/segment"] == packed["tokens/position"] == [8, 9]


@pytest.mark.filterwarnings("ignore:feature")
def test_to_tf_separates_labels_and_weights(ds: Dataset) -> None:
    few = ds.select(["tokens", "exact", "label"])
    collate: dict[str, Any] = {"tokens": Padded(3, lengths=True), "label": "one_hot"}
    x, y, weights = next(
        iter(few.to_tf(8, shuffle=False, weights="exact", collate=collate, label=True))
    )
    mine, labels, ours = next(
        few.batches(8, shuffle=False, label="label", weights="exact", collate=collate)
    )
    same(x, mine)
    assert y.numpy().tolist() == labels.tolist()
    assert weights.numpy().tolist() == ours.tolist()
    with pytest.raises(UsageError, match="weights= needs label="):
        few.to_tf(8, label=False, weights="exact")


def test_to_tf_joins_a_matrix_and_maps_like_batches(ds: Dataset) -> None:
    options: dict[str, Any] = {
        "seed": 3,
        "matrix": ["exact", "maybe", "small", "matrix", "flag"],
        "label": True,
    }
    doubled: dict[str, Any] = {
        **options,
        "map": lambda batch: {"twice": batch[0] * 2, "y": batch[1]},
    }
    ours, theirs = list(ds.batches(16, **doubled)), ds.to_tf(16, **doubled)
    assert int(theirs.cardinality()) == len(ours) == 13
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["twice"].shape[1] == 13
        assert np.array_equal(mine["twice"], other["twice"].numpy(), equal_nan=True)
        assert np.array_equal(mine["y"], other["y"].numpy())
    filled, _ = next(iter(ds.to_tf(ROWS, **options, defaults={"maybe": -1, "flag": True})))
    known, _ = next(ds.batches(ROWS, **options))
    assert np.array_equal(filled[:, 1], np.nan_to_num(known[:, 1], nan=-1))
    assert np.array_equal(filled[:, -1], np.nan_to_num(known[:, -1], nan=1))
    for x, _ in ds.to_tf(None, **options, map=lambda record: (-record[0], record[1])).take(1):
        assert x.shape == (13,)


@pytest.mark.sweep
def test_to_tf_continues_with_the_next_epoch_when_iterated_again(ds: Dataset) -> None:
    for collate in (ONE_ORDER["bucketed"], ONE_ORDER["packed"]):
        options: dict[str, Any] = {"shuffle": "window", "seed": 3, "collate": collate}
        both = [plain(batch["tokens"]) for batch in ds.batches(16, epochs=2, **options)]
        fed = ds.to_tf(16, label=False, **options)
        assert [tensor_to_list(batch["tokens"]) for _ in range(2) for batch in fed] == both
    assert int(ds.to_tf(16, collate=ONE_ORDER["bucketed"]).cardinality()) == 13
    assert int(fed.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collate": {"tokens": Packed(4)}, "start_step": 3}, "pass a state"),
        ({"decode_images": (8, 8), "channels": 2}, "channels"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"collate": {"tokens": "padded"}, "batch_size": None}, "returns single records"),
    ],
)
def test_to_tf_refuses_impossible_options(ds: Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ds.to_tf(**{"batch_size": 8, **options})


# Boundaries of a pass over the feature
