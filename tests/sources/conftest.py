"""Sources stand below the two doors that spell options: what they say is tested as the command line has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recordmill.base.option_names import speaking_flags


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    with speaking_flags():
        yield
