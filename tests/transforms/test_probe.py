"""A probed worker reports its versions, and files that it doesn't see."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("apache_beam", reason="workers of engines have Apache Beam")

from recordmill.transforms import probe
from recordmill.transforms.probe import (
    MUST_MATCH,
    PROBE_NAMESPACE,
    ProbeRequest,
    collect_probe_results,
    find_versions,
    probe_worker,
)


def test_probe_of_a_worker_reports_files_that_it_does_not_see(tmp_path: Path) -> None:
    path, token = tmp_path / "a.csv", tmp_path / "token"
    path.write_text("x\n1\n")
    token.write_text("mine")
    report = probe_worker(0, ProbeRequest(str(token), "mine", ((str(path), 4),)))
    assert (report["out"], report["inputs"]) == ("", "")
    assert (
        "another folder of that name" in probe_worker(0, ProbeRequest(str(token), "yours"))["out"]
    )
    assert "No such file" in probe_worker(0, ProbeRequest(str(tmp_path / "none"), "x"))["out"]
    assert (
        "4 bytes there, 5 here" in probe_worker(0, ProbeRequest(inputs=((str(path), 5),)))["inputs"]
    )


def test_versions_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = find_versions()
    assert versions["numpy"] == np.__version__
    assert versions["python"].count(".") == 1
    assert set(MUST_MATCH) <= set(versions)
    monkeypatch.setattr(probe, "PACKAGES", ("no-such-package",))
    assert find_versions()["no-such-package"] == ""


def test_report_fits_into_the_name_of_a_counter(tmp_path: Path) -> None:
    long_path = str(tmp_path / ("x" * 2000))
    report = probe_worker(0, ProbeRequest(long_path, "a", ((long_path, 1),)))
    assert len(report["out"]) == len(report["inputs"]) == 300


def test_reports_of_one_process_are_counted_once() -> None:
    def counter(namespace: str, **facts: Any) -> Any:
        metric = SimpleNamespace(namespace=namespace, name=json.dumps(facts))
        return SimpleNamespace(key=SimpleNamespace(metric=metric))

    counters = [
        counter(PROBE_NAMESPACE, host="a", pid=1, out=""),
        counter(PROBE_NAMESPACE, host="a", pid=1, out=""),
        counter(PROBE_NAMESPACE, host="b", pid=1, out="x"),
        counter("recordmill", host="c", pid=1, out=""),
    ]
    metrics = SimpleNamespace(query=lambda: {"counters": counters})
    reports = collect_probe_results(metrics)
    assert [(report["host"], report["out"]) for report in reports] == [("a", ""), ("b", "x")]
