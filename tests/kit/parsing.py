"""Builds with a user's function that parses files."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import recordmill


def parsed_files(folder: Path) -> list[str]:
    """Returns the files that parsers have begun, in order."""
    return (folder / "log").read_text().split() if (folder / "log").exists() else []


def records(out: Any) -> list[dict[str, Any]]:
    rows = recordmill.open(out).to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["file"], row["number"]))


def parse_rows(path: str) -> Iterator[dict[str, Any]]:
    with open(path) as file:
        for number, line in enumerate(file):
            values = [float(word) for word in line.split()]
            yield {"file": os.path.basename(path), "number": number, "values": values}


def start_build(folder: Path, out: str, parser: str, **variables: str) -> subprocess.Popen[str]:
    code = f"import recordmill; recordmill.build('in', {out!r}, parser={parser!r}, name='n')"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        text=True,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def wait_until_parsed(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("out/_run-*/spool/parsed/*.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
