"""Workers that share only OUT build the bytes of one machine, and missing files are reported
before the commit.
"""

import resource
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import files_in
from kit.image_samples import encoded
from kit.store_server import Store
from kit.worker_steps import Steps
from PIL import Image

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.progress import Progress
from recordmill.building.commit import CommitConflict
from recordmill.building.finish_build import RecordCountError
from recordmill.building.workers import shard_planning as surveys
from recordmill.building.workers.shards import commit_shared_build, write_shard_attempt
from recordmill.building.workers.shared_files import JobFolder, NotSharedError, _load_cached
from recordmill.building.workers.shared_files import begin_build as start
from recordmill.building.workers.sorted_runs import find_bucket_slices
from recordmill.pipelines.build import make_plan
from recordmill.pipelines.build_options import make_options
from recordmill.shards.manifest import list_generations, load_manifest
from recordmill.shards.rejects import TooManyRejects
from recordmill.shards.run import RunFolder
from recordmill.storage.files import put_bytes, read_range
from recordmill.storage.folders import exists, find_files, join

OPTIONS: dict[str, Any] = {
    "num_shards": 4,
    "splits": "train=0.7,test=0.3",
    "name": "same",
    "max_rejects": 3,
}


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    if request.param == "folder":
        return str(tmp_path / "out")
    store: Store = request.getfixturevalue("store")
    return f"{store.root}/{request.node.originalname}"


@pytest.fixture
def source(tmp_path: Path) -> str:
    """12 CSV files, of which one has a row too many."""
    (tmp_path / "in").mkdir()
    for number in range(12):
        rows = "".join(f"{number},{row},{'x' * (row % 40)}\n" for row in range(100))
        (tmp_path / "in" / f"{number:02d}.csv").write_text(
            f"a,b,c\n{rows}{'1,2,3,4' if number == 7 else ''}"
        )
    return str(tmp_path / "in")


def begin(source: str, out: str, tmp_path: Path, **options: Any) -> Steps:
    """With a group for each of the files, as they would be if they were large."""
    planned = {"kind": "csv", **OPTIONS, **options}
    return Steps.begin(source, out, tmp_path / "private", **planned)


def of_one_machine(source: str, tmp_path: Path, **options: Any) -> recordmill.BuildResult:
    return recordmill.build(source, tmp_path / "one", kind="csv", **{**OPTIONS, **options})


def check_same(out: str, manifest: Any, one: recordmill.BuildResult) -> None:
    part = one.manifest.parts[0].folder
    assert files_in(out, manifest.parts[0].folder) == files_in(one.out, part)
    assert manifest.fingerprint == one.manifest.fingerprint
    assert load_manifest(out) == manifest
    assert recordmill.verify(out) == []


@pytest.mark.parametrize(
    "options", [{}, {"num_shards": None, "shard_size": 900, "compression": "gzip"}]
)
def test_workers_build_the_bytes_of_one_machine(
    source: str, out: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    out += f"-{options.get('compression')}"
    steps = begin(source, out, tmp_path, **options)
    manifest = steps.all()
    one = of_one_machine(source, tmp_path, **options)
    check_same(out, manifest, one)
    assert (manifest.rejects["count"], len(manifest.rejects["files"])) == (1, 1)
    assert b"4 fields" in read_range(join(out, *manifest.rejects["files"][0].split("/"))).tobytes()
    steps.job_folder.open_run().remove_work_files()
    assert not [name for name in find_files(out) if name.startswith("_run-")]
    assert not list((tmp_path / "temporary").glob("work-*"))


def test_worker_with_another_zlib_is_refused(
    source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, plain = (
        begin(source, f"{out}-{how}", tmp_path, compression=how) for how in ("gzip", "none")
    )
    monkeypatch.setattr("zlib.ZLIB_RUNTIME_VERSION", "1.2.3.of-the-worker")
    with pytest.raises(
        RecordmillError, match=r"1\.2\.3\.of-the-worker, and .* compression=\"none\""
    ):
        packed.ingest(0)
    plain.ingest(0)


def test_empty_shards_leave_no_gap_in_the_numbers(out: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "a\n" + "".join(f"{'x' * (5000 if at % 3 == 0 else 10)}\n" for at in range(30))
    )
    options = {"num_shards": None, "shard_size": 600, "splits": None}
    manifest = begin(str(tmp_path / "a.csv"), out, tmp_path, **options).all()
    check_same(out, manifest, of_one_machine(str(tmp_path / "a.csv"), tmp_path, **options))
    assert (
        len(manifest.shards()) < sum(shard.framed_bytes for *_, shard in manifest.shards()) // 600
    )


def test_many_sorted_runs_are_merged_before_shards_are_written(
    source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "FAN_IN", 3)
    monkeypatch.setattr(surveys, "MERGED_RUN_BYTES", 4000)
    steps = begin(source, out, tmp_path)
    before = steps.survey()
    layout = before.layout.load()
    assert len(layout.sorted_runs) == 12
    assert before.num_merges > 4  # groups of at most 3 runs, in several ranges of the keys
    found = steps.merged(before)
    runs = found.layout.load().sorted_runs
    assert len(runs) == before.num_merges
    assert (
        len(
            {tuple(one) for one in np.stack([runs["begin_bucket"], runs["end_bucket"]], 1).tolist()}
        )
        > 1
    )
    for number in range(found.num_shards):
        first, last = layout.boundaries.table[["begin_bucket", "end_bucket"]][number].item()
        near, far = (
            find_bucket_slices(steps.job_folder, some, first, last)
            for some in (runs, layout.sorted_runs)
        )
        assert sum(piece.records for piece in near) == sum(piece.records for piece in far) > 0
    check_same(
        out, steps.finish(found, steps.put(steps.make(found))), of_one_machine(source, tmp_path)
    )


def test_repeated_steps_and_a_late_worker_do_not_change_the_data_set(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin(source, out, tmp_path)
    steps.ingest(3)  # an attempt that nobody accounts for
    found = steps.survey()
    again = steps.survey()
    assert found.layout != again.layout
    made = steps.make(again)
    second = steps.make(again)
    mixed = [pair[number % 2] for number, pair in enumerate(zip(made, second, strict=True))]
    placed = steps.put(mixed)
    assert (
        steps.put(second) == placed
    )  # another attempt at the names, of other files with the same bytes
    manifest = steps.finish(again, placed)
    assert steps.finish(again, placed) == manifest
    write_shard_attempt(steps.plan, again, 0, steps.progress)  # by a worker that was given up
    assert steps.finish(again, steps.put(made)) == manifest
    check_same(out, manifest, of_one_machine(source, tmp_path))
    steps.job_folder.open_run().remove_work_files()
    _load_cached.cache_clear()
    with pytest.raises((NotSharedError, FileNotFoundError)):
        write_shard_attempt(steps.plan, again, 0, steps.progress)
    assert (
        commit_shared_build(steps.plan, again, placed) == manifest
    )  # repeated when all is removed
    check_same(out, manifest, of_one_machine(source, tmp_path, overwrite=True))


@pytest.mark.parametrize("what", ["shard", "index", "run", "plan"])
def test_file_hidden_from_a_worker_is_reported_and_nothing_is_committed(
    source: str, out: str, tmp_path: Path, store: Store, what: str
) -> None:
    out += f"-{what}"
    steps = begin(source, out, tmp_path)

    def hide(name: str) -> None:
        (key,) = (key for key in find_files(out) if name in key)
        root = tmp_path / "out" if "://" not in out else None
        if root is not None:
            Path(out, key).unlink()
        else:
            store.client.delete(f"{out.partition('bucket/')[2]}/{key}")

    if what == "plan":
        hide(steps.plan.name)
        _load_cached.cache_clear()
        with pytest.raises(
            NotSharedError, match=r"can't be seen on the worker .*: all workers must share"
        ):
            steps.ingest(0)
        return
    found = steps.survey()
    if what == "run":
        hide(bytes(found.layout.load().sorted_runs[3]["name"]).decode())
        with pytest.raises(NotSharedError, match="can't be seen on the worker"):
            steps.make(found)
        return
    placed = steps.put(steps.make(found))
    data = steps.job_folder.data_path().removeprefix(out).lstrip("/")
    hide(data + {"shard": "/test-00002-of", "index": "/index/train-00001.npy"}[what])
    with pytest.raises(
        NotSharedError,
        match=r"\(1 of 16 files\) can't be seen on the worker .*Nothing was committed",
    ):
        steps.finish(found, placed)
    assert list_generations(out) == []


def test_shard_of_another_size_or_checksum_is_not_committed(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin(source, out, tmp_path)
    found = steps.survey()
    placed = steps.put(steps.make(found))
    with pytest.raises(RecordCountError, match="differ from those read"):
        steps.finish(found, placed[1:])
    with pytest.raises(RecordCountError, match="differ from those read"):
        steps.finish(found, [*placed, placed[0]])
    name, size = placed[0].files[-1]
    put_bytes(steps.job_folder.data_path(*name.split("/")), b"short")
    with pytest.raises(RecordmillError, match=f"5 bytes, not those that were written|{size}"):
        steps.finish(found, placed)
    assert list_generations(out) == []
    discard(steps.job_folder)
    assert not [name for name in find_files(out) if exists(out)] or not exists(out)


def test_replaced_plan_or_layout_is_not_unpickled(source: str, out: str, tmp_path: Path) -> None:
    steps = begin(source, out, tmp_path)
    put_bytes(steps.job_folder.run_path("shared", steps.plan.name), b"cos\nsystem\n(S'false'\ntR.")
    _load_cached.cache_clear()
    with pytest.raises(DataError, match="was changed after this build had written it"):
        steps.ingest(0)
    found = begin(source, f"{out}-2", tmp_path).survey()
    put_bytes(
        found.layout.job_folder.run_path("shared", found.layout.name),
        b"cos\nsystem\n(S'false'\ntR.",
    )
    _load_cached.cache_clear()
    with pytest.raises(DataError, match="was changed after this build had written it"):
        found.layout.load()


def test_full_disk_of_a_worker_is_reported_with_its_host(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin(source, out, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RecordmillError) as told:
            steps.ingest(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    where = steps.job_folder.run_path() if "://" not in out else str(tmp_path / "temporary")
    assert str(told.value).startswith(where)
    assert f" on {socket.gethostname()}: File too large; nothing was written" in str(told.value)


def test_class_that_a_worker_does_not_have_is_reported(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfAScript:
        pass

    OfAScript.__qualname__ = "OfAScript"
    monkeypatch.setitem(globals(), "OfAScript", OfAScript)
    place = JobFolder(out, "0" * 12)
    if not place.is_remote:
        Path(place.run_path("shared")).mkdir(parents=True)
    shared = place.share_value("plan", OfAScript())
    monkeypatch.delitem(globals(), "OfAScript")
    with pytest.raises(
        RecordmillError, match=r"'OfAScript'.* must be in a module that is installed there"
    ):
        shared.load()


def test_build_over_the_reject_limit_ends_before_a_shard_is_made(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin(source, out, tmp_path, max_rejects=0)
    with pytest.raises(TooManyRejects, match="1 of 1201 records was rejected"):
        steps.survey()
    other = begin(source, f"{out}-2", tmp_path, num_shards=1100)
    with pytest.raises(UsageError, match="has only"):
        other.survey()


def test_of_two_builds_one_commits_and_the_other_removes_its_files(
    source: str, out: str, tmp_path: Path
) -> None:
    first, second = (begin(source, out, tmp_path) for _ in range(2))
    kept = first.all()
    with pytest.raises(CommitConflict, match="another build committed"):
        second.all()
    discard(second.job_folder)
    discard(first.job_folder)  # as a driver that lost the answer of its job would
    assert first.job_folder.open_run().committed_manifest() == kept
    folders = {
        name.split("/")[0] for name in find_files(out) if name.startswith(("data-", "_run-"))
    }
    assert folders == {first.job_folder.data_folder_name}
    assert recordmill.verify(out) == []


def discard(place: JobFolder) -> None:
    """What a driver does whose job has failed."""
    run = place.open_run()
    run.discard()
    run.remove_work_files()


def in_classes(folder: Path) -> None:
    """Texts, and images with a row each of labels, in folders of classes; files beside these."""
    for number in range(14):
        inner = folder / ("", "ant", "bee")[number % 3]
        inner.mkdir(exist_ok=True)
        inner.joinpath(f"{number:02d}.txt").write_text(f"text {number}")
        inner.joinpath(f"{number:02d}.png").write_bytes(
            encoded("png", Image.new("RGB", (2, number + 1)))
        )
    rows = "".join(
        f"{('', 'ant/', 'bee/')[at % 3]}{at:02d}.png,{at / 3},{'x' * at}\n" for at in range(12)
    )
    folder.joinpath("labels.csv").write_text(f"path,share,word\n{rows}")


@pytest.mark.parametrize("kind", ["csv", "text", "documents", "labels"])
def test_plan_of_workers_has_the_files_and_units_of_one_process(
    source: str, tmp_path: Path, kind: str
) -> None:
    options = {"kind": {"documents": "text", "labels": "images"}.get(kind, kind), **OPTIONS}
    if kind not in ("csv", "text"):
        source = str(tmp_path / "classes")
        in_classes(tmp_path.joinpath("classes"))
        options |= {} if kind == "labels" else {"unlabelled": "keep"}
    if kind == "labels":
        options |= {"labels": f"{source}/labels.csv", "max_rejects": 9}
    one = recordmill.build(source, tmp_path / "one", **options)
    out = str(tmp_path / "out")
    folder = RunFolder.create(out)
    settings = make_options(out, runner="PortableRunner", **options)
    plan = make_plan(source, folder, out, 0, settings, Progress())
    given: Any = plan.source
    shared = start(plan, JobFolder(out, folder.id))
    far: Any = shared.load().source
    assert set(given.files.extra_columns) == set(far.files.extra_columns)
    known = {"documents": {"class_name", "split"}, "labels": {"feature/word", "feature/label"}}
    assert known.get(kind, set()) - {"split"} <= set(far.files.extra_columns)
    assert list(far.files) == list(given.files)
    for name in given.files.extra_columns:
        assert far.files.column(name).to_pylist() == given.files.column(name).to_pylist()
    assert (list(far.units), list(far.plan_rejects)) == (
        list(given.units),
        list(given.plan_rejects),
    )
    assert list(shared.load().unit_groups) == list(plan.unit_groups)
    assert list(find_files(join(out, f"_run-{folder.id}", "shared"))) == [shared.name]
    check_same(out, Steps(shared, Progress()).all(), one)
    folder.release()
