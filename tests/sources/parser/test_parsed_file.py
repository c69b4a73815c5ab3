"""Results of the user's parser are used again only if they are complete."""

import json
import os
from pathlib import Path

import pytest
from kit.parsing import parsed_files

import recordmill
from recordmill.shards.rejects import TooManyRejects


def test_parsed_files_that_a_power_failure_has_cut_are_parsed_again(folder: Path) -> None:
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    (folder / "log").unlink()
    results = sorted(folder.glob("out/_run-*/spool/parsed/*.json"))
    assert len(results) == 5
    (segment,) = json.loads(results[0].read_text())["segments"]
    os.truncate(results[0].with_name(segment), 100)
    os.truncate(results[1], 0)
    result = recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert len(parsed_files(folder)) == 3
    assert result.read == 21
