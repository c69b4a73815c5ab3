"""Dataflow, as far as it goes without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

import recordmill
from recordmill.base.errors import UsageError

FLAGS = ("--project=p", "--region=r", "--temp_location=gs://bucket/tmp", "--sdk_container_image=image")


def test_a_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UsageError, match="Dataflow's workers see no disk of this machine"):
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", header=True, runner="DataflowRunner", beam_args=FLAGS)
    assert not (tmp_path / "out").exists()
