"""Writes docs/reference.md and the types of all keywords from the declarations of the options.

python docs/make_reference.py
"""

from __future__ import annotations

import html
import itertools
import re
from dataclasses import replace
from pathlib import Path

from recordmill.options.calls import CALLS, COMMANDS, Call
from recordmill.options.declare import Option
from recordmill.sources.registry import KIND_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
KEYWORDS = ROOT / "src" / "recordmill" / "options" / "keywords.py"
READER_KEYWORDS = ROOT / "src" / "recordmill" / "reader" / "options" / "keywords.py"
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
    "log": "recordmill.log(out)",
    "restore": "recordmill.restore(out, generation)",
    "compact": "recordmill.compact(out, ...)",
}
# functions without a command; docs/api.md describes the training methods
_FUNCTIONS = {
    "open": "recordmill.open(inputs, ...)",
    "WriteShards": "recordmill.transforms.WriteShards(out, schema, ...)",
}
_TABLE_HEAD = ("| option | default | what it does |", "| --- | --- | --- |")
_HEAD = """\
<!-- docs/make_reference.py writes this page from src/recordmill/options/. -->

# Options

This page lists all options of all commands:

```text
recordmill COMMAND --help        # the options marked with •
recordmill COMMAND --help-all    # all options
```

* **In Python** each option is a keyword. `--max-rejects` is `max_rejects=`, and `--no-shuffle` is `shuffle=False`. In
  IPython, `recordmill.build?` shows the types.
* **Options marked with ◆** determine the bytes of the output. Equal inputs and equal values of these options give equal
  files.
"""


def reference() -> str:
    """Returns the text of the page."""
    shown: dict[str, str] = {}
    sections = [_section(command, shown) for command in COMMANDS]
    sections += map(_function_section, _FUNCTIONS)
    return _HEAD + "".join(f"\n{section}" for section in sections)


def _section(command: str, shown: dict[str, str]) -> str:
    """Describes the options of a command.

    Args:
        command: The command.
        shown: The command that has shown each row first. Rows of earlier commands are only named
            here.
    """
    parts = [f"## recordmill {command}\n\nIn Python: `{_CALLS[command]}`\n"]
    same: dict[str, list[str]] = {}
    for group, options in itertools.groupby(_options(command), lambda option: option.heading):
        rows = []
        for option in options:
            row = _row(option)
            if (earlier := shown.setdefault(row, command)) == command:
                rows.append(row)
            else:
                same.setdefault(earlier, []).append(_quoted(option))
        if rows:
            parts.append("\n".join([f"### {command}: {group}\n", *_TABLE_HEAD, *rows]) + "\n")
    parts += [
        f"As for `{earlier}`: {_listed(earlier, names)}.\n" for earlier, names in same.items()
    ]
    return "\n".join(parts)


def _function_section(name: str) -> str:
    """Describes the options of a function in one table."""
    rows = [
        _row(replace(option, keyword_only=True, common=False)) for option in CALLS[name].keywords
    ]
    return (
        "\n".join([f"## {name}\n\nIn Python: `{_FUNCTIONS[name]}`\n", *_TABLE_HEAD, *rows]) + "\n"
    )


def _listed(command: str, names: list[str]) -> str:
    """Lists options of a command.

    If they are most of its options, the text names only the exceptions.
    """
    others = [name for name in map(_quoted, _options(command)) if name not in names]
    return f"all but {', '.join(others)}" if len(others) < len(names) else ", ".join(names)


def _options(command: str) -> tuple[Option, ...]:
    return tuple(CALLS[command].options.values())


def _quoted(option: Option) -> str:
    return f"`{f'{option.name}=' if option.keyword_only else option.all_flags[-1]}`"


def _row(option: Option) -> str:
    has_value = not (option.is_switch or option.is_two_way)
    value = f" {option.placeholder or '|'.join(option.choices)}" if has_value else ""
    flags = ", ".join(f"`{flag}{value}`" for flag in option.all_flags)
    keyword = f"`{option.name}=`" if option.keyword_only else ""
    marks = f"{' •' if option.common else ''}{' ◆' if option.decides else ''}"
    is_silent = option.is_switch or option.default is None
    default = option.default_text or ("" if is_silent else f"`{option.default!r}`")
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


_KEYWORDS_HEAD = '''\
"""The keywords of the functions, for type checkers. Nothing imports this module at run time.

docs/make_reference.py writes it from the declarations of the options.
"""

from __future__ import annotations

'''
_IMPORTS = """\
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema
"""
_READER_IMPORTS = """\
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.reader.options.collation import Collate
    from recordmill.reader.options.images import ImageSpec
    from recordmill.schemas.feature import Schema
"""


def keywords() -> str:
    """Returns the text of `options/keywords.py`: a class for each function."""
    functions = (call for call in CALLS.values() if call.is_function and not _is_of_reader(call))
    return _KEYWORDS_HEAD + _IMPORTS + "".join(map(_keyword_class, functions))


def reader_keywords() -> str:
    """Returns the text of `reader/options/keywords.py`: `open` and the outputs of training."""
    calls = filter(_is_of_reader, CALLS.values())
    return _KEYWORDS_HEAD + _READER_IMPORTS + "".join(map(_keyword_class, calls))


def _is_of_reader(call: Call) -> bool:
    return call.groups[0].startswith("reader.")


def _keyword_class(call: Call) -> str:
    title = call.name if call.name[0].isupper() else call.name.title().replace("_", "")
    lines = [
        f'    {option.name}: {option.keyword_type}\n    """{_describe(option)}."""\n'
        for option in call.keywords
        if option.name not in call.positional
    ]
    head = (
        f'class {title}Keywords(TypedDict, total=False):\n    """The options of `{call.name}`."""\n'
    )
    return f"\n\n{head}\n{''.join(lines)}"


def _describe(option: Option) -> str:
    # The help of `--no-shuffle` says what False does.
    value = "False: " if option.is_switch and option.default else ""
    return value + option.help_with_default.replace("\\", r"\\").rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")
    READER_KEYWORDS.write_text(reader_keywords(), encoding="utf-8")
