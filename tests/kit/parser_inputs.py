"""Input files for the tests of the user's parser."""

from pathlib import Path

import pytest


def make_parser_inputs(folder: Path, parser: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `in/` with 6 files of 4 lines, and the parsers in `my.py`.

    Changes to the folder, and makes parsers log to its file `log`.
    """
    (folder / "in").mkdir()
    for number in range(6):
        lines = "".join(f"{number} {line} 0.5\n" for line in range(4))
        (folder / "in" / f"{number}.dat").write_text(lines)
    (folder / "my.py").write_text(parser)
    monkeypatch.setenv("PARSER_LOG", str(folder / "log"))
    monkeypatch.chdir(folder)
    return folder
