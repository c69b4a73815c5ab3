"""The error text of an engine becomes one sentence."""

from pathlib import Path

import pytest

from recordmill.pipelines.remote.job_error import (
    make_engine_error,
    summarize_error,
)

FLINK = """java.util.concurrent.ExecutionException: org.apache.flink.JobExecutionException: Job execution failed.
	at org.apache.flink.client.program.ContextEnvironment.getJobExecutionResult(ContextEnvironment.java:171)
Caused by: org.apache.beam.sdk.util.UserCodeException: java.lang.RuntimeException: Error received from SDK harness for \
instruction 7: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in apache_beam.runners.common.DoFnRunner.process
  File "/srv/recordmill/building/ingest.py", line 90, in ingest
    raise DataError("no number", source=file, place="line 3")
recordmill.base.errors.DataError: a.csv: line 3: no number: 'x' [while running '[1]Ingest']

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "apache_beam/runners/worker/sdk_worker.py", line 334, in _execute
recordmill.base.errors.DataError: a.csv: line 3: no number: 'x' [while running '[1]Ingest']

	at
org.apache.beam.runners.fnexecution.control.FnApiControlClient.onNext(FnApiControlClient.java:179)
Caused by: java.lang.RuntimeException: Error received
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (FLINK, "a.csv: line 3: no number: 'x'"),
        (
            "Traceback\nModuleNotFoundError: No module named 'recordmill.building'\n at x",
            "no module 'recordmill': install",
        ),
        (
            "a.b.C: x\nCaused by: java.lang.OutOfMemoryError: Direct buffer memory\n",
            "ran out of memory (Direct buffer memory)",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/x/plan.pickle'",
            "'/x/plan.pickle'",
        ),
        (
            "java.util.X: outer\nCaused by: java.lang.IllegalStateException: no slots\n\tat y",
            "no slots",
        ),
        (
            "Pipeline recordmill-x_1-2 failed in state FAILED: java.lang.X: requirement failed: a",
            "requirement failed: a",
        ),
        (
            "Traceback\nMemoryError [while running 'Ingest']\n",
            "a worker ran out of memory: use less memory=",
        ),
        (
            "Traceback\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 PiB\n\tat x",
            "a worker ran out of memory (Unable to allocate 1.00 PiB): use less memory=",
        ),
        ("", "the engine gave no reason"),
        (
            "RuntimeError: recordmill.shards.rejects.TooManyRejects: 1 of 5 were rejected:\n  a.jsonl: line 5: "
            "x\nMend them\n\n\tat z",
            "1 of 5 were rejected: a.jsonl: line 5: x. Mend them",
        ),
    ],
)
def test_error_text_of_an_engine_becomes_one_sentence(text: str, sentence: str) -> None:
    summary = summarize_error(text)
    assert sentence in summary
    assert "\n" not in summary
    assert "Pipeline " not in summary
    assert len(summary) <= 700


def test_complete_error_text_is_kept_in_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = make_engine_error(FLINK, "recordmill-build-x")
    path = Path(str(error).rpartition(": ")[2].rstrip(")"))
    assert path.read_text() == FLINK
    assert path.parent.parent == tmp_path
