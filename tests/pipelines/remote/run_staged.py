"""Runs a pipeline that was staged for Dataflow: `python run_staged.py PIPELINE FOLDER`.

Uses the recordmill that is installed in FOLDER.
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
    # Dataflow runs a container. Here, the workers are threads of this process.
    for environment in pipeline.components.environments.values():
        environment.Clear()
        environment.urn = "beam:env:embedded_python:v1"
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
