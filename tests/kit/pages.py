"""A Markdown page with the current output of its code blocks.

`python tests/kit/pages.py PAGE.md` prints the differences between the page and this output.
"""

import contextlib
import difflib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from recordmill.__main__ import main

_BLOCK = re.compile(r"(?ms)^```(python|console)\n(.*?)^```$")
_SECONDS = re.compile(r"in \d+\.\d s\b")


def write_rides(folder: Path) -> None:
    """Writes the `rides.csv` of README.md."""
    rides = (f"{n % 60 + 3},{('UA', 'B6', 'EV')[n % 4 % 3]}\n" for n in range(1000))
    (folder / "rides.csv").write_text("fare,carrier\n" + "".join(rides))


def replay(text: str) -> str:
    """Returns the page with the current outputs of its code.

    The code runs in the current folder, which appears as `/data`. Durations appear as `in 0.1 s`.
    """
    folder = os.getcwd()
    names: dict[str, Any] = {"__name__": "page"}

    def rerun(match: re.Match[str]) -> str:
        run = (
            _console
            if match[1] == "console"
            else _session
            if match[2].startswith(">>>")
            else _program
        )
        return f"```{match[1]}\n{_SECONDS.sub('in 0.1 s', run(match[2], names).replace(folder, '/data'))}```"

    return _BLOCK.sub(rerun, text)


def reruns(text: str) -> list[tuple[str, list[str], list[str]]]:
    """Runs the commands in blocks without a language.

    Their inputs differ from the inputs of the page.

    Returns:
        (command, lines of the page, lines of the current output) of each command. Numbers and names
            of builds are replaced by N.
    """
    results = []
    for block in re.findall(r"(?ms)^```\n(\$ .*?)^```$", text):
        for run in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = run.partition("\n")
            results.append((command, _without_numbers(output), _without_numbers(_run(command))))
    return results


def _without_numbers(output: str) -> list[str]:
    lines = (
        line
        for line in output.splitlines()
        if line.startswith(("note: ", "local/", "  train: ", "  test: "))
    )
    return [re.sub(r"data-[0-9a-f]{12}|[0-9][0-9,.]*", "N", line) for line in lines]


def _program(source: str, names: dict[str, Any]) -> str:
    exec(compile(source, "page", "exec"), names)
    return source


def _session(source: str, names: dict[str, Any]) -> str:
    lines = []
    for example in doctest.DocTestParser().get_examples(source):
        head, *continuation = example.source.splitlines()
        lines += [f">>> {head}", *(f"... {line}".rstrip() for line in continuation)]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                exec(compile(example.source, "page", "single"), names)
            except Exception as error:
                print("Traceback (most recent call last):\n  ...")
                print(traceback.format_exception_only(error)[-1], end="")
        lines += printed.getvalue().splitlines()
    return "\n".join(lines) + "\n"


def _console(source: str, _: dict[str, Any]) -> str:
    lines = []
    for command in [line[2:] for line in source.splitlines() if line.startswith("$ ")]:
        lines += [f"$ {command}", *_run(command).rstrip().splitlines(), ""]
    return "\n".join(lines)


def _run(command: str) -> str:
    words = shlex.split(command)
    if words[0] != "recordmill" or "|" in words:
        shell = f'recordmill() {{ "{sys.executable}" -m recordmill "$@"; }}\n{command}'
        return subprocess.run(
            ["bash", "-c", shell], check=True, capture_output=True, text=True
        ).stdout
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as messages,
    ):
        main(words[1:])
    # A slow machine also prints progress.
    errors = [
        line
        for line in messages.getvalue().splitlines(keepends=True)
        if not line.startswith("reading ")
    ]
    return printed.getvalue() + "".join(errors)


if __name__ == "__main__":
    write_rides(Path.cwd())
    page = Path(sys.argv[1]).read_text(encoding="utf-8")
    sys.exit(
        "".join(
            difflib.unified_diff(
                page.splitlines(True), replay(page).splitlines(True), "page", "now"
            )
        )
        or None
    )
