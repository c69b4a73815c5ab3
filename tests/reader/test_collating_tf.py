"""`to_tf` gives what is collated as `batches` does: same batches, same values, same shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.reader import Bucketed, OneHot, Packed, Padded, Ragged
from recordmill.reader.dataset import Dataset, open

tf = pytest.importorskip("tensorflow")

ROWS = 203
ANY_WAY: dict[str, Any] = {
    "padded": {"tokens": "padded", "words": "padded", "nested": "padded", "boxes": Padded(multiple=4)},
    "of one length": {
        "tokens": Padded(2, value=-1),
        "words": Padded(3, value="-"),
        "nested": Padded(2),
        "boxes": Padded(5, value=0.5),
    },
    "one hot": {"label": "one_hot", "small": "ragged", "id": OneHot(ROWS)},
}
ONE_ORDER: dict[str, Any] = {
    "bucketed": {"tokens": Bucketed((1, 2), steps=3), "boxes": "padded"},
    "bucketed by text": {"words": Bucketed(buckets=2, steps=4), "tokens": Padded(3)},
    "bucketed by nested": {"nested": Bucketed((1,), length=2, value=-1)},
    "packed": {"tokens": Packed(5), "boxes": Packed(6, value=-1)},
}
del ANY_WAY["one hot"]["small"]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open(write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": mixed_rows(ROWS)}, shards=2))


def plain(value: Any, missing: Any = b"") -> Any:
    """A NumPy value as lists, as TensorFlow has it: text as bytes, what is missing as nothing."""
    if isinstance(value, Ragged):
        return [[] if row is None else plain(row, missing) for row in value.to_list()]
    if isinstance(value, list):
        return [plain(item, missing) for item in value]
    if np.ma.isMaskedArray(value):
        return plain(value.filled(0))
    if isinstance(value, np.ndarray):
        return [plain(item, missing) for item in value] if value.dtype.hasobject else _numbers(value)
    return value.encode() if isinstance(value, str) else missing if value is None else value


def _numbers(value: np.ndarray) -> Any:
    return (value.view(np.int64) if value.dtype.kind == "M" else value).tolist()


def shown(value: Any) -> Any:
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def same(theirs: Any, ours: dict[str, Any]) -> None:
    assert set(ours) <= set(theirs)
    assert all(name.endswith("/valid") for name in set(theirs) - set(ours))
    for name, value in ours.items():
        assert plain(value, b"" if name == "payload" else []) == shown(theirs[name]), name


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("how", [*ANY_WAY, *ONE_ORDER])
def test_batches_are_the_same(ds: Dataset, how: str) -> None:
    collate = {**ANY_WAY, **ONE_ORDER}[how]
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "collate": collate}
    ours = list(ds.batches(16, **options))
    theirs = list(ds.to_tf(16, label=False, **options))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        same(other, mine)


@pytest.mark.parametrize("how", ANY_WAY)
def test_a_portable_graph_collates_too(ds: Dataset, how: str) -> None:
    options: dict[str, Any] = {"shuffle": False, "collate": ANY_WAY[how]}
    for mine, other in zip(ds.batches(16, **options), ds.to_tf(16, label=False, portable=True, **options), strict=True):
        same(other, mine)


def test_lists_of_one_length_are_dense(ds: Dataset) -> None:
    few = Dataset(ds.catalog, ds.full_schema, ["id", "boxes", "words"])
    for portable in (False, True):
        for batch in few.to_tf(1, shuffle=False, label=False, portable=portable, collate={"boxes": "dense"}):
            assert batch["boxes"].shape == (1, int(batch["id"][0]) % 3, 4)
        with pytest.raises(tf.errors.InvalidArgumentError, match="dense"):
            list(few.to_tf(10, label=False, portable=portable, collate={"boxes": "dense"}))


def test_shapes_are_known_where_they_are_the_same(ds: Dataset) -> None:
    def shapes(**options: Any) -> Any:
        return {name: spec.shape.as_list() for name, spec in ds.to_tf(8, label=False, **options).element_spec.items()}

    fixed = shapes(drop_remainder=True, collate={"tokens": Padded(7), "label": "one_hot", "boxes": "padded"})
    assert fixed["tokens"] == [8, 7]
    assert fixed["tokens/length"] == [8]
    assert fixed["label"] == [8, 3]
    assert fixed["boxes"] == [8, None, 4]
    packed = shapes(collate={"tokens": Packed(9)})
    assert packed["tokens"] == packed["tokens/segment"] == packed["tokens/position"] == [8, 9]


@pytest.mark.filterwarnings("ignore:feature")
def test_labels_and_weights_go_beside_the_rest(ds: Dataset) -> None:
    few = Dataset(ds.catalog, ds.full_schema, ["tokens", "exact", "label"])
    collate: dict[str, Any] = {"tokens": Padded(3), "label": "one_hot"}
    x, y, weights = next(iter(few.to_tf(8, shuffle=False, weights="exact", collate=collate, label=True)))
    mine, labels, ours = next(few.batches(8, shuffle=False, label="label", weights="exact", collate=collate))
    same(x, mine)
    assert y.numpy().tolist() == labels.tolist()
    assert weights.numpy().tolist() == ours.tolist()
    with pytest.raises(UsageError, match="weights go with a label"):
        few.to_tf(8, label=False, weights="exact")


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:feature")
def test_it_goes_on_where_it_was(ds: Dataset) -> None:
    for collate in (ONE_ORDER["bucketed"], ONE_ORDER["packed"], {"tokens": "padded"}):
        options: dict[str, Any] = {"shuffle": "global", "seed": 3, "collate": collate, "epochs": 2}
        whole = [shown(batch["tokens"]) for batch in ds.to_tf(16, label=False, **options)]
        running = ds.batches(16, **options)
        for step in range(17):
            if step in (0, 1, 5, 12, 14, 16) and step < len(whole):
                rest = ds.to_tf(16, label=False, **options, state=running.state())
                assert [shown(batch["tokens"]) for batch in rest] == whole[step:]
                if not any(isinstance(way, Packed) for way in collate.values()):
                    rest = ds.to_tf(16, label=False, **options, start_step=step)
                    assert [shown(batch["tokens"]) for batch in rest] == whole[step:]
            next(running, None)


@pytest.mark.sweep
def test_epochs_follow_when_it_is_iterated_again(ds: Dataset) -> None:
    for collate in (ONE_ORDER["bucketed"], ONE_ORDER["packed"]):
        options: dict[str, Any] = {"shuffle": "window", "seed": 3, "collate": collate}
        both = [plain(batch["tokens"]) for batch in ds.batches(16, epochs=2, **options)]
        fed = ds.to_tf(16, label=False, **options)
        assert [shown(batch["tokens"]) for _ in range(2) for batch in fed] == both
    assert int(ds.to_tf(16, collate=ONE_ORDER["bucketed"]).cardinality()) == 13
    assert int(fed.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collate": {"tokens": Packed(4)}, "portable": True}, "portable=True takes its batches as they come"),
        ({"collate": {"tokens": Packed(4)}, "start_step": 3}, "give a state"),
        ({"collate": {"tokens": Packed(4)}, "decode_images": (4, 4)}, "no feature holds encoded images"),
        ({"collate": {"tokens": "padded"}, "batch_size": None}, "gives single records"),
        ({"collate": {"token": "padded"}}, "did you mean tokens"),
    ],
)
def test_what_can_not_be_is_refused(ds: Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ds.to_tf(**{"batch_size": 8, **options})


@pytest.mark.sweep
def test_single_records_are_padded_to_one_length(ds: Dataset, tmp_path: Path) -> None:
    found = list(ds.to_tf(None, shuffle=False, label=False, collate={"tokens": Padded(3), "label": "one_hot"}))
    assert len(found) == ROWS
    assert found[6]["tokens"].numpy().tolist() == [0, 1, 0]
    assert found[6]["label"].numpy().tolist() == [1, 0, 0]
