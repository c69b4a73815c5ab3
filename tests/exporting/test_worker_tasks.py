"""Workers that share only the run's folder read the files of one machine, and missing files stop
the publication.
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
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two splits, one shard of which has a record whose payload was changed."""
    folder = tmp_path_factory.mktemp("read")
    rows = "".join(f"{at},row {at}\n" for at in range(400))
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
    """The steps of one read, each of which may be called again or left out, as an engine would."""

    run: SharedReadRun
    folder: RunFolder

    def make(self) -> list[FinishedTask]:
        return [
            run_shared_task(self.run, number, Progress())
            for number in range(len(self.run.load().tasks))
        ]

    def take(self) -> list[OutputCounts]:
        return collect_outputs(self.run, str(self.folder.data), f"{self.folder.rejects}/")

    def written(self) -> dict[str, bytes]:
        found = find_files(str(self.folder.data))
        found |= {
            f"rejects/{name}": path for name, path in find_files(str(self.folder.rejects)).items()
        }
        return {name: read_range(path).tobytes() for name, path in found.items()}

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


def of_one_machine(inputs: Path, out: Path, **options: Any) -> dict[str, bytes]:
    recordmill.read(inputs, out, threads=1, **{**OPTIONS, **options})
    found = {name: path for name, path in find_files(str(out)).items() if name != "_read.json"}
    return {name: read_range(path).tobytes() for name, path in found.items()}


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_repeated_steps_and_late_workers_give_the_files_of_one_machine(
    damaged: Path, tmp_path: Path, to: str
) -> None:
    with steps(damaged, tmp_path / "out", to=to) as read:
        first, second = read.make(), read.make()
        assert len(first) > 4
        mixed = [pair[number % 2] for number, pair in enumerate(zip(first, second, strict=True))]
        arrived = pickle.loads(pickle.dumps(mixed))[::-1]
        assert (
            write_finished_list(read.run, arrived)
            == write_finished_list(read.run, second)
            == len(first)
        )  # the first list counts
        read.hide(second[0].output.name)
        run_shared_task(read.run, 0, Progress())  # by a worker that was given up
        results = read.take()
        assert read.written() == of_one_machine(damaged, tmp_path / "one", to=to)
        before = read.written()
        run_shared_task(read.run, 1, Progress())  # another that wakes up late
        assert read.written() == before
    rejected = [result for result in results if result.rejected.total]
    assert len(rejected) == 1
    assert [Path(path).name for path in rejected[0].rejected.files] == [
        f"{rejected[0].output.rpartition('.')[0]}.jsonl"
    ]
    assert sum(result.read for result in results) == 400
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["plan", "folder", "output", "rejects", "list"])
def test_hidden_file_is_reported_and_nothing_is_published(
    damaged: Path, tmp_path: Path, what: str
) -> None:
    with steps(damaged, tmp_path / "out") as read:
        if what in ("plan", "folder"):
            run = read.run
            if what == "plan":
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
        made = read.make()
        if what != "list":
            write_finished_list(read.run, made)
        files = {
            "output": made[2].output,
            "rejects": next(one.rejects for one in made if one.rejects is not None),
        }
        if what in files:
            read.hide(files[what].name)
        match = r"can't be seen on this machine, .*Nothing was committed"
        with pytest.raises(
            NotSharedError, match=match if what == "list" else rf"\(1 of \d+ files\) {match}"
        ):
            read.take()
        assert read.written() == {}


def test_output_of_another_size_or_count_is_refused(damaged: Path, tmp_path: Path) -> None:
    with steps(damaged, tmp_path / "out") as read:
        made = read.make()
        listed = Path(read.run.job_folder.run_path("shared", read.run.load().results_name))
        for wrong in (made[1:], [*made, made[0]], []):
            write_finished_list(read.run, wrong)
            with pytest.raises(RecordmillError, match="not one of each"):
                read.take()
            listed.unlink()
        write_finished_list(read.run, made)
        path = Path(read.run.job_folder.run_path("made", made[-1].output.name))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(RecordmillError, match="were written; nothing was kept"):
            read.take()
        for name in ("../../elsewhere", "000000000000-../x", "/etc/passwd"):
            wrong = [replace(made[0], output=replace(made[0].output, name=name)), *made[1:]]
            listed.unlink()
            write_finished_list(read.run, wrong)
            with pytest.raises(DataError, match="was changed after this read had written it"):
                read.take()
        assert read.written() == {}


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "store"])
def test_outputs_of_an_earlier_attempt_are_reused_and_missing_ones_are_made_again(
    damaged: Path, out: str, tmp_path: Path, remote: bool
) -> None:
    settings = make_settings(**OPTIONS)
    inputs = tmp_path / "in"
    shutil.copytree(damaged, inputs)
    plan = plan_read(str(inputs), settings.plan, threads=1)
    folder = RunFolder.create(tmp_path / "out", index=False)
    FinishedOutputs.create(folder.path, fingerprint_plan(plan, uses_engine=True))
    place = JobFolder(out if remote else str(folder.out), folder.id)

    def attempt(
        kept: Sequence[FinishedTask | None] = (),
    ) -> tuple[SharedReadRun, list[FinishedTask]]:
        _load_cached.cache_clear()
        run = share_read_run(
            place,
            ReadRun(plan, plan.tasks, "parquet", 1, 1, saves_progress=True, finished_tasks=kept),
        )
        return run, [run_shared_task(run, number, Progress()) for number in range(len(plan.tasks))]

    _, first = attempt()
    kept = find_finished_tasks(place, folder, plan.tasks, find_output("parquet"))
    assert [one.output for one in kept if one is not None] == [one.output for one in first]
    gone = first[0].output.name
    if remote:
        remove_objects(place.run_path("made"), [gone])
    else:
        Path(place.run_path("made", gone)).unlink()
    run, second = attempt(kept)
    again = [
        one.number for one, before in zip(second, first, strict=True) if one.output != before.output
    ]
    assert again == [0]
    write_finished_list(run, second)
    results = collect_outputs(
        run,
        place.data_path() if remote else str(folder.data),
        f"{out if remote else folder.path}/rejects/",
    )
    assert sum(one.rejected.total for one in results) == 1
    assert sum(one.read for one in results) == 400
    folder.close()
