"""Equal records and similar images are found within a split and between splits.

The result contains their places.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.image_samples import encode_image, picture

from recordmill.base.errors import UsageError
from recordmill.checks.rules import read_rules
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.duplicates import (
    check_image_rules,
    find_near_images,
    find_repeat_violations,
)
from recordmill.schemas.feature import Feature, Schema

IMAGES = Schema((Feature("image", "bytes", (), True),))


def image_set(folder: Path, images: list[bytes]) -> Dataset:
    table = pa.table({"image": pa.array(images, pa.large_binary())})
    return open(write_data_set(folder / "out", {"train": table}, IMAGES))


def violations(ds: Dataset, text: dict[str, object], memory_bytes: int = 1 << 20) -> list[str]:
    result = find_repeat_violations(ds.records, read_rules(text), memory_bytes)
    return [violation.what for violation in result]


def test_records_of_two_splits_are_compared_by_their_content(tmp_path: Path) -> None:
    rows = {"train": mixed_rows(40), "test": mixed_rows(10, 35)}  # records 35 to 39 are in both
    ds = open(write_data_set(tmp_path / "out", rows, shards=2))
    (message,) = violations(ds, {"leakage": {"records": 0}})
    assert "5 of" in message
    assert violations(ds, {"leakage": {"records": 0.5}}) == []
    assert violations(ds, {"duplicates": {"records": 0}}) == []


def test_values_of_a_feature_repeat_in_different_records(tmp_path: Path) -> None:
    table = mixed_rows(30)
    names = pa.array([f"n{row % 20}" for row in range(30)], pa.large_string())
    index = table.schema.get_field_index("name")
    table = table.set_column(index, table.schema.field("name"), names)
    ds = open(write_data_set(tmp_path / "out", {"train": table}))
    assert violations(ds, {"duplicates": {"records": 0}}) == []
    (message,) = violations(ds, {"duplicates": {"records": 0, "keys": {"name": 0}}})
    assert message.startswith("10 of 30 records")


@pytest.mark.parametrize(
    ("check", "limits", "rule"),
    [
        ("duplicates", {"records": 0}, "(duplicates: {records: SHARE})"),
        ("duplicates", {"keys": ["id"]}, "(duplicates: {keys: {id: SHARE}})"),
        ("leakage", {"records": 0}, "(leakage: {records: SHARE})"),
    ],
)
def test_remedy_contains_the_rule_to_write(
    tmp_path: Path, check: str, limits: dict[str, object], rule: str
) -> None:
    rows = mixed_rows(10)
    repeated = {"train": pa.concat_tables([rows, rows])}
    splits = repeated if check == "duplicates" else {"train": rows, "test": rows}
    ds = open(write_data_set(tmp_path / "out", splits))
    (violation,) = find_repeat_violations(ds.records, read_rules({check: limits}), 1 << 20)
    assert violation.remedy.endswith(rule)


def test_result_does_not_depend_on_the_memory(tmp_path: Path) -> None:
    rows = {"train": mixed_rows(40), "test": mixed_rows(10, 35)}
    ds = open(write_data_set(tmp_path / "out", rows))
    rules: dict[str, object] = {"leakage": {"records": 0}}
    assert violations(ds, rules, 1 << 24) == violations(ds, rules, 1 << 12)


def test_copies_of_an_image_are_near_and_other_images_are_not(tmp_path: Path) -> None:
    smooth = [picture(size=(8, 8), seed=seed).resize((120, 100)) for seed in range(4)]
    images = [encode_image("PNG", image) for image in smooth]
    images.append(encode_image("JPEG", smooth[2].resize((90, 75)), quality=80))
    ds = image_set(tmp_path, images)
    counts: list[int] = []
    result = find_near_images(ds.records, "image", counts.append)
    assert sum(counts) == 5
    assert result.within_splits == {0: 1}
    assert result.example_pairs == {(0, 0): [(2, 4)]}


def test_rule_about_images_needs_an_image_feature(tmp_path: Path) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(5)}))
    rules = read_rules({"duplicates": {"near_images": 0}})
    with pytest.raises(UsageError, match="image"):
        check_image_rules(ds.records, rules)
