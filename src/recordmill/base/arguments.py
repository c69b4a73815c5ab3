"""Readable errors for wrong arguments of public functions and classes."""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import os
import typing
from collections import abc
from collections.abc import Callable, Mapping
from types import FunctionType, NoneType, UnionType
from typing import Any, ParamSpec, TypeVar

from recordmill.base.errors import RecordmillError, WrongTypeError
from recordmill.base.option_names import did_you_mean

_P = ParamSpec("_P")
_T = TypeVar("_T")


def suggest_keywords(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a function so that errors explain wrong arguments.

    An unknown keyword is a TypeError that suggests a similar one. Types are checked only after the
    function has failed with an error of Python: if an argument does not fit its annotation, a
    WrongTypeError names it. So the function's own messages take precedence.

    >>> def wait(*, seconds: int = 0) -> int:
    ...     return seconds + 1
    >>> suggest_keywords(wait)(second=2)
    Traceback (most recent call last):
      ...
    TypeError: wait has no option second; did you mean seconds?
    >>> suggest_keywords(wait)(seconds="2")
    Traceback (most recent call last):
      ...
    recordmill.base.errors.WrongTypeError: wait: seconds is a whole number, not '2'
    """
    return _explain(function, function.__name__)


def suggest_fields(target: type[_T]) -> type[_T]:
    """Decorates the constructor and the public methods of a class with `suggest_keywords`."""
    for name, member in list(vars(target).items()):
        if isinstance(member, FunctionType) and (name[0] != "_" or name == "__init__"):
            title = target.__name__ if name == "__init__" else name
            setattr(target, name, _explain(member, title))
    return target


def _explain(function: Callable[_P, _T], title: str) -> Callable[_P, _T]:
    known = inspect.signature(function).parameters
    takes_any = any(known[name].kind is inspect.Parameter.VAR_KEYWORD for name in known)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs:
            if name not in known and not takes_any:
                raise TypeError(f"{title} has no option {name}{did_you_mean(name, known)}")
        try:
            return function(*args, **kwargs)
        except (RecordmillError, OSError):
            raise
        except Exception as error:
            arguments = dict(zip(known, args, strict=False)) | kwargs
            wrong = _describe_wrong_type(function, arguments)
            if wrong is None:
                raise
            raise WrongTypeError(f"{title}: {wrong}") from error

    return call


def _describe_wrong_type(function: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """Returns a message about the first argument of a wrong type. None if all types fit."""
    module: dict[str, Any] = getattr(function, "__globals__", {})
    # The module of a function need not import the names in the types of declared options.
    names = _Names({**vars(builtins), **vars(typing), "os": os, **module})
    for parameter in inspect.signature(function).parameters.values():
        annotation, value = parameter.annotation, arguments.get(parameter.name)
        if isinstance(annotation, str) and parameter.name in arguments:
            annotation = eval(annotation, {}, names)
            if not _fits(value, annotation):
                text = " ".join(f"{value!r:.99}".split())
                return f"{parameter.name} is {_describe_type(annotation)}, not {text}"
    return None


class _Unknown(type):
    """A name in an annotation that is not imported at run time. Any value fits it."""

    def __getattr__(cls, name: str) -> _Unknown:
        return _Unknown(name, (), {})

    def __getitem__(cls, _: object) -> _Unknown:
        return cls


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> _Unknown:
        return _Unknown(name, (), {})


def _fits(value: Any, annotation: Any) -> bool:
    """Returns whether a value fits an annotation, or can be converted to it."""
    kind, parts = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if annotation is Any or isinstance(annotation, _Unknown):
        return True
    if hasattr(value, "tolist"):  # an array, or a scalar of NumPy
        value = value.tolist()
    if kind in _UNIONS:
        return any(_fits(value, part) for part in parts)
    if kind in _LISTS:
        is_list = hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping)
        is_pair = kind is tuple and parts and parts[-1] is not Ellipsis
        items = value if isinstance(value, abc.Collection) and parts else ()
        has_length = not is_pair or len(items) == len(parts)
        return is_list and has_length and all(_fits(item, parts[0]) for item in items)
    if kind in _CHECKS:
        return _CHECKS[kind][0](value)
    return not isinstance(kind, type) or isinstance(value, kind)


def _describe_type(annotation: Any) -> str:
    """Returns a readable description of a type, for messages.

    >>> _describe_type(str | os.PathLike[str] | None), _describe_type(tuple[float, float])
    ('a path or None', 'a list of 2 numbers')
    """
    kind, parts = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind in _UNIONS:
        # If paths are accepted, text is a path, so the message names only "a path".
        parts = tuple(part for part in parts if part is not str or not _has_path(parts))
        *others, last = dict.fromkeys(_describe_type(part) for part in parts)
        return f"{', '.join(others)} or {last}" if others else last
    if kind in _LISTS:
        if not parts:
            return "a list"
        count = "" if kind is not tuple or parts[-1] is Ellipsis else f"{len(parts)} "
        return f"a list of {count}{_describe_type(parts[0]).removeprefix('a ')}s"
    return _CHECKS[kind][1] if kind in _CHECKS else f"a {getattr(kind, '__name__', kind)}"


def _is_whole(value: Any) -> bool:
    try:
        return operator.index(value) is not None
    except TypeError:
        return False


def _is_flag(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_") or (_is_whole(value) and value in (0, 1))


def _has_path(types: tuple[Any, ...]) -> bool:
    return any((typing.get_origin(kind) or kind) is os.PathLike for kind in types)


_UNIONS = (typing.Union, UnionType)
_LISTS = (abc.Sequence, abc.Iterable, list, tuple)
# By type: (function that returns whether a value fits, description). Scalars of NumPy fit, because
# the functions convert them.
_CHECKS: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "text"),
    int: (lambda value: _is_whole(value), "a whole number"),
    float: (lambda value: hasattr(value, "__float__"), "a number"),
    bool: (lambda value: _is_flag(value), "True or False"),
    os.PathLike: (lambda value: isinstance(value, os.PathLike), "a path"),
    abc.Mapping: (lambda value: isinstance(value, Mapping), "a dict"),
    abc.Callable: (callable, "a function"),
    NoneType: (lambda value: value is None, "None"),
}
