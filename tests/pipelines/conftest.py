"""Reads of small data in many pieces, so that threads and jobs have something to share."""

import pytest

from recordmill.shards import cutting


@pytest.fixture(autouse=True)
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of a module that says PIECE_BYTES read pieces of that size."""
    monkeypatch.setattr(
        cutting, "PIECE_BYTES", getattr(request.module, "PIECE_BYTES", cutting.PIECE_BYTES)
    )
