"""`build --append` works for all kinds of input, with transforms, labels and stratified splits."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import recordmill
from recordmill.base.errors import UsageError
from recordmill.shards.manifest import list_generations, load_manifest


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "word": f"w{i % 5}", "x": i / 2, "tags": [f"t{i % 3}"]} for i in range(begin, end)
    ]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def write_npz(path: Path, rows: list[dict[str, Any]]) -> str:
    np.savez(path, id=[row["id"] for row in rows], x=[row["x"] for row in rows])
    return str(path)


def write_tfrecord(path: Path, rows: list[dict[str, Any]]) -> str:
    built = recordmill.build(pa.Table.from_pylist(rows), path.with_suffix(".set"))
    return str(built.shards[0])


WRITERS = {
    "jsonl": (".jsonl", write_jsonl),
    "parquet": (".parquet", write_parquet),
    "numpy": (".npz", write_npz),
    "tfrecord": (".tfrecord", write_tfrecord),
}


def ids(out: Path) -> list[int]:
    return sorted(recordmill.open(out).to_table(0)["id"].to_pylist())


def append(source: object, out: Path, **options: Any) -> recordmill.BuildResult:
    """Appends to a data set. Checks that it is valid, and that a second append changes nothing."""
    result = recordmill.build(source, out, append=True, **options)
    assert recordmill.verify(out) == []
    assert recordmill.build(source, out, append=True, **options).unchanged
    return result


@pytest.mark.parametrize("kind", WRITERS)
def test_second_file_of_a_kind_is_appended(kind: str, tmp_path: Path) -> None:
    extension, write = WRITERS[kind]
    paths = [
        write(tmp_path / f"{name}{extension}", rows_of(begin, end))
        for name, begin, end in (("a", 0, 40), ("b", 40, 60))
    ]
    out = tmp_path / "out"
    recordmill.build(paths[0], out)
    assert append(paths, out).records == {"train": 60}
    assert ids(out) == list(range(60))
    statistics = recordmill.open(out).statistics["train"]["id"]
    assert (statistics.min, statistics.max, statistics.values) == (0, 59, 60)


def test_optional_feature_may_be_absent_in_appended_jsonl(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(write_jsonl(tmp_path / "a.jsonl", [{"x": 1, "y": "a"}, {"x": 2}]), out)
    recordmill.build(write_jsonl(tmp_path / "b.jsonl", [{"x": 3}]), out, append=True)
    recordmill.build(write_jsonl(tmp_path / "c.jsonl", [{"x": 4, "y": None}]), out, append=True)
    assert recordmill.open(out).to_table()["y"].null_count == 3


def test_append_with_a_schema_reads_the_records_as_declared(tmp_path: Path) -> None:
    schema = recordmill.Schema(
        (recordmill.Feature("x", "int32"), recordmill.Feature("v", "float32", (2,)))
    )
    for name in "ab":
        path = write_jsonl(tmp_path / f"{name}.jsonl", [{"x": 1, "v": [0.5, 1.5], "z": 3}])
        result = recordmill.build(path, tmp_path / "out", append=True, schema=schema)
    assert result.records == {"train": 2}
    assert result.schema["x"].dtype == "int32"
    bad_path = write_jsonl(tmp_path / "c.jsonl", [{"x": 2**40, "v": [0, 1]}, {"x": 5, "v": [0, 1]}])
    result = recordmill.build(bad_path, tmp_path / "out", append=True, schema=schema, max_rejects=1)
    assert (result.read, result.rejected) == (2, 1)


def write_images(folder: Path, names: list[str]) -> str:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number * 20 % 256, len(name), 0)).save(path)
    return str(folder)


def test_new_images_of_a_growing_folder_are_appended(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "photos"
    write_images(folder, ["cat/1.png", "cat/2.png", "dog/1.png"])
    recordmill.build(folder, out, splits="train=0.5,test=0.5")
    write_images(folder, ["cat/3.png", "dog/2.png", "dog/3.png"])
    result = recordmill.build(folder, out, append=True)
    assert (result.read, sum(result.records.values())) == (3, 6)
    write_images(folder, ["ant/1.png"])
    with pytest.raises(UsageError, match="the class 'ant'"):
        recordmill.build(folder, out, append=True)
    result = append(folder, out, new_classes=True)
    assert result.schema["label"].classes == ("cat", "dog", "ant")
    assert sum(result.records.values()) == 7


@pytest.mark.parametrize("missing", ["reject", "ignore"])
def test_append_skips_label_rows_of_known_images(missing: str, tmp_path: Path) -> None:
    out, folder, labels = tmp_path / "out", tmp_path / "photos", tmp_path / "labels.csv"
    names = [f"{number}.png" for number in range(6)]
    write_images(folder, names[:4])
    labels.write_text("image,y\n" + "".join(f"{n},{i % 2}\n" for i, n in enumerate(names[:4])))
    options: dict[str, Any] = {"kind": "images", "labels": labels, "missing": missing}
    recordmill.build(folder, out, append=True, **options)
    write_images(folder, names[4:])
    labels.write_text("image,y\n" + "".join(f"{n},{i % 2}\n" for i, n in enumerate(names)))
    result = append(folder, out, **options)
    assert (result.read, result.rejected, result.records) == (2, 0, {"train": 6})
    assert (
        sorted(int(record["y"]) for record in recordmill.open(out).select(["y"]))
        == [0] * 3 + [1] * 3
    )


def write_samples(path: Path, begin: int, end: int, classes: int = 3) -> str:
    """Writes a WebDataset of images, class numbers and JSON documents."""
    with tarfile.open(path, "w") as tar:
        for number in range(begin, end):
            image = io.BytesIO()
            Image.new("RGB", (8, 8), (number, 0, 0)).save(image, "png")
            for extension, data in (
                ("png", image.getvalue()),
                ("cls", b"%d" % (number % classes)),
                ("json", json.dumps({"id": number}).encode()),
            ):
                (member := tarfile.TarInfo(f"{number:04d}.{extension}")).size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


def test_tar_of_webdataset_is_appended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tars = [write_samples(tmp_path / "0.tar", 0, 20), write_samples(tmp_path / "1.tar", 20, 32)]
    recordmill.build(tars[0], out)
    result = append(tars, out)
    assert (result.kind, result.read, result.records) == ("webdataset", 12, {"train": 32})
    rows = {row["id"]: row for row in recordmill.open(out)}
    assert sorted(rows) == list(range(32))
    for number, row in rows.items():
        assert row["label"] == number % 3
        assert Image.open(io.BytesIO(row["image"])).getpixel((0, 0)) == (number, 0, 0)


def write_coco(path: Path, names: list[str], categories: list[str]) -> str:
    """Writes a COCO file. Image i has i % 3 boxes, each of another category."""
    boxes = [
        {"image_id": image, "category_id": (image + box) % len(categories), "bbox": [box, 1, 2, 3]}
        for image in range(len(names))
        for box in range(image % 3)
    ]
    document = {
        "images": [
            {"id": number, "file_name": name, "width": 8, "height": 8}
            for number, name in enumerate(names)
        ],
        "annotations": [{"id": number, **box} for number, box in enumerate(boxes)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(categories)],
    }
    path.write_text(json.dumps(document))
    return str(path)


def test_images_with_boxes_are_appended(tmp_path: Path) -> None:
    out, folder, boxes = tmp_path / "out", tmp_path / "photos", tmp_path / "boxes.json"
    names = [f"{number}.png" for number in range(9)]
    write_images(folder, names[:5])
    write_coco(boxes, names[:5], ["cat", "dog"])
    recordmill.build(folder, out, boxes=boxes)
    write_images(folder, names[5:])
    write_coco(boxes, names, ["cat", "dog"])
    result = append(folder, out, boxes=boxes)
    assert (result.read, result.rejected, result.records) == (4, 0, {"train": 9})
    counts = {
        Path(row["image/filename"]).stem: len(row["image/object/bbox/xmin"])
        for row in recordmill.open(out)
    }
    assert counts == {str(number): number % 3 for number in range(9)}


def test_image_whose_annotation_is_damaged_does_not_prevent_an_append(tmp_path: Path) -> None:
    out, folder, boxes = tmp_path / "out", tmp_path / "photos", tmp_path / "boxes"
    boxes.mkdir()

    def add(name: str, annotation: str) -> None:
        write_images(folder, [f"{name}.png"])
        (boxes / f"{name}.xml").write_text(annotation)

    def voc(name: str) -> str:
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax>"
        return (
            f"<annotation><filename>{name}.png</filename><size><width>8</width><height>8</height>"
            f"</size><object><name>x</name><bndbox>{box}</bndbox></object></annotation>"
        )

    add("a", voc("a"))
    add("b", voc("b")[:60])
    recordmill.build(folder, out, boxes=boxes, max_rejects=1)
    add("c", voc("c"))
    result = recordmill.build(folder, out, boxes=boxes, append=True, max_rejects=1)
    assert (result.read, result.rejected, result.records) == (2, 1, {"train": 2})


def test_new_class_of_a_box_needs_new_classes(tmp_path: Path) -> None:
    out, folder, boxes = tmp_path / "out", tmp_path / "photos", tmp_path / "boxes.json"
    names = [f"{number}.png" for number in range(6)]
    write_images(folder, names[:3])
    write_coco(boxes, names[:3], ["cat", "dog"])
    recordmill.build(folder, out, boxes=boxes)
    write_images(folder, names[3:])
    write_coco(boxes, names, ["cat", "dog", "emu"])
    with pytest.raises(UsageError, match="emu"):
        recordmill.build(folder, out, append=True, boxes=boxes)
    result = append(folder, out, boxes=boxes, new_classes=True)
    assert result.schema["image/object/class/label"].classes == ("cat", "dog", "emu")
    assert result.records == {"train": 6}


def test_images_with_masks_are_appended(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "in"
    names = [f"{number}.png" for number in range(5)]
    for part in ("images", "masks"):
        write_images(folder / part, names[:3])
    recordmill.build(folder, out, pair="images,masks")
    for part in ("images", "masks"):
        write_images(folder / part, names[3:])
    result = append(folder, out)
    assert (result.read, result.rejected, result.records) == (2, 0, {"train": 5})
    rows = {Path(row["source"]).name: row for row in recordmill.open(out)}
    assert sorted(rows) == names
    for name, row in rows.items():
        assert row["image"] == (folder / "images" / name).read_bytes()
        assert row["masks"] == (folder / "masks" / name).read_bytes()


def test_documents_are_appended(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "reviews"
    for name in ("pos/1.txt", "neg/1.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    recordmill.build(folder, out, kind="text")
    (folder / "pos/2.txt").write_text("good")
    result = append(folder, out)
    assert (result.read, result.records) == (1, {"train": 3})


def test_lines_stay_lines_if_there_are_many_files(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "lines"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text("a\nb\n")
        (folder / "README.md").write_text(f"no data {number}")
        result = recordmill.build(folder, out, append=True, kind="text")
    assert result.records == {"train": 12}
    assert result.schema.names == ("text",)
    # A new file that is not data is nothing to append.
    (folder / "NOTES.md").write_text("no data")
    assert recordmill.build(folder, out, append=True).unchanged


def test_lines_of_a_second_file_are_appended(tmp_path: Path) -> None:
    out, paths = tmp_path / "out", [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    Path(paths[0]).write_text("one\ntwo\n")
    Path(paths[1]).write_text("three\n")
    recordmill.build(paths[0], out)
    result = append(paths, out)
    assert (result.kind, result.read, result.records) == ("text", 1, {"train": 3})
    assert recordmill.open(out).to_table()["text"].to_pylist()[2] == "three"


def test_data_in_memory_is_appended_with_its_own_splits(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(12):
        recordmill.build(
            iter([{"id": number, "x": [1.0, 2.0]}]),
            out,
            append=True,
            splits="train=0.5,test=0.5",
        )
    manifest = load_manifest(out)
    assert len(manifest.parts) == 12
    assert sum(manifest.records.values()) == 12
    # The only record of each part does not always go to the same split.
    assert set(manifest.records) == {"train", "test"}
    assert recordmill.verify(out) == []


PARSER = """
def parse(path):
    for line in open(path):
        yield {"value": int(line), "square": int(line) ** 2}
"""


def test_parser_parses_the_new_files_only(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "in"
    folder.mkdir()
    (tmp_path / "own.py").write_text(PARSER)
    parser = f"{tmp_path / 'own.py'}:parse"
    (folder / "a.num").write_text("1\n2\n")
    recordmill.build(folder, out, parser=parser)
    (folder / "b.num").write_text("3\n")
    with pytest.raises(UsageError, match="was built with parser"):
        recordmill.build(folder, out, append=True)
    result = append(folder, out, parser=parser)
    assert (result.read, result.records) == (1, {"train": 3})
    assert not list(out.glob("_run-*"))


def test_small_splits_get_their_share_of_stratified_appends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {
        "splits": "train=0.8,test=0.2",
        "stratify": "y",
        "label": "y",
        "append": True,
    }
    for number in range(10):
        rows = [{"y": name, "n": number} for name in ("a", "b")]
        recordmill.build(write_jsonl(tmp_path / f"{number}.jsonl", rows), out, **options)
    counts = {
        split: Counter(recordmill.open(out, split=split).to_table()["y"].to_pylist())
        for split in ("train", "test")
    }
    assert counts == {"train": {0: 8, 1: 8}, "test": {0: 2, 1: 2}}


def test_groups_of_stratified_splits_can_not_be_appended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = [{"y": f"c{i % 2}", "user": i} for i in range(40)]
    recordmill.build(
        write_jsonl(tmp_path / "a.jsonl", rows),
        out,
        splits="train=0.5,test=0.5",
        stratify="y",
        split_by="user",
    )
    with pytest.raises(UsageError, match=r"stratify.*split_by.*build all inputs"):
        recordmill.build(write_jsonl(tmp_path / "b.jsonl", rows), out, append=True)


def test_groups_stay_in_one_split_over_appends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in "abc":
        rows = [{"user": i, "day": name} for i in range(50)]
        recordmill.build(
            write_jsonl(tmp_path / f"{name}.jsonl", rows),
            out,
            append=True,
            splits="train=0.5,test=0.5",
            split_by="user",
        )
    users = [
        set(recordmill.open(out, split=split).to_table()["user"].to_pylist())
        for split in ("train", "test")
    ]
    assert not users[0] & users[1]
    assert len(users[0] | users[1]) == 50


def test_split_column_divides_appended_records(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in "ab":
        rows = [{"x": i, "set": ("train", "test")[i % 2]} for i in range(6)]
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        result = recordmill.build(path, out, append=True, split_column="set")
    assert result.records == {"train": 6, "test": 6}
    assert result.schema.names == ("x",)


def test_transform_of_the_data_set_is_applied_and_not_fitted_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_transform")
    out, transform = tmp_path / "out", tmp_path / "transform.yaml"
    transform.write_text("x: zscore\n")
    first = write_jsonl(tmp_path / "a.jsonl", [{"x": float(i)} for i in range(11)])
    second = write_jsonl(tmp_path / "b.jsonl", [{"x": 5.0}, {"x": 1000.0}])
    built = recordmill.build(first, out, transform=transform, shuffle=False)
    result = recordmill.build(second, out, append=True, transform=transform)
    values = recordmill.open(out).to_table()["x"].to_pylist()
    assert values[11] == pytest.approx(0.0)
    assert values[12] == pytest.approx(995 / np.std(range(11)), rel=1e-5)
    assert result.manifest.transform == built.manifest.transform
    assert [path.name for path in out.glob("data-*/transform")] == ["transform"]
    assert recordmill.verify(out) == []
    transform.write_text("x: log1p\n")
    with pytest.raises(UsageError, match="another transform"):
        recordmill.build(second, out, append=True, transform=transform)
    assert list_generations(out) == [1, 2]


def test_halves_of_a_real_table_become_one_data_set(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "csv" / "fivethirtyeight" / "bechdel" / "movies.csv"
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    middle = len(lines) // 2
    for name, part in (("a", lines[:middle]), ("b", lines[middle:])):
        (tmp_path / f"{name}.csv").write_text("".join([header, *part]), encoding="utf-8")
    out = tmp_path / "out"
    options: dict[str, Any] = {"kind": "csv", "key": "imdb", "splits": "train=0.7,test=0.3"}
    complete = recordmill.build(str(tmp_path / "*.csv"), tmp_path / "all", **options)
    # The types that are inferred from half of the rows may be narrower.
    dtypes = {feature.name: feature.dtype for feature in complete.schema}
    for name in "ab":
        half_csv = str(tmp_path / f"{name}.csv")
        result = recordmill.build(half_csv, out, append=True, widen=True, dtypes=dtypes, **options)
    assert result.records == complete.records
    assert recordmill.verify(out) == []


@pytest.mark.parametrize("folder", ["images/clothing-small", "text/movie_reviews"])
def test_real_folder_is_appended_to_itself_only_once(
    folder: str, tmp_path: Path, shared_data: Path
) -> None:
    built = recordmill.build(shared_data / folder, tmp_path / "out", max_rejects="100%")
    assert sum(built.records.values()) > 10
    result = recordmill.build(
        shared_data / folder, tmp_path / "out", append=True, max_rejects="100%"
    )
    assert result.unchanged
