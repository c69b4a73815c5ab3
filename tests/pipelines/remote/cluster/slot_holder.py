"""Job that holds slots for ten minutes: `python slot_holder.py FLAGS_OF_BEAM...`"""

import sys
import time
from collections.abc import Sequence

NAME = "slot-holder"


def main(flags: Sequence[str]) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with beam.Pipeline(options=PipelineOptions([*flags, f"--job_name={NAME}"])) as pipeline:
        _ = (
            pipeline
            | beam.Create([600.0] * 64)
            | beam.Reshuffle()
            | beam.Map(lambda seconds: time.sleep(seconds))
        )


if __name__ == "__main__":
    main(sys.argv[1:])
