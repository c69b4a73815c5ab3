"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The first call of a kernel compiles it, which takes seconds on a fresh machine: no example has a deadline.
settings.register_profile("recordmill", deadline=None)
settings.load_profile("recordmill")

# A shell starts what it runs in the background with SIGINT ignored, and children would inherit that: they are
# interrupted here.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files that the repository does not hold; tests that want it skip where it is absent."""
    root = Path(os.environ.get("RECORDMILL_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"no folder {root}: these tests need the shared test data, which is not part of the repository")
    return root
