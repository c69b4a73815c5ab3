"""Builds with a transform that are killed for real, within and between their two jobs: the data set that was there
stays whole, and the next build cleans up and succeeds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformed_set import SPLITS, write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.pipelines.build import build
from recordmill.shards.manifest import load

pytestmark = pytest.mark.sweep

CHILD = """
import os, sys
when, path, out = sys.argv[1:]
def kill(*args, **named):
    os.kill(os.getpid(), 9)
if when == "in the fit":
    from recordmill.transforms.tft import fit
    fit.publish = kill
elif when == "between":
    from recordmill.pipelines import build as module
    module.run_build = kill
elif when == "in the build":
    from recordmill.preprocessing.saved import SavedTransform
    SavedTransform.apply = kill
else:
    from recordmill.building import commit
    commit.put_if_absent = kill
from recordmill.pipelines.build import build
build(path, out, splits="train=0.8,validation=0.2", transform={"age": "zscore"}, overwrite=True)
"""


@pytest.mark.parametrize("when", ["in the fit", "between", "in the build", "before the manifest"])
def test_the_old_data_set_stays_whole(tmp_path: Path, when: str) -> None:
    write_csv(tmp_path / "rides.csv", rows=200)
    out = tmp_path / "out"
    build(tmp_path / "rides.csv", out, splits=SPLITS)
    before = recordmill.open(out).to_table()
    child = [sys.executable, "-c", CHILD, when, str(tmp_path / "rides.csv"), str(out)]
    assert subprocess.run(child, capture_output=True, timeout=500, check=False).returncode == -9
    assert load(out).transform == {}
    assert recordmill.open(out).to_table().equals(before)
    build(tmp_path / "rides.csv", out, splits=SPLITS, overwrite=True)
    assert not list(out.glob("_run-*"))
    assert recordmill.verify(out) == []
