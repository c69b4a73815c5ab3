"""Training options are declared once, and an option without effect is refused by name."""

import inspect
import itertools
from collections import ChainMap
from typing import Any

import numpy as np
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.options.calls import CALLS
from recordmill.reader.mixture import Mixture
from recordmill.reader.options.training import Training
from recordmill.reader.sampling.schedule import EpochSteps, StepRange
from recordmill.reader.training import MappedBatches

PARTS = ("order", "form", "images", "memory", "graph")

METHODS = ("batches", "to_torch", "to_tf", "to_keras")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("owner", [recordmill.Dataset, Mixture, MappedBatches])
def test_method_shows_and_describes_each_declared_option(owner: type, method: str) -> None:
    options = CALLS[method].options
    parameters = inspect.signature(getattr(owner, method)).parameters
    assert set(parameters) - set(options) - {"label"} == {"self", "batch_size"}
    for name, option in options.items():
        assert (parameters[name].default, parameters[name].annotation) == (
            option.default,
            option.keyword_type,
        )
        assert parameters[name].kind == inspect.Parameter.KEYWORD_ONLY
        assert f"{name}: {option.help}" in (getattr(owner, method).__doc__ or "")


def test_unknown_training_option_names_the_closest_one() -> None:
    with pytest.raises(TypeError, match="no option shufle; did you mean shuffle"):
        Training.from_keywords("batches", 8, {"shufle": True})
    with pytest.raises(TypeError, match="no option defaults"):
        Training.from_keywords("batches", 8, {"defaults": {}})


# A value of each option that is not its default.
OTHER: dict[str, Any] = {
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
# By option: the options that it needs.
NEEDS: dict[str, dict[str, Any]] = {
    "num_hosts": {"host_index": 1},
    "host_index": {"num_hosts": 2},
    "weights": {"label": "y"},
    "channels": {"decode_images": (4, 4)},
    "antialias": {"decode_images": (4, 4)},
}
# Options that exclude each other.
REFUSED = [
    {"shuffle", "window_bytes"},
    {"drop_remainder", "pad_remainder"},
    *({"on_bad", name} for name in ("num_hosts", "host_index", "pad_remainder", "start_step")),
]


def test_every_training_option_has_a_test_value() -> None:
    assert list(OTHER) == [*CALLS["to_tf"].options]


@pytest.mark.parametrize("name", NEEDS)
def test_training_option_without_effect_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Training.from_keywords("to_tf", 8, {name: OTHER[name]})


@pytest.mark.parametrize("pair", itertools.combinations(OTHER, 2), ids="-".join)
def test_every_pair_of_training_options_is_served_or_refused(pair: tuple[str, str]) -> None:
    first, second = pair
    options = {first: OTHER[first], second: OTHER[second]}
    options = {**NEEDS.get(first, {}), **NEEDS.get(second, {}), **options}
    if any(excluded_pair <= set(options) for excluded_pair in REFUSED):
        with pytest.raises(UsageError) as error:
            Training.from_keywords("to_tf", 8, options)
        assert any(name in str(error.value) for name in options)
    else:
        training = Training.from_keywords("to_tf", 8, options)
        call_options = CALLS["to_tf"].options
        values = ChainMap(*(vars(getattr(training, part)) for part in PARTS))
        for name, option in call_options.items():
            value = options.get(name, option.default)
            assert values[name] == option.parse_value(value), name


@pytest.mark.parametrize("name", ["drop_remainder", "pad_remainder", "start_step"])
def test_options_of_batches_are_refused_for_single_records(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has no effect here: batch_size=None"):
        Training.from_keywords("to_tf", None, {name: OTHER[name]})


def test_numpy_values_are_accepted_as_training_options() -> None:
    training = Training.from_keywords(
        "batches", np.int64(8), {"seed": np.int32(3), "epochs": np.int64(2)}
    )
    assert (training.batch_size, training.order.seed, training.order.epochs) == (8, 3, 2)


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
        Training.from_keywords("batches", options.pop("batch_size", 8), options)


def test_batch_larger_than_the_epoch_takes_memory_for_its_records_only() -> None:
    steps = EpochSteps(100, 2**31 - 1)
    assert steps.positions(StepRange(0, 0, 1)).tolist() == [*range(100)]
