"""Wrong arguments of public functions are explained by name and type.

Other errors pass unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from recordmill.base.arguments import _describe_type, _fits, suggest_fields, suggest_keywords
from recordmill.base.errors import UsageError, WrongTypeError


@suggest_keywords
def build(
    source: str | os.PathLike[str],
    rows: int | None = None,
    share: float = 0.5,
    names: Sequence[str] = (),
    size: tuple[int, int] = (1, 1),
    is_open: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str:
    if rows is not None:
        range(rows)
    return f"{os.fspath(source)} {rows} {share + 1} {'-'.join(names)} {sum(size)} {is_open}"


def test_arguments_of_valid_types_are_passed_on() -> None:
    assert build("a", np.int64(3), names=("x", "y")) == "a 3 1.5 x-y 2 False"  # type: ignore[arg-type]
    assert build.__name__ == "build"


def test_unknown_keyword_names_the_closest_one() -> None:
    with pytest.raises(TypeError, match=r"^build has no option rowz; did you mean rows"):
        build("a", rowz=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": 7}, "build: source is a path, not 7"),
        ({"source": "a", "rows": "many"}, "build: rows is a whole number or None, not 'many'"),
        ({"source": "a", "share": "x"}, "build: share is a number, not 'x'"),
        ({"source": "a", "names": [1]}, "build: names is a list of "),
        ({"source": "a", "size": ("x", "y")}, "build: size is a list of 2 "),
    ],
)
def test_argument_of_a_wrong_type_is_named_with_the_expected_one(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(WrongTypeError) as error:
        build(**arguments)
    assert str(error.value).startswith(message)


@suggest_fields
class Options:
    def __init__(self, rows: int) -> None:
        self.rows = rows + 0

    def check(self, limit: int) -> None:
        if self.rows > limit:
            raise UsageError("too many rows")
        if limit == 99:
            raise ValueError("a bug")


def test_constructor_and_methods_of_a_class_explain_their_arguments() -> None:
    with pytest.raises(WrongTypeError, match=r"^Options: rows is a whole number, not 'x'"):
        Options("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="check has no option limits; did you mean limit"):
        Options(1).check(limits=3)  # type: ignore[call-arg]


def test_errors_of_the_called_function_pass_unchanged() -> None:
    with pytest.raises(UsageError, match=r"^too many rows$"):
        Options(9).check(3)
    with pytest.raises(ValueError, match=r"^a bug$"):
        Options(9).check(99)


@pytest.mark.parametrize(
    ("annotation", "fitting_values", "unfitting_values"),
    [
        (int, [1, True, np.int64(3), np.array(3)], ["1", 1.5, None, [1], np.array([1, 2])]),
        (float, [1, 1.5, np.float32(2)], ["1", None, [1.0]]),
        (bool, [True, 0, 1, np.bool_(True)], [2, "true", None]),
        (str, ["a", np.str_("a")], [b"a", 1]),
        (str | None, ["a", None], [1]),
        (str | os.PathLike[str], ["a", os.curdir], [1, b"a"]),
        (Sequence[str], [["a"], ("a",), np.array(["a"]), []], ["a", {"a": 1}, [1]]),
        (Iterable[int], [[1], range(3), (number for number in "ab")], ["12", [None]]),
        (tuple[float, float], [(1, 2), [1.5, 2]], [(1,), (1, 2, 3), "12", ("a", 1)]),
        (tuple[int, ...], [(), (1, 2, 3)], [1, ("a",)]),
        (Mapping[str, int], [{}, {"a": "x"}], [[("a", 1)], "a"]),
        (Callable[[int], int], [len, lambda: 1], ["len", 5]),
        (Any, [None, 1, "a"], []),
        (Literal["a", "b"], ["a", "c"], []),
    ],
)
def test_value_fits_an_annotation_if_it_can_be_converted(
    annotation: Any, fitting_values: list[object], unfitting_values: list[object]
) -> None:
    for value in fitting_values:
        assert _fits(value, annotation), value
    for value in unfitting_values:
        assert not _fits(value, annotation), value


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (str | None, "text or None"),
        (str | os.PathLike[str] | Sequence[str], "a path or a list of texts"),
        (int | float, "a whole number or a number"),
        (tuple[float, float], "a list of 2 numbers"),
        (tuple[int, ...], "a list of whole numbers"),
        (list, "a list"),
        (Mapping[str, int] | None, "a dict or None"),
        (np.ndarray, "a ndarray"),
    ],
)
def test_type_is_described_in_words(annotation: Any, text: str) -> None:
    assert _describe_type(annotation) == text
