"""`build` and `read` of mostly broken inputs end early.

A full disk is reported, whether rejects or the output fill it.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.data_sets import write_data_set
from kit.runs import run_in_threads
from kit.store_server import s3_server

import recordmill
from recordmill.base.errors import RecordmillError, Reject
from recordmill.records.writers.outputs import OUTPUT_NAMES
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import (
    REJECTS_BEYOND_BUDGET,
    RejectSummary,
    RejectWriter,
    TooManyRejects,
)

pytest.importorskip("apache_beam")


@pytest.fixture
def reject_lines(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Number of lines in each file of rejects when its writer closes it."""
    lines: dict[str, int] = {}
    close = RejectWriter.close

    def close_and_count(self: RejectWriter) -> RejectSummary:
        summary = close(self)
        path = self._path
        lines[str(path)] = path.read_bytes().count(b"\n") if path.exists() else 0
        return summary

    monkeypatch.setattr(RejectWriter, "close", close_and_count)
    return lines


@pytest.mark.parametrize(("budget", "limit"), [("0", 0), ("2000", 2000), ("1%", 780)])
def test_build_of_broken_rows_ends_early(
    tmp_path: Path, budget: str, limit: int, reject_lines: dict[str, int]
) -> None:
    for number in range(6):
        (tmp_path / f"{number}.csv").write_text("a,b\n" + "1,2\n" * 1000 + "1,2,3,4,5\n" * 12_000)
    with pytest.raises(
        TooManyRejects, match=rf"at least \d+ records were rejected .* allows {limit}, so the rest"
    ):
        recordmill.build(str(tmp_path / "*.csv"), tmp_path / "out", max_rejects=budget, threads=4)
    assert not list(tmp_path.glob("out/*"))
    assert sum(reject_lines.values()) <= limit + REJECTS_BEYOND_BUDGET


def test_reject_limit_as_a_share_is_checked_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 3000 + "1,2,3\n" * 2000)
    assert (
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", max_rejects="40%").rejected == 2000
    )
    with pytest.raises(TooManyRejects, match=r"2000 "):
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", max_rejects="39%", overwrite=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"to": "npy"}, {"runner": "FnApiRunner"}, {"to": "npy", "runner": "FnApiRunner"}],
)
def test_read_of_damaged_records_ends_early(
    tmp_path: Path, options: dict[str, Any], reject_lines: dict[str, int]
) -> None:
    schema = Schema((Feature("x", "int64", required=True),))
    rows = pa.table({"x": pa.array(range(1 << 20, (1 << 20) + 8000), pa.int64())})
    out = write_data_set(tmp_path / "set", {"train": rows}, schema, shards=4)
    for path in out.glob("data*/train-*"):
        data = np.fromfile(path, np.uint8)
        length = int(data[:8].view("<u8")[0]) + 16  # the size of every frame
        data[12::length] ^= 1
        data.tofile(path)
    with pytest.raises(TooManyRejects, match=r"at least \d+ records"):
        recordmill.read(out, tmp_path / "to", max_rejects=20, **options)
    assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())
    assert sum(reject_lines.values()) <= REJECTS_BEYOND_BUDGET + 20


def rejects(count: int, reason: str = "columns") -> list[Reject]:
    return [
        Reject("a.csv", f"line {number}", reason, "too many columns") for number in range(count)
    ]


def count_lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir())


def test_rejects_of_all_writers_are_counted_together(tmp_path: Path) -> None:
    stopped = []

    def work(number: int) -> None:
        writer = RejectWriter(tmp_path / f"{number}.jsonl", max_rejects=100, task_name=str(number))
        try:
            for _ in range(1000):
                writer.write(rejects(7))
        except TooManyRejects:
            stopped.append(number)
        finally:
            writer.close()

    run_in_threads(work, *range(8))
    assert sorted(stopped) == list(range(8))
    assert count_lines(tmp_path) <= REJECTS_BEYOND_BUDGET + 100 + 8 * 7


def test_rejects_of_a_repeated_attempt_replace_the_first(tmp_path: Path) -> None:
    for attempt in range(20):
        writer = RejectWriter(tmp_path / f"{attempt}.jsonl", max_rejects=0, task_name="7")
        writer.write(rejects(REJECTS_BEYOND_BUDGET // 2))
        writer.close()
    writer_of_8 = RejectWriter(tmp_path / "other.jsonl", max_rejects=0, task_name="8")
    writer_of_8.write(rejects(REJECTS_BEYOND_BUDGET // 2))
    with pytest.raises(TooManyRejects, match="of other files"):
        writer_of_8.write(rejects(1))
    writer_of_8.close()


@contextmanager
def limit_file_size(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    # The text is random, so that it stays large if it is compressed.
    csv_lines = (
        f"{number},{hash((number, 'x')) & (2**60 - 1):x}{'y' * 30}\n" for number in range(9000)
    )
    (folder / "in.csv").write_text("a,b\n" + "".join(csv_lines))
    return Path(recordmill.build(folder / "in.csv", folder / "set").out)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_full_disk_of_a_build_is_reported_with_out(
    data_set: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    with (
        limit_file_size(30_000),
        pytest.raises(RecordmillError, match=f"^{out}: File too large; nothing was written"),
    ):
        recordmill.build(data_set.parent / "in.csv", out, **options)
    assert not list(tmp_path.glob("out/*"))


def test_full_disk_of_a_compaction_is_reported_with_out(data_set: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for append in (False, True):
        recordmill.build({"x": list(range(9000))}, out, append=append)
    with (
        limit_file_size(30_000),
        pytest.raises(RecordmillError, match=f"^{out}.*: File too large; nothing was written"),
    ):
        recordmill.compact(out)
    assert [generation.action for generation in recordmill.log(out)] == ["build", "append"]
    assert recordmill.verify(out) == []


@pytest.mark.parametrize("to", [name for name in OUTPUT_NAMES if name != "files"])
def test_full_disk_of_a_read_is_reported_with_out(data_set: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    with limit_file_size(30_000), pytest.raises(RecordmillError, match=f"^{out}: File too large"):
        recordmill.read(data_set, out, to=to)
    assert not list(tmp_path.glob("out/*"))


def test_full_temporary_disk_of_a_store_read_is_reported_with_its_folder(
    data_set: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with s3_server(tmp_path_factory.mktemp("store")) as store:
        out = f"{store.root}/out"
        message = rf"^{tmp_path}.* \(in TMPDIR, where the files for {out} are prepared\): File too large; nothing was written"
        with limit_file_size(30_000), pytest.raises(RecordmillError, match=message):
            recordmill.build(data_set.parent / "in.csv", out)
        with limit_file_size(30_000), pytest.raises(RecordmillError, match=message):
            recordmill.read(data_set, out, to="npy")
        assert store.keys() == []
    assert not list(tmp_path.glob("recordmill-*/*/*"))
