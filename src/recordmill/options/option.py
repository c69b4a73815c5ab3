"""`Option`, and how a command's options are read from its class of keywords.

A command is a `TypedDict`, whose entries are `name: Annotated[type, Option(help, ...)]`: the one declaration from which
the flag, the keyword, its type and default, the help, the reference page and the refusals come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Literal, get_args, get_origin

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.sizes import format_size_option
from recordmill.sources.registry import KIND_NAMES

if TYPE_CHECKING:
    import os

    from recordmill.schemas.feature import Schema

# Forms: how an option is written on the command line, and what becomes of the text. The type says which it is, but for
# CHARACTER (one, or a word for it) and REPEATED (given several times).
TEXT_FORM, INTEGER_FORM, NUMBER_FORM, NAMES_FORM, CHARACTER_FORM, REPEATED_FORM = (
    "text",
    "whole",
    "number",
    "names",
    "character",
    "repeated",
)
SWITCH_FORM, NEGATIVE_SWITCH_FORM = (
    "switch",
    "off",
)  # `--overwrite` is True; `--no-shuffle` makes shuffle False
TWO_WAY_SWITCH_FORM = "either"  # `--header` is True, `--no-header` False, neither leaves the choice
ALL_OR_NAMES_FORM = "all or names"  # `--decode-images`, or `--decode-images A,B`
FORMS = (
    TEXT_FORM,
    INTEGER_FORM,
    NUMBER_FORM,
    NAMES_FORM,
    CHARACTER_FORM,
    REPEATED_FORM,
    SWITCH_FORM,
    NEGATIVE_SWITCH_FORM,
    TWO_WAY_SWITCH_FORM,
    ALL_OR_NAMES_FORM,
)
# Values of --runner, in any case, that run Beam in this process; any other is an engine.
LOCAL_RUNNERS = ("directrunner", "direct", "fnapirunner", "fn_api")
# Inputs of a build: paths, rows that this process has, or an object that reads.
FILE_INPUTS, MEMORY_INPUTS = "files", "data in memory"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        help: what it does, without its default.
        default: what holds where it isn't given.
        default_text: the same for people, where the value does not say it.
        form: one of FORMS, where the type does not say which.
        choices: the only values, where the type does not list them.
        metavar: what stands for the value in the help; of whole numbers `N`.
        flag: where it isn't the name with dashes.
        short: another flag, of one letter.
        group: the heading under which it stands.
        common: `--help` shows it; `--help-all` shows all.
        decides: it decides which bytes come out; such options of a build stand in the manifest.
        kinds: of input that it is for; empty: all.
        inputs: of a build that it is for; one with kinds is for files.
        needs: it has an effect beside one of these options only.
        engine_only: it has one only where a runner is named that is not this process.
        excludes: (name, value) of options beside which it has none; None: whatever their value.
        shell_only: it means something to a shell only.
        keyword_only: it means something in Python only.
        name: its keyword.
        keyword_type: the keyword's type, as its class has it.
    """

    help: str
    default: Any = None
    default_text: str = ""
    form: str = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    short: str = ""
    group: str = "options"
    common: bool = False
    decides: bool = False
    kinds: tuple[str, ...] = ()
    inputs: tuple[str, ...] = (FILE_INPUTS, MEMORY_INPUTS)
    needs: tuple[str, ...] = ()
    engine_only: bool = False
    excludes: tuple[tuple[str, Any], ...] = ()
    shell_only: bool = False
    keyword_only: bool = False
    name: str = ""
    keyword_type: str = ""

    @property
    def main_flag(self) -> str:
        """`--max-rejects`."""
        return (
            self.flag
            or f"--{'no-' if self.form == NEGATIVE_SWITCH_FORM else ''}{self.name.replace('_', '-')}"
        )

    @property
    def all_flags(self) -> tuple[str, ...]:
        """`--header` and `--no-header`, `-o` and `--out`; of most options there is one."""
        if self.form == TWO_WAY_SWITCH_FORM:
            return self.main_flag, f"--no-{self.main_flag.removeprefix('--')}"
        return (self.short, self.main_flag) if self.short else (self.main_flag,)

    def is_given(self, value: Any) -> bool:
        """Returns whether the value says more than the option's absence."""
        return value is not None and not (
            isinstance(value, str | int | float | tuple) and value == self.default
        )

    def serves_inputs(self, inputs: str) -> bool:
        """Returns whether it is for that input of a build."""
        return inputs in self.inputs and (inputs == FILE_INPUTS or not self.kinds)

    @property
    def help_with_default(self) -> str:
        """The help with the default in it, and the kinds it is for."""
        silent = self.default is None or isinstance(self.default, bool) or self.default == ()
        default_shown = self.default_text or ("" if silent else str(self.default))
        kinds = f"{' and '.join(self.kinds)}: " if self.kinds and not _is_heading(self) else ""
        return f"{kinds}{self.help}{f' (default: {default_shown})' if default_shown else ''}"


Options = tuple[Option, ...]
LOOK_GROUP, REPORT_GROUP, RUN_GROUP = (
    "what to look at",
    "the report",
    "the run",
)  # groups of several commands

# What several commands have. One whose help or heading differs says so: `Annotated[QuietOption, {"group": REPORT}]`.
_selection_option = partial(Option, group=LOOK_GROUP, common=True, decides=True)
_run_option = partial(Option, group=RUN_GROUP)
SplitOption = Annotated[str | None, _selection_option("only this split", metavar="NAME")]
ColumnsOption = Annotated[
    str | Sequence[str] | None,
    _selection_option(
        "only these features, in this order; the others are skipped, not parsed", metavar="A,B,..."
    ),
]
SchemaOption = Annotated[
    "Schema | str | os.PathLike[str] | None",
    _selection_option(
        "a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred",
        metavar="FILE",
    ),
]
MaxRejectsOption = Annotated[
    str | int,
    Option(
        "how many records may be unusable; they are listed in OUT/rejects",
        0,
        metavar="N|P%",
        common=True,
    ),
]
OverwriteOption = Annotated[bool, Option("replace what OUT holds", False, common=True)]
_DEFAULT_MEMORY_TEXT = format_size_option(DEFAULT_MEMORY_BYTES)
MemoryOption = Annotated[
    str | int,
    _run_option(
        "what may be held at once, beside the interpreter",
        _DEFAULT_MEMORY_TEXT,
        metavar="SIZE",
        common=True,
    ),
]
ThreadsOption = Annotated[
    int | None, _run_option("how many threads work", default_text="all cores", common=True)
]
StorageRequestsOption = Annotated[
    int | None,
    _run_option(
        "requests to object stores at once; from Python it holds until it is said anew",
        default_text="64",
    ),
]
RunnerOption = Annotated[
    str | None,
    _run_option(
        "the Apache Beam runner; flags that recordmill does not know are handed to it",
        metavar="RUNNER",
    ),
]
BeamArgsOption = Annotated[
    Sequence[str],
    _run_option(
        "flags for Beam's runner; on the command line they are given as they are",
        (),
        form=REPEATED_FORM,
        keyword_only=True,
    ),
]
PreflightOption = Annotated[
    bool,
    _run_option(
        "with a --runner: don't look first what its workers see, and which versions they have",
        True,
        engine_only=True,
    ),
]
QuietOption = Annotated[
    bool, _run_option("no progress and no summary", False, common=True, shell_only=True)
]
JsonOption = Annotated[
    bool, Option("print it as JSON", False, group=REPORT_GROUP, common=True, shell_only=True)
]


def declared_options(*keywords: Any) -> Options:
    """The options of classes of keywords, in their order."""
    return tuple(
        _declared_option(name, *get_args(note))
        for keyword_class in keywords
        for name, note in keyword_class.__annotations__.items()
    )


def _declared_option(name: str, type_: Any, option: Option, *changes: Mapping[str, Any]) -> Option:
    """The option with its changes, and with what its type says: form, choices and the type's own text."""
    for change in changes:
        option = replace(option, **change)
    alternatives = {get_origin(kind) or kind for kind in get_args(type_) or (type_,)} - {type(None)}
    literal_choices = next(
        (
            get_args(alternative)
            for alternative in (type_, *get_args(type_))
            if get_origin(alternative) is Literal
        ),
        (),
    )
    form = option.form or _form_of_type(alternatives, option.default)
    return replace(
        option,
        name=name,
        form=form,
        metavar=option.metavar or ("N" if form == INTEGER_FORM else None),
        choices=option.choices or literal_choices,
        keyword_type=_type_text(type_),
    )


def _form_of_type(types: set[Any], default: Any) -> str:
    if types == {bool}:
        return (
            TWO_WAY_SWITCH_FORM
            if default is None
            else NEGATIVE_SWITCH_FORM
            if default
            else SWITCH_FORM
        )
    if bool in types:
        return ALL_OR_NAMES_FORM
    if types in ({int}, {float}):
        return INTEGER_FORM if int in types else NUMBER_FORM
    return NAMES_FORM if types == {str, Sequence} else TEXT_FORM


def _type_text(type_: Any) -> str:
    if isinstance(type_, ForwardRef):
        return str(type_.__forward_arg__)
    text = type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)
    return text.replace("collections.abc.", "").replace("typing.", "").replace("'", '"')


def _is_heading(option: Option) -> bool:
    """Returns whether the group's own name says the kinds, or they are all there are."""
    return option.kinds == KIND_NAMES or all(kind in option.group.lower() for kind in option.kinds)


def is_local(runner: str | None) -> bool:
    """Returns whether the runner is this process; its name is read as Beam reads it, whatever its case."""
    return runner is None or runner.lower() in LOCAL_RUNNERS
