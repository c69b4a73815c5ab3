"""The declaration of an option, and the reader of declarations.

The options of a command are a `TypedDict` with entries `name: Annotated[type, Option(help, ...)]`.
The flag, the keyword, its type and default, the help, the reference page and the checks follow from
this declaration.
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

# The form of an option determines its syntax on the command line and the conversion of its text. It
# follows from the type, except for CHARACTER_FORM (a character or a word for it) and REPEATED_FORM
# (the option may be set several times).
TEXT_FORM, INTEGER_FORM, NUMBER_FORM, NAMES_FORM, CHARACTER_FORM, REPEATED_FORM = (
    "text",
    "whole",
    "number",
    "names",
    "character",
    "repeated",
)
# `--overwrite` means overwrite=True, and `--no-shuffle` means shuffle=False.
SWITCH_FORM, NEGATIVE_SWITCH_FORM = "switch", "off"
# `--header` is True and `--no-header` is False. Without either, the program decides.
TWO_WAY_SWITCH_FORM = "either"
# `--decode-images`, or `--decode-images A,B`
ALL_OR_NAMES_FORM = "all or names"
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
# Values of --runner, in any case, that run Beam in this process. Any other runner is an engine.
LOCAL_RUNNERS = ("directrunner", "direct", "fnapirunner", "fn_api")
# Inputs of a build: files, or data of this process, such as rows or an object that reads.
FILE_INPUTS, MEMORY_INPUTS = "files", "data in memory"


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        help: Its effect, without the default.
        default: The value if the option is not set.
        default_text: The default as text, if `default` is not readable.
        form: One of FORMS, if the type does not determine it.
        choices: The allowed values, if the type does not list them.
        metavar: The placeholder of the value in the help; `N` for whole numbers.
        flag: The flag, if it is not the name with dashes.
        short: Another flag of one letter.
        group: The heading of the option in the help.
        common: `--help` shows the option. `--help-all` shows every option.
        decides: The option changes the bytes of the output. The manifest of a build contains these
            options.
        kinds: The kinds of input that the option applies to; empty means all.
        outputs: The outputs of a read that the option applies to; empty means all.
        inputs: The inputs of a build that the option applies to. An option with `kinds` only
            applies to files.
        needs: The option has an effect only together with one of these options.
        engine_only: The option has an effect only with a runner that is not this process.
        excludes: (name, value) of options that make this one useless. The value None means any
            value.
        shell_only: The option exists on the command line only.
        keyword_only: The option exists in Python only.
        name: Its keyword in Python.
        keyword_type: The type of the keyword as text, as the class declares it.
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
    outputs: tuple[str, ...] = ()
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
        """The flag of the option, such as `--max-rejects`."""
        return (
            self.flag
            or f"--{'no-' if self.form == NEGATIVE_SWITCH_FORM else ''}{self.name.replace('_', '-')}"
        )

    @property
    def all_flags(self) -> tuple[str, ...]:
        """All flags of the option, such as `--header` and `--no-header`, or `-o` and `--out`."""
        if self.form == TWO_WAY_SWITCH_FORM:
            return self.main_flag, f"--no-{self.main_flag.removeprefix('--')}"
        return (self.short, self.main_flag) if self.short else (self.main_flag,)

    def is_given(self, value: Any) -> bool:
        """Returns whether a value differs from leaving the option out."""
        return value is not None and not (
            isinstance(value, str | int | float | tuple) and value == self.default
        )

    def serves_inputs(self, inputs: str) -> bool:
        """Returns whether the option applies to these inputs of a build.

        Args:
            inputs: FILE_INPUTS or MEMORY_INPUTS.
        """
        return inputs in self.inputs and (inputs == FILE_INPUTS or not self.kinds)

    @property
    def help_with_default(self) -> str:
        """The help with the default and the kinds of input."""
        silent = self.default is None or isinstance(self.default, bool) or self.default == ()
        default_shown = self.default_text or ("" if silent else str(self.default))
        kinds = f"{' and '.join(self.kinds)}: " if self.kinds and not _is_heading(self) else ""
        return f"{kinds}{self.help}{f' (default: {default_shown})' if default_shown else ''}"


Options = tuple[Option, ...]
# headings that several commands have
LOOK_GROUP, REPORT_GROUP, RUN_GROUP = "what to look at", "the report", "the run"

# Options of several commands. A command can change attributes:
# `Annotated[QuietOption, {"group": REPORT_GROUP}]`.
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
    int | None, _run_option("number of threads", default_text="all cores", common=True)
]
StorageRequestsOption = Annotated[
    int | None,
    _run_option(
        "concurrent requests to object stores; in Python the value stays in effect until it is changed",
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
    """Returns the options that classes of keywords declare, in order."""
    return tuple(
        _declared_option(name, *get_args(note))
        for keyword_class in keywords
        for name, note in keyword_class.__annotations__.items()
    )


def _declared_option(name: str, type_: Any, option: Option, *changes: Mapping[str, Any]) -> Option:
    """Returns an option completed by its type: form, choices and keyword type.

    Args:
        name: The keyword.
        type_: The type of the keyword.
        option: The declaration.
        changes: Attributes to replace, for an option that several commands share.
    """
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
    # A switch changes the default: without one it has three states, and True needs a `--no-` flag.
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
    """Returns whether the help of the option needs no list of kinds.

    This is true if its heading contains the kinds, or if all kinds apply.
    """
    return option.kinds == KIND_NAMES or all(kind in option.group.lower() for kind in option.kinds)


def is_local(runner: str | None) -> bool:
    """Returns whether a runner is this process.

    As in Beam, the case of the name does not matter. None is this process, too.
    """
    return runner is None or runner.lower() in LOCAL_RUNNERS
