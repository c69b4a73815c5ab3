"""Each record of a read is in exactly one task, wherever shards are divided.

Planning opens no shard.
"""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recordmill
from recordmill.base.errors import DataError
from recordmill.exporting.plan import ReadOptions, ReadTask, count_records, divide_tasks, plan_read
from recordmill.exporting.records import read_task_records
from recordmill.options.read import ReadOutput, ReadSelection
from recordmill.records.tfrecord.frames import Damage
from recordmill.shards.pieces import Piece

SHARDS = st.lists(st.tuples(st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=30)


def jobs_of(shards: list[tuple[int, int]], file_bytes: int) -> list[ReadTask]:
    spans = [Piece(index, 0, size, None, records) for index, (size, records) in enumerate(shards)]
    return list(divide_tasks([ReadTask("train", 0, 1, spans)], (), file_bytes))


@given(SHARDS, st.integers(1, 1500))
def test_tasks_divide_the_sequence_of_shards_evenly(
    shards: list[tuple[int, int]], file_bytes: int
) -> None:
    jobs = jobs_of(shards, file_bytes)
    sizes, counts = zip(*shards, strict=True)
    begins = [0, *itertools.accumulate(sizes)]
    width = max(file_bytes, -(-sum(sizes) // sum(counts)))
    line = [
        (begins[span.file] + span.start, begins[span.file] + span.stop)
        for job in jobs
        for span in job.pieces
        if span.stop is not None
    ]
    assert [start for start, _ in line] == [0, *(stop for _, stop in line[:-1])]
    assert line[-1][1] == sum(sizes)
    assert all(start < stop for start, stop in line)
    firsts = list(itertools.accumulate((len(job.pieces) for job in jobs), initial=0))
    assert [line[index][0] for index in firsts[:-1]] == list(range(0, sum(sizes), width))
    assert [(job.index, job.num_tasks) for job in jobs] == [
        (index, len(jobs)) for index in range(len(jobs))
    ]
    for span in (span for job in jobs for span in job.pieces):
        assert span.records == (
            shards[span.file][1] if span.size_bytes == shards[span.file][0] else None
        )


@given(SHARDS, SHARDS, st.integers(900, 3000))
def test_added_shards_change_only_the_last_task(
    shards: list[tuple[int, int]], added_shards: list[tuple[int, int]], file_bytes: int
) -> None:
    old_tasks, new_tasks = jobs_of(shards, file_bytes), jobs_of(shards + added_shards, file_bytes)
    for old, new in zip(old_tasks[:-1], new_tasks, strict=False):
        assert list(old.pieces) == list(new.pieces)


@given(st.lists(st.integers(1, 900), max_size=40), st.integers(1, 2000))
def test_pieces_are_added_to_a_task_until_the_file_size_is_reached(
    sizes: list[int], file_bytes: int
) -> None:
    ends = list(itertools.accumulate(sizes))
    pieces = [
        Piece(0, end - size, end, index, 1)
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]
    expected: list[list[Piece]] = [[]]
    for piece, size in zip(pieces, sizes, strict=True):
        if (
            expected[-1]
            and sum(item.stop - item.start for item in expected[-1] if item.stop) + size
            > file_bytes
        ):
            expected.append([])
        expected[-1].append(piece)
    jobs = divide_tasks([ReadTask("train", 0, 1, pieces)], (), file_bytes)
    assert [list(job.pieces) for job in jobs] == expected
    assert list(divide_tasks([ReadTask("train", 0, 1, pieces, 7)], (), file_bytes)) == [
        ReadTask("train", 0, 1, pieces, 7)
    ]


def test_record_count_of_pieces_is_known_unless_a_stream_or_index_is_needed() -> None:
    damage = Damage(10, 100, 60, "frame", "bad length")
    pieces = [Piece(0, 0, 100, 0, 10), Piece(0, 100, 160, 10, damage=damage)]
    pieces.append(Piece(0, 160, 200, 11, 5))
    assert count_records(pieces) == 16
    assert count_records([Piece(2, 0, 5000, None, 7)]) == 7
    assert count_records([*pieces, Piece(1, 0, None)]) is None
    assert count_records([Piece(2, 5000, 5001, None)]) is None


def test_plan_of_a_read_opens_no_index_and_its_tasks_read_their_own(tmp_path: Path) -> None:
    result = recordmill.build(
        {"x": np.arange(4000.0), "text": ["x" * (row % 70) for row in range(4000)]},
        tmp_path / "out",
        num_shards=4,
    )
    (index,) = Path(result.out).glob("data-*/index")
    shutil.move(index, tmp_path / "elsewhere")
    plan = plan_read(result.out, ReadOptions(ReadOutput(file_size=30_000)))
    limited_plans = [
        plan_read(result.out, ReadOptions(selection=ReadSelection(limit=limit)))
        for limit in (0, 4000)
    ]
    assert [read_plan.records for read_plan in (plan, *limited_plans)] == [4000, 0, 4000]
    assert len(plan.tasks) > 8
    with pytest.raises(DataError, match="is missing"):
        list(read_task_records(plan, plan.tasks[1], 1))
    shutil.move(tmp_path / "elsewhere", index)
    counts = [sum(part.records for part in read_task_records(plan, job, 1)) for job in plan.tasks]
    assert sum(counts) == 4000
    assert all(counts)
