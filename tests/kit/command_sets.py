"""Data sets for the tests of commands."""

from pathlib import Path

import pytest

from kit.data_sets import mixed_rows, write_data_set


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", {"train": mixed_rows(40), "test": mixed_rows(3, 40)})
