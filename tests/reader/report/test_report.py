"""The report of a data set shows its records in one self-contained file.

It treats no value as markup.
"""

import os
from pathlib import Path

import pytest
from kit.data_sets import write_data_set
from kit.report_pages import open_column, page_of

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema


def test_report_shows_counts_and_values_of_the_records(tmp_path: Path) -> None:
    schema = Schema(
        (
            Feature("y", "int64", required=True, classes=("cat", "dog")),
            Feature("x", "float32"),
            Feature("word", "string"),
        ),
        label="y",
    )
    rows = {"y": [0, 1, 1, 1], "x": [1.0, 2.0, None, 4.0], "word": ["a", "b", "b", "b"]}
    test_rows = {"y": [0], "x": [0.5], "word": ["c"]}
    ds = recordmill.open(
        write_data_set(tmp_path / "set", {"train": rows, "test": test_rows}, schema)
    )
    page = page_of(ds.report().html)
    assert page.texts_after("records") == ["5"]
    assert page.texts_after("train", 2) == ["4", "80 %"]
    assert "2 classes of" in page.texts
    assert page.texts_after("dog", 2) == ["3", "0"]
    # The share of the test split, and the share of missing values of x.
    assert page.texts.count("20 %") == 2
    assert "'b'" in page.texts
    view = page_of(ds.filter("y = 1").report().html)
    assert view.texts_after("records") == ["3"]


def test_report_file_is_replaced_only_with_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_column(tmp_path, "int64", [1, 2])
    out, target = tmp_path / "set", tmp_path / "a.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="already exists; overwrite=True"):
        recordmill.report(out, out=target)
    assert main(["report", str(out), "-o", str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert target.read_text() == "mine"
    for command in ("report", "stats"):
        assert main([command, str(out), "-o", str(tmp_path), "--overwrite"]) == 2
        assert f"--out {tmp_path} is a folder: name a file" in capsys.readouterr().err
        assert main([command, str(out), "-o", str(tmp_path / "no" / "a.html")]) == 2
        assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert main(["report", str(out), "--out", str(target), "--overwrite", "--quiet"]) == 0
    assert target.read_text() == recordmill.report(out, out=tmp_path / "b.html").html


@pytest.mark.parametrize("method", ["report", "stats", "to_parquet", "save"])
def test_pipe_is_not_replaced_and_a_link_leads_to_its_file(tmp_path: Path, method: str) -> None:
    ds = open_column(tmp_path, "int64", [1, 2])
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    file.write_text("old")
    link.symlink_to(file)

    def write(target: Path) -> object:
        if method == "save":
            return ds.report().save(target, overwrite=True)
        if method == "to_parquet":
            return ds.to_parquet(target, overwrite=True)
        return getattr(recordmill, method)(tmp_path / "set", out=target, overwrite=True)

    with pytest.raises(UsageError, match="is a pipe or a device, which can't be replaced"):
        write(pipe)
    assert pipe.is_fifo()
    write(link)
    assert link.is_symlink()
    assert file.read_bytes() != b"old"


def test_notebook_shows_the_report_in_a_sandboxed_frame(tmp_path: Path) -> None:
    html = open_column(tmp_path, "string", ['"><script>', "b"]).report()._repr_html_()
    assert html.startswith("<iframe sandbox ")
    assert html.count("<") == 2  # the tags of the frame
