"""The keywords of a command as Python has them: the signature that `help` and editors show, and the source of the typed
dictionary that type checkers read (`keywords.py`).
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from recordmill.pipelines.options.commands import keywords_of
from recordmill.pipelines.options.declare import OFF

_F = TypeVar("_F", bound=Callable[..., Any])
TYPED = {"BuildKeywords": "build", "ReadKeywords": "read"}
_HEAD = '''"""The keywords of `build` and `read` with their types, for editors and type checkers.

Written by docs/make_reference.py from the declarations in this folder; change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema
'''


def with_keywords(command: str) -> Callable[[_F], _F]:
    """A decorator: the function's `**options` are shown as the keywords of the command, with defaults."""

    def decorate(function: _F) -> _F:
        shown = inspect.signature(function)
        own = [each for each in shown.parameters.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.keyword_type
            )
            for option in keywords_of(command)
        ]
        function.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def keywords_source() -> str:
    """The text of `keywords.py`."""
    return _HEAD + "".join(f"\n\n{_typed(name, command)}" for name, command in TYPED.items())


def _typed(name: str, command: str) -> str:
    return f"class {name}(TypedDict, total=False):\n" + "\n".join(_lines(command)) + "\n"


def _lines(command: str) -> Iterator[str]:
    yield f'    """The options of `recordmill.{command}`."""\n'
    for option in keywords_of(command):
        said = f"False: {option.shown}" if option.form == OFF else option.shown
        yield from textwrap.wrap(said, 114, initial_indent="    # ", subsequent_indent="    # ")
        yield f"    {option.name}: {option.keyword_type}"
