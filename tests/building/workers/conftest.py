"""An output folder, and inputs of a build by workers.

The folder is on a disk or in a store.
"""

from pathlib import Path

import pytest
from kit.store_server import Store


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    if request.param == "folder":
        return str(tmp_path / "out")
    store: Store = request.getfixturevalue("store")
    return f"{store.root}/{request.node.originalname}"


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A folder of 12 CSV files. One of them has an invalid row."""
    (tmp_path / "in").mkdir()
    for number in range(12):
        rows = "".join(f"{number},{row},{'x' * (row % 40)}\n" for row in range(100))
        (tmp_path / "in" / f"{number:02d}.csv").write_text(
            f"a,b,c\n{rows}{'1,2,3,4' if number == 7 else ''}"
        )
    return str(tmp_path / "in")
