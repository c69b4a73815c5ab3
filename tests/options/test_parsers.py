"""Parsers of options accept texts of a shell and Python values."""

from typing import Any

import numpy as np
import pytest

from recordmill.base.errors import UsageError
from recordmill.options.parsers import (
    parse_character,
    parse_columns,
    parse_dtypes,
    parse_flags,
    parse_names,
    parse_positive,
    parse_shuffle,
    parse_text,
    parse_threads,
    parse_whole,
)


def test_words_for_characters_are_replaced() -> None:
    values = ["tab", "\\t", "none", None, ";", "quote"]
    assert [parse_character(value, "quote") for value in values] == [
        "\t",
        "\t",
        None,
        None,
        ";",
        "quote",
    ]


def test_names_are_separated_by_commas_or_are_a_list() -> None:
    assert parse_names(" a ,b, c d", "columns") == ("a", "b", "c d")
    assert parse_names(["a,b", "c"], "columns") == ("a,b", "c")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "write names with commas between them"),
        ("a,,b", "write names with commas between them"),
        ([], "write names with commas between them"),
        (["a", "b", "a"], "a feature is named twice"),
    ],
)
def test_columns_without_a_name_or_named_twice_are_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^columns=.*: {message}"):
        parse_columns(value, "columns")


def test_blank_text_is_refused() -> None:
    assert parse_text(" a b\n", "description") == "a b"
    for value in ("", " \n", 5):
        with pytest.raises(UsageError, match=r"^description=.*: the text is empty"):
            parse_text(value, "description")  # type: ignore[arg-type]


def test_numbers_are_ints_within_their_limits() -> None:
    assert type(parse_whole(np.int8(-3), "seed")) is int  # type: ignore[arg-type]
    assert (parse_positive(1, "n"), parse_threads(0, "threads")) == (1, 0)
    with pytest.raises(UsageError, match="n must be at least 1, not 0"):
        parse_positive(0, "n")
    with pytest.raises(UsageError, match=r"^threads=-1: must be 0 \(one per core\) or more"):
        parse_threads(-1, "threads")


def test_true_means_the_window_mode_of_the_shuffle() -> None:
    modes = [parse_shuffle(value, "shuffle") for value in (True, False, "window", "global")]  # type: ignore[arg-type]
    assert modes == ["window", False, "window", "global"]
    for value in ("Window", 2, None):
        with pytest.raises(UsageError, match=r"^shuffle is False, True, "):
            parse_shuffle(value, "shuffle")  # type: ignore[arg-type]


def test_dtypes_are_a_dict_or_pairs_with_the_last_equals_sign() -> None:
    assert parse_dtypes({"a": "int8"}, "dtypes") == {"a": "int8"}
    assert parse_dtypes(("a=b=int8", "c=bool"), "dtypes") == {"a=b": "int8", "c": "bool"}
    for item in ("a", "=int8", "a=", ""):
        with pytest.raises(UsageError, match="give FEATURE=DTYPE, as in price=float64"):
            parse_dtypes([item], "dtypes")


def test_flags_of_another_program_are_a_list() -> None:
    assert parse_flags(["--a=1", "--b c"], "beam_args") == ("--a=1", "--b c")
    with pytest.raises(UsageError, match=r"must be a list, not a text: .*\['--a', '1'\]"):
        parse_flags("--a 1", "beam_args")
