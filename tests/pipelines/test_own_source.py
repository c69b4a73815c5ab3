"""A user's own Source: the example of the documentation is run; what a Source lacks is said by name; a chunk that
breaks the contract ends the build.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit import rejects_of

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import to_arrow
from recordmill.sources.common.contract import Chunk, Unit

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_source.py"


@pytest.fixture(scope="module")
def example() -> Any:
    """The example as a module that pickle can find."""
    names = runpy.run_path(str(EXAMPLE), run_name="own_source_example")
    module = type(sys)("own_source_example")
    vars(module).update(names)
    sys.modules["own_source_example"] = module
    yield module
    del sys.modules["own_source_example"]


def prices(tmp_path: Path) -> Path:
    """Two splits, 25,000 and 300 lines, of which two are broken."""
    rng = np.random.default_rng(7)
    for split, count in (("train", 25_000), ("test", 300)):
        (tmp_path / "in" / split).mkdir(parents=True)
        lines = [f"{number:8d}{'name ' + str(number):20s}{rng.uniform(0, 9):10.3f}" for number in range(count)]
        lines[17] = "no number" + lines[17][9:]
        (tmp_path / "in" / split / "a.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "in"


def shard_bytes(result: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in result.shards}


def test_the_example_is_built_with_splits_and_rejects_and_the_same_bytes(example: Any, tmp_path: Path) -> None:
    source = example.plan_fixed_width([str(prices(tmp_path))])
    one, four = (
        recordmill.build(source, tmp_path / f"out{threads}", threads=threads, name="same", max_rejects=2)
        for threads in (1, 4)
    )
    assert one.kind == "fixed-width"
    assert one.records == {"train": 24_999, "test": 299}
    assert (one.read, one.rejected) == (25_300, 2)
    rejects = rejects_of(one)
    assert {(reject["source"], reject["place"]) for reject in rejects} == {
        ("train/a.txt", "line 18"),
        ("test/a.txt", "line 18"),
    }
    assert shard_bytes(one) == shard_bytes(four)
    assert one.manifest.fingerprint == four.manifest.fingerprint
    table = recordmill.open(one.out, "test").to_table()
    assert sorted(table["id"].to_pylist()) == [number for number in range(300) if number != 17]
    assert set(table["name"].to_pylist()) == {f"name {number}" for number in range(300) if number != 17}
    assert not recordmill.verify(str(one.out))


@pytest.mark.sweep
def test_the_example_runs_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("       1apples              0.99\n       2pears               1.25\n")
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "a.txt"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "train 2 records" in done.stdout


def test_what_a_source_lacks_is_said_by_name(example: Any, tmp_path: Path) -> None:
    class Half:
        kind = "half"
        schema = None

        def read(self, unit: Unit) -> Any: ...

    with pytest.raises(UsageError, match=r"Half is no Source: it lacks files .*; units .*; notes .*"):
        recordmill.build(Half(), tmp_path / "out")
    source = example.plan_fixed_width([str(prices(tmp_path))])
    for change, said in (
        ({"schema": {"id": "int64"}}, r"FixedWidth.schema is a dict; it must be a recordmill.Schema"),
        ({"units": (1, 2)}, r"FixedWidth.units holds a int; it must be a tuple of .*Unit"),
        ({"units": (Unit(0, 3),)}, r"FixedWidth.units\[0\] is of the files 0 to 2; there are 2"),
        ({"notes": (lambda: 0,)}, r"FixedWidth.notes holds a function"),
    ):
        with pytest.raises(UsageError, match=said):
            recordmill.build(replace(source, **change), tmp_path / "out")
    assert not (tmp_path / "out" / "_manifests").exists()


def test_what_cannot_be_pickled_is_refused(example: Any, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Local(example.FixedWidth):  # type: ignore[misc,name-defined]
        pass

    source = example.plan_fixed_width([str(prices(tmp_path))])
    with pytest.raises(UsageError, match="Local can't be pickled, which workers need"):
        recordmill.build(Local(source.files, source.units), tmp_path / "out")


def test_options_of_other_kinds_are_refused(example: Any, tmp_path: Path) -> None:
    source = example.plan_fixed_width([str(prices(tmp_path))])
    for given in ({"kind": "csv"}, {"label": "id"}, {"dtypes": {"id": "int32"}}):
        with pytest.raises(UsageError, match=f"{next(iter(given))}.* is not for a Source of your own"):
            recordmill.build(source, tmp_path / "out", **given)


def test_a_chunk_that_breaks_the_contract_ends_the_build(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = example.plan_fixed_width([str(prices(tmp_path))])
    chunk = next(iter(source.read(source.units[0])))
    few = np.zeros(2, np.int64)
    for wrong, said in (
        (7, "gave a int, not a Chunk"),
        (replace(chunk, position=few), r"records whose position is no array of \d+ int64"),
        (replace(chunk, file=few), r"records whose file is no array of \d+ uint32"),
        (replace(chunk, file=chunk.file + np.uint32(9)), "records of files that the unit does not name"),
        (replace(chunk, records=chunk.records.drop_columns(["id"])), "gave columns .*not schemas.arrow.to_arrow"),
    ):
        monkeypatch.setattr(example.FixedWidth, "read", lambda self, unit, wrong=wrong: iter([wrong]))
        with pytest.raises(DataError, match=f"(?s)FixedWidth.read.*{said}"):
            recordmill.build(source, tmp_path / "out", max_rejects="100%")
    assert isinstance(chunk, Chunk)
    monkeypatch.undo()
    promised = replace(source, units=(replace(source.units[0], rows=5), source.units[1]))
    with pytest.raises(DataError, match=r"gave \d+ records and rejects where the unit says 5"):
        recordmill.build(promised, tmp_path / "out", max_rejects="100%")


def test_a_number_of_no_class_or_of_other_classes_ends_the_build(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = example.plan_fixed_width([str(prices(tmp_path))])
    features = (replace(source.schema["id"], classes=("cat", "dog")), *source.schema.features[1:])
    classed = replace(source, schema=recordmill.Schema(features, "id"))

    def chunk(numbers: list[int | None], classes: tuple[str, ...]) -> Chunk:
        own = to_arrow(recordmill.Schema((replace(features[0], classes=classes), *features[1:]), "id"))
        rows = {"id": numbers, "name": ["a"] * len(numbers), "price": [1.0] * len(numbers)}
        count = len(numbers)
        batch = pa.RecordBatch.from_pydict(rows, own)
        return Chunk(batch, np.zeros(count, np.uint32), np.arange(count, dtype=np.int64))

    units = (replace(source.units[0], rows=None),)
    for wrong, said in (
        (chunk([0, 2], ("cat", "dog")), r"gave 2 in 'id', which has the classes \('cat', 'dog'\)"),
        (chunk([-1, None], ("cat", "dog")), "gave -1 in 'id'"),
        (chunk([0, 1], ("dog", "cat")), r"gave 'id' of the classes \('dog', 'cat'\), not \('cat', 'dog'\)"),
    ):
        monkeypatch.setattr(example.FixedWidth, "read", lambda self, unit, wrong=wrong: iter([wrong]))
        with pytest.raises(DataError, match=said):
            recordmill.build(replace(classed, units=units), tmp_path / "out")
    good = chunk([1, None, 0], ("cat", "dog"))
    monkeypatch.setattr(example.FixedWidth, "read", lambda self, unit: iter([good]))
    assert recordmill.build(replace(classed, units=units), tmp_path / "out").read == 3
