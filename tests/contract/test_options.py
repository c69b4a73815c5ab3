"""Options are declared once.

The command line, Python, types, manifest and reference page follow from the declarations.
"""

import ast
import dataclasses
import inspect
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from rooms import ROOT, parse_module

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.options.calls import CALLS, COMMANDS, Values
from recordmill.options.declare import Option
from recordmill.records.writers.outputs import OUTPUT_NAMES
from recordmill.sources.csv.options import CsvOptions
from recordmill.storage.codecs import SHARD_SUFFIXES
from recordmill.transforms.write_shards import WriteShards

MAKER = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
COMMON = 26  # the number that fits on a screen
FUNCTIONS = [
    *(name for name, call in CALLS.items() if call.is_command and call.is_function),
    "open",
    "WriteShards",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_declared_once_and_has_a_help(command: str) -> None:
    options = CALLS[command].options.values()
    for attribute in ("name", "main_flag"):
        names = [
            name
            for name, count in Counter(getattr(option, attribute) for option in options).items()
            if count > 1
        ]
        assert not names, f"{command} declares {names} twice"
    for option in options:
        assert option.help.strip(), option.name
        assert not option.help[0].isupper() or option.help.split()[0].isupper(), (
            f"{option.name}: {option.help}"
        )
    assert sum(option.common for option in options) <= COMMON


def test_choices_of_options_equal_the_tables() -> None:
    options = {
        (command, option.name): option.choices
        for command in ("build", "read")
        for option in CALLS[command].options.values()
    }
    assert options["read", "to"] == OUTPUT_NAMES
    assert options["build", "compression"] == tuple(SHARD_SUFFIXES)


def test_option_name_has_one_meaning_in_all_commands() -> None:
    first_options: dict[str, Option] = {}
    # `shuffle` is a switch or the name of an order. `compression` is for shards or Parquet files.
    # `seed` is for an order or a sample. `columns` selects from inputs or from records. The flag
    # of `transform_from` is `--with` in `transform`.
    exceptions = {"shuffle", "compression", "seed", "columns", "json", "transform_from"}
    for command in COMMANDS:
        for option in CALLS[command].options.values():
            first = first_options.setdefault(option.name, option)
            if option.name not in exceptions:
                assert (
                    option.is_switch,
                    option.repeated,
                    option.default,
                    option.main_flag,
                    option.choices,
                ) == (
                    first.is_switch,
                    first.repeated,
                    first.default,
                    first.main_flag,
                    first.choices,
                ), f"{command}: {option.name}"


def test_flags_are_added_only_from_declarations() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("src", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(parse_module(path))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
    ]
    allowed = (
        "src/recordmill/options/command_line.py",
        "src/recordmill/commands/main.py",
        "pipelines/beam_run.py",
    )
    assert not [call for call in calls if not call.startswith(allowed)]


def test_reference_page_and_types_of_keywords_are_up_to_date() -> None:
    remedy = "python docs/make_reference.py writes it anew"
    assert MAKER["PAGE"].read_text(encoding="utf-8") == MAKER["reference"](), remedy
    assert MAKER["KEYWORDS"].read_text(encoding="utf-8") == MAKER["keywords"](), remedy
    reader_keywords = MAKER["READER_KEYWORDS"].read_text(encoding="utf-8")
    assert reader_keywords == MAKER["reader_keywords"](), remedy


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_shows_every_keyword_with_its_default(name: str) -> None:
    function = WriteShards if name == "WriteShards" else getattr(recordmill, name)
    parameters, call = dict(inspect.signature(function).parameters), CALLS[name]
    for option in call.keywords:
        parameter = parameters.pop(option.name)
        assert parameter.default == option.default
        if option.name not in call.positional:
            assert parameter.annotation == option.keyword_type
            assert parameter.kind == inspect.Parameter.KEYWORD_ONLY
    # The rest are the inputs, and parameters that only Python has.
    assert set(parameters) <= {"source", "inputs", "out", "schema", "progress", "quiet"}


def test_head_passes_only_options_of_open() -> None:
    assert {option.name for option in CALLS["head"].keywords} <= {*CALLS["open"].options}


@pytest.mark.parametrize("command", ["build", "read"])
def test_plugins_with_the_same_option_share_its_declaration(command: str) -> None:
    call, no_owner = CALLS[command], {"kinds": (), "outputs": ()}
    assert call.plugins
    for name, group in call.plugins.items():
        for option in group.OPTIONS.values():
            call_option = call.options[option.name]
            assert name in (*call_option.kinds, *call_option.outputs)
            assert option == dataclasses.replace(call_option, **no_owner), f"{name}: {option.name}"


def test_values_of_a_kind_are_parsed_and_typed() -> None:
    values = Values("build", {"delimiter": "tab", "encoding": "UTF8", "null_tokens": "NA"})
    options = values.plugin("csv")
    assert isinstance(options, CsvOptions)
    assert (options.delimiter, options.encoding, options.null_tokens) == ("\t", "utf-8", ("NA",))
    assert values.kind_options == {"delimiter": "\t", "encoding": "UTF8", "null_tokens": "NA"}
    with pytest.raises(UsageError, match=r"^delimiter= is not for jsonl, whose own options are"):
        values.plugin("jsonl")


def test_manifest_holds_the_options_that_determine_bytes(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a;b\n1;2\n")
    result = recordmill.build(
        tmp_path / "in.csv", tmp_path / "out", delimiter=";", shard_size="1MiB", num_shards=None
    )
    names = {
        option.name for option in CALLS["build"].keywords if option.decides and not option.kinds
    }
    # The manifest contains these options in other places.
    separate_names = {"kind", "schema", "transform", "transform_from", "fit_on", "keep_raw"}
    # These options are only in manifests of builds that use them.
    optional_names = {
        "stratify",
        "split_column",
        "split_at",
        "parser",
    }
    assert set(result.manifest.options) == (
        names - separate_names - optional_names - {"shard_size"}
    ) | {
        "shard_bytes",
        "kind_options",
    }
    assert result.manifest.options["kind_options"] == {"delimiter": ";"}
    assert result.manifest.options["shard_bytes"] == 1 << 20


def test_unknown_keyword_of_build_or_read_names_the_closest_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="build has no option delimeter; did you mean delimiter"):
        recordmill.build("in.csv", tmp_path / "out", delimeter=";")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="read has no option colums; did you mean columns"):
        recordmill.read("in", tmp_path / "out", colums="a")  # type: ignore[call-arg]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_common_options_and_help_all_shows_all(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            main([command, flag])
        assert not stop.value.code
        texts[flag] = capsys.readouterr().out
    for option in CALLS[command].flags:
        # Python 3.13 writes the metavar only once.
        short = option.short and f"{option.short}( {option.metavar})?, "
        pattern = re.compile(rf"(?m)^  {short}{option.main_flag}(?![\w-])")
        assert pattern.search(texts["--help-all"]), option.main_flag
        assert bool(pattern.search(texts["--help"])) == option.common, option.main_flag
