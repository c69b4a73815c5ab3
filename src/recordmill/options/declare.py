"""Declaration of options as fields of classes.

    class Shards(Options, heading="shards", decides=True):
        shard_size: int | None = declare("target size of a shard", default=None, parse=parse_size)

Each option is declared once. Its flag, keyword, type, default, help, reference page, entry in
`keywords.py` and checks follow from the declaration.

The class is a frozen dataclass. Its objects contain the parsed values, and `Shards.OPTIONS`
contains the declarations.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, overload

from recordmill.base.errors import UsageError, WrongTypeError
from recordmill.base.option_names import did_you_mean
from recordmill.base.option_names import option as option_text
from recordmill.sources.registry import KIND_NAMES

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10 has none, and at run time it does nothing

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


# headings in the help of several commands
LOOK_HEADING, REPORT_HEADING, RUN_HEADING = "what to read", "the report", "the run"
# (name of an option, value). The value None means any value except the default.
Rule = tuple[str, Any]
_Given = TypeVar("_Given")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    Attributes:
        help: Effect of the option, without its default.
        default: Value if the option is not set. It is written as a user would, such as "64MiB".
        parse: Takes (value, name) and returns the value for the code, or raises UsageError. Its
            first annotation is the type of the keyword. If None is the default, it is not parsed.
        default_text: The default as shown in the help, if `default` itself is not readable.
        choices: Allowed values. A type such as `Literal["a", "b"]` lists them, too.
        metavar: Placeholder of the value in the help. If None, the placeholder of a whole number is
            `N`.
        flag: The flag. "" is the name with dashes.
        short: A second flag with one letter.
        heading: Heading of the option in the help.
        common: True if `--help` shows the option. `--help-all` shows all options.
        decides: True if the option changes the bytes of the output. The manifest of a build
            contains it.
        repeated: True if the flag can occur several times. The value is a list.
        kinds: Kinds of input that declare the option. () means that it applies to all. `Call` sets
            it.
        outputs: Outputs of a read that declare the option. () means that it applies to all. `Call`
            sets it.
        files_only: True if the option of a build does not apply to data in memory. Options with
            `kinds` never do.
        needs: The option requires one of these other options.
        engine_only: True if the option requires a runner outside of this process.
        excludes: The option can't be combined with any of these other options.
        shell_only: True if the option exists only on the command line.
        keyword_only: True if the option exists only in Python.
        name: Keyword in Python.
        keyword_type: Type of the keyword, as text.
    """

    help: str
    default: Any
    parse: Callable[[Any, str], Any] | None = None
    default_text: str = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    short: str = ""
    heading: str = "options"
    common: bool = False
    decides: bool = False
    repeated: bool = False
    kinds: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    files_only: bool = False
    needs: tuple[Rule, ...] = ()
    engine_only: bool = False
    excludes: tuple[Rule, ...] = ()
    shell_only: bool = False
    keyword_only: bool = False
    name: str = ""
    keyword_type: str = ""

    @property
    def is_switch(self) -> bool:
        """True if the flag has no value.

        `--overwrite` sets overwrite=True, and `--no-shuffle` sets shuffle=False.
        """
        return self.keyword_type == "bool"

    @property
    def is_two_way(self) -> bool:
        """True if there are two flags, such as `--header` and `--no-header`."""
        return self.keyword_type == "bool | None"

    @property
    def allows_bare_flag(self) -> bool:
        """True if the flag has an optional value: `--decode-images`, or `--decode-images A,B`."""
        return self.keyword_type.startswith("bool | ") and not self.is_two_way

    @property
    def number_type(self) -> type[int] | type[float] | None:
        """`int` or `float` if the value is a number. Otherwise None."""
        numbers: dict[str, type[int] | type[float]] = {"int": int, "float": float}
        return numbers.get(self.keyword_type.removesuffix(" | None"))

    @property
    def placeholder(self) -> str:
        """Placeholder of the value in the help. "" if the help lists choices."""
        return self.metavar or ("N" if self.number_type is int else "")

    @property
    def main_flag(self) -> str:
        """Flag of the option, such as `--max-rejects`."""
        no = "no-" if self.is_switch and self.default else ""
        return self.flag or f"--{no}{self.name.replace('_', '-')}"

    @property
    def all_flags(self) -> tuple[str, ...]:
        """All flags of the option, such as `--header` and `--no-header`, or `-o` and `--out`."""
        if self.is_two_way:
            return self.main_flag, f"--no-{self.main_flag.removeprefix('--')}"
        return (self.short, self.main_flag) if self.short else (self.main_flag,)

    def is_given(self, value: Any) -> bool:
        """Returns whether a value has another effect than not setting the option."""
        return value is not None and not (
            isinstance(value, str | int | float | tuple) and value == self.default
        )

    def parse_value(self, value: Any) -> Any:
        """Converts a value that a user has set to the value for the code.

        The value of an option that takes a path may begin with `~`, the home folder.

        Raises:
            UsageError: The value is not one of the choices, or the parser refuses it.
            WrongTypeError: The value is a dict instead of a list, or an array instead of one value.
        """
        if value is None and self.default is None:
            return None
        value = _expand_home(self._without_arrays(value), self.keyword_type)
        # A dict would be used as the list of its keys, and its values would be lost.
        takes_list = "Sequence" in self.keyword_type and "Mapping" not in self.keyword_type
        if takes_list and isinstance(value, Mapping):
            raise WrongTypeError(f"{self.name} is text or a list of texts, not {_one_line(value)}")
        if self.choices and value is not None and value not in self.choices:
            raise UsageError(
                "{option}: must be one of {choices}{hint}",
                option=option_text(self.name, value),
                choices=", ".join(self.choices),
                hint=did_you_mean(str(value), self.choices),
            )
        return value if self.parse is None else self.parse(value, self.name)

    def _without_arrays(self, value: Any) -> Any:
        """Converts an array of NumPy or another library to a list or a scalar.

        Comparing an array returns an array instead of a bool, which the checks after this can't
        use.

        Raises:
            WrongTypeError: The option takes neither a list nor a tuple.
        """
        if not hasattr(value, "__array__") or self.keyword_type == "Any":
            return value
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            return value.item()
        if "Sequence" in self.keyword_type or "tuple" in self.keyword_type:
            return value.tolist() if hasattr(value, "tolist") else list(value)
        if self.choices:
            expected = f"must be one of {', '.join(self.choices)}, not"
        else:
            expected = "must not be an array:"
        raise WrongTypeError(f"{self.name} {expected} {_one_line(value)}")

    @property
    def help_with_default(self) -> str:
        """Help with the default value and the kinds of input."""
        silent = self.default is None or isinstance(self.default, bool) or self.default == ()
        default_shown = self.default_text or ("" if silent else str(self.default))
        is_in_heading = self.kinds == KIND_NAMES or all(
            kind in self.heading.lower() for kind in self.kinds
        )
        kinds = "" if is_in_heading else f"{' and '.join(self.kinds)}: "
        return f"{kinds}{self.help}{f' (default: {default_shown})' if default_shown else ''}"


@dataclass(frozen=True)
class _Declaration:
    """An option before its class adds further attributes.

    Attributes:
        group: Class with the complete declaration, if `attributes` only changes some of it. None if
            `attributes` is complete.
    """

    group: type[Options] | None
    attributes: Mapping[str, Any]


@overload
def declare(help: str, *, default: _Value, parse: None = None, **attributes: Any) -> _Value: ...
@overload
def declare(
    help: str, *, default: None, parse: Callable[[Any, str], _Value], **attributes: Any
) -> _Value | None: ...
@overload
def declare(
    help: str, *, default: _Given, parse: Callable[[_Given, str], _Value], **attributes: Any
) -> _Value: ...
def declare(help: str, *, default: Any, parse: Any = None, **attributes: Any) -> Any:
    """Declares an option as a field of a class of options.

    The type of the field is the type of the parsed value.

    Args:
        help: See `Option`.
        default: Value as a user would write it.
        parse: See `Option`. Without a parser, users pass values of the type of the field.
        **attributes: Other attributes of `Option`. In addition, `accepts` is the type of the
            keyword, if it is neither the type of the field nor an annotation of the parser.
    """
    return _Declaration(None, {"help": help, "default": default, "parse": parse, **attributes})


def redeclare(group: type[Options], **changes: Any) -> Any:
    """Declares an option that another class declares, in the same way.

    The name of the field determines the option.

    Args:
        group: Class with the complete declaration.
        **changes: Attributes that differ here, such as `help`.
    """
    return _Declaration(group, changes)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(declare,))
class Options:
    """Base class of all classes of options.

    Arguments of a subclass, such as `heading="shards"`, are attributes of all its options.

    Attributes:
        OPTIONS: Declarations of the options of the class, by name.
    """

    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    _DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **attributes: Any) -> None:
        declared = {
            name: _complete(name, str(type_), vars(cls)[name], attributes)
            for name, type_ in inspect.get_annotations(cls).items()
            if isinstance(vars(cls).get(name), _Declaration)
        }
        for name, option in declared.items():
            setattr(cls, name, field(default=option.parse_value(option.default)))
        inherited = {n: option for base in cls.__bases__ for n, option in base.OPTIONS.items()}  # type: ignore[attr-defined]
        cls.OPTIONS = {**declared, **{n: o for n, o in inherited.items() if n not in declared}}
        # All classes share the methods below. Generating them for each class would slow down
        # `--help`.
        dataclass(init=False, repr=False, eq=False)(cls)
        cls._DEFAULTS = {one.name: one.default for one in fields(cls)}  # type: ignore[arg-type]

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name not in self._DEFAULTS:
                known = did_you_mean(name, self._DEFAULTS)
                raise TypeError(f"{type(self).__name__} has no option {name}{known}")
        vars(self).update({**self._DEFAULTS, **values})
        self.__post_init__()

    def __post_init__(self) -> None:
        """Raises UsageError if values contradict each other."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def _expand_home(value: Any, keyword_type: str) -> Any:
    """Returns a path with the home folder instead of `~`. Other values are unchanged.

    Args:
        value: Value of an option.
        keyword_type: Type of the option. Only a type with `os.PathLike` takes paths.
    """
    is_path = "PathLike" in keyword_type and isinstance(value, str | os.PathLike)
    if not is_path or not os.fspath(value).startswith("~"):
        return value
    # Imported here, because `--help` imports this module.
    from recordmill.storage.files import expand_home

    return expand_home(value)


def _one_line(value: object) -> str:
    return " ".join(f"{value!r:.99}".split())


def _complete(
    name: str, type_text: str, declaration: _Declaration, shared: Mapping[str, Any]
) -> Option:
    """Returns the complete declaration of an option.

    Args:
        name: Name of the field.
        type_text: Type of the field.
        declaration: The declaration in the class.
        shared: Attributes of all options of the class.
    """
    attributes = dict(declaration.attributes)
    if declaration.group is not None:
        attributes = {**vars(declaration.group.OPTIONS[name]), **attributes}
    else:
        attributes = {**shared, **attributes, "name": name}
        choices = attributes.get("choices", ()) or _literal_choices(type_text)
        parse = attributes["parse"]
        accepts = attributes.pop("accepts", "")
        if parse is not None and not accepts:
            none = " | None" if attributes["default"] is None else ""
            accepts = f"{next(iter(parse.__annotations__.values()))}{none}"
        attributes |= {"choices": choices, "keyword_type": accepts or type_text}
    return Option(**attributes)


def _literal_choices(type_text: str) -> tuple[str, ...]:
    """Returns the values of a type such as `Literal["none", "gzip"]`.

    >>> _literal_choices('Literal["none", "gzip"] | None'), _literal_choices("str")
    (('none', 'gzip'), ())
    """
    values = type_text.partition("Literal[")[2].partition("]")[0]
    return ast.literal_eval(f"({values},)") if values else ()
