"""Fixture that reads small data in many pieces, so that threads share the work."""

import pytest

from recordmill.shards import cutting


@pytest.fixture(autouse=True)
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the size of pieces to `PIECE_BYTES` of the test's module."""
    monkeypatch.setattr(
        cutting, "PIECE_BYTES", getattr(request.module, "PIECE_BYTES", cutting.PIECE_BYTES)
    )
