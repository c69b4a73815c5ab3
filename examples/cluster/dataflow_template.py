r"""A Flex Template of Dataflow for `recordmill build`.

    python examples/cluster/dataflow_template.py > metadata.json
    gcloud dataflow flex-template build gs://BUCKET/recordmill.json --image IMAGE \
        --sdk-language PYTHON --metadata-file metadata.json

Without arguments, the program prints the metadata.json of the template. In the template's image it
is the main program (FLEX_TEMPLATE_PYTHON_PY_FILE). It then gets the parameters as `--name=value`
and submits the build. It has not been tested on Dataflow itself.
"""

import json
import sys
from typing import Any

from recordmill.__main__ import main
from recordmill.options.calls import CALLS
from recordmill.options.declare import Option
from recordmill.sources.registry import KIND_NAMES

# options that are useful only in a shell, or that the template sets itself
NOT_PARAMETERS = (
    "runner",
    "preflight",
    "dry_run",
    "detach",
    "quiet",
    "json",
)


def template_metadata() -> dict[str, Any]:
    """Returns the metadata of the template, with a parameter for each option of a build.

    `gcloud dataflow flex-template build --metadata-file` reads it.
    """
    inputs = [
        _parameter(
            "input",
            "inputs of the build: gs://BUCKET/FOLDER or a glob; separate several with ;",
            required=True,
        ),
        _parameter("kind", "kind of input (default: detected from the content)", KIND_NAMES),
    ]
    options = [_of_option(name, option) for name, option in _options().items()]
    return {
        "name": "recordmill build",
        "description": "Builds a data set of TFRecord shards from images, text, CSV, JSONL, Parquet or NumPy files.",
        "parameters": [*inputs, *options],
    }


def command_line(given: list[str]) -> list[str]:
    """Returns the arguments of `recordmill` for the parameters of the template.

    Args:
        given: The parameters as Dataflow passes them, `--name=value`. Flags of Beam are kept
            unchanged.
    """
    options, flags = _options(), list[str]()
    words: dict[str, list[str]] = {"input": [], "kind": []}
    for one in given:
        name, _, value = one.removeprefix("--").partition("=")
        option = options.get(name)
        if name in words:
            words[name] = value.split(";")
        elif option is None:
            flags.append(one)
        elif not (option.is_switch or option.is_two_way):
            values = value.split(";") if option.repeated else [value]
            flags += [f"{option.main_flag}={each}" for each in values]
        elif value == "true":
            flags.append(option.main_flag)
        elif option.is_two_way:
            flags.append(option.all_flags[-1])
    # The program of a template only submits the job.
    fixed = ["--runner=DataflowRunner", "--detach", "--no-preflight"]
    kept = [flag for flag in flags if not flag.startswith("--runner=")]
    return ["build", *words["kind"], *words["input"], *kept, *fixed]


def _options() -> dict[str, Option]:
    """Returns the options that are parameters, by their names in Dataflow.

    A name has underscores, such as `no_shuffle` for --no-shuffle.
    """
    known = (option for option in CALLS["build"].flags if option.name not in NOT_PARAMETERS)
    return {option.main_flag.removeprefix("--").replace("-", "_"): option for option in known}


def _of_option(name: str, option: Option) -> dict[str, Any]:
    choices = ("true", "false") if option.is_switch or option.is_two_way else option.choices
    more = "; several with ; between them" if option.repeated else ""
    found = _parameter(
        name, option.help_with_default + more, choices, required=option.name == "out"
    )
    return found | ({"regexes": ["^-?[0-9]+$"]} if option.number_type is int else {})


def _parameter(
    name: str, text: str, choices: tuple[str, ...] = (), *, required: bool = False
) -> dict[str, Any]:
    found = {
        "name": name,
        "label": name.replace("_", " "),
        "helpText": text,
        "isOptional": not required,
    }
    return found | ({"regexes": [f"^({'|'.join(choices)})$"]} if choices else {})


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(command_line(sys.argv[1:])))
    print(json.dumps(template_metadata(), indent=2))
