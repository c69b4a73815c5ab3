"""Sources name options as keywords: what they say is tested as the command line prints it, with
flags.
"""

import pytest
from kit.runs import in_flags

from recordmill.base.errors import RecordmillError, Reject


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RecordmillError, Reject):
        monkeypatch.setattr(kind, "__str__", in_flags)
