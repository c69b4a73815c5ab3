"""Errors of sources are compared in the form of the command line.

The sources name options as keywords, and the command line shows the flags instead.
"""

import pytest
from kit.runs import in_flags

from recordmill.base.errors import RecordmillError, Reject


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RecordmillError, Reject):
        monkeypatch.setattr(kind, "__str__", in_flags)
