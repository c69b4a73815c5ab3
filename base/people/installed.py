"""How this installation came about: the name of an extra in, the command that adds it out."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "recordmill"


def command_for(extra: str) -> str:
    """The command that installs recordmill as it was installed, with the extra.

    What pip notes beside an installation (direct_url.json, PEP 610) says whether that was a checkout, an archive or a
    repository; without it the package came from an index by its name. A package that was not installed lies in a
    checkout.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return install_command(distribution(NAME), extra)
    except PackageNotFoundError:
        return f'pip install ".[{extra}]" (in the checkout)'


def install_command(installed: Distribution, extra: str) -> str:
    """The same for a given distribution.

    Raises:
        PackageNotFoundError: nothing says that an installer put it there.
    """
    from importlib.metadata import PackageNotFoundError

    noted = installed.read_text("direct_url.json")
    if noted is not None:
        return f"pip install {_requirement(json.loads(noted), extra)}"
    if installed.read_text("INSTALLER") is None:
        raise PackageNotFoundError(NAME)
    return f'pip install "{NAME}[{extra}]"'


def _requirement(noted: dict[str, Any], extra: str) -> str:
    """The argument of `pip install` that names the same origin."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    url = str(noted["url"])
    if "dir_info" in noted:
        path = url2pathname(urlsplit(url).path)
        if not os.path.isdir(path):
            return f'".[{extra}]" (in the checkout)'
        return f"{'-e ' if noted['dir_info'].get('editable') else ''}{_quoted(f'{path}[{extra}]')}"
    if "vcs_info" in noted:
        revision = noted["vcs_info"].get("requested_revision")
        url = f"{noted['vcs_info']['vcs']}+{url}{f'@{revision}' if revision else ''}"
    return _quoted(f"{NAME}[{extra}] @ {url}")


def _quoted(text: str) -> str:
    """For a shell, in the quotation marks that people expect where they are enough."""
    return shlex.quote(text) if any(mark in text for mark in '"$`\\!') else f'"{text}"'
