"""Inputs of many small files: a stop is heard after some hundred of them, and a plan keeps little of each."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest
from image_samples import encoded

from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import KeyBuckets
from recordmill.sources.common.contract import BATCH_FILES, PlanOptions, Source
from recordmill.sources.images.source import plan_images
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage.listing import list_inputs

FILES = 3 * BATCH_FILES + 10


@pytest.fixture(params=["text", "images"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    data, end = (b"a few words\n", "txt") if request.param == "text" else (encoded("PNG"), "png")
    for number in range(FILES):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:06d}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "data"


def planned(folder: Path) -> Source:
    listing = list_inputs([str(folder)])
    if next(folder.glob("*/*")).suffix == ".png":
        return plan_images(listing)
    return plan_text(listing, TextOptions(), PlanOptions())


def test_between_two_chunks_lie_few_files(folder: Path) -> None:
    source = planned(folder)
    rows = [chunk.rows for unit in source.units for chunk in source.read(unit)]
    assert sum(rows) == FILES
    assert max(rows) <= BATCH_FILES


def test_a_plan_holds_less_than_half_a_kilobyte_of_each_file(folder: Path) -> None:
    planned(folder)
    tracemalloc.start(1)
    try:
        source = planned(folder)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.files) == FILES
    assert held < 512 * FILES + (128 << 10)


def test_stages_of_this_process_have_the_plan_itself(tmp_path: Path) -> None:
    source = plan_text(list_inputs([__file__]), TextOptions(), PlanOptions())
    plan = BuildPlan(str(tmp_path), 0, source.schema, ("train",), KeyBuckets.plan(1, 2**64, 1), source)
    sent = pickle.dumps(plan.reference())
    assert pickle.loads(sent).load() is plan
    assert len(sent) < 500
    assert list(tmp_path.iterdir()) == []
