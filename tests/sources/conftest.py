"""Sources name options as keywords: what they say is tested as the command line prints it, with
flags.
"""

import pytest

from recordmill.base.errors import RecordmillError, Reject
from recordmill.options.commands import in_flags


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RecordmillError, Reject):
        own = kind.__str__
        monkeypatch.setattr(kind, "__str__", lambda self, own=own: in_flags(own(self)))
