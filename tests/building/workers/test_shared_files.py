"""Workers report files that they can't see, and do not unpickle a replaced plan."""

from pathlib import Path
from typing import Any

import pytest
from kit.image_samples import encode_image
from kit.store_server import Store
from kit.worker_steps import OPTIONS, Steps, begin_steps, check_same
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.progress import Progress
from recordmill.building.workers.shared_files import JobFolder, NotSharedError, _load_cached
from recordmill.building.workers.shared_files import begin_build as start
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.shards.manifest import list_generations
from recordmill.shards.run import RunFolder
from recordmill.storage.files import put_bytes
from recordmill.storage.folders import find_files, join


@pytest.mark.parametrize("hidden", ["shard", "index", "run", "plan"])
def test_file_hidden_from_a_worker_is_reported_and_nothing_is_committed(
    source: str, out: str, tmp_path: Path, store: Store, hidden: str
) -> None:
    out += f"-{hidden}"
    steps = begin_steps(source, out, tmp_path)

    def hide(name: str) -> None:
        (key,) = (key for key in find_files(out) if name in key)
        root = tmp_path / "out" if "://" not in out else None
        if root is not None:
            Path(out, key).unlink()
        else:
            store.client.delete(f"{out.partition('bucket/')[2]}/{key}")

    if hidden == "plan":
        hide(steps.plan.name)
        _load_cached.cache_clear()
        with pytest.raises(
            NotSharedError, match=r"can't be seen on the worker .*: all workers must share"
        ):
            steps.ingest(0)
        return
    plan = steps.ingest_all()
    if hidden == "run":
        hide(bytes(plan.layout.load().sorted_runs[3]["name"]).decode())
        with pytest.raises(NotSharedError, match="can't be seen on the worker"):
            steps.write_shards(plan)
        return
    shards = steps.rename_shards(steps.write_shards(plan))
    data = steps.job_folder.data_path().removeprefix(out).lstrip("/")
    hide(data + {"shard": "/test-00002-of", "index": "/index/train-00001.npy"}[hidden])
    with pytest.raises(
        NotSharedError,
        match=r"\(1 of 16 files\) can't be seen on the worker .*Nothing was committed",
    ):
        steps.finish(plan, shards)
    assert list_generations(out) == []


def test_replaced_plan_or_layout_is_not_unpickled(source: str, out: str, tmp_path: Path) -> None:
    steps = begin_steps(source, out, tmp_path)
    put_bytes(steps.job_folder.run_path("shared", steps.plan.name), b"cos\nsystem\n(S'false'\ntR.")
    _load_cached.cache_clear()
    with pytest.raises(DataError, match="was changed after this build had written it"):
        steps.ingest(0)
    plan = begin_steps(source, f"{out}-2", tmp_path).ingest_all()
    put_bytes(
        plan.layout.job_folder.run_path("shared", plan.layout.name),
        b"cos\nsystem\n(S'false'\ntR.",
    )
    _load_cached.cache_clear()
    with pytest.raises(DataError, match="was changed after this build had written it"):
        plan.layout.load()


def test_class_that_a_worker_does_not_have_is_reported(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfAScript:
        pass

    OfAScript.__qualname__ = "OfAScript"
    monkeypatch.setitem(globals(), "OfAScript", OfAScript)
    job_folder = JobFolder(out, "0" * 12)
    if not job_folder.is_remote:
        Path(job_folder.run_path("shared")).mkdir(parents=True)
    shared = job_folder.share_value("plan", OfAScript())
    monkeypatch.delitem(globals(), "OfAScript")
    with pytest.raises(
        RecordmillError, match=r"'OfAScript'.* must be in a module that is installed there"
    ):
        shared.load()


def write_class_folders(folder: Path) -> None:
    """Writes texts and images into folders of classes, and some outside of them.

    `labels.csv` has rows for most of the images.
    """
    for number in range(14):
        inner = folder / ("", "ant", "bee")[number % 3]
        inner.mkdir(exist_ok=True)
        inner.joinpath(f"{number:02d}.txt").write_text(f"text {number}")
        inner.joinpath(f"{number:02d}.png").write_bytes(
            encode_image("png", Image.new("RGB", (2, number + 1)))
        )
    rows = "".join(
        f"{('', 'ant/', 'bee/')[row % 3]}{row:02d}.png,{row / 3},{'x' * row}\n" for row in range(12)
    )
    folder.joinpath("labels.csv").write_text(f"path,share,word\n{rows}")


@pytest.mark.parametrize("kind", ["csv", "text", "documents", "labels"])
def test_plan_of_workers_has_the_files_and_units_of_one_process(
    source: str, tmp_path: Path, kind: str
) -> None:
    options = {"kind": {"documents": "text", "labels": "images"}.get(kind, kind), **OPTIONS}
    if kind not in ("csv", "text"):
        source = str(tmp_path / "classes")
        write_class_folders(tmp_path.joinpath("classes"))
        options |= {} if kind == "labels" else {"unlabelled": "keep"}
    if kind == "labels":
        options |= {"labels": f"{source}/labels.csv", "max_rejects": 9}
    expected = recordmill.build(source, tmp_path / "one", **options)
    out = str(tmp_path / "out")
    folder = RunFolder.create(out)
    settings = make_options(out, runner="PortableRunner", **options)
    plan = make_plan(source, folder, out, 0, settings, Progress())
    source_of_plan: Any = plan.source
    shared = start(plan, JobFolder(out, folder.id))
    loaded_source: Any = shared.load().source
    assert set(source_of_plan.files.extra_columns) == set(loaded_source.files.extra_columns)
    expected_columns = {
        "documents": {"class_name", "split"},
        "labels": {"feature/word", "feature/label"},
    }
    assert expected_columns.get(kind, set()) - {"split"} <= set(loaded_source.files.extra_columns)
    assert list(loaded_source.files) == list(source_of_plan.files)
    for name in source_of_plan.files.extra_columns:
        assert (
            loaded_source.files.column(name).to_pylist()
            == source_of_plan.files.column(name).to_pylist()
        )
    assert (list(loaded_source.units), list(loaded_source.plan_rejects)) == (
        list(source_of_plan.units),
        list(source_of_plan.plan_rejects),
    )
    assert list(shared.load().unit_groups) == list(plan.unit_groups)
    assert list(find_files(join(out, f"_run-{folder.id}", "shared"))) == [shared.name]
    check_same(out, Steps(shared, Progress()).run_all(), expected)
    folder.release()
