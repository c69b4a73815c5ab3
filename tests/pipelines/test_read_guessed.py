"""A read with a guessed schema writes the bytes of a read that infers it from all records."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import tfrecord_bytes, tree

import recordmill
from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting import plan as planning
from recordmill.reader import records as reader
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards import cutting
from recordmill.shards.loading import infer_schema
from recordmill.sources.arrow.single_example import example

ROW = {"n": 5, "x": [1.0, 2.0], "text": "größe", "list": [1, 2], "raw": bytes(range(8)), "small": 7}
OTHER_LIST = ROW | {"list": [3]}
LATE: dict[str, dict[str, Any]] = {
    "nothing new": ROW,
    "a string in an int column": ROW | {"n": "five"},
    "a longer list": ROW | {"x": [1.0, 2.0, 3.0]},
    "a feature that is missing": {name: value for name, value in ROW.items() if name != "n"},
    "a new feature": ROW | {"new": 1},
    "bytes in a text column": ROW | {"text": b"\xff\xfe"},
    "a NUL in a text column": ROW | {"text": "a\x00b"},
    "beyond a hint's range": ROW | {"small": 300},
    "beyond a hint's bytes": ROW | {"raw": bytes(9)},
}
HINT = Schema(
    (Feature("small", "uint8"), Feature("raw", "uint8", (2, 4)), Feature("text", "string"))
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts the files into many pieces. A guess uses the first few records only."""
    monkeypatch.setattr(cutting, "PIECE_BYTES", 2000)
    monkeypatch.setattr(infer_schema, "GUESS_BYTES", 3000)
    monkeypatch.setattr(infer_schema, "_MIN_BYTES_PER_FILE", 200)


@pytest.fixture
def full_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List with an entry for each pass over all records."""
    passes: list[int] = []
    count_all = infer_schema.infer_from_files
    monkeypatch.setattr(
        infer_schema,
        "infer_from_files",
        lambda *args, **kws: passes.append(1) or count_all(*args, **kws),
    )
    return passes


def write(folder: Path, last: bytes, compress: bool = False) -> Path:
    """Writes three files. `last` is the last record of the last file."""
    folder.mkdir()
    plain = [example(ROW), example(OTHER_LIST)] * 30
    for number in range(3):
        data = tfrecord_bytes([*plain, *([last] if number == 2 else [])])
        (folder / f"train-{number:05d}-of-00003.tfrecord").write_bytes(
            gzip.compress(data) if compress else data
        )
    return folder


def outcome(
    source: Path, out: Path, **options: Any
) -> tuple[dict[str, bytes], list[str], int] | str:
    """Reads `source`. Returns its files, its notes and the number of records, or its error."""
    progress = Progress()
    try:
        result = recordmill.read(source, out, progress=progress, **options)
    except RecordmillError as error:
        assert not out.exists()
        return str(error)
    assert progress.records == result.read
    return tree(out), [note.replace(str(source), "IN") for note in result.notes], result.read


def read_both_ways(source: Path, tmp_path: Path, **options: Any) -> Any:
    """Returns the outcome of a read.

    Checks that it equals the outcome of a read that doesn't guess.
    """
    result = outcome(source, tmp_path / "guessed", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "guess_schema", lambda *args, **kws: None)
        assert outcome(source, tmp_path / "counted", **options) == result
    return result


def mark_sweeps(cases: list[tuple[Any, ...]], count: int) -> list[Any]:
    """Returns parameters for the cases. All except the first `count` have the mark `sweep`."""
    params = [pytest.param(*case) for case in cases[:count]]
    return params + [pytest.param(*case, marks=pytest.mark.sweep) for case in cases[count:]]


@pytest.mark.parametrize(
    ("to", "hinted", "case"),
    mark_sweeps(
        [
            ("parquet", True, "nothing new"),
            ("npy", True, "beyond a hint's range"),
            ("parquet", False, "a string in an int column"),
            *(
                (to, hinted, case)
                for to in ("npy", "parquet")
                for hinted in (False, True)
                for case in LATE
            ),
        ],
        3,
    ),
)
def test_guessed_read_includes_late_features_and_values(
    tmp_path: Path, full_passes: list[int], to: str, hinted: bool, case: str
) -> None:
    source = write(tmp_path / "in", example(LATE[case]))
    if hinted:
        (source / "schema.pbtxt").write_text(tfmd.to_pbtxt(HINT), encoding="utf-8")
    guessed = read_both_ways(source, tmp_path, to=to)
    changes = case != "nothing new" and (hinted or not case.startswith("beyond"))
    assert len(full_passes) == 1 + changes
    assert isinstance(guessed, str) == (case == "a string in an int column")


@pytest.mark.parametrize("compress", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_guessed_read_of_compressed_files_with_conversions(
    tmp_path: Path, full_passes: list[int], compress: bool
) -> None:
    source = write(tmp_path / "in", example(ROW), compress)
    options = {"columns": "raw,n,list", "decode_raw": "raw=float32[2]"}
    guessed = read_both_ways(source, tmp_path, **options)
    assert len(full_passes) == 1
    (tmp_path / "late").mkdir()
    late = read_both_ways(
        write(tmp_path / "late" / "in", example(ROW | {"n": [1, 2]}), compress),
        tmp_path / "late",
        **options,
    )
    assert len(full_passes) == 3
    assert late[0]["_read.json"] != guessed[0]["_read.json"]


@pytest.mark.parametrize(
    "damage", mark_sweeps([("bit",), ("no Example",), ("cut",), ("unknown field",)], 2)
)
def test_guessed_read_raises_the_same_error_for_a_bad_last_record(
    tmp_path: Path, damage: str
) -> None:
    last = {"no Example": b"\xff\xff", "unknown field": example(ROW) + b"\x18\x01"}.get(
        damage, example(ROW)
    )
    source = write(tmp_path / "in", last)
    path = source / "train-00002-of-00003.tfrecord"
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[-10] ^= 1
    path.write_bytes(data[:-3] if damage == "cut" else data)
    guessed = read_both_ways(source, tmp_path)
    assert isinstance(guessed, str) == (damage != "unknown field")
    (tmp_path / "lenient").mkdir()
    lenient = read_both_ways(source, tmp_path / "lenient", max_rejects="50%")
    assert lenient[2] == 181


@pytest.mark.parametrize(
    "options",
    mark_sweeps(
        [({"limit": 5},), ({"where": "n < 6"},), ({"sample": 0.5},), ({"max_rejects": 3},)], 1
    ),
)
def test_read_that_leaves_records_out_counts_first(
    tmp_path: Path, full_passes: list[int], options: dict[str, Any]
) -> None:
    source = write(tmp_path / "in", example(ROW | {"list": np.empty(0, np.int64)}))
    read_both_ways(source, tmp_path, **options)
    assert len(full_passes) == 2


def columns(source: Path, **options: Any) -> Any:
    try:
        ds = recordmill.open(source, **options)
        arrays, table = ds.to_numpy(), ds.to_table()
        path = ds.to_parquet(source.parent / "all.parquet", overwrite=True)
    except RecordmillError as error:
        return str(error)
    return (
        {name: str(array[:]) + repr(array) for name, array in arrays.items()},
        table,
        path.read_bytes(),
        ds.schema,
    )


@pytest.mark.parametrize(
    ("case", "compress"),
    mark_sweeps(
        [
            ("nothing new", False),
            ("a longer list", True),
            *((case, zip_) for case in LATE for zip_ in (0, 1)),
        ],
        2,
    ),
)
def test_guessed_arrays_in_memory_are_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full_passes: list[int],
    case: str,
    compress: bool,
) -> None:
    source = write(tmp_path / "in", example(LATE[case]), compress)
    monkeypatch.setattr(
        "recordmill.reader.open_files.infer_from_files", infer_schema.infer_from_files
    )
    for options in ({}, {"columns": "n,raw", "decode_raw": "raw=uint8[8]"}):
        full_passes.clear()
        guessed = columns(source, **options)
        passes = len(full_passes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "guess_schema", lambda *args, **kws: None)
            assert columns(source, **options) == guessed
        unfit = case == "beyond a hint's bytes" and bool(options)
        assert passes == (
            unfit or case not in ("nothing new", "beyond a hint's range", "beyond a hint's bytes")
        )


def test_error_of_a_guessed_plan_is_that_of_all_records(tmp_path: Path) -> None:
    source = write(tmp_path / "in", example(ROW | {"new": 1}))
    with pytest.raises(RecordmillError, match=r"no such feature"):
        recordmill.read(source, tmp_path / "out", columns="newer")
    assert recordmill.read(source, tmp_path / "out", columns="new").written == 181
    with pytest.raises(DataError, match=r"raw"):
        recordmill.read(source, tmp_path / "other", decode_raw="raw=float32[3]")
