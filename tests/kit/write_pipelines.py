"""Pipelines that write shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from kit.child_processes import X_SCHEMA
from recordmill.transforms import BatchDicts, WriteShards

beam = pytest.importorskip("apache_beam", reason="these PTransforms need Apache Beam")


def rows(count: int) -> list[dict[str, Any]]:
    return [{"x": i, "text": f"row {i}"} if i % 3 else {"x": i} for i in range(count)]


def run_pipeline(out: Path | str, *flags: str) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags)))
    _ = (
        pipeline
        | beam.Create([{"x": i} for i in range(50)])
        | BatchDicts(10)
        | WriteShards(str(out), X_SCHEMA)
    )
    pipeline.run().wait_until_finish()
