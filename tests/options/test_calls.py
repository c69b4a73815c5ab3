"""Values of options are parsed and typed, and options without effect are refused."""

import inspect
from typing import Any

import pytest

from recordmill.base.errors import UsageError
from recordmill.options.build import BuildShards
from recordmill.options.calls import (
    CALLS,
    FILE_INPUTS,
    MEMORY_INPUTS,
    Call,
    Values,
    applicable_kinds,
    check_applicable,
    is_local,
    with_keywords,
)
from recordmill.options.order import BuildOrder


def test_values_of_a_class_are_parsed_and_others_have_their_defaults() -> None:
    values = Values("build", {"shard_size": "1MiB", "splits": {"train": 1}})
    assert values[BuildShards].shard_size == 1 << 20
    assert values[BuildOrder].splits == (("train", 1.0),)
    assert values[BuildOrder] == BuildOrder(splits=(("train", 1.0),))
    assert values.given["shard_size"] == "1MiB"


def test_unknown_or_wrong_value_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^read has no option spilt; did you mean split"):
        Values("read", {"spilt": "train"})
    with pytest.raises(UsageError, match=r"shard_size=.*give a size such as 128MiB"):
        Values("build", {"shard_size": "large"})


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("build", {"shuffle": False, "seed": 3}, "seed= and shuffle=False exclude each other"),
        ("build", {"split_by": "a"}, "split_by= needs splits="),
        ("build", {"splits": "a=1", "split_column": "b"}, "split_column= and splits= exclude"),
    ],
)
def test_option_without_effect_is_refused_by_name(
    call: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_applicable(call, options)


def test_default_value_is_allowed_everywhere() -> None:
    defaults = {option.name: option.default for option in CALLS["build"].keywords}
    for inputs in ("", FILE_INPUTS, MEMORY_INPUTS):
        check_applicable("build", defaults, inputs=inputs)
    check_applicable("build", {"shuffle": False, "seed": 0})


def test_option_of_files_is_refused_for_data_in_memory() -> None:
    check_applicable("build", {"delimiter": ";"}, inputs=FILE_INPUTS)
    with pytest.raises(UsageError, match=r"^delimiter= is not for data in memory$"):
        check_applicable("build", {"delimiter": ";"}, inputs=MEMORY_INPUTS)


def test_option_of_engines_needs_another_runner() -> None:
    name = next(option.name for option in CALLS["build"].keywords if option.engine_only)
    for runner in ({}, {"runner": "DirectRunner"}):
        with pytest.raises(UsageError, match=f"^{name}=.* needs an engine: give runner="):
            check_applicable("build", {name: "x", **runner})
    assert is_local(None)
    assert is_local("DIRECTRUNNER")
    assert not is_local("FlinkRunner")


def test_applicable_kinds_have_all_of_the_options() -> None:
    assert "csv" in applicable_kinds("build", ["delimiter"])
    assert "jsonl" not in applicable_kinds("build", ["delimiter"])
    expected = {*applicable_kinds("build", ["delimiter"])} & {
        *applicable_kinds("build", ["encoding"])
    }
    assert {*applicable_kinds("build", ["delimiter", "encoding", "seed"])} == expected
    assert len(applicable_kinds("build", [])) == len(applicable_kinds("build", ["seed"])) > 5


def test_option_of_another_output_is_refused_unless_it_is_the_default() -> None:
    option = next(option for option in CALLS["read"].keywords if option.outputs)
    output = next(name for name in CALLS["read"].plugins if name not in option.outputs)
    value = 7 if option.number_type else next(iter(option.choices[1:]), "7")
    assert Values("read", {option.name: option.default}).plugin(output) is not None
    values = Values("read", {option.name: value})
    with pytest.raises(UsageError, match=f"^{option.name}=.*: works only with to="):
        values.plugin(output)
    assert values.plugin(option.outputs[0]) is not None


def test_options_of_plugins_follow_by_heading_and_name_their_plugins() -> None:
    call = Call("mine", ("options.order:BuildOrder", "sources.registry:KINDS"), left_out=("seed",))
    assert "seed" not in call.options
    assert call.classes == (BuildOrder,)
    headings = [option.heading for option in call.options.values()]
    changes = [
        heading
        for heading, previous in zip(headings, ["", *headings], strict=False)
        if heading != previous
    ]
    assert len(changes) == len(set(changes))
    assert "csv" in call.options["delimiter"].kinds
    assert call.options["split_by"].kinds == ()


def test_keywords_and_flags_are_not_the_same_options() -> None:
    for call in CALLS.values():
        assert {option.name for option in (*call.keywords, *call.flags)} == {*call.options}
        assert not any(option.shell_only for option in call.keywords)
        assert not any(option.keyword_only for option in call.flags)


def test_signature_shows_keywords_with_types_and_defaults() -> None:
    @with_keywords("open")
    def load(path: str, split: str | None = None, **options: Any) -> None:
        """Loads a data set."""

    parameters = inspect.signature(load).parameters
    assert list(parameters)[:2] == ["path", "split"]
    assert "options" not in parameters
    for option in CALLS["open"].keywords:
        assert parameters[option.name].default == option.default
    assert parameters["columns"].kind is inspect.Parameter.KEYWORD_ONLY
    assert (load.__doc__ or "").startswith("Loads a data set.\n\nKeyword arguments:\n    ")
    assert "    columns: " in (load.__doc__ or "")
    assert "    split: " not in (load.__doc__ or "")
