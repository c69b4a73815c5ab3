"""The one declaration of an option: a field of a class of options.

    class Shards(Options, heading="shards", decides=True):
        shard_size: int | None = declare("target size of a shard", default=None, parse=parse_size)

The class is a frozen dataclass, so an object of it has the parsed values. `Shards.OPTIONS` has the
declarations. The flag, the keyword and its type, the default, the help, the reference page, the
types in `keywords.py` and the checks follow from them.
"""

from __future__ import annotations

import ast
import inspect
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


# headings that several commands have
LOOK_HEADING, REPORT_HEADING, RUN_HEADING = "what to read", "the report", "the run"
# An option and its value. The value None means any value but the default.
Rule = tuple[str, Any]
_Given = TypeVar("_Given")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        help: Its effect, without the default.
        default: The value if the option is not set, as a user writes it: "64MiB".
        parse: A function of (value, name) that converts and checks a value that a user has set.
            Its first annotation is the type of the keyword. It gets no None if that is the default.
        default_text: The default as text, if `default` is not readable.
        choices: The allowed values, if the type does not list them.
        metavar: The placeholder of the value in the help; `N` for whole numbers.
        flag: The flag, if it is not the name with dashes.
        short: Another flag of one letter.
        heading: The heading of the option in the help.
        common: `--help` shows the option. `--help-all` shows every option.
        decides: The option changes the bytes of the output. The manifest of a build contains these
            options.
        repeated: The flag may be given several times, and the value is a list.
        kinds: The kinds of input whose classes have the option; empty means all. `Call` finds them.
        outputs: The outputs of a read whose classes have the option; empty means all. `Call` finds
            them.
        files_only: The option of a build does not apply to data of this process. The same is true
            if it has `kinds`.
        needs: The option has an effect only together with one of these.
        engine_only: The option has an effect only with a runner that is not this process.
        excludes: Each of these makes the option useless.
        shell_only: The option exists on the command line only.
        keyword_only: The option exists in Python only.
        name: Its keyword in Python.
        keyword_type: The type of the keyword as text.
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
        """Whether the flag has no value.

        `--overwrite` means overwrite=True, and `--no-shuffle` means shuffle=False.
        """
        return self.keyword_type == "bool"

    @property
    def is_two_way(self) -> bool:
        """Whether `--header` is True and `--no-header` is False."""
        return self.keyword_type == "bool | None"

    @property
    def allows_bare_flag(self) -> bool:
        """Whether the value may be left out: `--decode-images`, or `--decode-images A,B`."""
        return self.keyword_type.startswith("bool | ") and not self.is_two_way

    @property
    def number_type(self) -> type[int] | type[float] | None:
        """The class of the value if it is a number, else None."""
        numbers: dict[str, type[int] | type[float]] = {"int": int, "float": float}
        return numbers.get(self.keyword_type.removesuffix(" | None"))

    @property
    def placeholder(self) -> str:
        """The placeholder of the value in the help. "" if there are choices instead."""
        return self.metavar or ("N" if self.number_type is int else "")

    @property
    def main_flag(self) -> str:
        """The flag of the option, such as `--max-rejects`."""
        no = "no-" if self.is_switch and self.default else ""
        return self.flag or f"--{no}{self.name.replace('_', '-')}"

    @property
    def all_flags(self) -> tuple[str, ...]:
        """All flags of the option, such as `--header` and `--no-header`, or `-o` and `--out`."""
        if self.is_two_way:
            return self.main_flag, f"--no-{self.main_flag.removeprefix('--')}"
        return (self.short, self.main_flag) if self.short else (self.main_flag,)

    def is_given(self, value: Any) -> bool:
        """Returns whether a value differs from leaving the option out."""
        return value is not None and not (
            isinstance(value, str | int | float | tuple) and value == self.default
        )

    def parse_value(self, value: Any) -> Any:
        """Returns the value for the code, of one that a user has set.

        Raises:
            UsageError: The value is not one of the choices, or the parser refuses it.
            WrongTypeError: The value is a dict instead of a list, or an array instead of one value.
        """
        if value is None and self.default is None:
            return None
        value = self._without_arrays(value)
        # The names of a dict would be taken as a list, and its values would be lost.
        if isinstance(value, Mapping) and "Sequence" in self.keyword_type:
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
        """Returns an array of NumPy or another library as a list, or its only value.

        A comparison of an array is an array, so no other code has to deal with them.
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
        """The help with the default and the kinds of input."""
        silent = self.default is None or isinstance(self.default, bool) or self.default == ()
        default_shown = self.default_text or ("" if silent else str(self.default))
        is_in_heading = self.kinds == KIND_NAMES or all(
            kind in self.heading.lower() for kind in self.kinds
        )
        kinds = "" if is_in_heading else f"{' and '.join(self.kinds)}: "
        return f"{kinds}{self.help}{f' (default: {default_shown})' if default_shown else ''}"


@dataclass(frozen=True)
class _Declaration:
    """An option without the attributes that its class adds.

    Attributes:
        group: The class that declares the option in full. None if `attributes` does.
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

    The type of the field is that of the parsed value.

    Args:
        help: See `Option`, also for the others.
        default: As a user writes it.
        parse: Without a parser, users pass values of the field's type.
        **attributes: Other attributes of `Option`. `accepts` is the type of the keyword, if neither
            the parser nor the field has it.
    """
    return _Declaration(None, {"help": help, "default": default, "parse": parse, **attributes})


def again(group: type[Options], **changes: Any) -> Any:
    """Declares the option of this name of another class once more.

    Args:
        group: The class that declares it.
        **changes: Attributes that differ, such as `help`.
    """
    return _Declaration(group, changes)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(declare,))
class Options:
    """Base of the classes of options.

    Arguments of a subclass, such as `heading`, are attributes of all options that it declares.
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
        # The methods below serve all classes. Generating them for each would slow down `--help`.
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
        """Checks values that depend on each other."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def _one_line(value: object) -> str:
    return " ".join(f"{value!r:.99}".split())


def _complete(
    name: str, type_text: str, declaration: _Declaration, shared: Mapping[str, Any]
) -> Option:
    """Returns an option with the attributes that its name, its type and its class determine."""
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
