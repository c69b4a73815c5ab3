"""Workers that share only the run's folder write the same files as one machine.

Nothing is published if a file is missing.
"""

import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import recordmill
from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.progress import Progress
from recordmill.building.workers.shared_files import JobFolder, NotSharedError, _load_cached
from recordmill.exporting.plan import plan_read
from recordmill.exporting.resume import FinishedOutputs, fingerprint_plan
from recordmill.exporting.task import OutputCounts
from recordmill.exporting.worker_tasks import (
    FinishedTask,
    ReadRun,
    SharedReadRun,
    collect_outputs,
    find_finished_tasks,
    run_shared_task,
    share_read_run,
    write_finished_list,
)
from recordmill.pipelines.read_options import make_settings
from recordmill.records.writers.outputs import find_output
from recordmill.shards.run import RunFolder
from recordmill.storage.files import read_range, remove_objects
from recordmill.storage.folders import find_files

OPTIONS: dict[str, Any] = {"to": "parquet", "file_size": 3000, "max_rejects": 5}


@pytest.fixture(scope="module")
def damaged_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two splits. The payload of one record is damaged."""
    folder = tmp_path_factory.mktemp("read")
    rows = "".join(f"{number},row {number}\n" for number in range(400))
    (folder / "in.csv").write_text("a,b\n" + rows)
    recordmill.build(
        folder / "in.csv", folder / "out", num_shards=3, splits="train=0.8,test=0.2", name="same"
    )
    shard = next(
        path
        for path in sorted((folder / "out").glob("data-*/*"))
        if path.name.startswith("train-00001")
    )
    content = bytearray(shard.read_bytes())
    content[1000] ^= 255
    shard.chmod(0o644)
    shard.write_bytes(content)
    return folder / "out"


@dataclass
class Steps:
    """The steps of one read.

    Tests repeat steps or leave them out, like an engine.
    """

    run: SharedReadRun
    folder: RunFolder

    def make(self) -> list[FinishedTask]:
        return [
            run_shared_task(self.run, number, Progress())
            for number in range(len(self.run.load().tasks))
        ]

    def take(self) -> list[OutputCounts]:
        return collect_outputs(self.run, str(self.folder.data), f"{self.folder.rejects}/")

    def read_outputs(self) -> dict[str, bytes]:
        paths = find_files(str(self.folder.data))
        paths |= {
            f"rejects/{name}": path for name, path in find_files(str(self.folder.rejects)).items()
        }
        return {name: read_range(path).tobytes() for name, path in paths.items()}

    def hide(self, name: str) -> None:
        Path(self.run.job_folder.run_path("made", name)).unlink()


@contextmanager
def steps(inputs: Path, out: Path, **options: Any) -> Iterator[Steps]:
    settings = make_settings(**{**OPTIONS, **options})
    folder = RunFolder.create(out, index=False)
    try:
        plan = plan_read(str(inputs), settings.plan, threads=1)
        run = share_read_run(
            JobFolder(str(out), folder.id), ReadRun(plan, plan.tasks, settings.plan.output.to, 1, 1)
        )
        _load_cached.cache_clear()
        yield Steps(run, folder)
    finally:
        folder.close()


def read_on_one_machine(inputs: Path, out: Path, **options: Any) -> dict[str, bytes]:
    recordmill.read(inputs, out, threads=1, **{**OPTIONS, **options})
    paths = {name: path for name, path in find_files(str(out)).items() if name != "_read.json"}
    return {name: read_range(path).tobytes() for name, path in paths.items()}


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_repeated_steps_and_late_workers_write_the_files_of_one_machine(
    damaged_set: Path, tmp_path: Path, to: str
) -> None:
    with steps(damaged_set, tmp_path / "out", to=to) as run_steps:
        first, second = run_steps.make(), run_steps.make()
        assert len(first) > 4
        mixed_tasks = [
            pair[number % 2] for number, pair in enumerate(zip(first, second, strict=True))
        ]
        received_tasks = pickle.loads(pickle.dumps(mixed_tasks))[::-1]
        # The list of the first call is kept.
        assert (
            write_finished_list(run_steps.run, received_tasks)
            == write_finished_list(run_steps.run, second)
            == len(first)
        )
        run_steps.hide(second[0].output.name)
        # A worker that was given up repeats task 0.
        run_shared_task(run_steps.run, 0, Progress())
        results = run_steps.take()
        assert run_steps.read_outputs() == read_on_one_machine(damaged_set, tmp_path / "one", to=to)
        files = run_steps.read_outputs()
        # Another worker wakes up late and repeats task 1.
        run_shared_task(run_steps.run, 1, Progress())
        assert run_steps.read_outputs() == files
    rejecting_results = [result for result in results if result.rejected.total]
    assert len(rejecting_results) == 1
    assert [Path(path).name for path in rejecting_results[0].rejected.files] == [
        f"{rejecting_results[0].output.rpartition('.')[0]}.jsonl"
    ]
    assert sum(result.read for result in results) == 400
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hidden_file", ["plan", "folder", "output", "rejects", "list"])
def test_hidden_file_is_reported_and_nothing_is_published(
    damaged_set: Path, tmp_path: Path, hidden_file: str
) -> None:
    with steps(damaged_set, tmp_path / "out") as run_steps:
        if hidden_file in ("plan", "folder"):
            run = run_steps.run
            if hidden_file == "plan":
                Path(run.job_folder.run_path("shared", run.name)).unlink()
                _load_cached.cache_clear()
            else:
                run.load()
                run = replace(run, job_folder=replace(run.job_folder, id="000000000000"))
            with pytest.raises(
                NotSharedError, match=r"can't be seen on the worker .*: all workers must share"
            ):
                run_shared_task(run, 0, Progress())
            return
        tasks = run_steps.make()
        if hidden_file != "list":
            write_finished_list(run_steps.run, tasks)
        files = {
            "output": tasks[2].output,
            "rejects": next(task.rejects for task in tasks if task.rejects is not None),
        }
        if hidden_file in files:
            run_steps.hide(files[hidden_file].name)
        match = r"can't be seen on this machine, .*Nothing was committed"
        with pytest.raises(
            NotSharedError, match=match if hidden_file == "list" else rf"\(1 of \d+ files\) {match}"
        ):
            run_steps.take()
        assert run_steps.read_outputs() == {}


def test_output_of_another_size_or_count_is_refused(damaged_set: Path, tmp_path: Path) -> None:
    with steps(damaged_set, tmp_path / "out") as run_steps:
        tasks = run_steps.make()
        list_path = Path(
            run_steps.run.job_folder.run_path("shared", run_steps.run.load().results_name)
        )
        for changed_tasks in (tasks[1:], [*tasks, tasks[0]], []):
            write_finished_list(run_steps.run, changed_tasks)
            with pytest.raises(RecordmillError, match="not one of each"):
                run_steps.take()
            list_path.unlink()
        write_finished_list(run_steps.run, tasks)
        path = Path(run_steps.run.job_folder.run_path("made", tasks[-1].output.name))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(RecordmillError, match="were written; nothing was kept"):
            run_steps.take()
        for name in ("../../elsewhere", "000000000000-../x", "/etc/passwd"):
            changed_tasks = [
                replace(tasks[0], output=replace(tasks[0].output, name=name)),
                *tasks[1:],
            ]
            list_path.unlink()
            write_finished_list(run_steps.run, changed_tasks)
            with pytest.raises(DataError, match="was changed after this read had written it"):
                run_steps.take()
        assert run_steps.read_outputs() == {}


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "store"])
def test_outputs_of_an_earlier_attempt_are_reused_and_missing_ones_are_made_again(
    damaged_set: Path, out: str, tmp_path: Path, remote: bool
) -> None:
    settings = make_settings(**OPTIONS)
    inputs = tmp_path / "in"
    shutil.copytree(damaged_set, inputs)
    plan = plan_read(str(inputs), settings.plan, threads=1)
    folder = RunFolder.create(tmp_path / "out", index=False)
    FinishedOutputs.create(folder.path, fingerprint_plan(plan, uses_engine=True))
    location = JobFolder(out if remote else str(folder.out), folder.id)

    def attempt(
        finished_tasks: Sequence[FinishedTask | None] = (),
    ) -> tuple[SharedReadRun, list[FinishedTask]]:
        _load_cached.cache_clear()
        run = share_read_run(
            location,
            ReadRun(
                plan,
                plan.tasks,
                "parquet",
                1,
                1,
                saves_progress=True,
                finished_tasks=finished_tasks,
            ),
        )
        return run, [run_shared_task(run, number, Progress()) for number in range(len(plan.tasks))]

    _, first = attempt()
    finished_tasks = find_finished_tasks(location, folder, plan.tasks, find_output("parquet"))
    assert [item.output for item in finished_tasks if item is not None] == [
        item.output for item in first
    ]
    removed_name = first[0].output.name
    if remote:
        remove_objects(location.run_path("made"), [removed_name])
    else:
        Path(location.run_path("made", removed_name)).unlink()
    run, second = attempt(finished_tasks)
    repeated = [
        item.number
        for item, first_task in zip(second, first, strict=True)
        if item.output != first_task.output
    ]
    assert repeated == [0]
    write_finished_list(run, second)
    results = collect_outputs(
        run,
        location.data_path() if remote else str(folder.data),
        f"{out if remote else folder.path}/rejects/",
    )
    assert sum(item.rejected.total for item in results) == 1
    assert sum(item.read for item in results) == 400
    folder.close()
