"""A leading `~` of every path from a user is the home folder."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import recordmill
from recordmill.__main__ import main
from recordmill.shards.manifest import load_manifest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with inputs. The working directory is another folder, which is empty."""
    home, working_directory = tmp_path / "home", tmp_path / "working"
    (home / "photos").mkdir(parents=True)
    working_directory.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(working_directory)
    (home / "a.csv").write_text("x,y\n1,2\n3,4\n")
    (home / "rules.yaml").write_text("features: {x: {min: 0}}\n")
    (home / "list.txt").write_text("a.csv\n")
    (home / "my.py").write_text("def parse(path):\n    yield {'size': 1}\n")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(home / "photos" / "a.png")
    (home / "labels.csv").write_text("file_name,name\na.png,cat\n")
    return home


def test_commands_expand_the_home_folder(home: Path) -> None:
    assert main(["build", "~/a.csv", "--out=~/set", "--expect=~/rules.yaml", "--quiet"]) == 0
    commands = [
        ["build", "@~/list.txt", "--out=~/listed", "--schema=~/set/schema.pbtxt", "--quiet"],
        ["build", "~/a*.csv", "--out=~/listed", "--append", "--dry-run"],
        ["build", "~/a.csv", "--out=~/parsed", "--parser=~/my.py:parse", "--quiet"],
        ["read", "~/set", "--out=~/parquet", "--quiet"],
        ["check", "~/set", "--against=~/rules.yaml"],
        ["check", "~/set", "--against=~/listed"],
        ["stats", "~/set", "--out=~/statistics.pb"],
        ["report", "~/set", "--out=~/report.html", "--quiet"],
        *([command, "~/set"] for command in ("verify", "log", "status", "clean", "head")),
    ]
    for command in commands:
        assert main(command) == 0, command
    made = {"set", "listed", "parsed", "parquet", "statistics.pb", "report.html"}
    assert made <= set(os.listdir(home))
    assert os.listdir() == []


def test_functions_expand_the_home_folder(home: Path) -> None:
    result = recordmill.build("~/a.csv", Path("~/set"), expect=Path("~/rules.yaml"))
    assert (result.out, result.records) == (home / "set", {"train": 2})
    assert len(recordmill.open("~/set", cache="~/cache")) == 2
    assert len(recordmill.open(["~/set/data-*/*.tfrecord"], schema="~/set/schema.pbtxt")) == 2
    recordmill.open("~/set").to_parquet("~/set.parquet")
    assert (home / "set.parquet").is_file()
    assert os.listdir() == []


def test_manifest_has_no_path_of_an_option_in_the_home_folder(home: Path) -> None:
    recordmill.build("~/photos", "~/set", labels="~/labels.csv")
    text = load_manifest(home / "set").to_json()
    assert "labels.csv" in text
    assert "~" not in text
    assert str(home) not in text
    assert recordmill.build("~/photos", "~/set", append=True, labels="~/labels.csv").unchanged
    assert os.listdir() == []


def test_folder_with_the_literal_name_is_possible(home: Path) -> None:
    recordmill.build("~/a.csv", "./~")
    assert os.listdir() == ["~"]
    assert len(recordmill.open("./~")) == 2
    assert len(recordmill.open("./~/data-*/*.tfrecord")) == 2
