"""Training options are declared once, and an option without effect is refused by name."""

import dataclasses
import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.reader.mixture import Mixture
from recordmill.reader.options import training
from recordmill.reader.options.training import (
    NUMPY_OPTIONS,
    TENSORFLOW_OPTIONS,
    TORCH_OPTIONS,
    Training,
)
from recordmill.reader.sampling.schedule import EpochSteps, StepRange

METHODS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "batches": (training.NumpyKeywords, NUMPY_OPTIONS),
    "to_torch": (training.TorchKeywords, TORCH_OPTIONS),
    "to_tf": (training.TensorFlowKeywords, TENSORFLOW_OPTIONS),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("owner", [recordmill.Dataset, Mixture])
def test_signatures_keywords_and_option_groups_agree(owner: type, method: str) -> None:
    keywords, groups = METHODS[method]
    declared = {one.name: one for group in groups for one in dataclasses.fields(group)}
    assert len(declared) == sum(len(dataclasses.fields(group)) for group in groups), (
        "an option stands in two groups"
    )
    typed = {
        name: note.__forward_arg__
        for kind in keywords.__mro__
        for name, note in getattr(kind, "__annotations__", {}).items()
    }
    assert typed == {name: one.type for name, one in declared.items()}
    shown = inspect.signature(getattr(owner, method)).parameters
    assert set(shown) - set(declared) == {"self", "batch_size"}
    for name, one in declared.items():
        assert (shown[name].default, shown[name].annotation) == (one.default, one.type)
        assert shown[name].kind == inspect.Parameter.KEYWORD_ONLY
        assert f"{name}:" in (getattr(owner, method).__doc__ or ""), name


def test_unknown_training_option_names_the_closest_one() -> None:
    with pytest.raises(TypeError, match="no option shufle; did you mean shuffle"):
        Training.from_options(8, {"shufle": True})
    with pytest.raises(TypeError, match="no option defaults"):
        Training.from_options(8, {"defaults": {}})


OTHER: dict[str, Any] = {  # a value of each option that isn't the one by default
    "shuffle": False,
    "seed": 3,
    "epochs": 2,
    "drop_remainder": True,
    "pad_remainder": True,
    "num_hosts": 2,
    "host_index": 1,
    "state": {"format": 1},
    "start_step": 1,
    "window_bytes": "1MiB",
    "label": "y",
    "weights": "w",
    "collate": {"x": "ragged"},
    "matrix": ["x"],
    "ids": True,
    "map": print,
    "decode_images": (4, 4),
    "channels": 1,
    "antialias": True,
    "memory_bytes": "1MiB",
    "on_bad": "skip",
    "defaults": {"x": 0},
    "nulls": "drop",
}
NEEDS: dict[str, dict[str, Any]] = {  # what it stands beside at least
    "num_hosts": {"host_index": 1},
    "host_index": {"num_hosts": 2},
    "weights": {"label": "y"},
    "channels": {"decode_images": (4, 4)},
    "antialias": {"decode_images": (4, 4)},
}
REFUSED = [  # beside each other
    {"shuffle", "window_bytes"},
    {"drop_remainder", "pad_remainder"},
    *({"on_bad", name} for name in ("num_hosts", "host_index", "pad_remainder", "start_step")),
]


def test_every_training_option_has_a_test_value() -> None:
    assert list(OTHER) == [
        one.name for group in TENSORFLOW_OPTIONS for one in dataclasses.fields(group)
    ]


@pytest.mark.parametrize("name", NEEDS)
def test_training_option_without_effect_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Training.from_options(8, {name: OTHER[name]}, TENSORFLOW_OPTIONS)


@pytest.mark.parametrize("pair", itertools.combinations(OTHER, 2), ids="-".join)
def test_every_pair_of_training_options_is_served_or_refused(pair: tuple[str, str]) -> None:
    one, two = pair
    options = {one: OTHER[one], two: OTHER[two]}
    options = {**NEEDS.get(one, {}), **NEEDS.get(two, {}), **options}
    if any(both <= set(options) for both in REFUSED):
        with pytest.raises(UsageError) as error:
            Training.from_options(8, options, TENSORFLOW_OPTIONS)
        assert any(name in str(error.value) for name in options)
    else:
        made = Training.from_options(8, options, TENSORFLOW_OPTIONS)
        assert {name for name, _ in made._changed_options()} == set(options)


@pytest.mark.parametrize("name", ["drop_remainder", "pad_remainder", "start_step"])
def test_options_of_batches_are_refused_for_single_records(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has no meaning here: batch_size=None"):
        Training.from_options(None, {name: OTHER[name]}, TENSORFLOW_OPTIONS)


def test_numpy_values_are_accepted_as_training_options() -> None:
    made = Training.from_options(np.int64(8), {"seed": np.int32(3), "epochs": np.int64(2)})
    assert (made.batch_size, made.order.seed, made.order.epochs) == (8, 3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2**31}, "batch_size must be at most 2147483647"),
        ({"batch_size": 2**70}, "batch_size must be at most 2147483647"),
        ({"num_hosts": 2**63, "host_index": 0}, "num_hosts must be at most 2147483647"),
        ({"window_bytes": 2**70}, "window_bytes must be at most"),
        ({"window_bytes": 1.5}, "window_bytes is a whole number, not 1.5"),
        ({"window_bytes": "9" * 400}, "give at most"),
        ({"memory_bytes": None}, "memory_bytes is a whole number, not None"),
        ({"memory_bytes": [1]}, r"memory_bytes is a whole number, not \[1\]"),
    ],
)
def test_training_option_out_of_range_is_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Training.from_options(options.pop("batch_size", 8), options)


def test_batch_larger_than_the_epoch_takes_memory_for_its_records_only() -> None:
    steps = EpochSteps(100, 2**31 - 1)
    assert steps.positions(StepRange(0, 0, 1)).tolist() == [*range(100)]
