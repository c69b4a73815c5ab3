"""The user's parser: which function it is, and how worker processes get it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.user_code import UserCodeError, find_function, load_file_function

_MODULE_PREFIX = "recordmill_parser_"


@dataclass(frozen=True)
class ParserFunction:
    """A function of the user that parses one file.

    Attributes:
        name: The function for messages, such as `my.py:parse`.
        reference: `FILE.py:NAME` with an absolute path, or `module:NAME`. "" if the function can
            only be sent as bytes, for example because it was defined in a notebook.
        pickled: The pickled function as base64, if there is no reference. "" until it is sent to
            worker processes.
        source: The content of the user's file as base64, for workers on other hosts. "" if they
            read the file.
        digest: Identifies the code of the function, so that its results can be used again.
        function: The function itself, if there is no reference.
    """

    name: str
    reference: str
    pickled: str
    digest: str
    source: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def source_file(self) -> str:
        """The user's file, for errors that name a line. "" if it is unknown."""
        return self.reference.rpartition(":")[0] if ".py:" in self.reference else ""

    def load(self) -> Callable[..., Any]:
        """Returns the function.

        Raises:
            UserCodeError: The function can't be loaded. The text is the reason.
        """
        if not self.reference:
            # these bytes are from the process that started this one, not from a file
            return pickle.loads(base64.b64decode(self.pickled))
        location, _, name = self.reference.rpartition(":")
        if self.source_file:
            # as for a script, the modules next to the file can be imported
            sys.path.insert(0, os.path.dirname(location))
            stem = os.path.splitext(os.path.basename(location))[0]
            content = base64.b64decode(self.source) if self.source else None
            return load_file_function(location, name, _MODULE_PREFIX + stem, content)
        sys.path.insert(0, "")  # the working directory, as for `python -m`
        try:
            module = importlib.import_module(location)
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"{location}: {type(error).__name__}: {error}") from None
        return find_function(module, name, location)


def to_parser_function(value: str | Callable[..., Any], name: str) -> ParserFunction:
    """Returns the parser that an option names.

    Args:
        value: `FILE.py:FUNCTION`, `package.module:FUNCTION`, or a function.
        name: Name of the option.

    Raises:
        UsageError: The value has another form, or the file or module does not exist.
    """
    if isinstance(value, str):
        return _parse_reference(value, name)
    if not callable(value):
        raise UsageError(
            "{option}: give a function of a path, FILE.py:FUNCTION or package.module:FUNCTION",
            option=option(name, value),
        )
    module, qualified_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    label = f"{module}:{qualified_name}" if qualified_name else type(value).__name__
    loaded_module = sys.modules.get(module) if module not in (None, "__main__") else None
    if loaded_module is not None and getattr(loaded_module, qualified_name, None) is value:
        return ParserFunction(label, f"{module}:{qualified_name}", "", _digest_of_code(value))
    return ParserFunction(label, "", "", _digest_of_code(value), function=value)


def _parse_reference(value: str, name: str) -> ParserFunction:
    location, separator, function = value.rpartition(":")
    if not separator or not location or not function.isidentifier():
        raise UsageError(
            "{option}: give FILE.py:FUNCTION or package.module:FUNCTION", option=option(name, value)
        )
    if location.endswith(".py"):
        # imported here, because the command line imports this module for its help
        from recordmill.storage.files import expand_home
        from recordmill.storage.folders import is_file, no_file_message

        location = expand_home(location)
        if not is_file(location):
            raise UsageError(
                "{option}: {path}: {reason}",
                option=option(name, value),
                path=location,
                reason=no_file_message(location),
            )
        path = os.path.abspath(location)
        label = f"{os.path.basename(location)}:{function}"
        return ParserFunction(label, f"{path}:{function}", "", _digest_of_file(path))
    sys.path.insert(0, "")  # the working directory, as for `python -m`
    try:
        spec = importlib.util.find_spec(location)
    except (ImportError, ValueError, AttributeError):
        spec = None
    finally:
        sys.path.remove("")
    if spec is None:
        raise UsageError("{option}: no such module", option=option(name, value))
    digest = _digest_of_file(spec.origin) if spec.origin else _digest(location.encode())
    return ParserFunction(value, value, "", digest)


def _digest_of_code(function: Callable[..., Any]) -> str:
    """Returns a digest of the code of a function.

    The digest depends on the file with the function, and on the values that the function has
    captured.
    """
    try:
        code = _digest_of_file(inspect.getsourcefile(inspect.unwrap(function)) or "")
    except (TypeError, OSError):
        compiled = getattr(function, "__code__", None)
        code = repr(function) if compiled is None else _digest(compiled.co_code)
    # An object whose text has its address gives another digest in each process, which only means
    # that files are parsed again.
    captured = [getattr(function, "__self__", None), getattr(function, "__defaults__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a variable without a value
            captured.append(cell.cell_contents)
    return _digest(f"{code} {captured!r}".encode())


def _digest_of_file(path: str) -> str:
    from recordmill.storage.digest import sha256_file

    return sha256_file(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
