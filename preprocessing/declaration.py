"""A transform that is declared, as YAML or a dict, to a `Declaration` that fits a schema: which output is made by which
steps of which raw feature, and which features stay as they are.

    age: zscore
    fare: [{impute: 0}, log1p, zscore]
    company: {vocabulary: {top_k: 50}, one_hot: true}
    age_group: {from: age, bucketize: 4}
    note: drop

What is not named stays as it is. A mapping's steps are taken in its order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.option_names import option
from recordmill.base.people.nearest import there_are
from recordmill.preprocessing.steps import STEPS, Step, Value, check_step
from recordmill.preprocessing.tensors import unfit
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import open_file


@dataclass(frozen=True)
class Column:
    """One output that is made. source: the raw feature. value: what comes out."""

    name: str
    source: str
    steps: tuple[Step, ...]
    value: Value


@dataclass(frozen=True)
class Declaration:
    """columns: what is made. kept: (output name, raw name) of what stays as it is."""

    columns: tuple[Column, ...]
    kept: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw features that steps are taken on, each once."""
        return tuple(dict.fromkeys(column.source for column in self.columns))


def read_declaration(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """What a YAML file declares.

    Raises:
        UsageError: it can't be read, or holds no mapping. MissingExtraError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtraError(f"{option('transform')} FILE.yaml", "tft", "yaml") from None
    try:
        with open_file(path) as file:
            found = yaml.safe_load(file.read().decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{option('transform', os.fspath(path))}: can't be read: {error}") from None
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{option('transform', os.fspath(path))}: is no mapping of features to steps, as in `age: zscore`"
        )
    return found


def declare(declared: Mapping[str, Any], schema: Schema) -> Declaration:
    """The declaration as it holds for records of this schema.

    Raises:
        UsageError: a feature is not there, or a step is none or doesn't fit; it names feature, step and choices.
    """
    columns: list[Column] = []
    kept: list[tuple[str, str]] = []
    for name, spec in declared.items():
        if not isinstance(name, str):
            raise UsageError(f"transform: {name!r} is no feature's name; quote it")
        made = _declare_one(name, list(_steps(name, spec)), schema)
        if isinstance(made, Column):
            columns.append(made)
        elif made is not None:
            kept.append(made)
    kept = [(feature.name, feature.name) for feature in schema if feature.name not in declared] + kept
    names = [name for name, _ in kept] + [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"transform: two outputs are called {twice[0]!r}; rename or drop one")
    if not columns:
        raise UsageError(f"transform: no feature has a step; there are {', '.join(STEPS)}")
    order = {feature.name: place for place, feature in enumerate(schema)}
    return Declaration(tuple(columns), tuple(sorted(kept, key=lambda pair: order[pair[1]])))


def _steps(name: str, spec: Any) -> Iterator[tuple[str, Any]]:
    """(word, argument) in order."""
    if isinstance(spec, str):
        yield spec, None
    elif isinstance(spec, Mapping):
        yield from spec.items()
    elif isinstance(spec, list | tuple):
        for item in spec:
            yield from _steps(name, item)
    else:
        raise UsageError(
            f"transform: feature {name!r}: {spec!r} is no step; write one, as in `zscore`, or a list of them: "
            f"{', '.join(STEPS)}"
        )


def _declare_one(name: str, words: list[tuple[str, Any]], schema: Schema) -> Column | tuple[str, str] | None:
    """The output that one entry declares: made, kept as (name, source), or none."""
    source, output = name, name
    steps: list[tuple[str, Any]] = []
    said = []
    for word, argument in words:
        if word in ("from", "rename"):
            if not isinstance(argument, str) or not argument:
                raise UsageError(f"transform: feature {name!r}, step {word!r}: {argument!r} is no name")
            source, output = (argument, output) if word == "from" else (source, argument)
        elif word in ("drop", "keep"):
            said.append(word)
        else:
            steps.append((word, argument))
    if source not in schema:
        raise UsageError(
            f"transform: there is no feature {source!r}; {there_are(source, schema.names)}"
            + ("" if "from" in dict(words) else "; `from: FEATURE` makes a new one of one of these")
        )
    if said and (steps or len(said) > 1):
        raise UsageError(f"transform: feature {name!r}: {said[0]!r} goes with no other step")
    if "drop" in said:
        return None
    return _column(output, schema[source], steps) if steps else (output, source)


def _column(name: str, feature: Feature, words: list[tuple[str, Any]]) -> Column:
    if (reason := unfit(feature)) is not None:
        raise UsageError(f"transform: feature {feature.name!r}: {reason}; keep or drop it")
    value = Value.of(feature)
    steps = []
    for word, argument in words:
        try:
            step, value = check_step(value, word, argument)
        except ValueError as error:
            raise UsageError(f"transform: feature {feature.name!r}, step {word!r}: {error}") from None
        steps.append(step)
    return Column(name, feature.name, tuple(steps), value)
