"""What an option is: the one `Option` from which its flag, its keyword, its help and its row in the reference come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recordmill.base.option_names import flag_of
from recordmill.sources.registry import KIND_NAMES

# Forms: how an option is written on the command line, and what becomes of the text.
TEXT, WHOLE, NUMBER, SIZE, NAMES, CHARACTER = "text", "whole", "number", "size", "names", "character"
REPEATED = "repeated"  # may be given several times, once each for as many features
SWITCH, OFF = "switch", "off"  # `--overwrite` is True; `--no-shuffle` makes shuffle False
EITHER = "either"  # `--header` is True, `--no-header` False, neither leaves the choice
ALL_OR_NAMES = "all or names"  # `--decode-images`, or `--decode-images A,B`
# Inputs of a build: paths, rows that this process has, or an object that reads.
FROM_FILES, FROM_MEMORY, FROM_SOURCE = "files", "data in memory", "a Source of your own"
FORMS = (TEXT, WHOLE, NUMBER, SIZE, NAMES, CHARACTER, REPEATED, SWITCH, OFF, EITHER, ALL_OR_NAMES)

_ANNOTATIONS = {
    TEXT: "str",
    WHOLE: "int",
    NUMBER: "float",
    SIZE: "str | int",
    NAMES: "str | Sequence[str]",
    CHARACTER: "str | None",
    REPEATED: "str | Sequence[str]",
    SWITCH: "bool",
    OFF: "bool",
    EITHER: "bool",
    ALL_OR_NAMES: "bool | str | Sequence[str]",
}


@dataclass(frozen=True)
class Option:
    """One option.

    name: its keyword in Python. help: what it does, without its default. form: one of FORMS. default: what holds where
        it isn't given; told_default: the same for people, where the value does not say it.
    choices: the only values. metavar: what stands for the value in the help. flag: where it isn't what
        `base.option_names` says, in one command. annotation: of the keyword, where the form does not say it.
    group: the heading under which it stands. common: `--help` shows it; `--help-all` shows all.
    decides: it decides which bytes come out; such options of a build stand in the manifest. kinds: of input that it is
        for; empty: all.
    inputs: of a build that it is for; one with kinds is for files. needs: it has an effect beside one of these options
        only. excludes: (name, value) of options beside which it has none; None: whatever their value.
    shell_only, keyword_only: it means something to a shell, or in Python, only.
    """

    name: str
    help: str
    form: str = TEXT
    default: Any = None
    told_default: str = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    annotation: str = ""
    group: str = "options"
    common: bool = False
    decides: bool = False
    kinds: tuple[str, ...] = ()
    inputs: tuple[str, ...] = (FROM_FILES, FROM_MEMORY, FROM_SOURCE)
    needs: tuple[str, ...] = ()
    excludes: tuple[tuple[str, Any], ...] = ()
    shell_only: bool = False
    keyword_only: bool = False

    @property
    def flags(self) -> str:
        """`--max-rejects`."""
        return self.flag or flag_of(self.name, False if self.form == OFF else None)

    @property
    def all_flags(self) -> tuple[str, ...]:
        """`--header` and `--no-header`; of most options there is one."""
        return (self.flags, f"--no-{self.flags.removeprefix('--')}") if self.form == EITHER else (self.flags,)

    def is_given(self, value: Any) -> bool:
        """Whether the value says more than the option's absence."""
        return value is not None and not (isinstance(value, str | int | float | tuple) and value == self.default)

    def serves(self, what: str) -> bool:
        """Whether it is for that input of a build."""
        return what in self.inputs and (what == FROM_FILES or not self.kinds)

    @property
    def keyword_type(self) -> str:
        """The annotation of the keyword; what has no default may be None."""
        own = self.annotation or _ANNOTATIONS[self.form]
        if self.choices and not self.annotation:
            own = f"Literal[{', '.join(map(repr, self.choices))}]".replace("'", '"')
        return f"{own} | None" if self.default is None and "None" not in own and own != "Any" else own

    @property
    def shown(self) -> str:
        """The help with the default in it, and the kinds it is for."""
        silent = self.default is None or isinstance(self.default, bool) or self.default == ()
        known = self.told_default or ("" if silent else str(self.default))
        kinds = f"{' and '.join(self.kinds)}: " if self.kinds and not _is_heading(self) else ""
        return f"{kinds}{self.help}{f' (default: {known})' if known else ''}"


def _is_heading(option: Option) -> bool:
    """Whether the group's own name says the kinds, or they are all there are."""
    return option.kinds == KIND_NAMES or all(kind in option.group.lower() for kind in option.kinds)


Options = tuple[Option, ...]
