"""The workers of an engine parse files with the user's function.

Bytes and rejects equal the results of one machine. No file is parsed twice after a kill.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.files import tree
from kit.parser_inputs import make_parser_inputs
from kit.runs import rejects_of
from kit.store_server import Store

beam = pytest.importorskip("apache_beam", reason="engines are reached through Apache Beam")

import recordmill  # noqa: E402
from recordmill.base.errors import DataError, UsageError  # noqa: E402
from recordmill.building.workers.shared_files import (  # noqa: E402
    PARSED_FOLDER,
    JobFolder,
    NotSharedError,
    SharedValue,
)
from recordmill.pipelines import parse  # noqa: E402
from recordmill.pipelines.remote.job_error import EngineError  # noqa: E402
from recordmill.shards.run import RunFolder  # noqa: E402
from recordmill.sources.parser.function import to_parser_function  # noqa: E402
from recordmill.sources.parser.pool import WorkerPool  # noqa: E402
from recordmill.storage.listing import list_inputs  # noqa: E402
from recordmill.transforms import parse_files  # noqa: E402
from recordmill.transforms.parse_files import ParseRequest, parse_shared_file  # noqa: E402

# Workers in threads of this process. They get the pickled pipeline, like workers on other hosts.
ENGINE: dict[str, Any] = {
    "runner": "PortableRunner",
    "beam_args": ("--job_endpoint=embed", "--environment_type=beam:env:embedded_python:v1"),
    "preflight": False,
}
HARNESS = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
# Workers in separate processes.
PROCESSES: dict[str, Any] = {
    **ENGINE,
    "beam_args": (
        "--job_endpoint=embed",
        "--environment_type=beam:env:harness_subprocess_python:v1",
        f"--environment_config={HARNESS}",
    ),
}
OPTIONS: dict[str, Any] = {
    "name": "n",
    "num_shards": 2,
    "splits": "train=0.7,test=0.3",
    "max_rejects": 1,
}
PARSER = """
import os, signal, time
import pyarrow as pa

def rows(path):
    with open(os.environ["PARSER_LOG"], "a") as file:
        file.write(os.path.basename(path) + "\\n")
    print("this goes to the log of the worker")
    for number, line in enumerate(open(path)):
        yield {"file": os.path.basename(path), "number": number, "values": [float(word) for word in line.split()]}
    time.sleep(float(os.environ.get("PARSER_SLEEP", "0")))

def batches(path):
    yield pa.RecordBatch.from_pylist(list(rows(path)))
    yield pa.RecordBatch.from_pylist([{"file": "last", "number": 9, "values": [1.0]}])

def fail(path):
    for row in rows(path):
        yield row
        if row["file"] == "2.dat":
            raise ValueError("bad header")

def die(path):
    if path.endswith("2.dat"):
        os.kill(os.getpid(), signal.SIGKILL)
    return list(rows(path))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_parser_inputs(tmp_path, PARSER, monkeypatch)


def parsed_files(folder: Path) -> list[str]:
    """Returns the files that parsers have begun, in order."""
    return (folder / "log").read_text().split() if (folder / "log").exists() else []


def shards(result: recordmill.BuildResult) -> dict[str, bytes]:
    files = tree(Path(result.out)).items()
    return {Path(name).name: data for name, data in files if name.endswith("tfrecord")}


@pytest.mark.parametrize("function", ["rows", "batches", "fail", "die"])
def test_workers_write_the_shards_and_rejects_of_one_machine(folder: Path, function: str) -> None:
    parser = f"my.py:{function}"
    local = recordmill.build("in", "local", parser=parser, **OPTIONS)
    shared = recordmill.build("in", "shared", parser=parser, **ENGINE, **OPTIONS)
    assert shards(shared) == shards(local)
    assert len(shards(local)) == 4
    assert rejects_of(shared) == rejects_of(local)
    assert len(rejects_of(local)) == (function in ("fail", "die"))
    assert shared.manifest.fingerprint == local.manifest.fingerprint
    assert not list(folder.glob("shared/_run-*"))


def test_function_without_a_module_is_sent_to_worker_processes(folder: Path) -> None:
    factor = 3

    def triple(path: str) -> dict[str, Any]:
        return {"file": os.path.basename(path), "size": factor * os.path.getsize(path)}

    result = recordmill.build("in", "out", parser=triple, **PROCESSES)
    sizes = recordmill.open(result.out).to_numpy()["size"].tolist()
    assert sizes == [3 * 32] * 6


def test_function_of_a_file_runs_where_the_file_does_not_exist(folder: Path) -> None:
    function = parse.add_source(to_parser_function("my.py:fail", "parser"))
    (folder / "my.py").unlink()
    pool = WorkerPool(function)
    try:
        answer = pool.parse(str(folder / "in" / "1.dat"), str(folder / "part"))
        assert answer["rows"] == [4]
        answer = pool.parse(str(folder / "in" / "2.dat"), str(folder / "part"))
        assert 'in fail: `raise ValueError("bad header")`: ValueError' in answer["failure"]
    finally:
        pool.close()


@pytest.fixture
def request_of_file(folder: Path) -> SharedValue[ParseRequest]:
    """Request to parse the files of `in/`, in the folder of a run."""
    run = RunFolder.create(folder / "out")
    job_folder = JobFolder(str(folder / "out"), run.id)
    for name in ("shared", PARSED_FOLDER):
        Path(job_folder.run_path(name)).mkdir()
    function = parse.add_source(to_parser_function("my.py:rows", "parser"))
    files = list_inputs(["in"]).files.without_ctimes()
    return job_folder.share_value("parse", ParseRequest(files, function))


def parse_once(request: SharedValue[ParseRequest], number: int = 0) -> None:
    pool = WorkerPool(request.load().function)
    try:
        parse_shared_file(request, number, pool)
    finally:
        pool.close()


def results_of(request: SharedValue[ParseRequest]) -> dict[str, bytes]:
    folder = Path(request.job_folder.run_path(PARSED_FOLDER))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_repeated_attempt_parses_nothing(
    folder: Path, request_of_file: SharedValue[ParseRequest]
) -> None:
    parse_once(request_of_file)
    first = results_of(request_of_file)
    assert len(first) == 2
    parse_once(request_of_file)
    assert results_of(request_of_file) == first
    assert parsed_files(folder) == ["0.dat"]


def test_slower_attempt_leaves_the_result_of_the_first_one(
    folder: Path, request_of_file: SharedValue[ParseRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_once(request_of_file)
    first = results_of(request_of_file)
    # Both attempts began before the result existed.
    monkeypatch.setattr(parse_files, "exists", lambda path: False)
    parse_once(request_of_file)
    assert parsed_files(folder) == ["0.dat", "0.dat"]
    assert first.items() <= results_of(request_of_file).items()


def test_changed_file_ends_the_attempt(
    folder: Path, request_of_file: SharedValue[ParseRequest]
) -> None:
    (folder / "in" / "0.dat").write_text("changed\n")
    with pytest.raises(DataError, match=r"0\.dat: changed"):
        parse_once(request_of_file)
    assert not results_of(request_of_file)


def test_worker_that_does_not_see_the_folder_of_the_run_is_named(
    folder: Path, request_of_file: SharedValue[ParseRequest]
) -> None:
    request_of_file.load()
    (folder / "out").rename(folder / "elsewhere")
    with pytest.raises(NotSharedError, match="all workers must share"):
        parse_once(request_of_file)


def test_files_that_workers_cannot_see_are_refused_before_they_are_parsed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(runner: str, beam_args: Any, probe: Any, progress: Any) -> None:
        assert len(probe.inputs) == 7  # each file, and the last one again
        raise UsageError("a worker does not see it")

    monkeypatch.setattr(parse, "preflight", refuse)
    with pytest.raises(UsageError, match="a worker does not see it"):
        recordmill.build("in", "out", parser="my.py:rows", **{**ENGINE, "preflight": True})
    assert not parsed_files(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_build_continues_without_parsing_files_again(folder: Path, number: int) -> None:
    expected = recordmill.build("in", "undisturbed", parser="my.py:rows", **OPTIONS)
    (folder / "log").unlink()
    code = f"import recordmill; recordmill.build('in', 'out', parser='my.py:rows', **{ENGINE!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PARSER_SLEEP": "1"}, cwd=folder
    )
    wait_until(lambda: len(list(folder.glob(f"out/_run-*/{PARSED_FOLDER}/*.json"))) >= 2)
    process.send_signal(number)
    process.communicate(timeout=120)
    parsed_count = len(list(folder.glob(f"out/_run-*/{PARSED_FOLDER}/*.json")))
    begun_count = len(parsed_files(folder))
    assert 2 <= parsed_count <= begun_count
    result = recordmill.build("in", "out", parser="my.py:rows", **ENGINE, **OPTIONS)
    assert len(parsed_files(folder)) == begun_count + 6 - parsed_count
    assert shards(result) == shards(expected)
    # After SIGKILL, the run folder stays: the process could not report that its job has ended.
    assert len(list(folder.glob("out/_run-*"))) == (number == signal.SIGKILL)


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_files_that_could_not_be_parsed_are_tried_again(folder: Path) -> None:
    options = {**OPTIONS, "max_rejects": 0}
    with pytest.raises(EngineError, match="ValueError: bad header"):
        recordmill.build("in", "out", parser="my.py:fail", **ENGINE, **options)
    (folder / "log").unlink()
    with pytest.raises(EngineError, match="ValueError: bad header"):
        recordmill.build("in", "out", parser="my.py:fail", **ENGINE, **options)
    assert parsed_files(folder) == ["2.dat"]


def test_local_build_uses_files_that_workers_have_parsed(folder: Path) -> None:
    with pytest.raises(EngineError):
        recordmill.build("in", "out", parser="my.py:fail", **ENGINE)
    (folder / "log").unlink()
    result = recordmill.build("in", "out", parser="my.py:fail", max_rejects=1)
    assert parsed_files(folder) == ["2.dat"]
    assert result.read == 21


def test_append_parses_the_new_files_only(folder: Path) -> None:
    recordmill.build("in", "out", parser="my.py:rows", **ENGINE)
    (folder / "log").unlink()
    (folder / "in" / "6.dat").write_text("1 2 3\n")
    result = recordmill.build("in", "out", parser="my.py:rows", append=True, **ENGINE)
    assert parsed_files(folder) == ["6.dat"]
    assert result.records == {"train": 25}


def test_workers_parse_into_a_store(folder: Path, store: Store, out: str) -> None:
    local = recordmill.build("in", "local", parser="my.py:fail", label="file", **OPTIONS)
    with pytest.raises(EngineError):
        recordmill.build("in", out, parser="my.py:fail", label="file", **ENGINE)
    first_keys = store.keys()
    assert len([key for key in first_keys if re.search(f"/{PARSED_FOLDER}/.*json$", key)]) == 5
    (folder / "log").unlink()
    options = {**OPTIONS, "label": "file"}
    result = recordmill.build("in", out, parser="my.py:fail", **ENGINE, **options)
    assert parsed_files(folder) == ["2.dat"]
    stored = {Path(name).name: data for name, data in store.objects(out).items()}
    assert shards(local).items() <= stored.items()
    assert result.rejected == 1
    assert recordmill.verify(result.out) == []
    # The second run leaves no file. The failed run is removed after its lease has expired.
    last_keys = store.keys()
    assert len({key.split("/")[1] for key in last_keys if "/_run-" in key}) == 1


def test_failed_commit_to_a_store_leaves_parsed_files_but_no_shards(
    folder: Path, store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.shards.run.Run.may_commit", lambda *args: False)
        with pytest.raises(EngineError, match="was discarded"):
            recordmill.build("in", out, parser="my.py:fail", **ENGINE, **OPTIONS)
    names = store.objects(out)
    assert {name.split("/")[0][:5] for name in names} == {"_run-"}
    assert len([name for name in names if re.search(f"/{PARSED_FOLDER}/.*json$", name)]) == 5
    (folder / "log").unlink()
    result = recordmill.build("in", out, parser="my.py:fail", **ENGINE, **OPTIONS)
    assert parsed_files(folder) == ["2.dat"]
    assert result.read == 21


def test_objects_of_a_store_get_a_local_copy_that_is_removed(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = recordmill.build("in", "local", parser="my.py:rows", **OPTIONS)
    for path in sorted((folder / "in").iterdir()):
        store.put(f"in/{path.name}", path.read_bytes())
    (folder / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    result = recordmill.build(f"{store.root}/in", "out", parser="my.py:rows", **ENGINE, **OPTIONS)
    assert shards(result) == shards(local)
    assert not list((folder / "tmp").glob("recordmill-parser-*"))
