"""Builds and reads on each engine write the same bytes as one process.

An error is reported in one sentence.
"""

import signal
from pathlib import Path

import pytest
from driver import Driver, run
from engines import Engine, fit_and_compare, shards, tree

import recordmill
from recordmill.shards.manifest import list_generations, load_manifest

pytestmark = pytest.mark.cluster
SIX = ("--num-shards=6", "--splits=train=0.8,test=0.2")


def test_build_of_a_table_on_an_engine_writes_the_same_shards(
    engine: Engine, table: Path, built: Path, tmp_path: Path
) -> None:
    """The preflight is not disabled, so it must find all hosts."""
    run("build", "csv", table, "--out", tmp_path / "out", *SIX, *engine.flags)
    assert shards(tmp_path / "out") == shards(built)
    assert recordmill.verify(tmp_path / "out") == []


def test_build_of_images_on_an_engine_writes_the_same_shards(
    engine: Engine, images: Path, tmp_path: Path
) -> None:
    recordmill.build(images, tmp_path / "local", num_shards=3)
    run(
        "build",
        "images",
        images,
        "--out",
        tmp_path / "out",
        "--num-shards=3",
        "--no-preflight",
        *engine.flags,
    )
    assert shards(tmp_path / "out") == shards(tmp_path / "local")


def test_append_on_an_engine_writes_the_same_part_as_one_process(
    engine: Engine, table: Path, tmp_path: Path
) -> None:
    header, *lines = table.read_text().splitlines(keepends=True)
    for name, part in (("old", lines[:50_000]), ("new", lines[50_000:])):
        (tmp_path / f"{name}.csv").write_text("".join([header, *part]))
    old_csv, all_csvs = tmp_path / "old.csv", (tmp_path / "old.csv", tmp_path / "new.csv")
    manifests = []
    for name, flags in (("local", ()), ("out", ("--no-preflight", *engine.flags))):
        out = tmp_path / name
        run("build", "csv", old_csv, "--out", out, "--name=same", *SIX)
        for _ in range(2):  # the second append has nothing to do
            run("build", "csv", *all_csvs, "--out", out, "--append", *flags)
        assert list_generations(out) == [1, 2]
        assert recordmill.verify(out) == []
        manifests.append(load_manifest(out))
    local, remote = manifests
    assert [part.splits for part in local.parts] == [part.splits for part in remote.parts]
    assert local.statistics == remote.statistics
    assert sum(remote.records.values()) == 60_000


def test_transform_is_fitted_and_built_on_an_engine(
    engine: Engine, table: Path, tmp_path: Path
) -> None:
    fit_and_compare(table, tmp_path, "--no-preflight", *engine.flags)


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_read_of_a_relative_path_on_an_engine_writes_the_same_files(
    engine: Engine, built: Path, tmp_path: Path, to: str
) -> None:
    run("read", built, "--out", tmp_path / "local", "--to", to)
    run(
        "read",
        built.name,
        "--out",
        tmp_path / "out",
        "--to",
        to,
        "--no-preflight",
        *engine.flags,
        cwd=built.parent,
    )
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_out_that_workers_cannot_see_is_refused(engine: Engine, table: Path) -> None:
    if engine.hidden is None:
        pytest.skip("Prism's workers are on this machine")
    code, err = Driver(
        "build", "csv", table, "--out", engine.hidden / "out", "--quiet", *engine.flags
    ).end()
    assert code == 2
    (line,) = err.splitlines()
    assert "does not see it" in line
    assert "name a folder that all workers see" in line
    assert not (engine.hidden / "out").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_stopped_driver_leaves_nothing(
    engine: Engine, table: Path, tmp_path: Path, signum: int
) -> None:
    out = tmp_path / "out"
    driver = Driver("build", "csv", table, "--out", out, "--no-preflight", *engine.flags)
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    code, err = driver.stop(signum)
    assert engine.live_jobs() == []
    assert code == 130
    assert "nothing was written" in err
    assert not out.exists()


def test_bad_record_on_an_engine_is_reported_in_one_sentence(
    engine: Engine, tmp_path: Path
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 500 + '{"x": [1, 2]}\n')
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n' * 5)
    recordmill.build(tmp_path / "good.jsonl", tmp_path / "good")
    options = (
        "--out",
        tmp_path / "out",
        "--schema",
        tmp_path / "good" / "schema.pbtxt",
        "--no-preflight",
        "--quiet",
    )
    code, err = Driver("build", "jsonl", source, *options, *engine.flags).end()
    assert code == 1
    (line,) = err.splitlines()  # no output of Beam or Java
    assert line.startswith("recordmill: error: ")
    assert "line 501" in line
    if engine.hidden is not None:
        trace = Path(line.rpartition("complete output of the engine: ")[2].rstrip(")"))
        assert "Traceback (most recent call last)" in trace.read_text()
        trace.unlink()
    assert not (tmp_path / "out").exists()
