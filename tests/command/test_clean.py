"""`recordmill clean`: what a killed build left is listed, then removed; a live one's, and the data set, stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import recordmill
from recordmill.__main__ import main
from recordmill.building.commit import publish_files
from recordmill.shards.run import RunFolder


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_what_a_killed_build_left_is_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    built = recordmill.build({"a": [1, 2, 3]}, out)
    live = RunFolder.create(out)
    if (child := os.fork()) == 0:
        (RunFolder.create(out).data / "shard").write_bytes(b"half")
        os._exit(0)
    os.waitpid(child, 0)
    dead = next(path for path in out.glob("_run-*") if path != live.path)
    before = sorted(path for path in out.rglob("*") if dead not in path.parents and path != dead)
    assert main(["clean", str(out)]) == 0
    heard = capsys.readouterr()
    assert heard.out.splitlines() == [str(dead / "data" / "shard"), str(dead / "lock")]
    assert heard.err == "1 dead run, 2 files: left there; --remove removes them\n"
    assert main(["clean", str(out), "--remove", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["left"][str(out)]) == [dead.name]
    assert sorted(out.rglob("*")) == before
    assert recordmill.clean(out) == {}
    assert len(recordmill.open(built.out)) == 3
    live.close()
    assert main(["clean", str(tmp_path / "nothing")]) == 2


def test_what_a_killed_build_had_placed_is_listed_and_removed_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build({"a": [1, 2, 3]}, out)
    before = sorted(out.rglob("*"))
    dead = RunFolder.create(out)
    (dead.data / "shard").write_bytes(b"x")
    (dead.rejects / "0.jsonl").write_bytes(b"{}")
    publish_files(dead, [str(dead.rejects / "0.jsonl")])
    dead.release()
    left = [dead.data / "shard", dead.path / "lock", out / "rejects" / f"{dead.id}.00000.jsonl"]
    assert recordmill.clean(out) == {dead.path.name: sorted(map(str, left))}
    assert [*recordmill.clean(out, remove=True)] == [dead.path.name]
    (out / "rejects").rmdir()
    assert sorted(out.rglob("*")) == before
    assert recordmill.verify(out) == []
