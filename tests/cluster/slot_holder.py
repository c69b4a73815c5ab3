"""A job that takes slots and does nothing for ten minutes: `python slot_holder.py FLAGS_OF_BEAM...`"""

from __future__ import annotations

import sys
import time

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

NAME = "slot-holder"

if __name__ == "__main__":
    with beam.Pipeline(options=PipelineOptions([*sys.argv[1:], f"--job_name={NAME}"])) as pipeline:
        _ = pipeline | beam.Create([600.0] * 64) | beam.Reshuffle() | beam.Map(lambda seconds: time.sleep(seconds))
