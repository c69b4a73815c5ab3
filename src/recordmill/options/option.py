"""What an option is, the one `Option` from which its flag, its keyword, its help and its row in the reference come; and
the options that several commands share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import flag_of
from recordmill.sources.registry import KIND_NAMES

# Forms: how an option is written on the command line, and what becomes of the text.
TEXT_FORM, WHOLE_FORM, NUMBER, SIZE_FORM, NAMES, CHARACTER = "text", "whole", "number", "size", "names", "character"
REPEATED = "repeated"  # may be given several times, once each for as many features
SWITCH, OFF = "switch", "off"  # `--overwrite` is True; `--no-shuffle` makes shuffle False
EITHER = "either"  # `--header` is True, `--no-header` False, neither leaves the choice
ALL_OR_NAMES = "all or names"  # `--decode-images`, or `--decode-images A,B`
# Values of --runner, in any case, that run Beam in this process; any other is an engine.
LOCAL_RUNNERS = ("directrunner", "direct", "fnapirunner", "fn_api")
# Inputs of a build: paths, rows that this process has, or an object that reads.
FROM_FILES, FROM_MEMORY, FROM_SOURCE = "files", "data in memory", "a Source of your own"
FORMS = (TEXT_FORM, WHOLE_FORM, NUMBER, SIZE_FORM, NAMES, CHARACTER, REPEATED, SWITCH, OFF, EITHER, ALL_OR_NAMES)

_ANNOTATIONS = {
    TEXT_FORM: "str",
    WHOLE_FORM: "int",
    NUMBER: "float",
    SIZE_FORM: "str | int",
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
        it isn't given; default_text: the same for people, where the value does not say it.
    choices: the only values. metavar: what stands for the value in the help. flag: where it isn't what
        `base.option_names` says, in one command. short: another flag, of one letter. annotation: of the keyword, where
        the form does not say it.
    group: the heading under which it stands. common: `--help` shows it; `--help-all` shows all.
    decides: it decides which bytes come out; such options of a build stand in the manifest. kinds: of input that it is
        for; empty: all.
    inputs: of a build that it is for; one with kinds is for files. needs: it has an effect beside one of these options
        only. engine_only: it has one only where a runner is named that is not this process. excludes: (name, value) of
        options beside which it has none; None: whatever their value.
    shell_only, keyword_only: it means something to a shell, or in Python, only.
    """

    name: str
    help: str
    form: str = TEXT_FORM
    default: Any = None
    default_text: str = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    short: str = ""
    annotation: str = ""
    group: str = "options"
    common: bool = False
    decides: bool = False
    kinds: tuple[str, ...] = ()
    inputs: tuple[str, ...] = (FROM_FILES, FROM_MEMORY, FROM_SOURCE)
    needs: tuple[str, ...] = ()
    engine_only: bool = False
    excludes: tuple[tuple[str, Any], ...] = ()
    shell_only: bool = False
    keyword_only: bool = False

    @property
    def flags(self) -> str:
        """`--max-rejects`."""
        return self.flag or flag_of(self.name, False if self.form == OFF else None)

    @property
    def all_flags(self) -> tuple[str, ...]:
        """`--header` and `--no-header`, `-o` and `--out`; of most options there is one."""
        if self.form == EITHER:
            return self.flags, f"--no-{self.flags.removeprefix('--')}"
        return (self.short, self.flags) if self.short else (self.flags,)

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
        known = self.default_text or ("" if silent else str(self.default))
        kinds = f"{' and '.join(self.kinds)}: " if self.kinds and not _is_heading(self) else ""
        return f"{kinds}{self.help}{f' (default: {known})' if known else ''}"


def _is_heading(option: Option) -> bool:
    """Whether the group's own name says the kinds, or they are all there are."""
    return option.kinds == KIND_NAMES or all(kind in option.group.lower() for kind in option.kinds)


Options = tuple[Option, ...]


RUN = "the run"
_SCHEMA_TYPE = "Schema | str | os.PathLike[str]"

SCHEMA_OPTION = Option(
    "schema",
    "a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred",
    metavar="FILE",
    annotation=_SCHEMA_TYPE,
    common=True,
    decides=True,
)
MAX_REJECTS = Option(
    "max_rejects",
    "how many records may be unusable; they are listed in OUT/rejects",
    default=0,
    metavar="N|P%",
    annotation="str | int",
    common=True,
)
OVERWRITE = Option("overwrite", "replace what OUT holds", form=SWITCH, default=False, common=True)
MEMORY = Option(
    "memory",
    "what may be held at once, beside the interpreter",
    form=SIZE_FORM,
    default=f"{DEFAULT_MEMORY_BYTES >> 30}GiB",
    metavar="SIZE",
    group=RUN,
    common=True,
)
THREADS = Option(
    "threads",
    "how many threads work",
    form=WHOLE_FORM,
    default_text="all cores",
    metavar="N",
    group=RUN,
    common=True,
)
STORAGE_REQUESTS = Option(
    "storage_requests",
    "how many requests to object stores this process has under way at once; from Python it holds until it is said anew",
    form=WHOLE_FORM,
    default_text="64",
    metavar="N",
    group=RUN,
)
RUNNER = Option(
    "runner",
    "the Apache Beam runner; flags that recordmill does not know are handed to it",
    metavar="RUNNER",
    group=RUN,
)
BEAM_ARGS = Option(
    "beam_args",
    "flags for Beam's runner, from Python; on the command line they are given as they are",
    form=REPEATED,
    default=(),
    annotation="Sequence[str]",
    group=RUN,
    keyword_only=True,
)
PREFLIGHT = Option(
    "preflight",
    "with a --runner: don't look first whether its workers see OUT and INPUT and have the same versions",
    form=OFF,
    default=True,
    group=RUN,
    engine_only=True,
)
DETACH = Option(
    "detach",
    "with a --runner: return when the engine has the job; `recordmill status OUT` says what becomes of it",
    form=SWITCH,
    default=False,
    group=RUN,
    shell_only=True,
    engine_only=True,
)
QUIET = Option(
    "quiet", "no progress and no summary", form=SWITCH, default=False, group=RUN, common=True, shell_only=True
)
JSON = Option(
    "json",
    "print a machine-readable result on stdout",
    form=SWITCH,
    default=False,
    group=RUN,
    common=True,
    shell_only=True,
)
SPLIT_OPTION = Option("split", "only this split", metavar="NAME", common=True, decides=True)
COLUMNS_OPTION = Option(
    "columns",
    "only these features, in this order; the others are skipped, not parsed",
    form=NAMES,
    metavar="A,B,...",
    common=True,
    decides=True,
)


def is_local(runner: str | None) -> bool:
    """Whether the runner is this process; its name is read as Beam reads it, whatever its case."""
    return runner is None or runner.lower() in LOCAL_RUNNERS


def grouped(option: Option, group: str, **changes: object) -> Option:
    """The shared option under another heading, or with a help that is truer there."""
    return replace(option, group=group, **changes)  # type: ignore[arg-type]
