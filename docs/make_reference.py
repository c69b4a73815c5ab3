"""Writes docs/reference.md and options/keywords.py from the declarations of the options.

python docs/make_reference.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from recordmill.options.commands import COMMANDS, flags_of, keywords_source
from recordmill.options.option import EITHER, OFF, SWITCH, Option
from recordmill.sources.registry import KIND_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE, KEYWORDS = ROOT / "docs" / "reference.md", ROOT / "src" / "recordmill" / "options" / "keywords.py"
_CALLS = {
    "build": "recordmill.build(source, out, ...)",
    "transform": "recordmill.build(source, out, transform_from=...)",
    "read": "recordmill.read(inputs, out, ...)",
    "head": "recordmill.open(inputs, ...).head()",
    "inspect": "recordmill.open(inputs, ...)",
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

Written by `docs/make_reference.py` from `src/recordmill/options/`. `recordmill COMMAND --help` shows the
options that are needed often, marked with • here, and `--help-all` shows all. In Python each is a keyword;
`--no-shuffle` is `shuffle=False`. **Bytes** says which ones decide the bytes that come out: equal inputs and equal
values of these give equal files, whatever the others are.
"""


def reference() -> str:
    """The text of the page."""
    return _HEAD + "".join(f"\n{section}" for command in COMMANDS for section in _sections(command))


def _sections(command: str) -> Iterator[str]:
    yield f"## recordmill {command}\n\nIn Python: `{_CALLS[command]}`\n"
    for group, options in itertools.groupby(COMMANDS[command], lambda option: option.group):
        rows = [_row(command, option) for option in options]
        yield (
            f"### {command}: {group}\n\n"
            + "\n".join(
                [
                    "| flag | keyword | type | default | bytes | what it does |",
                    "| --- | --- | --- | --- | --- | --- |",
                    *rows,
                ]
            )
            + "\n"
        )


def _row(command: str, option: Option) -> str:
    value = "" if option.form in (SWITCH, OFF, EITHER) else f" {option.metavar or '|'.join(option.choices)}"
    flags = ", ".join(f"`{flag}{value}`" for flag in option.all_flags)
    flag = flags if option in flags_of(command) else ""
    keyword = "" if option.shell_only else f"`{option.name}=`"
    annotation = "" if option.shell_only else f"`{option.keyword_type}`"
    default = option.default_text or ("" if option.default is None else f"`{option.default!r}`")
    kinds = f"{', '.join(option.kinds)}: " if option.kinds not in ((), KIND_NAMES) else ""
    cells = [
        f"{flag}{' •' if option.common else ''}",
        keyword,
        annotation,
        default,
        "yes" if option.decides else "",
        kinds + option.help,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    KEYWORDS.write_text(keywords_source(), encoding="utf-8")
