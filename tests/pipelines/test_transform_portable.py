"""A saved transform holds nothing of where and when it was fitted: the same fit is the same files, without a path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformed_set import DECLARED, write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

from recordmill.pipelines.build import build
from recordmill.preprocessing.metadata import restore
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, load

CHILD = """
import sys
from recordmill.pipelines.build import build
from transformed_set import DECLARED
build(sys.argv[1], sys.argv[2], transform={"age": "log1p"})  # so that functions and tensors have other numbers
build(sys.argv[1], sys.argv[2], transform=DECLARED, overwrite=True, name="rides")
"""


@pytest.mark.sweep
def test_a_fit_in_another_process_and_folder_gives_the_same_files(tmp_path: Path) -> None:
    write_csv(tmp_path / "rides.csv", rows=300)
    here, there = tmp_path / "here", tmp_path / "some/where/else"
    there.parent.mkdir(parents=True)
    build(tmp_path / "rides.csv", here, transform=DECLARED, name="rides")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "rides.csv"), str(there)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert load(here).transform == load(there).transform
    assert load(here).fingerprint == load(there).fingerprint
    folder = here / load(here).parts[-1].folder / TRANSFORM_FOLDER
    for path in folder.rglob("*"):
        assert path.is_dir() or os.fsencode(tmp_path) not in path.read_bytes(), path
    assert (folder / "transform_fn/saved_model.pb").exists()


@pytest.mark.sweep
def test_two_transforms_with_vocabularies_of_one_name_stay_apart_in_one_process(tmp_path: Path) -> None:
    """Tables of one name are one table in a process."""
    saved = []
    for words in ("abc", "cba"):
        (tmp_path / f"{words}.csv").write_text(
            "word,n\n" + "".join(f"{w},{i}\n" * (i + 1) for i, w in enumerate(words))
        )
        out = tmp_path / words
        build(tmp_path / f"{words}.csv", out, transform={"word": "vocabulary"})
        manifest = load(out)
        folder = out / manifest.parts[-1].folder / TRANSFORM_FOLDER
        saved.append(restore(str(folder), manifest.transform, from_pbtxt(manifest.schema)))
    import pyarrow as pa

    batch = pa.RecordBatch.from_pydict({"word": pa.array(["a", "b", "c"], pa.large_string()), "n": [0, 1, 2]})
    made = [one.apply(batch)[0].column("word").to_pylist() for one in saved]
    assert made == [[2, 1, 0], [0, 1, 2]]
