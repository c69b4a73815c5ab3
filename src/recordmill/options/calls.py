"""Commands and functions with options, and the values that a caller sets.

`CALLS` lists the classes of options of each call, by import path. A class is imported when the call
is used, so a command imports only its own options.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar, cast

from recordmill.base.errors import UsageError
from recordmill.base.messages import join_messages
from recordmill.base.option_names import did_you_mean
from recordmill.base.option_names import option as option_text
from recordmill.options.declare import Option, Options
from recordmill.sources.registry import KIND_NAMES

# Values of --runner that run Beam in this process, in lower case. Any other runner is an engine.
LOCAL_RUNNERS = ("directrunner", "direct", "fnapirunner", "fn_api")
# Inputs of a build: files, or data in this process, such as rows or an object that yields batches.
FILE_INPUTS, MEMORY_INPUTS = "files", "data in memory"
# Import paths of the tables of plug-ins. Each value is the name of the attribute of `Option` that
# lists the plug-ins which declare an option.
_PLUGIN_TABLES = {"sources.registry:KINDS": "kinds", "records.writers.outputs:OUTPUTS": "outputs"}
_Group = TypeVar("_Group", bound=Options)
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Call:
    """A command or a function that has options.

    Attributes:
        name: Name of the command or the function.
        groups: Import paths of the classes of options, `module:name` below `recordmill`, in the
            order of the help. The path of a table of plug-ins, such as KINDS, adds the classes of
            all its entries.
        left_out: Names of options that the call does not have, although a class declares them.
        positional: Names of options that the function takes by position, too.
        is_command: True if there is a command `recordmill NAME`. Its flags are the options.
        is_function: True if there is a function or a method NAME. Its keywords are the options.
    """

    name: str
    groups: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    is_command: bool = True
    is_function: bool = True

    @cached_property
    def classes(self) -> tuple[type[Options], ...]:
        """Classes of options, without the classes of plug-ins."""
        return tuple(_load(path) for path in self.groups if path not in _PLUGIN_TABLES)

    @cached_property
    def plugins(self) -> Mapping[str, type[Options]]:
        """Classes of options of plug-ins: kinds of input or outputs, by name."""
        return {
            plugin.name: plugin.options_class
            for path in self.groups
            if path in _PLUGIN_TABLES
            for plugin in _load(path)
            if plugin.options_class is not None
        }

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """All options of the call, by name."""
        options = dict[str, Option]()
        for path in self.groups:
            if path in _PLUGIN_TABLES:
                options |= _plugin_options(self.plugins, _PLUGIN_TABLES[path], options)
            else:
                group = _load(path).OPTIONS
                options |= {name: group[name] for name in group if name not in options}
        return {name: option for name, option in options.items() if name not in self.left_out}

    @property
    def keywords(self) -> tuple[Option, ...]:
        """Options that are keywords in Python."""
        return tuple(option for option in self.options.values() if not option.shell_only)

    @property
    def flags(self) -> tuple[Option, ...]:
        """Options that are flags of the command."""
        return tuple(option for option in self.options.values() if not option.keyword_only)


def _plugin_options(
    plugins: Mapping[str, type[Options]], attribute: str, earlier: Mapping[str, Option]
) -> dict[str, Option]:
    """Returns the options of all plug-ins, by name.

    Options with the same heading follow each other.

    Args:
        plugins: Classes of options, by name of the plug-in.
        attribute: "kinds" or "outputs", the attribute of `Option` that lists the plug-ins.
        earlier: Options from earlier classes of the call. If a plug-in declares one of them, too,
            the earlier declaration is used.
    """
    options, names = dict[str, Option](), defaultdict[str, list[str]](list)
    for plugin, group in plugins.items():
        for name, option in group.OPTIONS.items():
            options.setdefault(name, earlier.get(name, option))
            names[name].append(plugin)
    served: dict[str, Any] = {name: {attribute: tuple(names[name])} for name in names}
    headings = [*dict.fromkeys(option.heading for option in options.values())]
    return {
        name: replace(options[name], **served[name])
        for name in sorted(options, key=lambda name: headings.index(options[name].heading))
    }


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"recordmill.{module}"), name)


_BUILD_GROUPS = (
    "options.build:BuildInputs",
    "sources.parser.options:ParserOptions",
    "options.build:BuildRecords",
    "options.order:BuildOrder",
    "options.build:BuildShards",
    "options.build:BuildDescription",
    "options.build:BuildTransform",
    "sources.registry:KINDS",
    "options.build:BuildRunOptions",
)
_READ_GROUPS = (
    "options.read:ReadOutput",
    "records.writers.outputs:OUTPUTS",
    "options.read:ReadSelection",
    "options.read:ReadConversions",
    "options.read:ReadSchemas",
    "options.read:ReadRunOptions",
)
_TRAINING_GROUPS = tuple(
    f"reader.options.training:{name}" for name in ("Order", "Form", "TrainingImages", "Memory")
)
CALLS: Mapping[str, Call] = {
    call.name: call
    for call in (
        Call("build", _BUILD_GROUPS),
        Call(
            "transform",
            ("options.build:ApplyOptions", *_BUILD_GROUPS),
            left_out=("transform", "fit_on", "keep_raw", "if_changed"),
            is_function=False,
        ),
        Call("read", _READ_GROUPS),
        Call("head", ("options.read:HeadOptions",), is_function=False),
        Call("inspect", ("options.read:InspectOptions",), positional=("split",)),
        Call("stats", ("options.read:StatsOptions",)),
        Call("check", ("options.read:CheckOptions",)),
        Call("report", ("options.read:ReportOptions",)),
        Call("bench", ("options.read:BenchOptions",), is_function=False),
        Call("verify", ("options.read:VerifyOptions",)),
        Call("doctor", ("options.read:DoctorOptions",), positional=("out",)),
        Call("status", ("options.read:StatusOptions",)),
        Call("clean", ("options.read:CleanOptions",)),
        Call("log", ("options.generations:LogOptions",)),
        Call("restore", ("options.generations:RestoreOptions",), positional=("generation",)),
        Call("compact", ("options.generations:CompactOptions",)),
        Call(
            "open",
            ("reader.options.data_set:OpenOptions",),
            positional=("split", "columns"),
            is_command=False,
        ),
        Call(
            "WriteShards",
            (
                "options.build:WriteShardsOptions",
                "options.order:BuildOrder",
                "options.build:BuildShards",
            ),
            left_out=("shuffle", "split_from", "split_column", "split_at", "stratify"),
            is_command=False,
        ),
        Call("batches", (*_TRAINING_GROUPS, "reader.options.training:Arrays"), is_command=False),
        Call("to_tf", (*_TRAINING_GROUPS, "reader.options.training:Graph"), is_command=False),
        Call(
            "to_keras",
            (*_TRAINING_GROUPS, "reader.options.training:Graph"),
            left_out=("label",),
            is_command=False,
        ),
        Call("to_torch", (*_TRAINING_GROUPS, "reader.options.training:Tensors"), is_command=False),
    )
}
COMMANDS = tuple(name for name, call in CALLS.items() if call.is_command)


class Values:
    """Values of the options of one call, parsed and checked.

    `values[BuildShards].shard_size` returns a value with its type.

    Args:
        call: Name of the call.
        given: Values that the caller has set, by name of the option. Other options have their
            defaults.

    Attributes:
        call: The call.
        given: The values that the caller has set, as passed.

    Raises:
        TypeError: An option does not exist.
        UsageError: A value is not valid, or an option has no effect with the others.
    """

    def __init__(self, call: str, given: Mapping[str, Any]) -> None:
        self.call, self.given = CALLS[call], dict(given)
        self._options = {option.name: option for option in self.call.keywords}
        for name in given:
            if name not in self._options:
                raise TypeError(f"{call} has no option {name}{did_you_mean(name, self._options)}")
        self._parsed = {name: self._options[name].parse_value(given[name]) for name in given}
        self._groups = {group: self._create(group) for group in self.call.classes}
        check_applicable(call, given)

    def __getitem__(self, group: type[_Group]) -> _Group:
        """Returns the values of a class of options of the call."""
        return cast(_Group, self._groups[group])

    def plugin(self, name: str) -> Any:
        """Returns the options of a kind of input or an output.

        None if this plug-in declares no options.

        Raises:
            UsageError: The caller has set an option that this plug-in does not have, or the values
                contradict each other.
        """
        self._check_kind(name)
        self._check_output(name)
        group = self.call.plugins.get(name)
        return None if group is None else self._create(group)

    @property
    def kind_options(self) -> dict[str, Any]:
        """Values that the caller has set for options of single kinds of input.

        A None that is the default does not count as set.
        """
        options = self._options
        return {
            name: value
            for name, value in self._parsed.items()
            if options[name].kinds and (value is not None or options[name].default is not None)
        }

    def _check_kind(self, kind: str) -> None:
        for name in self.kind_options:
            if kind not in self._options[name].kinds:
                own_options = sorted(self.call.plugins[kind].OPTIONS)
                raise UsageError(
                    "{option} is not for {kind}, whose own options are {own_options}{suggestion}",
                    option=option_text(name),
                    kind=kind,
                    own_options=join_messages(", ", map(option_text, own_options)),
                    suggestion=did_you_mean(name, own_options),
                )

    def _check_output(self, output: str) -> None:
        for name, value in self.given.items():
            option = self._options[name]
            if option.outputs and output not in option.outputs and option.is_given(value):
                outputs = [option_text("to", served_output) for served_output in option.outputs]
                raise UsageError(
                    "{option}: works only with {outputs}, not with {output}",
                    option=option_text(name, value),
                    outputs=join_messages(" and ", outputs),
                    output=option_text("to", output),
                )

    def _create(self, group: type[Options]) -> Options:
        return group(**{name: self._parsed[name] for name in group.OPTIONS if name in self._parsed})


def applicable_kinds(call: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the kinds of input that have all of these options."""
    options = [CALLS[call].options[name] for name in names]
    return tuple(
        kind
        for kind in KIND_NAMES
        if all(kind in option.kinds for option in options if option.kinds)
    )


def check_applicable(call: str, given_options: Mapping[str, Any], *, inputs: str = "") -> None:
    """Raises UsageError if an option would have no effect.

    The error names the first such option. An option with its default value is always allowed.

    Args:
        call: Name of the call.
        given_options: Values that the caller has set, by name of the option.
        inputs: Inputs of a build: FILE_INPUTS or MEMORY_INPUTS. If "", they are not checked.
    """
    options = {option.name: option for option in CALLS[call].keywords}
    # An option with its default value has the same effect as one that is not set.
    effective = {
        name: value
        for name, value in given_options.items()
        if name not in options or options[name].is_given(value)
    }

    def holds(name: str, value: Any) -> bool:
        return name in effective and value in (None, effective[name])

    for name, value in ((name, effective[name]) for name in effective if name in options):
        option = options[name]
        option_shown = option_text(name, value if isinstance(value, bool) else None)
        if inputs == MEMORY_INPUTS and (option.files_only or option.kinds):
            raise UsageError("{option} is not for {inputs}", option=option_shown, inputs=inputs)
        if option.engine_only and is_local(effective.get("runner")):
            raise UsageError(
                "{option} needs an engine: give {runner}",
                option=option_shown,
                runner=option_text("runner"),
            )
        if option.needs and not any(holds(*rule) for rule in option.needs):
            raise UsageError(
                "{option} needs {others}",
                option=option_shown,
                others=join_messages(" or ", [option_text(*rule) for rule in option.needs]),
            )
        for rule in option.excludes:
            if holds(*rule):
                raise UsageError(
                    "{option} and {excluded} exclude each other: give one of them",
                    option=option_shown,
                    excluded=option_text(*rule),
                )


def is_local(runner: str | None) -> bool:
    """Returns whether a runner runs Beam in this process.

    None, the default, is one of them. As in Beam, the name may be in upper or lower case.
    """
    return runner is None or runner.lower() in LOCAL_RUNNERS


def with_keywords(call: str) -> Callable[[_F], _F]:
    """Decorator that shows the keywords of a call in the signature of a function.

    The function must take `**options`.

    The signature shows the name, the type and the default of each keyword. The reference page
    describes the options of commands. For other functions, their help is added to the docstring.

    Args:
        call: Name of the call.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind != inspect.Parameter.VAR_KEYWORD
        ]
        keywords = [
            option for option in CALLS[call].keywords if option.name not in signature.parameters
        ]
        keyword_parameters = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=option.keyword_type,
            )
            for option in keywords
        ]
        if not CALLS[call].is_command:
            lines = (f"    {option.name}: {option.help}" for option in keywords)
            function.__doc__ = "\n".join(
                [inspect.cleandoc(function.__doc__ or ""), "", "Keyword arguments:", *lines]
            )
        function.__signature__ = signature.replace(parameters=[*parameters, *keyword_parameters])  # type: ignore[attr-defined]
        return function

    return decorate
