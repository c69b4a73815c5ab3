"""Loading of the user's functions, and descriptions of their errors."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

# Maximum length of the text of an error.
_MAX_ERROR_CHARS = 250


class UserCodeError(Exception):
    """The user's function can't be loaded. The text is the reason."""


class _ContentLoader(importlib.abc.SourceLoader):
    """Loader of a module from the content of its file.

    The file need not exist on this host.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._content


def load_file_function(
    path: str, name: str, module_name: str, content: bytes | None = None
) -> Callable[..., Any]:
    """Runs a Python file as a module, and returns one of its functions.

    Args:
        path: Path of the file.
        name: Name of the function.
        module_name: Name of the module in `sys.modules`.
        content: Content of the file, if it may not exist on this host. If None, the file is read.

    Raises:
        UserCodeError: Running the file fails, or it has no such function.
    """
    loader = None if content is None else _ContentLoader(path, content)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserCodeError(describe_user_error(error, path)) from None
    return find_function(module, name, path)


def find_function(module: Any, name: str, source: str) -> Callable[..., Any]:
    """Returns a function of a module.

    Args:
        module: The module.
        name: Name of the function.
        source: The file or the module, for the message.

    Raises:
        UserCodeError: There is no such function. The text lists the existing functions.
    """
    function = getattr(module, name, None)
    if callable(function):
        return function
    functions = [
        key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    ]
    choices = f"; there are {', '.join(functions)}" if functions else ""
    raise UserCodeError(f"{source} has no function {name}{choices}")


def describe_user_error(error: BaseException, path: str) -> str:
    """Returns an error message with the line of the user's file that failed.

    The result is one line. The failed line is the innermost one of that file in the traceback.

    Args:
        error: The error.
        path: The user's file.
    """
    path = os.path.abspath(path)
    lines = _frames_of(error, path)
    if isinstance(error, SyntaxError) and os.path.abspath(error.filename or "") == path:
        location = f"line {error.lineno}: `{(error.text or '').strip()}`"
    elif lines:
        location = f"line {lines[-1].lineno}, in {lines[-1].name}: `{lines[-1].line}`"
    else:
        location = f"in {os.path.basename(path)}"
    return f"{location}: {type(error).__name__}: {join_lines(str(error))[:_MAX_ERROR_CHARS]}"


def join_lines(text: str) -> str:
    r"""Returns the lines of a text as one line, without empty ones.

    >>> join_lines("bad header:\n\n  byte 3 ")
    'bad header: byte 3'
    """
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _frames_of(error: BaseException, path: str) -> Sequence[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.abspath(frame.filename) == path
    ]
