"""A sample has the first records of each file. An invalid sample is refused."""

from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.reader.dataset import open
from recordmill.shards.loading.sample import Sample, iter_sample_reads
from recordmill.storage.codecs import SHARD_SUFFIXES


@pytest.mark.parametrize("compression", SHARD_SUFFIXES)
def test_sample_is_the_first_records_of_each_file(tmp_path: Path, compression: str) -> None:
    files = open(
        write_data_set(
            tmp_path / "out", {"train": mixed_rows(40)}, shards=4, compression=compression
        )
    ).records.catalog.files

    def list_reads(sample: Sample) -> list[tuple[str, int, int]]:
        all_frames = [call() for call in iter_sample_reads(files, sample)]
        return [
            (files[frames.file].name[-26:], int(frames.numbers[0]), len(frames))
            for frames in all_frames
        ]

    assert [(first, records) for _, first, records in list_reads(Sample(6))] == [
        (0, 2),
        (0, 2),
        (0, 1),
        (0, 1),
    ]
    assert sum(records for _, _, records in list_reads(Sample(1000))) == 40
    assert sum(records for _, _, records in list_reads(Sample(2, whole_files=True))) == 20


@pytest.mark.parametrize("text", ["0", "-1", "a", "1.5", "3 folders", ""])
def test_invalid_infer_from_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="infer_from="):
        Sample.parse(text)
