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
PADDED_OR_ONE_HOT: dict[str, Any] = {
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
BUCKETED_OR_PACKED: dict[str, Any] = {
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
    """Returns a NumPy value as nested lists, in TensorFlow's form.

    Text becomes bytes. A missing list is empty, a masked number is 0, and any other missing value
    becomes `missing`.
    """
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


def check_same(tensors: Any, arrays: dict[str, Any]) -> None:
    assert set(arrays) <= set(tensors)
    assert all(name.endswith("/valid") for name in set(tensors) - set(arrays))
    for name, value in arrays.items():
        assert plain(value, b"" if name == "payload" else []) == tensor_to_list(tensors[name]), name


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("name", [*PADDED_OR_ONE_HOT, *BUCKETED_OR_PACKED])
def test_to_tf_collates_like_batches(ds: Dataset, name: str) -> None:
    collate = {**PADDED_OR_ONE_HOT, **BUCKETED_OR_PACKED}[name]
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "collate": collate}
    array_batches = list(ds.batches(16, **options))
    tensor_batches = list(ds.to_tf(16, label=False, **options))
    assert len(array_batches) == len(tensor_batches)
    for arrays, tensors in zip(array_batches, tensor_batches, strict=True):
        check_same(tensors, arrays)


def test_to_tf_makes_lists_of_one_length_dense(ds: Dataset) -> None:
    selection = ds.select(["id", "boxes", "words"])
    for batch in selection.to_tf(1, shuffle=False, label=False, collate={"boxes": "dense"}):
        assert batch["boxes"].shape == (1, int(batch["id"][0]) % 3, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="dense"):
        list(selection.to_tf(10, label=False, collate={"boxes": "dense"}))


def test_to_tf_knows_the_static_shapes(ds: Dataset) -> None:
    def shapes(**options: Any) -> Any:
        return {
            name: spec.shape.as_list()
            for name, spec in ds.to_tf(8, label=False, **options).element_spec.items()
        }

    tokens = Padded(7, lengths=True)
    padded_shapes = shapes(
        drop_remainder=True, collate={"tokens": tokens, "label": "one_hot", "boxes": "padded"}
    )
    assert padded_shapes["tokens"] == [8, 7]
    assert padded_shapes["tokens/length"] == [8]
    assert padded_shapes["label"] == [8, 3]
    assert padded_shapes["boxes"] == [8, None, 4]
    packed_shapes = shapes(collate={"tokens": Packed(9)})
    assert (
        packed_shapes["tokens"]
        == packed_shapes["tokens/segment"]
        == packed_shapes["tokens/position"]
        == [8, 9]
    )


@pytest.mark.filterwarnings("ignore:feature")
def test_to_tf_separates_labels_and_weights(ds: Dataset) -> None:
    selection = ds.select(["tokens", "exact", "label"])
    collate: dict[str, Any] = {"tokens": Padded(3, lengths=True), "label": "one_hot"}
    x, y, weights = next(
        iter(selection.to_tf(8, shuffle=False, weights="exact", collate=collate, label=True))
    )
    expected, expected_labels, expected_weights = next(
        selection.batches(8, shuffle=False, label="label", weights="exact", collate=collate)
    )
    check_same(x, expected)
    assert y.numpy().tolist() == expected_labels.tolist()
    assert weights.numpy().tolist() == expected_weights.tolist()
    with pytest.raises(UsageError, match="weights= needs label="):
        selection.to_tf(8, label=False, weights="exact")


def test_to_tf_joins_a_matrix_and_maps_like_batches(ds: Dataset) -> None:
    options: dict[str, Any] = {
        "seed": 3,
        "matrix": ["exact", "maybe", "small", "matrix", "flag"],
        "label": True,
    }
    map_options: dict[str, Any] = {
        **options,
        "map": lambda batch: {"twice": batch[0] * 2, "y": batch[1]},
    }
    array_batches, tensor_batches = list(ds.batches(16, **map_options)), ds.to_tf(16, **map_options)
    assert int(tensor_batches.cardinality()) == len(array_batches) == 13
    for arrays, tensors in zip(array_batches, tensor_batches, strict=True):
        assert arrays["twice"].shape[1] == 13
        assert np.array_equal(arrays["twice"], tensors["twice"].numpy(), equal_nan=True)
        assert np.array_equal(arrays["y"], tensors["y"].numpy())
    matrix, _ = next(iter(ds.to_tf(ROWS, **options, defaults={"maybe": -1, "flag": True})))
    expected, _ = next(ds.batches(ROWS, **options))
    assert np.array_equal(matrix[:, 1], np.nan_to_num(expected[:, 1], nan=-1))
    assert np.array_equal(matrix[:, -1], np.nan_to_num(expected[:, -1], nan=1))
    for x, _ in ds.to_tf(None, **options, map=lambda record: (-record[0], record[1])).take(1):
        assert x.shape == (13,)


@pytest.mark.sweep
def test_to_tf_continues_with_the_next_epoch_when_iterated_again(ds: Dataset) -> None:
    for collate in (BUCKETED_OR_PACKED["bucketed"], BUCKETED_OR_PACKED["packed"]):
        options: dict[str, Any] = {"shuffle": "window", "seed": 3, "collate": collate}
        expected = [plain(batch["tokens"]) for batch in ds.batches(16, epochs=2, **options)]
        dataset = ds.to_tf(16, label=False, **options)
        assert [tensor_to_list(batch["tokens"]) for _ in range(2) for batch in dataset] == expected
    assert int(ds.to_tf(16, collate=BUCKETED_OR_PACKED["bucketed"]).cardinality()) == 13
    assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate": {"tokens": Packed(4)}, "start_step": 3}, "pass a state"),
        ({"decode_images": (8, 8), "channels": 2}, "channels"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"collate": {"tokens": "padded"}, "batch_size": None}, "returns single records"),
    ],
)
def test_to_tf_refuses_impossible_options(
    ds: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ds.to_tf(**{"batch_size": 8, **options})
