"""`recordmill transform`: new data through the transform of a data set, without a second fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformed_set import write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.__main__ import main
from recordmill.shards.manifest import load


@pytest.mark.sweep
def test_new_data_gets_what_was_found_in_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("old.csv"), rows=400)
    write_csv(Path("new.csv"), rows=50, seed=8)
    Path("t.yaml").write_text("age: zscore\ncity: {vocabulary: {top_k: 3}}\nlabel: keep\n")
    assert main(["build", "csv", "old.csv", "--out", "old", "--label=label", "--transform=t.yaml", "--quiet"]) == 0
    found = load("old").transform["found"]
    monkeypatch.setattr("recordmill.pipelines.transform._fit", None)  # nothing is fitted from here on
    assert main(["transform", "csv", "new.csv", "--with", "old", "--out", "new", "--num-shards", "2", "--json"]) == 0
    manifest = load("new")
    assert manifest.transform == load("old").transform
    assert manifest.options["transform"] == load("old").options["transform"]
    made, raw = recordmill.open("new").to_table().sort_by("id"), recordmill.build("new.csv", "raw")
    ages = recordmill.open(raw.out).to_table().sort_by("id")["age"].to_numpy()
    expected = (ages - found["age"]["mean"]) / found["age"]["variance"] ** 0.5
    assert made["age"].to_numpy() == pytest.approx(expected, rel=1e-6)
    assert made.schema.names == recordmill.open("old").to_table().schema.names
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
@pytest.mark.parametrize("given", ["declared", "function"])
def test_new_data_needs_only_what_its_features_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("old.csv"), rows=200)
    Path("t.yaml").write_text("age: zscore\nkind: {vocabulary: {top_k: 3}}\nlabel_copy: {from: label, one_hot: 2}\n")
    Path("t.py").write_text(FUNCTION)
    transform = "t.yaml" if given == "declared" else "t.py"
    assert (
        main(["build", "csv", "old.csv", "--out", "old", "--label=label", f"--transform={transform}", "--quiet"]) == 0
    )
    lines = [line.split(",") for line in Path("old.csv").read_text().splitlines()]
    wanted = [lines[0].index(name) for name in ("age", "kind", "miles")]
    Path("new.csv").write_text("\n".join(",".join(line[at] for at in wanted) for line in lines) + "\n")
    assert main(["transform", "csv", "new.csv", "--with", "old", "--out", "new", "--quiet"]) == 0
    assert "label: not in the CSV input, so it is left out" in load("new").statistics["notes"]
    new, old = recordmill.open("new"), recordmill.open("old")
    assert new.schema.names == (("age", "miles", "kind") if given == "declared" else ("age", "kind"))
    assert new.schema.label is None
    for name in ("age", "kind"):
        assert sorted(new.to_table()[name].to_pylist()) == sorted(old.to_table()[name].to_pylist())
    assert dict(new.schema["age"].found) == dict(old.schema["age"].found)
    assert load("new").transform["digest"] == load("old").transform["digest"]
    assert recordmill.verify("new") == []
    assert main(["transform", "csv", "new.csv", "--with", "new", "--out", "newer", "--quiet"]) == 0  # of what is left
    assert recordmill.open("newer").to_table().equals(new.to_table())
    Path("fewer.csv").write_text("age,miles\n33,1.0\n")
    assert main(["transform", "csv", "fewer.csv", "--with", "old", "--out", "none"]) == 1
    assert "'kind', which is not in the CSV input; there are age, miles" in capsys.readouterr().err
    assert not Path("none").exists()


@pytest.mark.sweep
def test_each_kind_of_new_data_may_lack_the_label(tmp_path: Path) -> None:
    import pandas as pd

    rows = {"x": [1.0, 2.0, 4.0, 5.0], "label": ["a", "b", "a", "b"]}
    recordmill.build(rows, tmp_path / "old", label="label", transform={"x": "minmax"})
    frame = pd.DataFrame({"x": rows["x"]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "new.parquet")
    recordmill.build(frame, tmp_path / "shards")
    for number, source in enumerate(
        (
            *(tmp_path / f"new.{kind}" for kind in ("csv", "jsonl", "parquet")),
            tmp_path / "shards",
            frame,
            iter([{"x": 3.0}]),
        )
    ):
        made = recordmill.build(source, tmp_path / f"new-{number}", transform_from=tmp_path / "old")
        assert made.schema.names == ("x",), source
        assert "label: not in " in "; ".join(made.notes), source
        expected = [0.5] if number == 5 else [0.0, 0.25, 0.75, 1.0]
        assert sorted(recordmill.open(made.out).to_table()["x"].to_pylist()) == expected, source


def test_a_data_set_that_has_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("a.csv"), rows=20)
    assert main(["build", "csv", "a.csv", "--out", "plain", "--quiet"]) == 0
    assert main(["transform", "csv", "a.csv", "--with", "plain", "--out", "new"]) == 2
    assert "plain was built without a transform" in capsys.readouterr().err
    assert not Path("new").exists()
    assert main(["transform", "csv", "a.csv", "--out", "new"]) == 2
    assert "--with" in capsys.readouterr().err
