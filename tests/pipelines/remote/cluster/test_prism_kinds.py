"""Prism writes the same files as one process for all inputs, outputs and a store."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver import Driver, run
from engines import shards, tree
from kit.store_server import Store
from PIL import Image

import recordmill
from recordmill.storage.files import read_range
from recordmill.storage.folders import find_files

pytestmark = pytest.mark.cluster


def a_table(folder: Path) -> None:
    rows = (f"{row},{row / 7:.3f},{'abc'[row % 3]},{row % 12}\n" for row in range(5_000))
    (folder / "a.csv").write_text("id,x,name,month\n" + "".join(rows))
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"id,x,name,month\n9000,0.5,d,3\n"))


def lines_of_json(folder: Path) -> None:
    good = "".join(
        json.dumps({"x": n, "y": [n / 2] * (n % 4), "s": f"é{n}"}) + "\n" for n in range(3_000)
    )
    (folder / "a.jsonl").write_text(good + '{"x": oops}\n')
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1, "y": [], "s": ""}\n{"x": 2\n'))


def documents(folder: Path) -> None:
    for number in range(40):
        path = folder / ("good", "bad")[number % 2] / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"of {number}\n" * number)


def pairs(folder: Path) -> None:
    for name in ("images", "masks"):
        (folder / name).mkdir()
        for number in range(30):
            if name == "images" or number % 7:
                Image.new("L", (20 + number, 9), number).save(folder / name / f"{number}.png")


def lines_of_text(folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"line {number}\n" for number in range(2_000)))


def row_groups(folder: Path) -> None:
    table = pa.table(
        {"x": range(4_000), "v": [[1.5] * (n % 3) for n in range(4_000)], "s": ["s"] * 4_000}
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=700)


def arrays(folder: Path) -> None:
    x, y = np.arange(40_000, dtype=np.float32).reshape(4_000, 10), np.arange(4_000)
    np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x[:70], y_test=y[:70])
    np.savez_compressed(folder / "b.npz", x=x, y=y)


def samples(folder: Path) -> None:
    for tar_number in range(2):
        with tarfile.open(folder / f"{tar_number}.tar.gz", "w:gz") as tar:
            for number in range(40):
                for ending, data in (
                    ("cls", b"%d" % (number % 3)),
                    ("json", b'{"x": [%d]}' % number),
                ):
                    (member := tarfile.TarInfo(f"{number}.{ending}")).size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def records(folder: Path) -> None:
    row_groups(folder)
    recordmill.build(folder / "a.parquet", folder / "built", num_shards=2, compression="gzip")
    for number, shard in enumerate(sorted(folder.glob("built/data-*/*.tfrecord.gz"))):
        shard.rename(folder / f"{number}.tfrecord.gz")
    (folder / "a.parquet").unlink()


BUILDS: dict[str, tuple[Callable[[Path], None], str, list[str]]] = {
    "csv": (
        a_table,
        "csv",
        ["--splits=a=0.7,b=0.3", "--split-by=month", "--key=id", "--compression=gzip"],
    ),
    "csv in order": (a_table, "csv", ["--no-shuffle", "--label=name"]),
    "jsonl": (lines_of_json, "jsonl", ["--max-rejects=2"]),
    "documents": (documents, "text", ["--text-mode=documents"]),
    "pairs": (pairs, "images", ["--pair=images,masks", "--max-rejects=9"]),
    "lines": (lines_of_text, "text", ["--text-mode=lines"]),
    "parquet": (row_groups, "parquet", ["--shard-size=20KB"]),
    "numpy": (arrays, "numpy", ["--label=y"]),
    "tfrecord": (records, "tfrecord", []),
    "webdataset": (samples, "webdataset", []),
}


@pytest.mark.parametrize("case", BUILDS)
def test_prism_builds_every_kind_like_one_process(
    prism: list[str], tmp_path: Path, case: str
) -> None:
    make, kind, options = BUILDS[case]
    source = tmp_path / "in"
    source.mkdir()
    make(source)
    inputs = [str(path) for path in sorted(source.glob("*.*"))] or [str(source)]
    size = (
        [] if any(option.startswith("--shard-size") for option in options) else ["--num-shards=3"]
    )
    for out, flags in (("local", []), ("out", ["--no-preflight", *prism])):
        run("build", kind, *inputs, "--out", tmp_path / out, *size, *options, *flags)
    local, remote = (content(tmp_path / out) for out in ("local", "out"))
    assert local == remote
    assert len(local) > 3


OWN_PARSER = """
import os

def parse(path):
    for number, line in enumerate(open(path)):
        yield {"file": os.path.basename(path), "number": number, "text": line}
        if path.endswith("/7.log"):
            os._exit(3)
"""


def test_prism_runs_the_parser_of_the_user_like_one_process(
    prism: list[str], store: Store, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number}.log").write_text("".join(f"line {n}\n" for n in range(50)))
    (tmp_path / "my.py").write_text(OWN_PARSER)
    options = (tmp_path / "in", "--parser", tmp_path / "my.py:parse", "--num-shards=3")
    failed = Driver("build", *options, "--out", tmp_path / "out", *prism)
    assert failed.process.wait(300) == 1
    assert "1 of 951 records was rejected" in failed.read_stderr()
    in_store = f"{store.root}/parsed"
    for out, flags in (("local", []), ("out", prism), (in_store, prism)):
        target = out if out == in_store else tmp_path / out
        run("build", *options, "--out", target, "--max-rejects=1", *flags)
    assert content(tmp_path / "out") == content(tmp_path / "local")
    assert content_of(in_store) == content_of(tmp_path / "local")


def content(out: Path) -> list[object]:
    """Returns the shards, rejects and names of other files of a data set.

    Rejects are listed without the names of their files.
    """
    rejects = sorted(
        line for path in out.glob("rejects/*") for line in path.read_text().splitlines()
    )
    file_names = (path.name for path in out.glob("*") if not path.name.startswith("data-"))
    return [*sorted(shards(out).items()), *rejects, *sorted(file_names)]


FORMS = {
    "parquet": ["--file-size=100KB", "--where=id > 100", "--columns=id,name"],
    "npy": ["--split=train"],
    "npz": ["--sample=0.5"],
    "arrow": [],
    "jsonl": ["--file-size=100KB"],
    "csv": [],
}


@pytest.mark.parametrize("to", FORMS)
def test_prism_reads_to_every_form_like_one_process(
    prism: list[str], built: Path, tmp_path: Path, to: str
) -> None:
    for out, flags in (("local", []), ("out", ["--no-preflight", *prism])):
        run("read", built, "--out", tmp_path / out, "--to", to, *FORMS[to], *flags)
    assert tree(tmp_path / "out") == tree(tmp_path / "local") != {}


def test_prism_reads_to_a_file_per_record_like_one_process(
    prism: list[str], images: Path, tmp_path: Path
) -> None:
    recordmill.build(images, tmp_path / "built", num_shards=3)
    for out, flags in (("local", []), ("out", ["--no-preflight", *prism])):
        run("read", tmp_path / "built", "--out", tmp_path / out, "--to=files", *flags)
    digests = tree(tmp_path / "out")
    assert digests == tree(tmp_path / "local")
    assert len(digests) > 60


def test_prism_fits_a_transform_and_reads_into_a_store(
    prism: list[str], table: Path, store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow_transform")
    steps, in_store, engine = (
        tmp_path / "transform.yaml",
        f"{store.root}/far",
        ("--no-preflight", *prism),
    )
    steps.write_text("x: [{impute: mean}, zscore]\nname: {vocabulary: {top_k: 50}}\nid: drop\n")
    options = ("csv", table, "--num-shards=2")
    run("build", *options, "--transform", steps, "--out", in_store, *engine)
    run("build", *options, "--transform-from", in_store, "--out", tmp_path / "local")
    run("build", *options, "--transform-from", in_store, "--out", f"{store.root}/again", *engine)
    built = content_of(tmp_path / "local")
    assert len([name for name in built if name.endswith(".tfrecord")]) == 2
    assert content_of(in_store) == content_of(f"{store.root}/again") == built
    for to in ("parquet", "npy"):
        run(
            "read",
            in_store,
            "--out",
            f"{store.root}/{to}",
            "--to",
            to,
            "--file-size=200KB",
            *engine,
        )
        run("read", in_store, "--out", tmp_path / to, "--to", to, "--file-size=200KB")
        expected = content_of(tmp_path / to)
        assert content_of(f"{store.root}/{to}") == expected
        assert len(expected) > 1
    keys = store.keys()
    assert not [key for key in keys if "/_run-" in key]


def content_of(out: Path | str) -> dict[str, bytes]:
    """Returns the data files of a build or read, by relative path."""
    paths = {re.sub(r"^data-\w+/", "", name): path for name, path in find_files(out).items()}
    return {
        name: read_range(path).tobytes()
        for name, path in paths.items()
        if name.endswith((".tfrecord", ".npy", ".parquet"))
    }
