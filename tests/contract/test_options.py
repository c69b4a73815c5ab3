"""Options are declared once; command line, Python, types, manifest and reference page follow
from the declarations.
"""

import ast
import dataclasses
import inspect
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from rooms import ROOT, parsed

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
COMMON = 26  # what fits a screen
FUNCTIONS = [
    *(name for name, call in CALLS.items() if call.is_command and call.is_function),
    "open",
    "WriteShards",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_declared_once_and_has_a_help(command: str) -> None:
    options = CALLS[command].options.values()
    for what in ("name", "main_flag"):
        twice = [
            name
            for name, count in Counter(getattr(option, what) for option in options).items()
            if count > 1
        ]
        assert not twice, f"{command} declares {twice} twice"
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
    seen: dict[str, Option] = {}
    # a switch or an order; of shards or Parquet; of which draw; of records or inputs; `transform
    # --with`
    differ = {"shuffle", "compression", "seed", "columns", "json", "transform_from"}
    for command in COMMANDS:
        for option in CALLS[command].options.values():
            first = seen.setdefault(option.name, option)
            if option.name not in differ:
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
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
    ]
    allowed = (
        "src/recordmill/options/command_line.py",
        "src/recordmill/commands/main.py",
        "pipelines/beam_run.py",
    )
    assert not [call for call in calls if not call.startswith(allowed)]


def test_reference_page_and_types_of_keywords_are_up_to_date() -> None:
    again = "python docs/make_reference.py writes it anew"
    assert MAKER["PAGE"].read_text(encoding="utf-8") == MAKER["reference"](), again
    assert MAKER["KEYWORDS"].read_text(encoding="utf-8") == MAKER["keywords"](), again
    written = MAKER["READER_KEYWORDS"].read_text(encoding="utf-8")
    assert written == MAKER["reader_keywords"](), again


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_shows_every_keyword_with_its_default(name: str) -> None:
    function = WriteShards if name == "WriteShards" else getattr(recordmill, name)
    shown, call = dict(inspect.signature(function).parameters), CALLS[name]
    for option in call.keywords:
        parameter = shown.pop(option.name)
        assert parameter.default == option.default
        if option.name not in call.positional:
            assert parameter.annotation == option.keyword_type
            assert parameter.kind == inspect.Parameter.KEYWORD_ONLY
    # and no others, but the inputs and what only Python has
    assert set(shown) <= {"source", "inputs", "out", "schema", "progress", "quiet"}


def test_head_passes_only_options_of_open() -> None:
    assert {option.name for option in CALLS["head"].keywords} <= {*CALLS["open"].options}


@pytest.mark.parametrize("command", ["build", "read"])
def test_plugins_with_the_same_option_share_its_declaration(command: str) -> None:
    call, unset = CALLS[command], {"kinds": (), "outputs": ()}
    assert call.plugins
    for name, group in call.plugins.items():
        for option in group.OPTIONS.values():
            shown = call.options[option.name]
            assert name in (*shown.kinds, *shown.outputs)
            assert option == dataclasses.replace(shown, **unset), f"{name}: {option.name}"


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
    decides = {
        option.name for option in CALLS["build"].keywords if option.decides and not option.kinds
    }
    # the manifest has places of their own for these
    elsewhere = {"kind", "schema", "transform", "transform_from", "fit_on", "keep_raw"}
    if_given = {
        "stratify",
        "split_column",
        "split_at",
        "parser",
    }  # manifests of builds without it are as they were
    assert set(result.manifest.options) == (decides - elsewhere - if_given - {"shard_size"}) | {
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
        short = (
            option.short and f"{option.short}( {option.metavar})?, "
        )  # which Python 3.13 writes once
        shown = re.compile(rf"(?m)^  {short}{option.main_flag}(?![\w-])")
        assert shown.search(texts["--help-all"]), option.main_flag
        assert bool(shown.search(texts["--help"])) == option.common, option.main_flag
