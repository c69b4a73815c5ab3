"""Images with annotation files."""

from pathlib import Path

import pytest
from kit.annotated_images import save_image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for stem in "abc":
        save_image(tmp_path / "images" / f"{stem}.png")
    return tmp_path / "images"
