"""Folder and file names determine splits, classes and partition columns, or are refused if
ambiguous.
"""

import fnmatch
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import image_samples
from kit.runs import in_flags, rejects_of

import recordmill
from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.splits import SPLIT_WORDS, detect_split
from recordmill.shards.rejects import TooManyRejects
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


def lay(names: str | list[tuple[int, str]], *roots: str, **options: Any) -> FolderLayout:
    """The layout of files with these names, blank-separated, below INPUT folders of those names."""
    pairs = [(0, name) for name in names.split()] if isinstance(names, str) else names
    files = [InputFile(root, name, f"/r{root}/{name}", Stat(1, 1)) for root, name in pairs]
    found = read_layout(
        files,
        [InputRoot(f"/x/{root}", f"/x/{root}", True) for root in roots or ("data",)],
        **options,
    )
    splits, classes = (tuple(column.to_pylist()) for column in (found.splits, found.classes))
    return replace(found, splits=splits, classes=classes)


@pytest.mark.parametrize(
    ("regex", "classes", "said"),
    [
        (r"class_(\d+)_", ("3", None, "10"), ""),
        (r"(a|b)/(?P<label>[^_]+)_", ("class", None, "class"), ""),
        (
            r"x_(.*)z",
            (),
            "--label-regex 'x_(.*)z': no file has such a name; a/class_3_1.png is one",
        ),
        (r"class_\d", (), r"--label-regex 'class_\d': it needs a group around the label: (...)"),
        (
            "(",
            (),
            "--label-regex '(': no regular expression: missing ), unterminated subpattern at position 0",
        ),
    ],
)
def test_class_regex_finds_classes_in_names(
    regex: str, classes: tuple[str | None, ...], said: str
) -> None:
    names = "a/class_3_1.png a/none.png b/class_10_1.png"
    if said:
        with pytest.raises(UsageError) as caught:
            lay(names, class_from=resolve_class_rule("auto", regex))
        assert in_flags(caught.value) == said
        return
    found = lay(names, class_from=resolve_class_rule("auto", regex))
    assert (found.classes, found.class_names) == (classes, tuple(sorted({*classes} - {None})))


@pytest.mark.parametrize("kind", ["images", "text"])
def test_files_without_a_match_of_the_class_regex_are_handled_by_missing(
    kind: str, tmp_path: Path
) -> None:
    for name in ("cat_1", "cat_2", "dog_1", "other"):
        data = image_samples.encoded("PNG") if kind == "images" else b"text"
        (tmp_path / f"{name}.{'png' if kind == 'images' else 'txt'}").write_bytes(data)
    build = functools.partial(recordmill.build, tmp_path, kind=kind, label_regex="(cat|dog)_")
    result = build(tmp_path.parent / f"{tmp_path.name}-out")
    assert result.records == {"train": 3}
    assert any(
        note.startswith("left out: 1 of 4 file(s) have no label by ") for note in result.notes
    )
    assert recordmill.open(result.out).schema["label"].classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *[(word, split) for word, split in SPLIT_WORDS.items()],
        *[
            ("Train", "train"),
            ("TEST", "test"),
            ("train2017", "train"),
            ("2017train", "train"),
            ("my-val.set", "validation"),
            ("a_dev_b", "validation"),
        ],
        *[
            ("test images", "test"),
            ("eval_1", "test"),
            ("latest", None),
            ("trainer", None),
            ("contest", None),
            ("Dev_Patel", None),
            ("trainval", None),
        ],
        *[
            ("train_test", None),
            ("train-val", None),
            ("train_training", "train"),
            ("", None),
            ("évaluation", None),
            ("x+test", None),
        ],
    ],
)
def test_split_word_of_a_name_is_detected(name: str, split: str | None) -> None:
    assert detect_split(name) == split


@given(st.text(st.sampled_from("train val dev-._ 0xé"), max_size=12))
def test_split_words_are_found_like_in_hugging_face_datasets(name: str) -> None:
    """Oracle: the glob patterns of datasets/data_files.py (KEYWORDS_IN_DIR_NAME_BASE_PATTERNS) for
    one folder.
    """
    separators = "-._ 0-9"
    patterns = (
        "{}",
        "{}[" + separators + "]*",
        "*[" + separators + "]{}",
        "*[" + separators + "]{}[" + separators + "]*",
    )
    theirs = {
        split
        for word, split in SPLIT_WORDS.items()
        for p in patterns
        if re.match(fnmatch.translate(p.format(word)), name)
    }
    assert detect_split(name) == (theirs.pop() if len(theirs) == 1 else None)


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
        (
            "test/train/cat/1 test/train/dog/1",
            "test test",
            "cat dog",
            {},
        ),  # the outermost one says it
        (
            "dev-tools/test/1 dev-tools/train/2",
            "test train",
            "- -",
            {},
        ),  # a whole name counts before a word in a name
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
    found = lay(names, **options)
    told = [
        ["-" if one is None else one for one in column] for column in (found.splits, found.classes)
    ]
    assert told == [splits.split(), classes.split()]
    assert found.class_names == tuple(
        sorted({*found.classes} - {None})
    )  # readers rely on the order of their bytes


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
            "no splits by file name: only 1 of 2 names say one, and cat.jpg does not; give the others alone to have their splits",
        ),
    ],
)
def test_layout_of_names_is_noted(names: str, note: str) -> None:
    assert lay(names).notes == (note,)


def test_names_of_several_inputs_are_classes_or_splits() -> None:
    pairs = [(0, "1.jpg"), (1, "1.jpg"), (1, "2.jpg")]
    assert lay(pairs, "cat", "dog").classes == ("cat", "dog", "dog")
    assert lay(pairs, "cat", "dog").splits == (None, None, None)
    split = lay([(0, "cat/1.jpg"), (1, "dog/1.jpg")], "train", "test")
    assert (split.splits, split.classes) == (("train", "test"), ("cat", "dog"))
    assert lay(pairs, "train", "test").class_names == ()
    assert lay(pairs, "train", "extra").splits == (None, None, None)


@pytest.mark.parametrize("names", ["train/1.jpg test/2.jpg extra/3.jpg", "train/1.jpg 2.jpg"])
def test_split_folders_beside_other_files_are_refused(names: str) -> None:
    """Either reading could mix test data into training, silently."""
    with pytest.raises(
        UsageError,
        match=r"folders name splits \(.*train\), but 1 file\(s\) lie outside them, such as .*--split-from none",
    ):
        lay(names)
    assert set(lay(names, split_from="none").splits) == {None}


def test_split_from_that_names_do_not_support_is_refused() -> None:
    with pytest.raises(UsageError, match="no folder names a split"):
        lay("a/1.jpg", split_from="folders")
    with pytest.raises(UsageError, match=r"b\.jpg: this file's name says no split"):
        lay("train.jpg b.jpg", split_from="names")


def test_single_split_word_in_all_names_is_not_a_split() -> None:
    alone = lay("x_test_100.csv")
    assert alone.splits == (None,)
    assert (
        "all file names contain 'test'. With only one split the names are ignored" in alone.notes[0]
    )
    assert "--split-from names" in in_flags(alone.notes[0])


def test_layout_of_no_files_is_empty() -> None:
    assert lay([]) == FolderLayout((), ())


def test_hive_partition_folders_are_parsed() -> None:
    names = (
        "dt=2024/country=JP/1.csv",
        "dt=2025/country=a%2Fb/1.csv",
        "dt=__HIVE_DEFAULT_PARTITION__/x.csv",
    )
    files = FileTable.from_files(InputFile(0, name, f"/in/{name}", Stat(1, 1)) for name in names)
    found = {name: column.to_pylist() for name, column in read_partitions(files).items()}
    assert found == {"dt": ["2024", "2025", None], "country": ["JP", "a/b", None]}
    assert note_unused_partitions(files, ["dt"]) == (
        "what folders called country=... say becomes no column",
    )
    assert not note_unused_partitions(files, ["dt", "country"])
    assert not read_partitions(
        FileTable.from_files([InputFile(0, "a=1.csv", "/in/a=1.csv", Stat(1, 1))])
    )


# What folders called `NAME=VALUE` say becomes columns, the same of every kind whose records are
# rows
KINDS = ("csv", "jsonl", "parquet")
FOLDERS = (("2024-01-01", "JP"), ("2024-01-02", "DE"), ("2024-01-02", "JP"))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A file of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        path.write_text(
            "".join(
                ",".join(map(str, line)) + "\n"
                for line in (rows[0], *(row.values() for row in rows))
            )
        )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    for number, (day, country) in enumerate(FOLDERS):
        of_file = tmp_path / "in" / f"dt={day}" / f"country={country}" / f"n={number}"
        write_rows(
            of_file / f"part.{kind}",
            [{"x": 10 * number, "y": "a"}, {"x": 10 * number + 1, "y": "b"}],
        )
    return tmp_path / "in"


def table(out: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = recordmill.open(out).to_table().to_pydict()
    return found


def test_partition_folders_become_columns(folder: Path, tmp_path: Path) -> None:
    built = recordmill.build(folder, tmp_path / "out", shuffle=False, label="country")
    assert not [note for note in built.notes if "=..." in note or "not in" in note]
    assert [(f.name, f.dtype, f.required) for f in built.schema] == [
        ("x", "int64", built.schema["x"].required),
        ("y", "string", built.schema["y"].required),
        ("dt", "string", True),
        ("country", "int64", True),
        ("n", "int64", True),
    ]
    assert (built.schema.label, built.schema["country"].classes) == ("country", ("DE", "JP"))
    assert table(tmp_path / "out") == {
        "x": [0, 1, 10, 11, 20, 21],
        "y": ["a", "b"] * 3,
        "dt": ["2024-01-01"] * 2 + ["2024-01-02"] * 4,
        "country": [1, 1, 0, 0, 1, 1],
        "n": [0, 0, 1, 1, 2, 2],
    }


def test_schema_and_dtypes_apply_to_partition_columns(folder: Path, tmp_path: Path) -> None:
    features = (
        Feature("dt", "string"),
        Feature("x", "int64"),
        Feature("country", "int64", classes=("FR", "JP", "DE")),
    )
    schema = Schema(features, label="country")
    built = recordmill.build(folder, tmp_path / "out", shuffle=False, schema=schema)
    assert built.schema == schema
    assert "what folders called n=... say becomes no column" in built.notes
    assert (table(tmp_path / "out")["country"], table(tmp_path / "out")["x"]) == (
        [1, 1, 2, 2, 1, 1],
        [0, 1, 10, 11, 20, 21],
    )
    some = recordmill.build(
        folder, tmp_path / "some", dtypes={"n": "float32"}, splits="a=0.5,b=0.5", split_by="dt"
    )
    assert some.schema["n"].dtype == "float32"
    assert {count for count in some.records.values() if count} <= {2, 4, 6}


def test_partition_value_that_does_not_fit_rejects_its_records(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    write_rows(
        folder / "dt=today" / "country=JP" / "n=7" / f"part.{kind}",
        [{"x": 70, "y": "a"}, {"x": 71, "y": "b"}],
    )
    for day, _ in FOLDERS:
        if (old := folder / f"dt={day}").exists():
            old.rename(folder / f"dt={day.replace('-', '')}")
    with pytest.raises(TooManyRejects, match="dt: 'today' does not fit int64"):
        recordmill.build(folder, tmp_path / "out", dtypes={"dt": "int64"})
    built = recordmill.build(
        folder, tmp_path / "out", dtypes={"dt": "int64"}, max_rejects=2, shuffle=False
    )
    assert (built.read, built.rejected, sorted(table(tmp_path / "out")["x"])) == (
        8,
        2,
        [0, 1, 10, 11, 20, 21],
    )
    assert set(table(tmp_path / "out")["dt"]) == {20240101, 20240102}
    places = rejects_of(built)
    assert len({(one["source"], one["place"]) for one in places}) == 2


def test_column_of_a_file_takes_precedence_over_a_partition_column(
    tmp_path: Path, kind: str
) -> None:
    write_rows(
        tmp_path / "in" / "x=5" / "y=7" / f"part.{kind}", [{"x": 1, "z": 3}, {"x": 2, "z": 4}]
    )
    recordmill.build(
        tmp_path / "in", tmp_path / "out", shuffle=False, dtypes={"x": "float32", "y": "float64"}
    )
    assert table(tmp_path / "out") == {"x": [1.0, 2.0], "z": [3, 4], "y": [7.0, 7.0]}


def test_hive_default_partition_is_null(tmp_path: Path, kind: str) -> None:
    for value, x in (("__HIVE_DEFAULT_PARTITION__", 1), ("a%20b", 2)):
        write_rows(tmp_path / "in" / f"v={value}" / f"part.{kind}", [{"x": x, "z": 0}])
    built = recordmill.build(tmp_path / "in", tmp_path / "out", shuffle=False)
    assert not built.schema["v"].required
    assert dict(zip(table(tmp_path / "out")["x"], table(tmp_path / "out")["v"], strict=True)) == {
        1: None,
        2: "a b",
    }


def test_partition_folder_named_like_a_column_is_noted(tmp_path: Path) -> None:
    (tmp_path / "in" / "id=7").mkdir(parents=True)
    (tmp_path / "in" / "id=7" / "a.csv").write_text("id,x\n1,2\n3,4\n")
    built = recordmill.build(tmp_path / "in", tmp_path / "out")
    assert sorted(recordmill.open(built.out).to_table()["id"].to_pylist()) == [1, 3]
    assert (
        "id: the files have such a column, which is read; what folders say of it is not"
        in built.notes
    )
    (tmp_path / "in" / "id=7").rename(tmp_path / "in" / "b=1")
    (tmp_path / "in" / "b=1" / "b=2").mkdir()
    (tmp_path / "in" / "b=1" / "a.csv").rename(tmp_path / "in" / "b=1" / "b=2" / "a.csv")
    with pytest.raises(
        UsageError, match=r"b=1/b=2: two of these folders are called b=\.\.\.; rename one"
    ):
        recordmill.build(tmp_path / "in", tmp_path / "out", overwrite=True)


# `--columns`: the same features from every kind that has it, and nothing of what is left out
ROWS = [{"a": n, "b": f"t{n % 3}", "odd": n if n % 2 else f"x{n}", "c": n / 4} for n in range(300)]


@pytest.fixture
def path(tmp_path: Path, kind: str) -> Path:
    rows = [{**row, "odd": str(row["odd"])} for row in ROWS] if kind == "parquet" else ROWS
    write_rows(tmp_path / f"in.{kind}", rows)
    return tmp_path / f"in.{kind}"


@pytest.mark.parametrize("threads", [1, 4])
def test_chosen_columns_are_built_in_order(path: Path, tmp_path: Path, threads: int) -> None:
    wanted = ["c", "b", "c", "a"] if path.suffix != ".parquet" else ["c", "b", "a"]
    result = recordmill.build(
        path, tmp_path / "out", columns=wanted, label="b", threads=threads, quiet=True
    )
    assert list(result.schema.names) == ["c", "b", "a"]
    assert result.schema["b"].classes == ("t0", "t1", "t2")
    assert not any("odd" in note for note in result.notes)
    table = recordmill.open(tmp_path / "out").to_table()
    found = sorted(zip(*(table[name].to_pylist() for name in ("a", "b", "c")), strict=True))
    assert found == [(row["a"], row["a"] % 3, row["c"]) for row in ROWS]


def test_missing_column_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"column .prise.*(are|is) a, b, odd, c"):
        recordmill.build(path, tmp_path / "out", columns=["a", "prise"], quiet=True)
    with pytest.raises(UsageError, match="label"):
        recordmill.build(path, tmp_path / "out", columns=["a", "b"], label="c", quiet=True)
    assert not (tmp_path / "out").exists()


def test_column_of_an_object_includes_its_members(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"u": {"id": 1, "tags": ["x"]}, "t": [1]}\n{"u": {"id": 2, "tags": []}, "t": "odd"}\n'
    )
    assert list(
        recordmill.build(path, tmp_path / "out", columns=["u"], quiet=True).schema.names
    ) == ["u.id", "u.tags"]
