"""Prints the constraints of the running interpreter.

They are the versions that pip chooses today for every package that `.[dev]` installs.

    python3.11 -m venv fresh
    fresh/bin/python .ci/constraints/resolve.py "tested by .ci/run" > .ci/constraints/py311.txt
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
        f"{root}[dev]",
    ]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}
    version, about = (
        sys.version_info,
        sys.argv[1] if len(sys.argv) > 1 else "resolved by pip, not tested",
    )
    print(
        f"# Python {version.major}.{version.minor}, Linux x86_64: {about}. Made by .ci/constraints/resolve.py."
    )
    for name in sorted(found, key=str.lower):
        if name != "recordmill":
            print(f"{name}=={found[name]}")


if __name__ == "__main__":
    main()
