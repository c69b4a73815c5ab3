"""`build --if-changed` does nothing if inputs and options are unchanged."""

import os
from pathlib import Path
from typing import Any

import pytest
from kit.files import tree
from kit.runs import run_python

import recordmill
from recordmill.base.errors import UsageError


def test_if_changed_builds_only_after_a_change(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.csv").write_text("x,y\n1,2\n3,4\nbad\n")
    (source / "b.csv").write_text("x,y\n5,6\n")

    def build(**options: Any) -> bool:
        """Returns whether a build with these options changes anything.

        Checks that a second build changes nothing.
        """
        options = {"max_rejects": 1, "if_changed": True, **options}
        results = [recordmill.build(source, out, **options)]
        before = tree(out)
        results.append(recordmill.build(source, out, **options))
        assert tree(out) == before
        first, second = results
        assert (second.unchanged, second.records, second.shards) == (
            True,
            first.records,
            first.shards,
        )
        return not first.unchanged

    assert build()
    assert not build(threads=1, memory="256MiB")  # these options don't affect the bytes
    option_sets: list[dict[str, Any]] = [
        {"seed": 3},
        {},
        {"label": "y"},
        {"dtypes": {"x": "float64"}},
        {"stats": False},
    ]
    for options in (*option_sets, {"license": "MIT"}):
        assert build(**options), options
    assert build()
    with pytest.raises(recordmill.RecordmillError, match="reject"):
        recordmill.build(source, out, if_changed=True, max_rejects=0)
    os.utime(source / "b.csv", ns=(1, 1))
    assert build()
    (source / "c.csv").write_text("x,y\n7,8\n")
    assert build()
    (source / "c.csv").unlink()
    assert build()
    Path(recordmill.open(out).files[0].file.path).unlink()
    assert build()
    assert len(recordmill.open(out)) == 3
    with pytest.raises(UsageError, match="already holds a data set"):
        recordmill.build(source, out, max_rejects=1)


def test_if_changed_command_reports_an_unchanged_data_set(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n")
    words = (
        "-m",
        "recordmill",
        "build",
        tmp_path / "in.csv",
        "--out",
        tmp_path / "out",
        "--if-changed",
    )
    assert "already built" not in run_python(*words).stderr
    second = run_python(*words)
    assert second.stderr.splitlines()[-1].endswith(
        "already built from the same inputs and options: csv, 1 record read, 1 written, 0 rejected"
    )


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"x": [1]}, {}, "if_changed=True is not for data in memory"),
        ("in.csv", {"expect": {}}, "if_changed=True and expect"),
        ("in.csv", {"transform": {}}, "if_changed=True and transform"),
        ("in.csv", {"labels": "labels.csv"}, "if_changed=True and labels"),
    ],
)
def test_if_changed_is_refused_if_inputs_cannot_be_compared(
    tmp_path: Path, data: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build(data, tmp_path / "out", if_changed=True, **options)
