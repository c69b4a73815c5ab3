"""Writes docs/reference.md from the declarations of the options.

python docs/make_reference.py
"""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path

from recordmill.options.commands import COMMAND_OPTIONS, flags_of
from recordmill.options.option import NEGATIVE_SWITCH_FORM, SWITCH_FORM, TWO_WAY_SWITCH_FORM, Option
from recordmill.sources.registry import KIND_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
_CALLS = {
    "build": "recordmill.build(source, out, ...)",
    "transform": "recordmill.build(source, out, transform_from=...)",
    "read": "recordmill.read(inputs, out, ...)",
    "head": "recordmill.open(inputs, ...).head()",
    "inspect": "recordmill.inspect(inputs, ...)",
    "stats": "recordmill.stats(inputs, ...)",
    "check": "recordmill.check(inputs, ...)",
    "report": "recordmill.report(inputs, ...)",
    "bench": "recordmill.open(inputs, ...).batches(...)",
    "verify": "recordmill.verify(inputs, ...)",
    "doctor": "recordmill.doctor(inputs, out, ...)",
    "status": "recordmill.status(out)",
    "clean": "recordmill.clean(out, ...)",
}
_HEAD = """\
# Options

Written by `docs/make_reference.py` from `src/recordmill/options/`. `recordmill COMMAND --help` shows the options marked
with •, `--help-all` all of them. In Python each is a keyword: `--max-rejects` is `max_rejects=`, `--no-shuffle` is
`shuffle=False`; `recordmill.build?` in IPython shows their types. Options marked with ◆ decide the bytes that come out:
equal inputs and equal values of these give equal files.
"""


def reference() -> str:
    """Returns the text of the page."""
    shown: dict[str, str] = {}
    return _HEAD + "".join(f"\n{_section(command, shown)}" for command in COMMAND_OPTIONS)


def _section(command: str, shown: dict[str, str]) -> str:
    """Describes the options of a command.

    Args:
        command: The command.
        shown: The command that has shown each row first. Rows of earlier commands are only named
            here.
    """
    parts = [f"## recordmill {command}\n\nIn Python: `{_CALLS[command]}`\n"]
    same: dict[str, list[str]] = {}
    for group, options in itertools.groupby(COMMAND_OPTIONS[command], lambda option: option.group):
        rows = []
        for option in options:
            row = _row(command, option)
            if (earlier := shown.setdefault(row, command)) == command:
                rows.append(row)
            else:
                same.setdefault(earlier, []).append(_quoted(option, command))
        if rows:
            head = ["| option | default | what it does |", "| --- | --- | --- |"]
            parts.append("\n".join([f"### {command}: {group}\n", *head, *rows]) + "\n")
    parts += [
        f"As for `{earlier}`: {_listed(earlier, names)}.\n" for earlier, names in same.items()
    ]
    return "\n".join(parts)


def _listed(command: str, names: list[str]) -> str:
    """Lists options of a command.

    If they are most of its options, the text names only the exceptions.
    """
    others = [
        name
        for name in map(_quoted, COMMAND_OPTIONS[command], itertools.repeat(command))
        if name not in names
    ]
    return f"all but {', '.join(others)}" if len(others) < len(names) else ", ".join(names)


def _quoted(option: Option, command: str) -> str:
    return f"`{option.all_flags[-1] if option in flags_of(command) else f'{option.name}='}`"


def _row(command: str, option: Option) -> str:
    value = (
        ""
        if option.form in (SWITCH_FORM, NEGATIVE_SWITCH_FORM, TWO_WAY_SWITCH_FORM)
        else f" {option.metavar or '|'.join(option.choices)}"
    )
    flags = ", ".join(f"`{flag}{value}`" for flag in option.all_flags)
    keyword = f"`{option.name}=`" if option not in flags_of(command) else ""
    marks = f"{' •' if option.common else ''}{' ◆' if option.decides else ''}"
    switch = option.form in (SWITCH_FORM, NEGATIVE_SWITCH_FORM) or option.default is None
    default = option.default_text or ("" if switch else f"`{option.default!r}`")
    kinds = f"{', '.join(option.kinds)}: " if option.kinds not in ((), KIND_NAMES) else ""
    cells = [f"{keyword or flags}{marks}", default, kinds + option.help]
    return f"| {' | '.join(map(_table_cell, cells))} |"


def _table_cell(text: str) -> str:
    """Returns text for a cell of a table.

    A `|` ends a cell. Some programs show the backslash of an escaped one in code, so code with `|`
    becomes HTML.

    >>> print(_table_cell("`--to csv|npy` or a|b"))
    <code>--to csv&#124;npy</code> or a&#124;b
    """
    with_pipes = re.sub(
        r"`([^`]*\|[^`]*)`", lambda code: f"<code>{html.escape(code[1], quote=False)}</code>", text
    )
    return with_pipes.replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
