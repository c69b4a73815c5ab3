"""The hint for a missing extra names where this installation came from."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from recordmill.base.people.installed import install_command


def installed(folder: Path, direct_url: dict[str, Any] | None, installer: str | None = "pip") -> Distribution:
    """A distribution as an installer leaves it."""
    info = folder / "recordmill-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recordmill\nVersion: 1\n")
    if installer is not None:
        (info / "INSTALLER").write_text(installer)
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    return Distribution.at(info)


def test_a_checkout_is_named_by_its_path(tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    url = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    assert install_command(installed(tmp_path, url), "beam") == f'pip install -e "{checkout}[beam]"'


def test_a_checkout_that_has_gone_is_not_named(tmp_path: Path) -> None:
    url = {"url": (tmp_path / "gone").as_uri(), "dir_info": {}}
    assert install_command(installed(tmp_path, url), "tf") == 'pip install ".[tf]" (in the checkout)'


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        (
            {"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            'pip install "recordmill[sql] @ git+https://example.org/r.git@v1"',
        ),
        (
            {"url": "file:///wheels/recordmill-1.whl", "archive_info": {}},
            'pip install "recordmill[sql] @ file:///wheels/recordmill-1.whl"',
        ),
        (None, 'pip install "recordmill[sql]"'),
    ],
)
def test_other_origins(tmp_path: Path, noted: dict[str, Any] | None, said: str) -> None:
    assert install_command(installed(tmp_path, noted), "sql") == said


def test_what_no_installer_put_there_is_no_origin(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError):
        install_command(installed(tmp_path, None, installer=None), "sql")
