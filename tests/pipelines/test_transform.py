"""`recordmill transform` applies the transform of a data set to new data, without a fit."""

import os
from pathlib import Path

import pytest
from kit.runs import run_python
from kit.transformed_set import DECLARED, write_csv

import recordmill
from recordmill.__main__ import main
from recordmill.pipelines.build import build
from recordmill.preprocessing.metadata import restore_transform
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, load_manifest

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")


def build_old(transform: str) -> None:
    """Builds `old` from old.csv with a transform."""
    command = f"build csv old.csv --out old --label=label --transform={transform} --quiet"
    assert main(command.split()) == 0


@pytest.mark.sweep
def test_transform_command_applies_the_old_transform_to_new_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("old.csv"), rows=400)
    write_csv(Path("new.csv"), rows=50, seed=8)
    Path("t.yaml").write_text("age: zscore\ncity: {vocabulary: {top_k: 3}}\nlabel: keep\n")
    build_old("t.yaml")
    constants = load_manifest("old").transform["found"]
    monkeypatch.setattr("recordmill.pipelines.transform._fit", None)  # a fit would fail
    command = "transform csv new.csv --with old --out new --num-shards 2 --json"
    assert main(command.split()) == 0
    manifest = load_manifest("new")
    assert manifest.transform == load_manifest("old").transform
    assert manifest.options["transform"] == load_manifest("old").options["transform"]
    values, raw = (
        recordmill.open("new").to_table().sort_by("id"),
        recordmill.build("new.csv", "raw"),
    )
    ages = recordmill.open(raw.out).to_table().sort_by("id")["age"].to_numpy()
    expected = (ages - constants["age"]["mean"]) / constants["age"]["variance"] ** 0.5
    assert values["age"].to_numpy() == pytest.approx(expected, rel=1e-6)
    assert values.schema.names == recordmill.open("old").to_table().schema.names
    assert recordmill.verify("new") == []


FUNCTION = """
import tensorflow as tf, tensorflow_transform as tft
def preprocessing_fn(inputs):
    return {
        "age": tft.scale_to_z_score(tf.cast(inputs["age"], tf.float32)),
        "kind": tft.compute_and_apply_vocabulary(inputs["kind"]),
        "label": inputs["label"],
        "label_word": tf.strings.as_string(inputs["label"]),
    }
"""


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["declared", "function"])
def test_new_data_needs_only_the_used_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("old.csv"), rows=200)
    Path("t.yaml").write_text(
        "age: zscore\nkind: {vocabulary: {top_k: 3}}\nlabel_copy: {from: label, one_hot: 2}\n"
    )
    Path("t.py").write_text(FUNCTION)
    build_old("t.yaml" if kind == "declared" else "t.py")
    lines = [line.split(",") for line in Path("old.csv").read_text().splitlines()]
    positions = [lines[0].index(name) for name in ("age", "kind", "miles")]
    Path("new.csv").write_text(
        "\n".join(",".join(line[position] for position in positions) for line in lines) + "\n"
    )
    assert main(["transform", "csv", "new.csv", "--with", "old", "--out", "new", "--quiet"]) == 0
    assert (
        "label: not in the CSV input, so it is left out" in load_manifest("new").statistics["notes"]
    )
    new, old = recordmill.open("new"), recordmill.open("old")
    assert new.schema.names == (("age", "miles", "kind") if kind == "declared" else ("age", "kind"))
    assert new.schema.label is None
    for name in ("age", "kind"):
        assert sorted(new.to_table()[name].to_pylist()) == sorted(old.to_table()[name].to_pylist())
    assert dict(new.schema["age"].found) == dict(old.schema["age"].found)
    assert load_manifest("new").transform["digest"] == load_manifest("old").transform["digest"]
    assert recordmill.verify("new") == []
    # The transform of `new` has the remaining columns.
    assert main(["transform", "csv", "new.csv", "--with", "new", "--out", "newer", "--quiet"]) == 0
    assert recordmill.open("newer").to_table().equals(new.to_table())
    Path("fewer.csv").write_text("age,miles\n33,1.0\n")
    assert main(["transform", "csv", "fewer.csv", "--with", "old", "--out", "none"]) == 1
    assert "'kind', which is not in the CSV input; there are age, miles" in capsys.readouterr().err
    assert not Path("none").exists()


def test_transform_without_a_data_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("a.csv"), rows=20)
    assert main(["transform", "csv", "a.csv", "--out", "new"]) == 2
    assert "--with" in capsys.readouterr().err


CHILD = """
import sys
from recordmill.pipelines.build import build
from kit.transformed_set import DECLARED
# After this build, TensorFlow numbers functions and tensors differently.
build(sys.argv[1], sys.argv[2], transform={"age": "log1p"})
build(sys.argv[1], sys.argv[2], transform=DECLARED, overwrite=True, name="rides")
"""


@pytest.mark.sweep
def test_fit_in_another_process_and_folder_has_the_same_digest(tmp_path: Path) -> None:
    write_csv(tmp_path / "rides.csv", rows=300)
    local, remote = tmp_path / "here", tmp_path / "some/where/else"
    remote.parent.mkdir(parents=True)
    build(tmp_path / "rides.csv", local, transform=DECLARED, name="rides")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    process = run_python(
        "-c", CHILD, tmp_path / "rides.csv", remote, check=False, env=environment, timeout=900
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert {**load_manifest(local).transform, "files": {}} == {
        **load_manifest(remote).transform,
        "files": {},
    }
    assert load_manifest(local).fingerprint == load_manifest(remote).fingerprint


@pytest.mark.sweep
def test_transforms_with_vocabularies_of_one_name_stay_separate(
    tmp_path: Path,
) -> None:
    saved = []
    for words in ("abc", "cba"):
        (tmp_path / f"{words}.csv").write_text(
            "word,n\n" + "".join(f"{w},{i}\n" * (i + 1) for i, w in enumerate(words))
        )
        out = tmp_path / words
        build(tmp_path / f"{words}.csv", out, transform={"word": "vocabulary"})
        manifest = load_manifest(out)
        folder = out / manifest.parts[-1].folder / TRANSFORM_FOLDER
        saved.append(
            restore_transform(str(folder), manifest.transform, from_pbtxt(manifest.schema))
        )
    import pyarrow as pa

    batch = pa.RecordBatch.from_pydict(
        {"word": pa.array(["a", "b", "c"], pa.large_string()), "n": [0, 1, 2]}
    )
    numbers = [transform.apply(batch)[0].column("word").to_pylist() for transform in saved]
    assert numbers == [[2, 1, 0], [0, 1, 2]]
