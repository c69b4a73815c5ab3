"""`on_bad="skip"` leaves out unusable records, counts them and reports them.

Such runs resume exactly.
"""

import gzip
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.batches import check_resumes, ids
from kit.data_sets import (
    MIXED,
    flip_record,
    mixed_rows,
    on_one_thread,
    window_options,
    write_data_set,
)
from kit.image_samples import encode_image

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.mixture import mixture
from recordmill.reader.records import Records
from recordmill.records.example.encode import encode
from recordmill.schemas.feature import Feature, Schema

ROWS = 50
BAD_IMAGES = (0, 7, 8, 9, 31, 49)
MODES: list[Any] = [False, "window", "global"]
SKIP: dict[str, Any] = {"on_bad": "skip", "decode_images": (4, 4)}
pytestmark = pytest.mark.filterwarnings("ignore:epoch .* skipped")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set in which some images are damaged."""
    good = encode_image("PNG")
    schema = Schema(
        (
            Feature("image", "bytes", (), True),
            Feature("n", "int64", (), True),
            Feature("list", "int64", (None,)),
        )
    )
    images = [good[:60] if row in BAD_IMAGES else good for row in range(ROWS)]
    columns = {
        "image": images,
        "n": range(ROWS),
        "list": [[row] * (row % 4) for row in range(ROWS)],
    }
    return open(
        write_data_set(tmp_path_factory.mktemp("bad") / "out", {"train": columns}, schema, shards=3)
    )


def numbers(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["n"]).tolist() for batch in batches]


def split_by_epoch(rows: list[list[int]], epochs: int) -> list[list[int]]:
    numbers_in_order = [n for batch in rows for n in batch]
    size = len(numbers_in_order) // epochs
    return [
        numbers_in_order[begin : begin + size] for begin in range(0, len(numbers_in_order), size)
    ]


@pytest.mark.parametrize("shuffle", MODES)
def test_good_records_fill_the_batches_in_their_order(ds: Dataset, shuffle: Any) -> None:
    order = split_by_epoch(
        numbers(ds.batches(8, shuffle=shuffle, epochs=2, **window_options(shuffle, 3000))), 2
    )
    batches = ds.batches(8, shuffle=shuffle, epochs=2, **window_options(shuffle, 3000), **SKIP)
    batch_numbers = []
    for batch in batches:
        batch_numbers.append(batch["n"].tolist())
        assert batch["image"].shape == (len(batch_numbers[-1]), 4, 4, 3)
        assert [row.tolist() for row in batch["list"]] == [[n] * (n % 4) for n in batch_numbers[-1]]
    assert [len(rows) for rows in batch_numbers] == [8, 8, 8, 8, 8, 4] * 2
    assert split_by_epoch(batch_numbers, 2) == [
        [n for n in epoch if n not in BAD_IMAGES] for epoch in order
    ]
    assert batches.skipped == 2 * len(BAD_IMAGES)
    full_batches = numbers(
        ds.batches(
            8,
            shuffle=shuffle,
            epochs=2,
            **window_options(shuffle, 3000),
            drop_remainder=True,
            **SKIP,
        )
    )
    assert full_batches == [rows for rows in batch_numbers if len(rows) == 8]


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_skipping_batches_resume_at_every_step(
    ds: Dataset, shuffle: Any, drop_remainder: bool
) -> None:
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "epochs": 2,
        "drop_remainder": drop_remainder,
        **SKIP,
    }
    check_resumes(partial(ds.batches, 8), numbers, options)


def test_skipping_batches_are_the_same_with_little_memory_and_one_thread(ds: Dataset) -> None:
    options: dict[str, Any] = {"shuffle": "global", "seed": 5, **SKIP}
    expected = numbers(ds.batches(8, **options))
    assert numbers(ds.batches(8, memory_bytes=1, **options)) == expected
    assert numbers(on_one_thread(ds).batches(8, **options)) == expected


def test_skipped_records_are_counted_and_reported_at_the_end(ds: Dataset) -> None:
    batches = ds.batches(8, shuffle=False, epochs=2, **SKIP)
    with pytest.raises(TypeError, match="known only at the end"):
        len(batches)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        list(batches)
    assert len(messages) == 2
    text = str(messages[1].message)
    assert text.startswith('epoch 1: 6 of 50 records were skipped (on_bad="skip"); the first: ')
    assert "train-00000-of-00003.tfrecord: record 0: feature 'image': " in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(ds.batches(8, shuffle=False, on_bad="skip"))  # nothing was skipped


def test_to_tf_skips_the_same_records(ds: Dataset) -> None:
    tf = pytest.importorskip("tensorflow")
    for options in ({"shuffle": False}, {"shuffle": "global", "drop_remainder": True}):
        expected = numbers(ds.batches(8, epochs=2, **SKIP, **options))
        dataset = ds.to_tf(8, epochs=2, **SKIP, **options)
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert numbers(dataset) == expected
    single_numbers = [int(row["n"]) for row in ds.to_tf(None, shuffle=False, **SKIP)]
    assert single_numbers == [n for n in range(ROWS) if n not in BAD_IMAGES]
    iterator = ds.batches(8, shuffle="global", **SKIP)
    next(iterator)
    tensors = ds.to_tf(8, shuffle="global", state=iterator.state(), **SKIP)
    assert numbers(tensors) == numbers(ds.batches(8, shuffle="global", **SKIP))[1:]


def test_epoch_of_bad_records_ends(tmp_path: Path) -> None:
    schema = Schema((Feature("image", "bytes", (), True), Feature("n", "int64", (), True)))
    rows = {"image": [encode_image("PNG"), *[encode_image("PNG")[:60]] * 9], "n": range(10)}
    ds = open(write_data_set(tmp_path / "out", {"train": rows}, schema))
    assert numbers(ds.batches(3, shuffle=False, epochs=3, **SKIP)) == [[0]] * 3
    assert numbers(ds.batches(3, shuffle=False, epochs=3, drop_remainder=True, **SKIP)) == []


def write_damaged(folder: Path, records: list[int]) -> Dataset:
    """Returns a data set with a damaged byte in the payloads of these records."""
    out = write_data_set(folder / "out", {"train": mixed_rows(ROWS)}, shards=1)
    for record in records:
        flip_record(out, record, "train-00000")
    return open(out, columns=["id", "tokens", "label"])


@pytest.mark.parametrize("shuffle", MODES)
def test_damaged_records_are_skipped(tmp_path: Path, shuffle: Any) -> None:
    ds = write_damaged(tmp_path, [3, 4, 40])
    with pytest.raises(
        DataError, match=r"train-00000-of-00001\.tfrecord: record 3, byte \d+: CRC of the data"
    ):
        list(ds.batches(8, shuffle=shuffle))
    record_ids = [
        n for batch in ds.batches(8, shuffle=shuffle, on_bad="skip") for n in batch["id"].tolist()
    ]
    assert sorted(record_ids) == [n for n in range(ROWS) if n not in (3, 4, 40)]


def test_records_that_do_not_fit_the_schema_are_skipped(tmp_path: Path) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=2))
    strict_schema = replace(
        ds.full_schema, features=tuple(replace(f, required=True) for f in ds.full_schema)
    )
    strict_set = Dataset(
        Records.from_files(
            replace(ds.records.open_files, known_schema=strict_schema), ["id", "maybe"]
        )
    )
    with pytest.raises(
        DataError, match=r"train-00000-of-00002\.tfrecord: record 0, byte 0: .*maybe"
    ):
        list(strict_set.batches(8, shuffle=False))
    batches = strict_set.batches(8, shuffle=False, on_bad="skip")
    with pytest.warns(UserWarning, match="record 0: feature 'maybe': missing"):
        record_ids = [n for batch in batches for n in batch["id"].tolist()]
    assert record_ids == [n for n in range(ROWS) if n % 3]
    labels = [
        y
        for _, y in open(tmp_path / "out", columns=["id", "flag"]).batches(
            8, shuffle=False, label="flag", on_bad="skip"
        )
    ]
    assert sum(map(len, labels)) == ROWS - ROWS // 5


def open_foreign(folder: Path, compression: str, damage: str, **options: Any) -> Dataset:
    """Opens a damaged TFRecord file of ROWS records that has no manifest.

    Args:
        damage: "payloads", "headers", "the end", or "" for an intact file.
    """
    frames = encode(mixed_rows(ROWS).combine_chunks().to_batches()[0], MIXED)
    data, starts = bytearray(frames.data.tobytes()), frames.starts.tolist()
    if damage == "payloads":
        for record in (0, 7, 8):
            data[starts[record] + 40] ^= 1
    if damage == "headers":
        for record in (3, 20):
            data[starts[record]] ^= 1
    content = bytes(data) if compression == "none" else gzip.compress(bytes(data))
    if damage == "the end":
        content = content[:-20]
    path = folder / f"a-{compression}-{damage}.tfrecord"
    path.write_bytes(content)
    return open(
        path,
        columns=["id", "tokens", "label"],
        schema=None if damage == "payloads" else MIXED,
        **options,
    )


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(
    ("damage", "bad_ids"), [("payloads", [0, 7, 8]), ("headers", [3, 20]), ("the end", [ROWS - 1])]
)
def test_damaged_records_of_foreign_files_are_skipped(
    tmp_path: Path, compression: str, damage: str, bad_ids: list[int]
) -> None:
    ds = open_foreign(tmp_path, compression, damage)
    with pytest.raises(DataError, match=r"record|byte"):
        list(ds.batches(8))
    for shuffle in MODES if compression == "none" else MODES[:2]:
        batches = ds.batches(8, shuffle=shuffle, on_bad="skip")
        with pytest.warns(
            UserWarning, match=rf"epoch 0: \d+ of \d+ records (was|were) skipped .*{tmp_path}"
        ):
            record_ids = [n for rows in batches for n in rows["id"].tolist()]
        good_ids = [n for n in range(ROWS) if n not in bad_ids]
        if compression == "gzip" and damage == "the end":
            # The number of lost records after the damage is unknown.
            assert batches.skipped == 1
            assert sorted(record_ids) == good_ids[: len(record_ids)]
        else:
            assert (batches.skipped, sorted(record_ids)) == (len(bad_ids), good_ids)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("damage", "bad_ids"), [("payloads", [0, 7, 8]), ("headers", [3, 20])])
def test_filtered_batches_count_damaged_records(
    tmp_path: Path, compression: str, damage: str, bad_ids: list[int]
) -> None:
    batches = open_foreign(tmp_path, compression, damage, where="id >= 5").batches(
        8, shuffle=False, on_bad="skip"
    )
    assert [n for rows in batches for n in rows["id"].tolist()] == [
        n for n in range(5, ROWS) if n not in bad_ids
    ]
    # It is unknown whether a damaged record matches the condition.
    assert batches.skipped == len(bad_ids)


def test_intact_data_is_the_same_with_and_without_skipping(tmp_path: Path) -> None:
    ds = open_foreign(tmp_path, "gzip", "")
    assert ids(ds.batches(8, on_bad="skip")) == ids(ds.batches(8))
    assert ds.batches(8, on_bad="skip").state() == ds.batches(8).state()
    assert ds.records.lenient_view.fingerprint == ds.fingerprint


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("damage", "bad_ids"), [("payloads", [0, 7, 8]), ("headers", [3, 20])])
def test_mixture_skips_the_records_that_its_sets_skip(
    tmp_path: Path, compression: str, damage: str, bad_ids: list[int]
) -> None:
    columns = ["id", "tokens", "label"]
    intact_set = open(
        write_data_set(tmp_path / "whole", {"train": mixed_rows(ROWS)}), columns=columns
    )
    open_foreign(tmp_path, compression, damage)
    ds = open(tmp_path / f"a-{compression}-{damage}.tfrecord", columns=columns, schema=MIXED)
    mix = mixture([(intact_set, 1), (ds, 1)])
    with pytest.raises(DataError, match=rf"{tmp_path}.*record"):
        list(mix.batches(8))
    batches = mix.batches(8, shuffle=False, on_bad="skip")
    record_ids = [n for rows in batches for n in rows["id"].tolist()]
    assert sorted(record_ids) == sorted(
        [*range(ROWS), *(n for n in range(ROWS) if n not in bad_ids)]
    )
    assert batches.skipped == len(bad_ids)
    with pytest.raises(UsageError, match="in the mixture twice"):
        list(mixture([(ds, 1), (ds, 2)]).batches(8, on_bad="skip"))
