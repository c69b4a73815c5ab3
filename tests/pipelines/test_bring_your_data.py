"""Each command of docs/bring-your-data.md builds data of its layout."""

import json
import re
import shlex
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.files import write_file

import recordmill
from recordmill.commands.main import run

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-data.md"
ROWS = dict(
    re.findall(r"^\| (.*?) \| `(recordmill.*?)`(?: in Python)? \|$", PAGE.read_text(), re.MULTILINE)
)
BOX = "<annotation><object><name>cat</name><bndbox>{}</bndbox></object></annotation>".format(
    "".join(f"<{edge}>{at}</{edge}>" for at, edge in enumerate(("xmin", "ymin", "xmax", "ymax"), 1))
)
COCO = {
    "images": [{"id": 1, "file_name": "a.png"}],
    "categories": [{"id": 1, "name": "cat"}],
    "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
}


def lay_out(folder: Path) -> None:
    """Writes the files of all rows of the page to the working folder."""
    png = image_samples.encode_image("PNG")
    for name in (
        "photos/cat/a",
        "photos/dog/b",
        "JPEGImages/a",
        "yolo/images/a",
        "scenes/images/a",
        "scenes/masks/a",
    ):
        write_file(f"{name}.png", png)
    write_file("labels.csv", "file,label\ncat/a.png,x\ndog/b.png,y\n")
    write_file(
        "photos/metadata.jsonl",
        '{"file_name": "cat/a.png", "text": "x"}\n{"file_name": "dog/b.png", "text": "y"}\n',
    )
    write_file("shop/table.csv", "photo,price\nimg/a.png,1\nimg/b.png,2\n")
    for name in "ab":
        write_file(f"shop/img/{name}.png", png)
    for split in ("train", "test"):
        write_file(f"flowers/{split}/a.png", png)
        write_file(f"flowers/{split}/metadata.csv", "file_name,text\na.png,x\n")
    write_file("cars/train/7.png", png)
    write_file("cars/train_masks/7_mask.png", png)
    write_file("instances.json", json.dumps(COCO))
    write_file("boxes.csv", "file,class,xmin,ymin,xmax,ymax\ncat/a.png,cat,0,0,2,2\n")
    write_file("list.csv", "cat/a.png;x\ndog/b.png;y\n")
    write_file(
        "objects.csv", "file;class;xmin;ymin;xmax;ymax\ncat/a.png;cat é;0;0;2;2\n".encode("latin-1")
    )
    write_file("pets/a.png", png)
    objects = {"bbox": [[0, 0, 2, 2]], "categories": ["cat"]}
    write_file("pets/metadata.jsonl", json.dumps({"file_name": "a.png", "objects": objects}) + "\n")
    write_file("Annotations/a.xml", BOX)
    write_file("yolo/labels/a.txt", "1 0.5 0.5 0.1 0.2\n")
    write_file("yolo/data.yaml", "names: [dog, cat]\n")
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in Path("photos").rglob("*.png"):
            archive.write(path, path.relative_to("photos"))
    with tarfile.open("photos.tar.gz", "w:gz") as tar:
        tar.add("photos", ".")
    for number in (1, 2):
        with tarfile.open(f"train-{number}.tar", "w") as tar:
            for name in 2 * ("yolo/images/a.png", "yolo/labels/a.txt"):
                tar.add(name, f"{len(tar.getnames()) // 2}.{name[-3:]}")
    write_file(
        "all.csv", "x,split,date\n1,train,2024-05-01\n2,test,2024-07-01\n3,train,2024-10-01\n"
    )
    write_file("tags.csv", "id,tags\n1,red;blue\n2,red\n")
    write_file("germany.csv", "price;day\n0,5;31.12.2024\n1,25;1.1.2025\n")
    write_file("table/year=2024/part.csv", "x,y\n1,2\n3,4\n")
    feather.write_feather(pa.table({"x": [1, 2]}), "table.feather")
    write_file("squad.json", '{"version": "1.1", "data": [{"id": 1}, {"id": 2}]}')
    write_file("rows.jsonl", '{"a": {"b": [1, 2]}}\n{"a": {"b": []}}\n')
    about = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    table = pa.table({"label": [0, 1], "image": [{"bytes": png, "path": "a.png"}] * 2})
    Path("data").mkdir()
    Path("arrays").mkdir()
    np.save("arrays/X.npy", np.zeros((3, 2)))
    np.save("arrays/y.npy", np.array(["a", "b", "a"]))
    pq.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": about}})}),
        "data/a.parquet",
    )


@pytest.mark.parametrize("row", ROWS)
def test_command_of_a_row_builds_its_layout(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    if "train,val" in row:
        for split in ("train", "val"):
            write_file(f"photos/{split}/cat/{split}.png", image_samples.encode_image("PNG"))
            write_file(f"photos/{split}/dog/{split}.png", image_samples.encode_image("PNG"))
        for name in ("photos/cat/a.png", "photos/dog/b.png"):
            Path(name).unlink()
    if "--label-regex" in ROWS[row]:
        for name in ("cat", "dog"):
            Path("photos", name).rename(f"photos/{name}_x")
    if not ROWS[row].startswith("recordmill build "):
        assert eval(
            ROWS[row], {"recordmill": recordmill, "x": np.arange(3), "y": np.arange(3)}
        ).records == {"train": 3}
        return
    assert run([*shlex.split(ROWS[row])[1:], "--quiet"]) == 0
    ds = recordmill.open("shards")
    assert len(ds)
    if "--boxes" in ROWS[row]:
        (names,) = filter(None, ds.to_table()["image/object/class/text"].to_pylist())
        assert names == (["cat é"] if "Latin-1" in row else ["cat"])
    if "--label-regex" in ROWS[row]:
        assert ds.schema["label"].classes == ("cat", "dog")
    if "split" in row:
        assert len(ds.splits) == 2
    assert recordmill.verify("shards") == []


def test_every_row_of_the_page_is_tested() -> None:
    page = PAGE.read_text()
    assert len(ROWS) == page.count("\n| ") - page.count("\n| what you have ")
