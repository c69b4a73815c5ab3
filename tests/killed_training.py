"""A training run in processes of its own that are killed in mid-epoch and started again, and what its log says."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def killed_and_resumed(script: str, out: Path, folder: Path, kills: tuple[int, ...]) -> dict[int, list[int]]:
    """The ids of each step of runs that log `[step, [ids]]`, save themselves, and are killed in the steps `kills`."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    for step in (*kills, -1):
        command = [sys.executable, "-c", script, str(out), str(folder), str(step)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == (0 if step < 0 else -signal.SIGKILL), done.stderr[-2000:]
    steps: dict[int, list[int]] = {}
    for line in (folder / "log").read_text().splitlines():
        step, ids = json.loads(line)
        assert steps.setdefault(step, ids) == ids, f"step {step} had other records when it was done again"
    return steps
