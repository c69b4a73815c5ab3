"""A build with a parser leaves parsed files for the next build, but no shards if it fails."""

from pathlib import Path
from typing import Any

import pytest
from kit.parser_inputs import make_parser_inputs
from kit.parsing import parse_rows

import recordmill
from recordmill.building.commit import CommitConflict
from recordmill.pipelines.build_job import run_job
from recordmill.shards.manifest import load_manifest
from recordmill.shards.rejects import TooManyRejects

PARSER = """
import os

def parse(path):
    if path.endswith("2.dat"):
        raise ValueError("bad header")
    for line in open(path):
        yield {"file": os.path.basename(path), "values": [float(word) for word in line.split()]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_parser_inputs(tmp_path, PARSER, monkeypatch)


def test_build_that_another_one_overtakes_leaves_parsed_files_but_no_shards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_meanwhile(*args: Any, **keywords: Any) -> None:
        patched.undo()
        recordmill.build("in", "out", parser=parse_rows)
        run_job(*args, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr("recordmill.pipelines.build_job.run_job", build_meanwhile)
        with pytest.raises(CommitConflict, match="was discarded"):
            recordmill.build("in", "out", parser="my.py:parse", max_rejects=1)
    (part,) = load_manifest("out").parts
    assert [path.name for path in folder.glob("out/data-*")] == [part.folder]
    assert not list(folder.glob("out/rejects/*"))
    assert len(list(folder.glob("out/_run-*/spool/parsed/*.json"))) == 5


def test_note_counts_the_files_that_an_earlier_run_has_parsed(folder: Path) -> None:
    options: dict[str, Any] = {"parser": "my.py:parse", "max_rejects": 1}
    first = recordmill.build("in", "out", **options)
    (folder / "more").mkdir()
    for number in (2, 7):
        (folder / "more" / f"{number}.dat").write_text("1 2\n")
    for source, keyword, count, remedy in (
        ("in", "overwrite", "5 of 6", "build again with overwrite=True"),
        ("more", "append", "1 of 2", "run `recordmill restore out --generation 2`"),
    ):
        options[keyword] = True
        with pytest.raises(TooManyRejects):
            recordmill.build(source, "out", **{**options, "max_rejects": 0})
        result = recordmill.build(source, "out", **options)
        (note,) = (note for note in result.notes if "an earlier run has parsed" in note)
        assert f": {count}; the file of my.py:parse has not changed" in note
        assert remedy in note
        del options[keyword]
    last = recordmill.build("in", "out", overwrite=True, **options)
    assert not any("earlier run" in note for note in (*first.notes, *last.notes))
