"""A runner may repeat a build in this process."""

from pathlib import Path
from typing import Any

import pytest

import recordmill
from recordmill.base.progress import Progress
from recordmill.building import local_build
from recordmill.building.plan import BuildPlan
from recordmill.shards.manifest import Manifest, list_generations


def test_build_that_a_runner_repeats_is_committed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, manifests = local_build.commit_local_build, list[Manifest]()

    def commit_and_repeat(plan: BuildPlan, *arguments: Any) -> Manifest:
        manifests.append(commit(plan, *arguments))
        manifests.append(local_build.build_locally(plan, Progress()))
        return manifests[-1]

    monkeypatch.setattr(local_build, "commit_local_build", commit_and_repeat)
    result = recordmill.build({"x": [1, 2, 3]}, tmp_path / "out")
    assert result.records == {"train": 3}
    assert manifests[0] == manifests[1] == result.manifest
    assert list_generations(tmp_path / "out") == [1]
