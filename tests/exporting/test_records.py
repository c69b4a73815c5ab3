"""Records are sampled and filtered before conversion.

A sample does not depend on the names of the files.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set
from kit.files import flip
from kit.filtered_sets import ids, make_filtered_set

from recordmill.base.errors import DataError
from recordmill.pipelines.read import read
from recordmill.records.writers.npy import open_columns
from recordmill.shards import cutting


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_filtered_set(tmp_path_factory.mktemp("filters"))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE_BYTES", 8_000)


def test_samples_have_the_requested_share_and_are_nested(out: Path, tmp_path: Path) -> None:
    small_sample, large_sample, other_sample, empty_sample, full_sample = (
        set(ids(read(out, tmp_path / f"{share}-{seed}", sample=share, seed=seed)))
        for share, seed in [(0.2, 1), (0.6, 1), (0.6, 2), (0, 1), (1, 1)]
    )
    assert 30 < len(small_sample) < 90 < 140 < len(large_sample) < 220
    assert small_sample < large_sample
    assert large_sample != other_sample
    assert (empty_sample, full_sample) == (set(), set(range(300)))


def test_sample_does_not_depend_on_how_files_are_named(out: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "moved"
    shutil.copytree(out, copy)
    files = sorted(str(path) for path in (copy / FOLDER).glob("train-*"))
    all_inputs = [
        out,
        copy,
        copy / FOLDER,
        str(copy / FOLDER / "train-*"),
        files,
        [str(copy / FOLDER / f"train-0000{i}*") for i in range(3)],
    ]
    samples = [
        ids(read(inputs, tmp_path / str(number), sample=0.3, seed=5))
        for number, inputs in enumerate(all_inputs)
    ]
    assert samples == samples[:1] * len(all_inputs)
    assert 50 < len(samples[0]) < 130
    assert [i % 100 for i in samples[0] if i < 100] != [
        i % 100 for i in samples[0] if 100 <= i < 200
    ], "the files have samples of their own"
    (copy / FOLDER).rename(copy / "data-other")
    second_copy = tmp_path / "again"
    shutil.copytree(copy / "data-other", second_copy / "deep" / "shards")
    assert (
        ids(read(second_copy / "deep" / "shards", tmp_path / "to", sample=0.3, seed=5))
        == samples[0]
    )


def test_records_are_filtered_before_conversion(out: Path, tmp_path: Path) -> None:
    """Records that the filter removes are not converted, so they cannot be rejects.

    Damage of a record is found in spite of the filter.
    """
    options: dict[str, Any] = {"pad": "words=1:", "to": "npy"}
    with pytest.raises(DataError, match="more than the length of 1"):
        read(out, tmp_path / "a", **options)
    result = read(out, tmp_path / "b", where="len(words) < 2", **options)
    assert (result.written, result.filtered, result.rejected) == (200, 100, 0)
    result = read(out, tmp_path / "c", where="id % 2 = 0", max_rejects=100, **options)
    assert (result.read, result.written, result.filtered, result.rejected) == (300, 100, 150, 50)
    assert len(open_columns(result.paths[0])["id"]) == 100


def test_damaged_record_is_a_reject_with_any_filter(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(50)}, shards=1)
    flip(next((out / FOLDER).glob("train-*")), 30)
    result = read(out, tmp_path / "to", where="id >= 40", max_rejects=1)
    assert (result.read, result.written, result.filtered, result.reject_reasons) == (
        50,
        10,
        39,
        {"crc": 1},
    )
