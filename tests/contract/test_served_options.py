"""Each option takes effect or is refused, for every kind of input and output.

This holds for pairs of options, too.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rooms import ROOT

import recordmill
from recordmill.base.errors import UsageError
from recordmill.base.progress import Progress
from recordmill.commands.main import make_parser
from recordmill.options.calls import CALLS, FILE_INPUTS, MEMORY_INPUTS, check_applicable
from recordmill.options.declare import Option
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_source import plan_source
from recordmill.pipelines.read_options import make_settings
from recordmill.records.writers.outputs import OUTPUT_NAMES
from recordmill.schemas.feature import Schema
from recordmill.shards.run import RunFolder
from recordmill.sources.registry import KIND_NAMES, KINDS

BUILD = [option for option in CALLS["build"].keywords if option.name != "kind"]
OF_KINDS = [option for option in BUILD if option.kinds]
READ = [option for option in CALLS["read"].keywords if option.name != "to"]
# Values of options that accept only special texts. `value_of` finds values for the others.
VALUES: dict[str, Any] = {
    "compression": "gzip",
    "max_rejects": "1%",
    "splits": "train=0.5,test=0.5",
    "columns": "id",
    "dtypes": "id=int64",
    "decode_raw": "x=int8",
    "decode_tensor": "x",
    "reshape": "x=[1]",
    "pad": "x=1:0",
    "pad_or_cut": "x=1:0",
    "ragged": "x",
    "resize": "2x2",
    "channels": 1,
    "sample": 0.5,
    "delimiter": ";",
    "quote": "'",
    "escape": "!",
    "comment": "#",
    "names": "a,b",
    "encoding": "latin-1",
    "where": "id = 1",
    "row_group_rows": 7,
    "memory": "1GiB",
    "preflight": False,
    "shard_size": "1MiB",
    "file_size": "1MiB",
    "schema": None,
    "beam_args": ["--a=1"],
    "row_group_size": "1MiB",
    "max_line_bytes": "1MiB",
    "header": True,
}


def value_of(option: Option) -> Any:
    """Returns a value of an option that is not its default."""
    if option.name in VALUES:
        return VALUES[option.name]
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if isinstance(option.default, bool):
        return not option.default
    return 3 if option.number_type is int else "x"


NEEDED = {
    "append": True,
    "boxes": "boxes.json",
    "resize": "2x2",
    "labels": "x.csv",
    "schema": Schema(()),
    "decode_images": True,
    "runner": "X",
    "sample": 0.5,
    "splits": "a=1",
    "transform": "x.yaml",
    "transform_from": "x",
    "url": "https://example.org",
    "creator": "x",
}


def needed_options(option: Option) -> dict[str, Any]:
    """Returns the options that an option needs. If it needs one of several, returns the first."""
    return {
        name: NEEDED[name]
        for name in (
            *(needed_name for needed_name, _ in option.needs[:1]),
            *(["runner"] if option.engine_only else []),
        )
    }


def find(name: str) -> Option:
    return next(call.options[name] for call in CALLS.values() if name in call.options)


def write(folder: Path, kind: str) -> list[str]:
    """Writes an input of a kind. Its records are valid with default options."""
    folder.mkdir()
    path = folder / f"in.{'txt' if kind == 'text' else kind}"
    if kind == "csv":
        path.write_text("id,x\n1,2\n3,4\n")
    elif kind == "jsonl":
        path.write_text('{"id": 1}\n{"id": 2}\n')
    elif kind == "text":
        path.write_text("a\nb\n")
    else:
        path.write_bytes(b"")
    return [str(path)]


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("option", OF_KINDS, ids=lambda option: option.name)
def test_option_of_a_kind_is_refused_for_other_kinds(
    option: Option, kind: str, tmp_path: Path
) -> None:
    options = {option.name: value_of(option), **needed_options(option)}
    message = None
    try:
        settings = make_options(tmp_path / "out", kind=kind, **options)
        plan_source(
            write(tmp_path / "in", kind),
            RunFolder.create(tmp_path / "out"),
            str(tmp_path / "out"),
            settings,
            Progress(),
        )
    except UsageError as error:
        message = str(error)
    except (recordmill.DataError, OSError):
        pass  # an error of the input, or of a file that the option names
    is_refused = message is not None and f"is not for {kind}, whose own options are" in message
    assert is_refused == (kind not in option.kinds), message


@pytest.mark.parametrize("option", BUILD, ids=lambda option: option.name)
@pytest.mark.parametrize("inputs", [FILE_INPUTS, MEMORY_INPUTS])
def test_option_is_refused_for_inputs_that_it_does_not_serve(option: Option, inputs: str) -> None:
    options = {option.name: value_of(option) or "x", **needed_options(option)}
    expected = [
        name
        for name in options
        if inputs == MEMORY_INPUTS and (find(name).files_only or find(name).kinds)
    ]
    if not expected:
        check_applicable("build", options, inputs=inputs)
        return
    with pytest.raises(UsageError, match=f"is not for {inputs}"):
        check_applicable("build", options, inputs=inputs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "csv"),
        ("delimiter", ";"),
        ("header", True),
        ("check", "decode"),
        ("split_from", "none"),
        ("columns", "x"),
        ("follow_links", True),
    ],
)
def test_build_of_data_in_memory_refuses_options_of_files(
    name: str, value: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"^{name}=.* is not for data in memory$"):
        recordmill.build(pa.table({"x": [1, 2]}), tmp_path / "out", **options)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("to", OUTPUT_NAMES)
@pytest.mark.parametrize("option", READ, ids=lambda option: option.name)
def test_option_is_refused_for_outputs_that_it_does_not_serve(option: Option, to: str) -> None:
    options = {option.name: value_of(option), **needed_options(option)}
    if to in (option.outputs or OUTPUT_NAMES):
        make_settings(to=to, **options)
        return
    with pytest.raises(
        UsageError, match=f"^{option.name}=.*: works only with .*, not with to=.{to}.$"
    ):
        make_settings(to=to, **options)


@pytest.mark.parametrize("command", ["build", "read"])
def test_option_is_refused_without_needed_or_with_excluded_options(
    command: str,
) -> None:
    count = 0
    for option in CALLS[command].keywords:
        options = {option.name: value_of(option)}
        for second_name, _ in option.needs:
            with pytest.raises(UsageError, match=f"^{option.name}=.* needs .*{second_name}="):
                check_applicable(command, options)
            check_applicable(command, {**options, second_name: NEEDED.get(second_name, "x")})
            count += 1
        for second_name, setting in option.excludes:
            excluded = {
                second_name: value_of(find(second_name)) if setting is None else setting,
                **needed_options(find(second_name)),
            }
            with pytest.raises(
                UsageError, match=f"^{option.name}=.* and {second_name}=.* exclude each other"
            ):
                check_applicable(command, {**options, **needed_options(option), **excluded})
            check_applicable(command, {option.name: option.default, **excluded})
            count += 1
    assert count > 4


@pytest.mark.parametrize("runner", [None, "DirectRunner", "fnapirunner"])
@pytest.mark.parametrize("command", ["build", "read"])
def test_option_of_engines_is_refused_in_one_process(command: str, runner: str | None) -> None:
    options = [option for option in CALLS[command].keywords if option.engine_only]
    assert options
    for option in options:
        with pytest.raises(UsageError, match=f"^{option.name}=.* needs an engine: give runner="):
            check_applicable(command, {option.name: value_of(option), "runner": runner})
        check_applicable(command, {option.name: value_of(option), "runner": "X"})


def test_options_refer_only_to_declared_options() -> None:
    for command, call in CALLS.items():
        for option in call.options.values():
            names = {name for name, _ in (*option.needs, *option.excludes)}
            declared_names = {*call.options, *call.left_out}
            assert names <= declared_names, (command, option.name)
            assert set(option.kinds) <= {kind.name for kind in KINDS}
            assert set(option.outputs) <= set(OUTPUT_NAMES)


def test_dataflow_template_has_a_parameter_for_each_option_and_returns_its_flags() -> None:
    template = runpy.run_path(str(ROOT / "examples/cluster/dataflow_template.py"))
    metadata = template["template_metadata"]()
    assert {"name", "description", "parameters"} == set(json.loads(json.dumps(metadata)))
    parameters = {parameter["name"]: parameter for parameter in metadata["parameters"]}
    assert len(parameters) == len(metadata["parameters"])
    assert all(re.fullmatch("[a-z][a-z_]*", name) for name in parameters)
    assert all(parameter["label"] and parameter["helpText"] for parameter in parameters.values())
    assert [name for name, parameter in parameters.items() if not parameter["isOptional"]] == [
        "input",
        "out",
    ]
    options = [
        option for option in CALLS["build"].flags if option.name not in template["NOT_PARAMETERS"]
    ]
    assert len(parameters) == 2 + len(options)
    for option in options:
        name, value = (
            option.main_flag[2:].replace("-", "_"),
            "x" if option.name == "schema" else value_of(option),
        )
        text = "true" if isinstance(value, bool) else str(value)
        assert all(re.match(regex, text) for regex in parameters[name].get("regexes", ())), name
        command = template["command_line"](
            [f"--{name}={text}", "--input=a.csv;b.csv", "--project=p"]
        )
        args, beam_flags = make_parser("build").parse_known_args(command)
        assert (args.inputs, args.detach, beam_flags) == (["a.csv", "b.csv"], True, ["--project=p"])
        assert getattr(args, option.name) == ([text] if option.repeated else value), name
