"""What nobody meant to leave in a text: two sides of a merge."""

from __future__ import annotations

import re
from pathlib import Path

from rooms import ROOT

_SIDES = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)  # as git marks them
_KINDS = (".md", ".py", ".toml", ".yaml", ".yml", ".sh", ".ipynb", "")
_LEFT_OUT = {".git", ".venv", "build", "dist", "node_modules"}


def texts(folder: Path) -> list[Path]:
    found = []
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            found += [] if path.name in _LEFT_OUT or path.name.endswith(".egg-info") else texts(path)
        elif path.suffix in _KINDS and path.is_file():
            found.append(path)
    return found


def test_no_text_holds_both_sides_of_a_merge() -> None:
    found = texts(ROOT)
    assert len(found) > 300
    both = [path for path in found if _SIDES.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert both == []
