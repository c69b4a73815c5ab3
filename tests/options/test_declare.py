"""A declared option determines its flags, its keyword and its checks."""

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from recordmill.base.errors import UsageError, WrongTypeError
from recordmill.options.declare import Options, declare, redeclare


def parse_double(value: "int | str", name: str) -> int:
    return 2 * int(value)


class Shards(Options, heading="shards", decides=True):
    # Types are texts, as in modules that import annotations from the future.
    size: "int | None" = declare("size of a shard", default="32", parse=parse_double)
    names: "Sequence[str] | None" = declare("names", default=None, kinds=("csv",))
    dtypes: "Mapping[str, str] | Sequence[str]" = declare("dtypes", default=(), repeated=True)
    shuffle: "bool" = declare("keep the order", default=True, common=True)
    header: "bool | None" = declare("a header", default=None, default_text="detected")
    images: "bool | Sequence[str]" = declare("decode", default=False)
    compression: 'Literal["none", "gzip"]' = declare("codec", default="none", decides=False)
    weight: "float | None" = declare("weight", default=None, metavar="W", short="-w")
    untyped: "Any" = declare("any value", default=None)
    folder: "str | os.PathLike[str] | None" = declare("a path", default=None)
    internal: int = 64


class Reads(Shards, heading="reads"):
    compression: 'Literal["none", "gzip"]' = redeclare(Shards, help="of Parquet")
    rows: "int" = declare("rows of a batch", default=8)


OPTIONS = Shards.OPTIONS


def test_attributes_of_the_class_are_shared_unless_the_option_has_its_own() -> None:
    assert OPTIONS["size"].heading == "shards"
    assert (OPTIONS["size"].decides, OPTIONS["compression"].decides) == (True, False)
    assert set(OPTIONS) == {*Shards.__annotations__} - {"internal"}


def test_type_and_choices_follow_from_the_field_or_its_parser() -> None:
    assert OPTIONS["size"].keyword_type == "int | str"
    assert OPTIONS["compression"].choices == ("none", "gzip")
    assert OPTIONS["compression"].keyword_type == 'Literal["none", "gzip"]'
    numbers = {name: option.number_type for name, option in OPTIONS.items() if option.number_type}
    assert numbers == {"weight": float}
    assert Reads.OPTIONS["rows"].placeholder == "N"
    assert OPTIONS["weight"].placeholder == "W"


def test_flags_follow_from_name_type_and_default() -> None:
    flags = {name: option.all_flags for name, option in OPTIONS.items()}
    assert flags["size"] == ("--size",)
    assert flags["shuffle"] == ("--no-shuffle",)
    assert flags["header"] == ("--header", "--no-header")
    assert flags["weight"] == ("-w", "--weight")
    bare_flags = [name for name, option in OPTIONS.items() if option.allows_bare_flag]
    assert bare_flags == ["images"]
    switches = [name for name, option in OPTIONS.items() if option.is_switch]
    assert switches == ["shuffle"]


def test_help_names_the_default_and_the_kinds() -> None:
    texts = {name: option.help_with_default for name, option in OPTIONS.items()}
    assert texts["size"] == "size of a shard (default: 32)"
    assert texts["names"] == "csv: names"
    assert texts["shuffle"] == "keep the order"
    assert texts["header"] == "a header (default: detected)"
    assert texts["dtypes"] == "dtypes"


def test_objects_contain_parsed_defaults_and_are_frozen() -> None:
    shards = Shards(weight=0.5)
    assert (shards.size, shards.weight, shards.internal) == (64, 0.5, 64)
    assert shards == Shards(weight=0.5) != Shards()
    assert hash(shards) == hash(Shards(weight=0.5))
    assert pickle.loads(pickle.dumps(shards)) == shards
    with pytest.raises(FrozenInstanceError, match="size"):
        shards.size = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="Shards has no option sise; did you mean size"):
        Shards(sise=3)  # type: ignore[call-arg]
    assert "weight=0.5" in repr(shards)


def test_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for path in ("~/x", Path("~/x")):
        assert OPTIONS["folder"].parse_value(path) == "/home/me/x"
    assert OPTIONS["folder"].parse_value(Path("x")) == Path("x")
    assert OPTIONS["names"].parse_value("~") == OPTIONS["untyped"].parse_value("~") == "~"


def test_redeclared_option_differs_only_in_its_changes() -> None:
    redeclared, original = Reads.OPTIONS["compression"], OPTIONS["compression"]
    assert (redeclared.help, original.help) == ("of Parquet", "codec")
    assert (redeclared.heading, redeclared.decides, redeclared.choices) == (
        "shards",
        False,
        original.choices,
    )
    assert Reads.OPTIONS["size"] is OPTIONS["size"]
    assert Reads(rows=3).size == 64
    assert Reads() != Shards()


def test_value_is_parsed_or_refused_with_the_option() -> None:
    assert OPTIONS["size"].parse_value("5") == 10
    assert OPTIONS["names"].parse_value(None) is None
    with pytest.raises(UsageError, match=r'^compression="gizp": must be one of none, gzip.*gzip'):
        OPTIONS["compression"].parse_value("gizp")
    with pytest.raises(WrongTypeError, match=r"^names is text or a list of texts, not \{'a': 1\}$"):
        OPTIONS["names"].parse_value({"a": 1})
    assert OPTIONS["dtypes"].parse_value({"a": "int8"}) == {"a": "int8"}


def test_array_becomes_a_list_or_a_scalar_or_is_refused() -> None:
    assert OPTIONS["names"].parse_value(np.array(["a", "b"])) == ["a", "b"]
    assert type(OPTIONS["weight"].parse_value(np.float32(0.5))) is float
    assert OPTIONS["size"].parse_value(np.array(4)) == 8
    array = np.array([1, 2])
    assert OPTIONS["untyped"].parse_value(array) is array
    with pytest.raises(WrongTypeError, match=r"^weight must not be an array: array\(\[1, 2\]\)$"):
        OPTIONS["weight"].parse_value(array)
    with pytest.raises(WrongTypeError, match=r"^compression must be one of none, gzip, not array"):
        OPTIONS["compression"].parse_value(array)


def test_default_value_counts_as_unset() -> None:
    is_given_by_name = {name: OPTIONS[name].is_given(OPTIONS[name].default) for name in OPTIONS}
    assert not any(is_given_by_name.values())
    assert OPTIONS["size"].is_given("33")
    assert not OPTIONS["size"].is_given(None)
    assert OPTIONS["names"].is_given([])
