"""Keys and splits are fixed, because they determine the bytes of data sets."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from recordmill.base.errors import DataError, UsageError
from recordmill.building.record_keys import (
    KeyAssigner,
    encode_key_values,
    find_split_names,
)
from recordmill.options.order import BuildOrder
from recordmill.sources.common.contract import Unit
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Stat


@dataclass(frozen=True)
class PlannedSource:
    """The attributes of a source that a KeyAssigner uses."""

    files: FileTable
    units: tuple[Unit, ...] = ()
    kind: str = "test"
    notes: tuple[str, ...] = ()
    digests: dict[int, str] = field(default_factory=dict)


def source(*names: str, splits: tuple[str | None, ...] = ()) -> PlannedSource:
    files = tuple(
        InputFile(0, name, f"/elsewhere/{name}", Stat(1, 1), splits[i] if splits else None)
        for i, name in enumerate(names)
    )
    return PlannedSource(
        FileTable.from_files(files), tuple(Unit(i, i + 1, rows=10) for i in range(len(names)))
    )


def assign_keys(
    options: BuildOrder,
    planned_source: PlannedSource,
    file: list[int],
    position: list[int],
    batch: pa.RecordBatch | None = None,
) -> tuple[list[int], list[int]]:
    keys, splits = KeyAssigner(options, planned_source).assign(
        batch, np.array(file, np.uint32), np.array(position, np.int64)
    )
    return keys.tolist(), splits.tolist()


def test_keys_and_splits_of_version_1_are_pinned() -> None:
    # The shards of all users depend on these values. A change requires a new major version of the
    # format.
    keys, splits = assign_keys(
        BuildOrder(seed=7, splits=(("train", 0.5), ("test", 0.5)), split_seed=3),
        source("a.csv", "sub/b.csv"),
        [0, 0, 1, 1],
        [0, 1, 0, 2**40],
    )
    assert [f"{key:016x}" for key in keys] == [
        "c06603815b195e94",
        "1a18ce87b2482d8f",
        "af9a5ad4af915e9f",
        "ef5b9baf54856f68",
    ]
    assert splits == [1, 0, 1, 1]


def test_key_depends_on_seed_file_name_and_position_alone() -> None:
    keys, _ = assign_keys(BuildOrder(seed=1), source("a", "b"), [0, 0, 1], [0, 1, 0])
    assert len(set(keys)) == 3
    assert assign_keys(BuildOrder(seed=1), source("b"), [0], [0])[0] == keys[2:]
    assert assign_keys(BuildOrder(seed=2), source("a"), [0], [0])[0] != keys[:1]
    assert assign_keys(BuildOrder(seed=1, split_seed=9), source("a"), [0], [0])[0] == keys[:1]


def test_keys_without_shuffle_count_records_in_input_order() -> None:
    assert assign_keys(BuildOrder(shuffle=False), source("a", "b"), [0, 0, 1], [0, 9, 3])[0] == [
        0,
        9,
        13,
    ]
    assert KeyAssigner(BuildOrder(shuffle=False), source("a", "b")).key_limit == 20


class ManyFiles:
    """A table of any number of files, which makes their entries on access."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.extra_columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> InputFile:
        return InputFile(0, f"{index}.bin", f"/elsewhere/{index}.bin", Stat(1, 1))


def test_input_order_holds_for_ten_million_files_of_unknown_length() -> None:
    count = 10_000_000
    planned_source = PlannedSource(ManyFiles(count), (Unit(0, count),))  # type: ignore[arg-type]
    ordering = KeyAssigner(BuildOrder(shuffle=False), planned_source)
    file = np.array([0, 0, 1, 8_388_607, 8_388_608, count - 1], np.uint32)
    keys, _ = ordering.assign(None, file, np.array([0, 1, 0, 5, 0, 7], np.int64))
    assert (np.diff(keys.astype(np.float64)) > 0).all()
    assert int(keys[-1]) < ordering.key_limit < 2**63
    with pytest.raises(
        DataError, match=r"^3\.bin: has more records than the .* that .* allows for each of"
    ):
        ordering.assign(None, np.array([3], np.uint32), np.array([2**39], np.int64))
    small_assigner = KeyAssigner(
        BuildOrder(shuffle=False), PlannedSource(source("a", "b").files, (Unit(0, 2),))
    )
    assert small_assigner.assign(None, np.array([1], np.uint32), np.array([4], np.int64))[
        0
    ].tolist() == [2**40 + 4]


def test_key_bits_keep_the_leading_bits() -> None:
    full_keys, _ = assign_keys(BuildOrder(), source("a"), [0] * 50, list(range(50)))
    masked_keys, _ = assign_keys(BuildOrder(key_bits=8), source("a"), [0] * 50, list(range(50)))
    assert masked_keys == [key >> 56 << 56 for key in full_keys]


def test_splits_have_the_requested_sizes_and_do_not_depend_on_the_seed() -> None:
    options = (("train", 0.9), ("validation", 0.1))
    rows = list(range(20000))
    _, first = assign_keys(BuildOrder(seed=1, splits=options), source("a"), [0] * len(rows), rows)
    _, second = assign_keys(BuildOrder(seed=2, splits=options), source("a"), [0] * len(rows), rows)
    _, reseeded = assign_keys(
        BuildOrder(seed=1, splits=options, split_seed=1), source("a"), [0] * len(rows), rows
    )
    assert first == second != reseeded
    assert abs(sum(first) / len(rows) - 0.1) < 0.01  # 0.1 ± 4.7 standard deviations


def test_split_group_is_never_divided_between_splits() -> None:
    groups = [f"g{i % 37}" for i in range(5000)]
    batch = pa.record_batch({"user": pa.array(groups, pa.large_string())})
    options = BuildOrder(splits=(("a", 0.5), ("b", 0.5)), split_by="user")
    keys, splits = assign_keys(options, source("x"), [0] * 5000, list(range(5000)), batch)
    assert len(set(keys)) == 5000
    by_group = {}
    for group, split in zip(groups, splits, strict=True):
        by_group.setdefault(group, set()).add(split)
    assert all(len(group_splits) == 1 for group_splits in by_group.values())
    assert {next(iter(group_splits)) for group_splits in by_group.values()} == {0, 1}


def test_key_column_keeps_keys_and_splits_when_rows_are_inserted() -> None:
    options = BuildOrder(key="id", splits=(("a", 0.5), ("b", 0.5)))
    batch = pa.record_batch({"id": pa.array([1, 2, 3])})
    longer_batch = pa.record_batch({"id": pa.array([1, 99, 2, 3])})
    keys, splits = assign_keys(options, source("x"), [0] * 3, [0, 1, 2], batch)
    keys_after, splits_after = assign_keys(
        options, source("renamed"), [0] * 4, [0, 1, 2, 3], longer_batch
    )
    assert [keys_after[0], *keys_after[2:]] == keys
    assert [splits_after[0], *splits_after[2:]] == splits


def test_encoded_key_values_distinguish_null_from_empty_in_any_slice() -> None:
    column = pa.array(["x", None, "", "ab"], pa.large_string())
    data, offsets = encode_key_values(column)
    values = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    assert values == [b"vx", b"", b"v", b"vab"]
    data, offsets = encode_key_values(column.slice(2))
    assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == [b"v", b"vab"]


def test_encoded_key_values_of_numbers() -> None:
    data, offsets = encode_key_values(pa.array([1, None, -1], pa.int32()))
    assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == [
        b"\1" + bytes(7),
        b"",
        b"\xff" * 8,
    ]
    floats, _ = encode_key_values(pa.array([0.0, -0.0]))
    assert floats[:8].tobytes() == floats[8:].tobytes()
    with pytest.raises(UsageError, match="name a column of single values"):
        encode_key_values(pa.array([[1]]))


def test_fractions_are_refused_if_folders_determine_the_splits() -> None:
    files = source("a", "b", splits=("test", "train")).files
    assert find_split_names(BuildOrder(), files) == ("train", "test")
    assert find_split_names(BuildOrder(), source("a", "b", splits=("test", None)).files) == (
        "train",
        "test",
    )
    with pytest.raises(UsageError, match="would mix them"):
        find_split_names(BuildOrder(splits=(("train", 1.0),)), files)
    # It is safe to divide the files of a single split.
    assert find_split_names(
        BuildOrder(splits=(("a", 0.5), ("b", 0.5))), FileTable.from_files(files[:1])
    ) == (
        "a",
        "b",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": (("train", 0.9),)}, "rest=0.1"),
        ({"splits": (("train", 0.5), ("train", 0.5))}, "twice"),
        ({"splits": (("a/b", 1.0),)}, "letters"),
        ({"splits": (("a", 1.5), ("b", -0.5))}, "fraction"),
        ({"seed": 2**63}, r"must be from -2\*\*63 to"),
    ],
)
def test_impossible_key_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BuildOrder(**options)  # type: ignore[arg-type]
