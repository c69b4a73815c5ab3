"""`python run_staged.py PIPELINE FOLDER`: runs what was staged for Dataflow with the recordmill
installed in FOLDER.
"""

import sys
from pathlib import Path


def main(staged: str, installed: str) -> None:
    sys.path.insert(0, installed)
    import recordmill

    assert Path(recordmill.__file__).is_relative_to(installed), recordmill.__file__
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    pipeline = beam_runner_api_pb2.Pipeline.FromString(Path(staged).read_bytes())
    for (
        environment
    ) in pipeline.components.environments.values():  # a container there, this process here
        environment.Clear()
        environment.urn = "beam:env:embedded_python:v1"
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
