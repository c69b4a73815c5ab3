"""Labels of every kind of input become classes.

A given schema maps them by name and refuses others.
"""

import csv
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.files import tfrecord_bytes
from kit.source_reading import input_files, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas import tfmd
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow.memory import plan_memory
from recordmill.sources.arrow.parquet import plan_parquet
from recordmill.sources.arrow.single_example import example
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import InputOptions, TableOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import plan_images
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import plan_text
from recordmill.sources.tfrecord.source import plan_tfrecord
from recordmill.sources.values import labels as label_values
from recordmill.storage.listing import list_inputs

Parts = Sequence[Sequence[Any]]  # labels by part
PARTS = (("cat", "dog", "cat"), ("bird", "cat"))
NAMES = sorted(itertools.chain(*PARTS))
ORDERS = (
    ("bird", "cat", "dog"),  # the order in the data
    ("dog", "bird", "cat"),  # another order
    ("ant", "dog", "fox", "bird", "cat", "yak"),  # with more classes
)


def make_schema(
    classes: tuple[str, ...] | None, dtype: str = "int64", shape: tuple[None, ...] = ()
) -> Schema:
    return Schema((Feature("label", dtype, shape, False, classes),), "label")


def as_csv(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    for number, part in enumerate(parts):
        (folder / f"{number}.csv").write_text(
            "label,x\n" + "".join(f"{'' if label is None else label},1\n" for label in part)
        )
    return plan_csv(input_files(*sorted(folder.glob("*.csv"))), CsvOptions(), common)


def as_jsonl(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    for number, part in enumerate(parts):
        (folder / f"{number}.jsonl").write_text(
            "".join(json.dumps({"label": label}) + "\n" for label in part)
        )
    return plan_jsonl(input_files(*sorted(folder.glob("*.jsonl"))), JsonlOptions(), common)


def as_kept_jsonl(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    common = PlanOptions(common.schema, common.dtypes, common.label, parsed_cache_bytes=1 << 20)
    return as_jsonl(folder, parts, common)


def as_parquet(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"label": list(part)}), folder / f"{number}.parquet")
    return plan_parquet(input_files(*sorted(folder.glob("*.parquet"))), TableOptions(), common)


def as_memory(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    (folder / "spool").mkdir()
    return plan_memory(
        (pa.table({"label": list(part)}) for part in parts), folder / "spool", common
    )


def make_numbered_table(part: Sequence[str | int], classes: tuple[str, ...] = ()) -> pa.Table:
    """Returns a table of class numbers, with the classes in Arrow's metadata.

    Args:
        classes: Names of the classes. Empty: the names of `part`, in order of appearance.
    """
    names = classes or tuple(dict.fromkeys(name for name in part if isinstance(name, str)))
    numbers = [names.index(name) if isinstance(name, str) else name for name in part]
    return pa.table([pa.array(numbers, pa.int64())], schema=to_arrow(make_schema(names)))


def as_numbered_parquet(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    for number, part in enumerate(parts):
        pq.write_table(make_numbered_table(part), folder / f"{number}.parquet")
    return plan_parquet(input_files(*sorted(folder.glob("*.parquet"))), TableOptions(), common)


def as_numbered_memory(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    (folder / "spool").mkdir()
    return plan_memory(map(make_numbered_table, parts), folder / "spool", common)


def as_text(folder: Path, parts: Parts, common: PlanOptions, **options: Any) -> Any:
    for number, label in enumerate(itertools.chain(*parts)):
        path = folder / "in" / str(label) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}")
    return plan_text(list_inputs([str(folder / "in")]), TextOptions(**options), common)


def as_images(folder: Path, parts: Parts, common: PlanOptions, **options: Any) -> Any:
    for number, label in enumerate(itertools.chain(*parts)):
        path = folder / "in" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_samples.encode_image("PNG"))
    return plan_images(list_inputs([str(folder / "in")]), ImageOptions(**options), common)


def as_labelled_images(folder: Path, parts: Parts, common: PlanOptions) -> Any:
    rows = list(enumerate(itertools.chain(*parts)))
    (folder / "in").mkdir()
    for number, _ in rows:
        (folder / "in" / f"{number}.png").write_bytes(image_samples.encode_image("PNG"))
    with open(folder / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("file", "label"), *((f"{number}.png", label) for number, label in rows)]
        )
    options = ImageOptions(labels=str(folder / "labels.csv"))
    return plan_images(list_inputs([str(folder / "in")]), options, common)


TABLES: dict[str, Callable[[Path, Parts, PlanOptions], Any]] = {
    "csv": as_csv,
    "jsonl": as_jsonl,
    "kept jsonl": as_kept_jsonl,
    "parquet": as_parquet,
    "memory": as_memory,
}
NUMBERED = {"numbered parquet": as_numbered_parquet, "numbered memory": as_numbered_memory}
NAMED = {"text": as_text, "images": as_images, "labelled images": as_labelled_images}
KINDS = {**TABLES, **NUMBERED, **NAMED}


def read_names(source: Any) -> tuple[list[str], int]:
    """Returns (sorted class names of all records, number of rejects)."""
    rows, rejects = read_all(source)
    labels = [row["label"] for row in values(rows)]
    classes = source.schema["label"].classes
    names = [
        name if isinstance(name, str) else classes[name] for name in labels if name is not None
    ]
    assert len(names) == len(labels)
    return sorted(names), len(rejects) + len(source.plan_rejects)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_all_parts_are_the_classes(tmp_path: Path, kind: str) -> None:
    label = "label" if kind not in ("text", "images") else None
    source = KINDS[kind](tmp_path, PARTS, PlanOptions(label=label))
    assert source.schema.label == "label"
    assert source.schema["label"].classes == ("bird", "cat", "dog")
    assert read_names(source) == (NAMES, 0)
    tables = "label: 2 tables of classes, such as 'cat', 'dog' in "
    assert any(note.startswith(tables) for note in source.notes) == (kind in NUMBERED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", ORDERS)
def test_declared_schema_maps_classes_by_name(
    tmp_path: Path, kind: str, classes: tuple[str, ...]
) -> None:
    source = KINDS[kind](tmp_path, PARTS, PlanOptions(schema=make_schema(classes)))
    assert source.schema["label"].classes == classes
    assert read_names(source) == (NAMES, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_class_that_the_declared_schema_lacks_is_a_reject(tmp_path: Path, kind: str) -> None:
    source = KINDS[kind](tmp_path, PARTS, PlanOptions(schema=make_schema(("dog", "cat"))))
    assert read_names(source) == (["cat", "cat", "cat", "dog"], 1)
    (reject,) = (*read_all(source)[1], *source.plan_rejects)
    assert reject.reason == "class"
    assert "'bird'" in reject.message


@pytest.mark.parametrize("kind", KINDS)
def test_string_label_of_a_declared_schema_stays_text(tmp_path: Path, kind: str) -> None:
    schema = make_schema(None, "string")
    for label in (None, "label")[: 1 + (kind not in ("images", "text"))]:
        (tmp_path / str(label)).mkdir()
        source = KINDS[kind](tmp_path / str(label), PARTS, PlanOptions(schema=schema, label=label))
        assert source.schema == schema
        assert sorted(row["label"] for row in values(read_all(source)[0])) == NAMES


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("numbers", [(0, 1), (5, 0), (10, 2)])
def test_label_of_numbers_and_names_is_refused_and_the_remedy_reads_it(
    tmp_path: Path, kind: str, numbers: tuple[int, ...]
) -> None:
    """As text, each value is a class of its own.

    The text 0 is not the number of a class.
    """
    parts = (("cat", "dog"), numbers)
    dtypes: dict[str, str] = {}
    if kind != "csv":
        (tmp_path / "undeclared").mkdir()
        with pytest.raises(DataError, match=r"--dtype label=string") as error:
            TABLES[kind](
                tmp_path / "undeclared",
                parts if len(numbers) < 3 else ((*parts[0], "c"), numbers),
                PlanOptions(),
            )
        dtypes = dict(re.findall(r"--dtype (\w+)=(\w+)", str(error.value)))
    source = TABLES[kind](tmp_path, parts, PlanOptions(dtypes=dtypes, label="label"))
    expected = sorted(["cat", "dog", *map(str, numbers)])
    assert source.schema["label"].classes == tuple(expected)
    assert read_names(source) == (expected, 0)


@pytest.mark.parametrize("kind", TABLES)
def test_numbers_declared_as_text_are_class_names(tmp_path: Path, kind: str) -> None:
    common = PlanOptions(dtypes={"label": "string"}, label="label")
    source = TABLES[kind](tmp_path, ((7, 30), (7, 100)), common)
    assert source.schema["label"].classes == ("100", "30", "7")
    assert read_names(source) == (["100", "30", "7", "7"], 0)


@pytest.mark.parametrize("kind", TABLES)
def test_label_may_be_missing_in_some_records_but_not_in_the_data(
    tmp_path: Path, kind: str
) -> None:
    source = TABLES[kind](tmp_path, (("dog", None), ("Äffchen", "cat")), PlanOptions(label="label"))
    assert source.schema["label"] == Feature("label", "int64", classes=("cat", "dog", "Äffchen"))
    assert [row["label"] for row in values(read_all(source)[0])] == [1, None, 2, 0]
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="--label z: no such column; there are "):
        TABLES[kind](tmp_path / "other", PARTS, PlanOptions(label="z"))


@pytest.mark.parametrize("kind", TABLES)
def test_label_of_numbers_has_no_classes(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](tmp_path, ((7, 30), (7, 100)), PlanOptions(label="label"))
    assert (source.schema.label, source.schema["label"].classes) == ("label", None)
    assert [row["label"] for row in values(read_all(source)[0])] == [7, 30, 7, 100]


@pytest.mark.parametrize("kind", TABLES)
def test_label_of_floats_is_noted(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](tmp_path, [[0.0, 1.0], [2.0]], PlanOptions(label="label"))
    (note,) = (note for note in source.notes if "without classes" in note)
    assert "makes its values classes" in note


@pytest.mark.parametrize("kind", ["jsonl", "kept jsonl", "parquet", "memory"])
def test_label_of_text_lists_becomes_lists_of_classes(tmp_path: Path, kind: str) -> None:
    parts: Parts = ([["b", "a"], []], [["c"], ["a"]])
    source = TABLES[kind](tmp_path, parts, PlanOptions(label="label"))
    assert (source.schema["label"].describe(), source.schema["label"].classes) == (
        "int64 [?]",
        ("a", "b", "c"),
    )
    assert [row["label"] for row in values(read_all(source)[0])] == [[1, 0], [], [2], [0]]


@pytest.mark.parametrize("kind", TABLES)
def test_label_of_no_or_too_many_values_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="label 'label' has no values, only nulls"):
        TABLES[kind](
            tmp_path / "empty", (["" if kind == "csv" else None] * 3,), PlanOptions(label="label")
        )
    monkeypatch.setattr(label_values, "MAX_CLASSES", 2)
    with pytest.raises(
        DataError, match=r"label 'label' has more than 2 different values.*leave --label out"
    ):
        TABLES[kind](tmp_path, PARTS, PlanOptions(label="label"))
    (tmp_path / "again").mkdir()
    assert len(read_all(TABLES[kind](tmp_path / "again", PARTS, PlanOptions()))[0]) == 5


@pytest.mark.parametrize("kind", TABLES)
def test_number_beyond_the_classes_of_the_schema_is_a_reject(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](
        tmp_path, ([0, 1, 2, -1],), PlanOptions(schema=make_schema(("neg", "pos")))
    )
    rows, rejects = read_all(source)
    assert [row["label"] for row in values(rows)] == [0, 1]
    assert [reject.reason for reject in rejects] == ["class", "class"]


@pytest.mark.parametrize("kind", TABLES)
def test_class_names_and_numbers_as_text_are_resolved(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](
        tmp_path, (["pos", "0", "1", "2", "neg"],), PlanOptions(schema=make_schema(("neg", "pos")))
    )
    rows, rejects = read_all(source)
    assert [row["label"] for row in values(rows)] == [1, 0, 1, 0]
    assert ["'2'" in reject.message for reject in (*rejects, *source.plan_rejects)] == [True]


@pytest.mark.parametrize("kind", TABLES)
def test_classes_with_numeric_names_are_resolved_and_noted(tmp_path: Path, kind: str) -> None:
    """Text is a class name, and a typed number is a class number.

    This is true even if a column mixes both. A note reports how numbers are read.
    """
    common = PlanOptions(schema=make_schema(("1", "2", "3")))
    source = TABLES[kind](tmp_path, (["1", "3", "0"],), common)
    rows, rejects = read_all(source)
    assert [row["label"] for row in values(rows)] == [0, 2]
    assert len(rejects) + len(source.plan_rejects) == 1
    if kind != "csv":
        (tmp_path / "typed").mkdir()
        typed_source = TABLES[kind](tmp_path / "typed", ([1, 2, 3],), common)
        rows, rejects = read_all(typed_source)
        assert [row["label"] for row in values(rows)] == [1, 2]
        assert len(rejects) + len(typed_source.plan_rejects) == 1
        assert (
            "label: numbers in the data are those of the schema's classes: 0 is '1'"
            in typed_source.notes
        )
    if "jsonl" in kind:
        (tmp_path / "mixed").mkdir()
        mixed_source = TABLES[kind](tmp_path / "mixed", ([1, "1", 3, True, "x", None],), common)
        rows, rejects = read_all(mixed_source)
        assert [row["label"] for row in values(rows)] == [1, 0, None]
        assert [reject.place for reject in rejects] == ["line 3", "line 4", "line 5"]


@pytest.mark.parametrize("kind", TABLES)
def test_booleans_are_the_class_names_true_and_false(tmp_path: Path, kind: str) -> None:
    """Booleans are not the numbers 1 and 0, which may be other classes."""
    parts = (["true", "false"], ["true"]) if kind == "csv" else ([True, False], [True])
    for classes in (("false", "true"), ("true", "false"), ("yak", "true", "false")):
        folder = tmp_path / "-".join(classes)
        folder.mkdir()
        source = TABLES[kind](folder, parts, PlanOptions(schema=make_schema(classes)))
        assert read_names(source) == (["false", "true", "true"], 0)
    (tmp_path / "others").mkdir()
    other_source = TABLES[kind](
        tmp_path / "others", parts, PlanOptions(schema=make_schema(("neg", "pos")))
    )
    assert read_names(other_source) == ([], 3)


@pytest.mark.parametrize("kind", ["jsonl", "kept jsonl"])
def test_booleans_among_names_and_numbers_are_resolved(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](
        tmp_path,
        ([True, 0, "true", False, 2],),
        PlanOptions(schema=make_schema(("x", "true", "y"))),
    )
    rows, (reject,) = read_all(source)
    assert [row["label"] for row in values(rows)] == [1, 0, 1, 2]
    assert (reject.place, reject.reason) == ("line 4", "class")


@pytest.mark.parametrize("kind", ["jsonl", "kept jsonl", "parquet", "memory"])
def test_classes_declared_as_text_have_no_note_on_numbers(tmp_path: Path, kind: str) -> None:
    options = PlanOptions(schema=make_schema(("1", "2", "3")), dtypes={"label": "string"})
    source = TABLES[kind](tmp_path, ([1, 2, 3],), options)
    assert [row["label"] for row in values(read_all(source)[0])] == ["1", "2", "3"]
    assert not any("label" in note for note in source.notes)


@pytest.mark.parametrize("kind", NUMBERED)
def test_number_beyond_the_classes_of_the_data_is_a_reject(tmp_path: Path, kind: str) -> None:
    parts = (("cat", "dog", 3, -1), ("bird",))
    for name, schema in (
        ("same", None),
        ("more", make_schema(ORDERS[2])),
        ("text", make_schema(None, "string")),
    ):
        (tmp_path / name).mkdir()
        source = NUMBERED[kind](tmp_path / name, parts, PlanOptions(schema=schema))
        assert read_names(source) == (["bird", "cat", "dog"], 2)


@pytest.mark.parametrize("kind", ["parquet", "memory"])
def test_class_numbers_and_plain_numbers_are_not_mixed(tmp_path: Path, kind: str) -> None:
    def make_source(name: str, tables: list[pa.Table], common: PlanOptions) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        if kind == "memory":
            return plan_memory(iter(tables), folder, common)
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"{number}.parquet")
        return plan_parquet(input_files(*sorted(folder.glob("*.parquet"))), TableOptions(), common)

    tables = [make_numbered_table(("cat", "dog")), pa.table({"label": [1, 7]})]
    with pytest.raises(
        DataError,
        match=r"numbers of no class here; --dtype label=int64 takes all of them as numbers",
    ):
        make_source("mixed", tables, PlanOptions())
    source = make_source("declared", tables, PlanOptions(dtypes={"label": "int64"}))
    assert source.schema["label"].classes is None
    assert [row["label"] for row in values(read_all(source)[0])] == [0, 1, 1, 7]
    mapped_source = make_source("given", tables, PlanOptions(schema=make_schema(("dog", "cat"))))
    assert [row["label"] for row in values(read_all(mapped_source)[0])] == [1, 0, 1]
    ambiguous_tables = [make_numbered_table(("cat", "dog")), make_numbered_table(("bird", "cat"))]
    with pytest.raises(DataError, match=r"so its numbers are ambiguous.*--dtype label=string"):
        make_source("numbers", ambiguous_tables, PlanOptions(schema=make_schema(None)))
    named_source = make_source(
        "named", ambiguous_tables, PlanOptions(schema=make_schema(None), dtypes={"label": "string"})
    )
    assert [row["label"] for row in values(read_all(named_source)[0])] == [
        "cat",
        "dog",
        "bird",
        "cat",
    ]
    text_tables = [make_numbered_table(("cat", "dog")), pa.table({"label": ["bird"]})]
    with pytest.raises(DataError, match="--dtype label=string"):
        make_source("text", text_tables, PlanOptions())
    text_source = make_source(
        "both", text_tables, PlanOptions(dtypes={"label": "string"}, label="label")
    )
    assert read_names(text_source) == (["bird", "cat", "dog"], 0)


def write_records(
    folder: Path, part: Sequence[str], classes: Sequence[str], with_schema: bool = True
) -> Path:
    """Writes TFRecords of class numbers, and a schema with their classes."""
    schema = make_schema(tuple(classes))
    folder.mkdir()
    payloads = [example({"label": classes.index(name)}, schema) for name in part]
    (folder / f"{folder.name}.tfrecord").write_bytes(tfrecord_bytes(payloads))
    if with_schema:
        (folder / "schema.pbtxt").write_text(tfmd.to_pbtxt(schema))
    return folder / f"{folder.name}.tfrecord"


def plan_records(*paths: Path, **common: Any) -> Any:
    return plan_tfrecord(input_files(*paths), InputOptions(), PlanOptions(**common))


def test_tfrecords_keep_their_classes_or_are_refused(tmp_path: Path) -> None:
    first = write_records(tmp_path / "one", PARTS[0], ("cat", "dog"))
    second = write_records(tmp_path / "two", PARTS[1], ("bird", "cat"))
    message = (
        "'label' has numbers of the classes {}.*read each of them to Parquet and build from that"
    )
    for classes in (*ORDERS, ("dog",)):
        with pytest.raises(DataError, match=message.format("'cat', 'dog', and the schema's are ")):
            plan_records(first, schema=make_schema(classes))
    for paths in ((first, second), (second, first)):
        with pytest.raises(DataError, match=message.format("")):
            plan_records(*paths)
        with pytest.raises(DataError, match=message.format("")):
            plan_records(*paths, schema=make_schema(None))
    extended_source = plan_records(first, schema=make_schema(("cat", "dog", "fox")))
    assert (extended_source.schema["label"].classes, len(read_payloads(extended_source)[0])) == (
        ("cat", "dog", "fox"),
        3,
    )
    payloads, rejects = read_payloads(plan_records(first, schema=make_schema(("cat",))))
    assert len(payloads) == 2
    assert [reject.message for reject in rejects] == [
        "feature 'label': 1 is not one of the 1 classes of the schema"
    ]


def read_payloads(source: Any) -> tuple[list[bytes], list[Any]]:
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    texts = [
        chunk.records.data[start:stop].tobytes()
        for chunk in chunks
        for start, stop in itertools.pairwise(chunk.records.offsets.tolist())
    ]
    return texts, [reject for chunk in chunks for reject in chunk.rejects]


def test_tfrecords_with_equal_classes_or_no_schema_are_built(tmp_path: Path) -> None:
    paths = [
        write_records(tmp_path / str(number), part, ("bird", "cat", "dog"))
        for number, part in enumerate(PARTS)
    ]
    assert plan_records(*paths).schema["label"].classes == ("bird", "cat", "dog")
    path = write_records(tmp_path / "bare", PARTS[0], ("bird", "cat", "dog"), with_schema=False)
    # The files have no schema, so they cannot contradict the classes of the declared schema.
    source = plan_records(path, schema=make_schema(ORDERS[1]))
    assert len(read_payloads(source)[0]) == 3


def test_label_column_is_refused_for_images_in_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="images have a label by their folders"):
        as_images(tmp_path, PARTS, PlanOptions(label="kind"))


LABELS = [["neg", "pos", "pos", "neg", "pos"]]


FOLDERS = {"text": as_text, "images": as_images}


@pytest.mark.parametrize("kind", FOLDERS)
def test_class_of_a_folder_is_mapped_by_name(tmp_path: Path, kind: str) -> None:
    schema = Schema(
        (
            *make_schema(("pos", "neg")),
            Feature("source", "string"),
            Feature("class_name", "string"),
        ),
        "label",
    )
    for row in values(read_all(FOLDERS[kind](tmp_path, LABELS, PlanOptions(schema=schema)))[0]):
        assert row["source"].startswith(row["class_name"])
        assert ("pos", "neg")[row["label"]] == row["class_name"]


@pytest.mark.parametrize("kind", FOLDERS)
def test_class_folder_that_the_schema_lacks_is_a_reject(tmp_path: Path, kind: str) -> None:
    source = FOLDERS[kind](
        tmp_path, [*LABELS, ["odd"]], PlanOptions(schema=make_schema(("pos", "neg")))
    )
    (reject,) = source.plan_rejects
    assert reject.source.startswith("odd/5.")
    assert (
        reject.reason,
        "class 'odd' is not one of the classes of the schema: 'pos'" in reject.message,
    ) == ("class", True)
    assert len(read_all(source)[0]) == 5


def test_label_of_documents_may_be_text_but_not_a_plain_number(tmp_path: Path) -> None:
    source = as_text(tmp_path, LABELS, PlanOptions(schema=make_schema(None, "string")))
    assert sorted(row["label"] for row in values(read_all(source)[0])) == sorted(*LABELS)
    with pytest.raises(UsageError, match="does not name the classes of 'label'"):
        as_text(tmp_path, LABELS, PlanOptions(schema=make_schema(None)))
    with pytest.raises(UsageError, match="the schema declares 'label' as float32"):
        as_text(tmp_path, LABELS, PlanOptions(schema=make_schema(None, "float32")))
    with pytest.raises(UsageError, match="the schema declares 'text' as int64"):
        as_text(tmp_path, LABELS, PlanOptions(schema=Schema((Feature("text", "int64"),))))


@pytest.mark.parametrize("kind", FOLDERS)
def test_files_outside_of_class_folders_are_left_out_and_noted(tmp_path: Path, kind: str) -> None:
    FOLDERS[kind](tmp_path, LABELS, PlanOptions())
    (path,) = (tmp_path / "in").glob("pos/1.*")
    (tmp_path / "in" / f"stray{path.suffix}").write_bytes(path.read_bytes())
    source = FOLDERS[kind](tmp_path, LABELS, PlanOptions())
    assert any(
        note.startswith("left out: 1 of 6 file(s) are outside every class folder")
        for note in source.notes
    )
    assert source.schema["label"].required
    assert len(read_all(source)[0]) == 5
    keeping_source = FOLDERS[kind](tmp_path, LABELS, PlanOptions(), unlabelled="keep")
    assert sorted(str(row["label"]) for row in values(read_all(keeping_source)[0])) == [
        "0",
        "0",
        "1",
        "1",
        "1",
        "None",
    ]


def test_files_outside_of_split_folders_are_left_out_and_noted(tmp_path: Path) -> None:
    for name in ("train/neg/1", "train/pos/1", "test/neg/1", "words"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.txt").write_text("text")
    source = plan_text(list_inputs([str(tmp_path)]), TextOptions(mode="documents"), PlanOptions())
    assert [file.split for file in source.files] == ["test", "train", "train"]
    assert any(
        "1 of 4 file(s) are outside the folders of the splits" in note for note in source.notes
    )
    assert "classes that not every split has: 'pos' (in train only)" in source.notes


def test_unlabelled_file_is_an_error_if_the_schema_requires_a_label(tmp_path: Path) -> None:
    as_text(tmp_path, LABELS, PlanOptions())
    (tmp_path / "in" / "stray.txt").write_text("a stray")
    required = Schema((Feature("label", "int64", (), True, ("neg", "pos")),), "label")
    with pytest.raises(
        DataError, match=r"^stray\.txt: is in no class folder, and the schema requires a label"
    ):
        as_text(tmp_path, LABELS, PlanOptions(schema=required), unlabelled="keep")


def test_too_many_files_outside_of_class_folders_are_refused(tmp_path: Path) -> None:
    as_text(tmp_path, LABELS, PlanOptions())
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_text("stray")
    with pytest.raises(UsageError, match=r"5 of 10 file.*--unlabelled keep"):
        as_text(tmp_path, LABELS, PlanOptions())
