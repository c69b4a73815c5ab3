"""Builds, fits and reads on Prism: the bytes are those of one process; what is stopped leaves nothing."""

import re
import signal
from pathlib import Path

import pytest
from conftest import fit_and_compare, shards, tree
from driver import Driver, run
from store_server import Store

import recordmill
from recordmill.storage.files import read_range
from recordmill.storage.folders import files_below

pytestmark = pytest.mark.cluster


def test_a_table_gives_the_same_shards(prism: list[str], table: Path, built: Path, tmp_path: Path) -> None:
    run("build", "csv", table, "--out", tmp_path / "out", "--num-shards=6", "--splits=train=0.8,test=0.2", *prism)
    assert shards(tmp_path / "out") == shards(built)
    assert recordmill.verify(tmp_path / "out") == []


def test_images_give_the_same_shards(prism: list[str], images: Path, tmp_path: Path) -> None:
    recordmill.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", images, "--out", tmp_path / "out", "--num-shards=3", "--no-preflight", *prism)
    assert shards(tmp_path / "out") == shards(tmp_path / "local")


def test_a_transform_is_fitted_there_and_its_build(prism: list[str], table: Path, tmp_path: Path) -> None:
    fit_and_compare(table, tmp_path, "--no-preflight", *prism)


def test_a_fit_and_reads_into_a_store_give_what_one_machine_does(
    prism: list[str], table: Path, store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow_transform")
    steps, far, engine = tmp_path / "transform.yaml", f"{store.root}/far", ("--no-preflight", *prism)
    steps.write_text("x: [{impute: mean}, zscore]\nname: {vocabulary: {top_k: 50}}\nid: drop\n")
    options = ("csv", table, "--num-shards=2")
    run("build", *options, "--transform", steps, "--out", far, *engine)
    run("build", *options, "--transform-from", far, "--out", tmp_path / "local")
    run("build", *options, "--transform-from", far, "--out", f"{store.root}/again", *engine)
    built = content(tmp_path / "local")
    assert len([name for name in built if name.endswith(".tfrecord")]) == 2
    assert content(far) == content(f"{store.root}/again") == built
    for to in ("parquet", "npy"):
        run("read", far, "--out", f"{store.root}/{to}", "--to", to, "--file-size=200KB", *engine)
        run("read", far, "--out", tmp_path / to, "--to", to, "--file-size=200KB")
        read = content(tmp_path / to)
        assert content(f"{store.root}/{to}") == read
        assert len(read) > 1
    left = store.keys()
    assert not [key for key in left if "/_run-" in key]


def content(out: Path | str) -> dict[str, bytes]:
    """Name below the folder of its data to the bytes of all that a build, or a read, wrote beside its accounts."""
    found = {re.sub(r"^data-\w+/", "", name): path for name, path in files_below(out).items()}
    return {
        name: read_range(path).tobytes()
        for name, path in found.items()
        if name.endswith((".tfrecord", ".npy", ".parquet"))
    }


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_a_read_of_a_relative_path_gives_the_same_files(prism: list[str], built: Path, tmp_path: Path, to: str) -> None:
    run("read", built, "--out", tmp_path / "local", "--to", to)
    run("read", built.name, "--out", tmp_path / "out", "--to", to, "--no-preflight", *prism, cwd=built.parent)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_stopped_leaves_nothing(prism: list[str], table: Path, tmp_path: Path, signum: int) -> None:
    out = tmp_path / "out"
    driver = Driver("build", "csv", table, "--out", out, "--no-preflight", *prism)
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    code, err = driver.stop(signum)
    assert code == 130
    assert "nothing was written" in err
    assert not out.exists()


def test_what_is_wrong_with_a_record_is_said_in_one_sentence(prism: list[str], tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 500 + '{"x": [1, 2]}\n')
    schema = tmp_path / "schema.pbtxt"
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n' * 5)
    recordmill.build(tmp_path / "good.jsonl", tmp_path / "good")
    schema.write_bytes((tmp_path / "good" / "schema.pbtxt").read_bytes())
    options = ("--out", tmp_path / "out", "--schema", schema, "--no-preflight", "--quiet", *prism)
    code, err = Driver("build", "jsonl", source, *options).end()
    assert code == 1
    (line,) = err.splitlines()
    assert "line 501" in line
    assert not (tmp_path / "out").exists()
