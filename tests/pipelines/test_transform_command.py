"""`recordmill transform`: new data through the transform of a data set, without a second fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformed_set import write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.__main__ import main
from recordmill.shards.manifest import load


def test_new_data_gets_what_was_found_in_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("old.csv"), rows=400)
    write_csv(Path("new.csv"), rows=50, seed=8)
    Path("t.yaml").write_text("age: zscore\ncity: {vocabulary: {top_k: 3}}\nlabel: keep\n")
    assert main(["build", "csv", "old.csv", "--out", "old", "--label=label", "--transform=t.yaml", "--quiet"]) == 0
    found = load("old").transform["found"]
    monkeypatch.setattr("recordmill.pipelines.fitting._fit", None)  # nothing is fitted from here on
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
