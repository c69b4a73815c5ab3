"""Folder and file names determine splits, classes and partitions.

Ambiguous names are refused.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit import image_samples
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import UsageError
from recordmill.sources.common.layout import (
    FolderLayout,
    note_unused_partitions,
    read_layout,
    read_partitions,
    resolve_class_rule,
)
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Stat
from recordmill.storage.listing import InputRoot


def make_layout(names: str | list[tuple[int, str]], *roots: str, **options: Any) -> FolderLayout:
    """Returns the layout of files with these names.

    Args:
        names: File names separated by blanks, or (input number, file name) of each file.
        roots: The folders of the inputs.
    """
    pairs = [(0, name) for name in names.split()] if isinstance(names, str) else names
    files = [InputFile(root, name, f"/r{root}/{name}", Stat(1, 1)) for root, name in pairs]
    layout = read_layout(
        files,
        [InputRoot(f"/x/{root}", f"/x/{root}", True) for root in roots or ("data",)],
        **options,
    )
    splits, classes = (tuple(column.to_pylist()) for column in (layout.splits, layout.classes))
    return replace(layout, splits=splits, classes=classes)


@pytest.mark.parametrize(
    ("regex", "classes", "message"),
    [
        (r"class_(\d+)_", ("3", None, "10"), ""),
        (r"(a|b)/(?P<label>[^_]+)_", ("class", None, "class"), ""),
        (
            r"x_(.*)z",
            (),
            "--label-regex 'x_(.*)z': no file name matches; the first one is a/class_3_1.png",
        ),
        (r"class_\d", (), r"--label-regex 'class_\d': it needs a group around the label: (...)"),
        (
            "(",
            (),
            "--label-regex '(': not a regular expression: missing ), unterminated subpattern at position 0",
        ),
    ],
)
def test_class_regex_finds_classes_in_names(
    regex: str, classes: tuple[str | None, ...], message: str
) -> None:
    names = "a/class_3_1.png a/none.png b/class_10_1.png"
    if message:
        with pytest.raises(UsageError) as error:
            make_layout(names, class_from=resolve_class_rule("auto", regex))
        assert in_flags(error.value) == message
        return
    layout = make_layout(names, class_from=resolve_class_rule("auto", regex))
    assert (layout.classes, layout.class_names) == (classes, tuple(sorted({*classes} - {None})))


@pytest.mark.parametrize("kind", ["images", "text"])
def test_files_without_a_match_of_the_class_regex_are_handled_by_missing(
    kind: str, tmp_path: Path
) -> None:
    for name in ("cat_1", "cat_2", "dog_1", "other"):
        data = image_samples.encode_image("PNG") if kind == "images" else b"text"
        (tmp_path / f"{name}.{'png' if kind == 'images' else 'txt'}").write_bytes(data)
    build = functools.partial(recordmill.build, tmp_path, kind=kind, label_regex="(cat|dog)_")
    result = build(tmp_path.parent / f"{tmp_path.name}-out")
    assert result.records == {"train": 3}
    assert any(
        note.startswith("left out: 1 of 4 file(s) have no label by ") for note in result.notes
    )
    assert recordmill.open(result.out).schema["label"].classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("names", "splits", "classes", "options"),
    [
        (
            "train/cat/1 train/dog/1 test/cat/1 valid/dog/1",
            "train train test validation",
            "cat dog cat dog",
            {},
        ),
        ("cat/train/1 dog/train/2 cat/test/1", "train train test", "cat dog cat", {}),
        # the outermost folder determines the split
        ("test/train/cat/1 test/train/dog/1", "test test", "cat dog", {}),
        # complete names have priority over words in names
        ("dev-tools/test/1 dev-tools/train/2", "test train", "- -", {}),
        (
            "photos/all/dogs/terrier/1 photos/all/dogs/husky/1 photos/all/cats/1",
            "- - -",
            "dogs/terrier dogs/husky cats",
            {},
        ),
        ("a/1 a/b/2", "- -", "a a/b", {}),
        ("cat/1 dog/1 loose", "- - -", "cat dog -", {}),
        ("1 2", "- -", "- -", {}),
        ("cat/1 cat/2", "- -", "- -", {}),
        ("cat/1 2", "- -", "- -", {}),
        ("train/1 test/1", "train test", "- -", {}),
        ("cat/1 cat/2", "- -", "cat cat", {"class_from": "folders"}),
        ("cat/1 dog/2", "- -", "- -", {"class_from": "none"}),
        ("é/1 z/1 A/1 a/1", "- - - -", "é z A a", {}),
        ("dev-patel/1 anne/1", "- -", "dev-patel anne", {}),
        ("train_1.jpg test-2.jpg", "train test", "- -", {}),
        ("train_1.jpg cat.jpg", "- -", "- -", {}),
        ("train.tar.jpg testing.v2.png", "train test", "- -", {}),
        ("train/a-test.jpg train/b-test.jpg", "test test", "- -", {"split_from": "names"}),
        ("x_test_100.csv", "test", "-", {"split_from": "names"}),
        ("test.csv", "test", "-", {}),
        ("test/1.csv", "test", "-", {}),
        ("my_test_data/1.csv", "-", "-", {}),
        ("x_test_1.csv x_test_2.csv", "- -", "- -", {}),
        ("x_test_1.csv x_train_2.csv", "test train", "- -", {}),
        ("my_test_data/1.csv my_train_data/1.csv", "test train", "- -", {}),
    ],
)
def test_splits_and_classes_follow_from_names(
    names: str, splits: str, classes: str, options: dict[str, Any]
) -> None:
    layout = make_layout(names, **options)
    columns = [
        ["-" if value is None else value for value in column]
        for column in (layout.splits, layout.classes)
    ]
    assert columns == [splits.split(), classes.split()]
    # Readers rely on the order of the bytes.
    assert layout.class_names == tuple(sorted({*layout.classes} - {None}))


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (
            "train/cat/1.jpg train/dog/1.jpg test/cat/1.jpg valid/dog/1.jpg",
            "splits by folder: test 1, train 2, validation 1",
        ),
        ("cat/1.jpg dog/1.jpg loose.jpg", "1 file(s) outside every class folder have no label"),
        (
            "train_1.jpg cat.jpg",
            "no splits by file name, because only 1 of 2 names contain one, and cat.jpg does not; to use them, pass the other files only",
        ),
    ],
)
def test_layout_of_names_is_noted(names: str, note: str) -> None:
    assert make_layout(names).notes == (note,)


def test_names_of_several_inputs_are_classes_or_splits() -> None:
    pairs = [(0, "1.jpg"), (1, "1.jpg"), (1, "2.jpg")]
    assert make_layout(pairs, "cat", "dog").classes == ("cat", "dog", "dog")
    assert make_layout(pairs, "cat", "dog").splits == (None, None, None)
    split = make_layout([(0, "cat/1.jpg"), (1, "dog/1.jpg")], "train", "test")
    assert (split.splits, split.classes) == (("train", "test"), ("cat", "dog"))
    assert make_layout(pairs, "train", "test").class_names == ()
    assert make_layout(pairs, "train", "extra").splits == (None, None, None)


@pytest.mark.parametrize("names", ["train/1.jpg test/2.jpg extra/3.jpg", "train/1.jpg 2.jpg"])
def test_split_folders_next_to_other_files_are_refused(names: str) -> None:
    """Any choice could mix test data into the training data without notice."""
    with pytest.raises(
        UsageError,
        match=r"folders name splits \(.*train\), but 1 file\(s\) are outside them, such as .*--split-from none",
    ):
        make_layout(names)
    assert set(make_layout(names, split_from="none").splits) == {None}


def test_split_from_that_names_do_not_support_is_refused() -> None:
    with pytest.raises(UsageError, match="no folder names a split"):
        make_layout("a/1.jpg", split_from="folders")
    with pytest.raises(UsageError, match=r"b\.jpg: the name of this file contains no split"):
        make_layout("train.jpg b.jpg", split_from="names")


def test_single_split_word_in_all_names_is_not_a_split() -> None:
    layout = make_layout("x_test_100.csv")
    assert layout.splits == (None,)
    assert (
        "all file names contain 'test'. With only one split the names are ignored"
        in layout.notes[0]
    )
    assert "--split-from names" in in_flags(layout.notes[0])


def test_layout_of_no_files_is_empty() -> None:
    assert make_layout([]) == FolderLayout((), ())


def test_hive_partition_folders_are_parsed() -> None:
    names = (
        "dt=2024/country=JP/1.csv",
        "dt=2025/country=a%2Fb/1.csv",
        "dt=__HIVE_DEFAULT_PARTITION__/x.csv",
    )
    files = FileTable.from_files(InputFile(0, name, f"/in/{name}", Stat(1, 1)) for name in names)
    partitions = {name: column.to_pylist() for name, column in read_partitions(files).items()}
    assert partitions == {"dt": ["2024", "2025", None], "country": ["JP", "a/b", None]}
    assert note_unused_partitions(files, ["dt"]) == (
        "folders named country=... do not become columns",
    )
    assert not note_unused_partitions(files, ["dt", "country"])
    assert not read_partitions(
        FileTable.from_files([InputFile(0, "a=1.csv", "/in/a=1.csv", Stat(1, 1))])
    )
