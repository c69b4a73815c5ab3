"""The command `recordmill check`: compares a data set with another one, a schema or rules.

It also finds duplicate records.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recordmill.base.arguments import suggest_keywords
from recordmill.commands.main import Command
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import CheckOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.base.progress import Progress, ProgressArgument
    from recordmill.checks.rules import Rules
    from recordmill.checks.violations import Violation
    from recordmill.options.keywords import CheckKeywords
    from recordmill.reader.records import Records
    from recordmill.schemas.feature import Schema
    from recordmill.shards.catalog import Inputs
    from recordmill.statistics.dataset_statistics import DatasetStatistics

_CHECK_HELP = """\
examples:
  recordmill check shards                             skew between splits, duplicates and leaks
  recordmill check shards --against last-week         changes of the schema, and drift
  recordmill check shards --against schema.pbtxt      presence, domains and comparators of TensorFlow Metadata
  recordmill check shards --against rules.yaml        your own rules, see docs/checks.md
  recordmill check new --against old --against rules.yaml --json | jq '.[].what'

Exit code: 0 if all checks passed; 1 if checks failed, which are listed on stdout; 2 if a rule or an input can't be used,
or the statistics are not exact enough for a rule.
The statistics are those of the builds. Only the search for duplicates reads the records.
"""


@suggest_keywords
@with_keywords("check")
def check(
    inputs: Inputs,
    *,
    progress: ProgressArgument = None,
    quiet: bool = True,
    **options: Unpack[CheckKeywords],
) -> list[Violation]:
    """Checks a data set against other data, a schema or rules.

    Args:
        inputs: The output folder of a build. Other TFRecord files need `recount`.
        progress: A function that receives the progress, as in `build`.
        quiet: If True, no progress is shown on the terminal.
        **options: The options of `recordmill check`, as keywords. docs/reference.md lists them. In
            `against`, a `Schema` and a dict of rules are accepted, too.

    Returns:
        The violations. The list is empty if everything is as expected.

    Raises:
        UsageError: A reference can't be used, or there are no statistics.
        DataError: A record is damaged.

    Examples:
        >>> rules = {"features": {"size": {"max": 3}}}
        >>> [violation.feature for violation in recordmill.check("shards", against=rules)]
        ['size']
    """
    from recordmill.base.display import Display
    from recordmill.base.progress import to_progress
    from recordmill.reader.dataset import open
    from recordmill.reader.duplicates import find_repeat_violations

    chosen = Values("check", options)[CheckOptions]
    dataset = open(inputs, threads=chosen.threads, storage_requests=chosen.storage_requests).records
    with Display(counters := to_progress(progress), quiet):
        counters.begin("convert")
        references = _References(dataset, chosen.recount, counters)
        against = chosen.against
        references.add_all(against if isinstance(against, list | tuple) else [against])
        repeats = references.duplicate_rules()
        violations = list(references.find_all_violations(_format_inputs(inputs)))
        violations += find_repeat_violations(
            dataset, repeats, chosen.memory, lambda n: counters.advance(records=n)
        )
    return violations


class _References:
    """A data set, and the references that it is checked against.

    Attributes:
        dataset: The data set.
        recount: Whether to count the statistics of a data set that was built without them.
        progress: Receives the number of records that are read to count statistics.
        rules: The rules of the user, or None.
        schemas: (schema, rules from its file or None, name) of each schema to compare with.
        others: (statistics, schema or None, name) of each other data set to compare with.
    """

    def __init__(self, dataset: Records, recount: bool, progress: Progress) -> None:
        self.dataset, self.recount, self.progress = dataset, recount, progress
        self.rules: Rules | None = None
        self.schemas: list[tuple[Schema, Rules | None, str]] = []
        self.others: list[tuple[DatasetStatistics, Schema | None, str]] = []

    @property
    def schema(self) -> Schema:
        """The schema of the data set. Without a manifest, the first access reads all records."""
        return self.dataset.schema

    def add_all(self, references: Sequence[Any]) -> None:
        """Loads references, and adds each to the attribute for its type.

        A reference is a set of rules, a schema, or another data set or its statistics. Rules are
        loaded first, so that a rule without a data set to compare is refused before any record is
        read.

        Args:
            references: Each is the path of a reference, a mapping with rules, or a `Schema`.

        Raises:
            UsageError: There are two sets of rules, a rule needs another data set and there is
                none, or a reference is of another type or can't be read.
        """
        from recordmill.base.errors import UsageError
        from recordmill.base.option_names import option
        from recordmill.schemas.feature import Schema
        from recordmill.storage.files import parse_input_path

        rules: list[Mapping[str, Any] | str] = []
        schemas: list[Schema | str] = []
        data_sets: list[str] = []
        for reference in references:
            if isinstance(reference, Mapping):
                rules.append(reference)
            elif isinstance(reference, Schema):
                schemas.append(reference)
            elif not isinstance(reference, str | os.PathLike):
                raise UsageError(
                    "{against} takes a path, a mapping of rules or a Schema, not {reference}",
                    against=option("against"),
                    reference=f"{reference!r:.60}",
                )
            elif (name := parse_input_path(reference)).endswith((".yaml", ".yml")):
                rules.append(name)
            elif name.endswith(".pbtxt"):
                schemas.append(name)
            else:
                data_sets.append(name)
        for file_or_mapping in rules:
            self._add_rules(file_or_mapping, has_data_set=bool(data_sets))
        for schema in schemas:
            self.schemas.append(
                (schema, None, "the schema")
                if isinstance(schema, Schema)
                else (*self._load_schema(schema), schema)
            )
        for name in data_sets:
            self._add_data_set(name)

    def _add_rules(self, file_or_mapping: Mapping[str, Any] | str, *, has_data_set: bool) -> None:
        """Reads and checks the rules of the user.

        Args:
            file_or_mapping: Path of a YAML file, or its content.
            has_data_set: Whether there is another data set to compare with.
        """
        from recordmill.base.errors import UsageError
        from recordmill.base.option_names import option
        from recordmill.checks.rules import read_rules

        if self.rules is not None:
            is_mapping = isinstance(file_or_mapping, Mapping)
            raise UsageError(
                "{against}: only one set of rules can be given: put all rules into one file",
                against=option("against", None if is_mapping else file_or_mapping),
            )
        rules = read_rules(file_or_mapping)
        if rules.compares_data_sets and not has_data_set:
            raise UsageError(
                "{file}: drift: compares two data sets; add the other one with {against}, or "
                "leave the rule out",
                file=rules.source,
                against=option("against", "OTHER"),
            )
        self.rules = rules.fit_to_schema(self.schema, self.dataset.catalog.splits)

    def _add_data_set(self, name: str) -> None:
        """Loads the statistics of another data set, from its folder or its statistics file."""
        from recordmill.reader.dataset import open

        if name.endswith(".pb"):
            self.others.append((_read_statistics_file(name), None, name))
        else:
            dataset = open(name, threads=self.dataset.threads).records
            self.others.append(
                (_load_statistics(dataset, name, self.recount, self.progress), dataset.schema, name)
            )

    def _load_schema(self, path: str) -> tuple[Schema, Rules]:
        """Returns the schema in a `schema.pbtxt` file, and the rules that the file contains."""
        from recordmill.checks.schema_rules import rules_from_schema
        from recordmill.schemas.tfmd import from_pbtxt

        with _as_usage_errors(path):
            text = _read_file(path).decode()
            schema = from_pbtxt(text, path)
        names = set(schema.names) & set(self.schema.names)
        return schema, rules_from_schema(text, names, path).fit_to_schema(self.schema)

    def duplicate_rules(self) -> Rules:
        """Returns the rules of the search for duplicate records.

        If the user has named no rules, schema or other data set, these rules forbid all duplicates.

        Raises:
            UsageError: A rule compares images, and the data set has none.
        """
        from recordmill.checks.rules import NO_REPEATS, Rules
        from recordmill.reader.duplicates import check_image_rules

        if self.rules is None and not self.schemas and not self.others:
            return Rules(leakage=NO_REPEATS, duplicates=NO_REPEATS)
        rules = self.rules or Rules()
        check_image_rules(self.dataset, rules)
        return rules

    def find_all_violations(self, dataset_name: str) -> Iterator[Violation]:
        """Yields the violations that the statistics and the schema of the data set show.

        Args:
            dataset_name: The name of the data set for error messages.
        """
        from recordmill.checks.comparison import find_drift, find_skew
        from recordmill.checks.constraints import find_violations
        from recordmill.checks.rules import Rules
        from recordmill.checks.schema_rules import find_schema_changes

        statistics = _load_statistics(self.dataset, dataset_name, self.recount, self.progress)
        # The schema of a file may contain limits (comparators) for skew and drift. Rules of the
        # user replace them.
        limits = self.rules or next(
            (rules for _, rules, _ in self.schemas if rules is not None), Rules()
        )
        for schema, rules, name in self.schemas:
            yield from find_schema_changes(self.schema, schema, name)
            if rules is not None:
                yield from find_violations(statistics, self.schema, rules)
        if self.rules is not None:
            yield from find_violations(statistics, self.schema, self.rules)
        yield from find_skew(statistics, self.schema, limits)
        for other_statistics, other_schema, name in self.others:
            if other_schema is not None:
                yield from find_schema_changes(self.schema, other_schema, name)
            yield from find_drift(statistics, other_statistics, self.schema, limits, name)


def _format_inputs(inputs: Any) -> str:
    return (
        os.fspath(inputs)
        if isinstance(inputs, str | os.PathLike)
        else " ".join(map(os.fspath, inputs))
    )


def _load_statistics(
    dataset: Records, dataset_name: str, recount: bool, progress: Progress
) -> DatasetStatistics:
    """Returns the statistics of a data set.

    The build usually has stored them. If they are missing or incomplete and `recount` is set, they
    are counted from the records.

    Raises:
        UsageError: The build has stored no complete statistics, and `recount` is not set.
    """
    from recordmill.base.errors import UsageError
    from recordmill.base.option_names import option
    from recordmill.reader.statistics import count_statistics, read_stored_statistics
    from recordmill.statistics.dataset_statistics import DatasetStatistics

    statistics = read_stored_statistics(dataset)
    problem = "has no statistics"
    if statistics is not None:
        missing = [
            name
            for features in statistics.values()
            for name in dataset.schema.names
            if name not in features
        ]
        if not missing:
            return statistics
        problem = f"has statistics of another version, without feature {missing[0]!r}"
    if not recount:
        raise UsageError(
            "{dataset_name}: {problem}; to read its records: {recount}",
            dataset_name=dataset_name,
            problem=problem,
            recount=option("recount", True),
        )
    return DatasetStatistics.from_sketch(
        count_statistics(dataset, lambda n: progress.advance(records=n))
    )


def _read_statistics_file(path: str) -> DatasetStatistics:
    from recordmill.base.errors import UsageError
    from recordmill.statistics.dataset_statistics import DatasetStatistics
    from recordmill.storage.listing import list_inputs

    with _as_usage_errors(path):
        statistics = DatasetStatistics.from_bytes(_read_file(path), path)
    list_inputs([path])  # raises UsageError for a file of a build that is running or was killed
    if not any(statistics.values()):
        raise UsageError(f"{path}: contains no statistics of features, or those of another version")
    return statistics


def _read_file(path: str) -> bytes:
    from recordmill.storage.files import read_range
    from recordmill.storage.json_fields import MAX_JSON_BYTES

    return read_range(path, max_bytes=MAX_JSON_BYTES).tobytes()


@contextlib.contextmanager
def _as_usage_errors(path: str) -> Iterator[None]:
    """Replaces errors of the `with` block about a user's file by UsageError.

    Args:
        path: The file that the block reads.
    """
    from recordmill.base.errors import DataError, UsageError

    try:
        yield
    except DataError as error:
        raise UsageError("{error}", error=error) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {error}") from None


def run_check(args: argparse.Namespace) -> int:
    """Checks a data set and prints the violations.

    Returns:
        The exit code: 0 if there is no violation, and 1 if a rule is violated. It is 2 if no
        violation was found, but the statistics are too inaccurate to judge all rules.
    """
    from recordmill.base.messages import render
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries

    spelling = flag_spelling(args.command)
    violations = check(args.inputs, quiet=args.quiet, **options_from_args(args))
    if args.json:
        reports = [
            render_entries(violation.to_json(), spelling, "what", "remedy")
            for violation in violations
        ]
        print(json.dumps(reports, indent=1, ensure_ascii=False))
    else:
        for violation in violations:
            print(render(violation, spelling))
        if not args.quiet:
            print(_format_counts(violations), file=sys.stderr)
    return 1 if any(violation.is_judged for violation in violations) else 2 if violations else 0


def _format_counts(violations: list[Violation]) -> str:
    """Returns the number of violations and of rules that can't be judged.

    >>> _format_counts([])
    'all checks passed'
    """
    from recordmill.base.sizes import format_count

    unjudged = sum(not violation.is_judged for violation in violations)
    judged = len(violations) - unjudged
    parts = [
        f"{format_count(judged, 'check')} failed" if judged else "",
        f"{unjudged} can't be judged" if unjudged else "",
    ]
    return ", ".join(filter(None, parts)) or "all checks passed"


CHECK = Command(
    run_check,
    usage="recordmill check OUT... [--against OTHER|schema.pbtxt|rules.yaml] [options]",
    description="Find what is wrong with a data set: changes of the schema, drift, skew between "
    "splits, missing values, ranges, new values, shares, classes, and records, keys "
    "or images that occur in two splits or twice in one.",
    inputs=("OUT", "folder of a data set, or TFRecord files with --recount"),
    examples=_CHECK_HELP,
    failure_code=2,  # 1 means that there are violations
)
