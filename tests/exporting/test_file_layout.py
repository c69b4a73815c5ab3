"""A read chooses the feature that becomes files, and the names of the files.

It refuses a wrong choice with a remedy.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from kit.data_sets import write_data_set
from kit.files import tree
from kit.image_sets import (
    JPEG,
    PNG,
    check_image_files,
    metadata,
    table,
    write_image_set,
    write_images,
)

from recordmill.base.errors import UsageError
from recordmill.pipelines.build import build
from recordmill.pipelines.read import read
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema


def test_source_with_few_values_is_not_used_for_names(tmp_path: Path) -> None:
    names: list[str | None] = ["flickr"] * 10 + ["web"] * 5
    result = read(write_image_set(tmp_path, names), tmp_path / "to", to="files")
    assert check_image_files(result, table(names))[0] == "00000000.jpg"
    assert any('name_feature="source"' in note for note in result.notes)


def test_feature_of_the_files_is_chosen(tmp_path: Path) -> None:
    schema = Schema(
        (
            *(Feature(name, "bytes") for name in ("left", "right", "mask")),
            *(Feature(name, "string") for name in ("text", "file_name")),
            Feature("n", "int64", (None,)),
        )
    )
    arrow = to_arrow(schema)
    columns = [[JPEG] * 3, [PNG] * 3, [b"mask"] * 3, ["a", "ü", ""], ["x", "y", "z"], [[1]] * 3]
    rows = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)],
        schema=arrow,
    )
    out = write_data_set(tmp_path / "out", {"train": rows}, schema)
    for options, message in (
        ({}, "2 features hold encoded images .left, right.; choose with file_feature="),
        ({"file_feature": "nope"}, 'file_feature="nope": no such feature; there are left, right'),
        ({"file_feature": "n"}, r"one bytes or string value; n is int64 \[\?\]"),
        (
            {"file_feature": "left", "name_feature": "n"},
            'name_feature="n": a file name must be one text',
        ),
        ({"file_feature": "left", "name_feature": "left"}, "name another one"),
        ({"file_feature": "left", "name_feature": "nope"}, 'name_feature="nope": no such feature'),
        (
            {"to": "parquet", "file_feature": "left"},
            'file_feature="left": works only with to="files", not with to="parquet"',
        ),
        ({"columns": "n,text,mask,left,right"}, "2 features hold encoded images"),
    ):
        with pytest.raises(UsageError, match=message):
            read(out, tmp_path / "to", **{"to": "files", **options})
    assert not (tmp_path / "to").exists()
    assert (
        tree(read(out, tmp_path / "a", to="files", columns="n,mask").paths[0])["00000002.bin"]
        == b"mask"
    )
    assert "00000000.png" in tree(
        read(out, tmp_path / "b", to="files", columns="right,mask").paths[0]
    )
    result = read(out, tmp_path / "c", to="files", file_feature="text", columns="text,file_name,n")
    assert metadata(result)[0] == {"file_name": "00000000.txt", "file_name_": "x", "n": [1]}
    assert tree(tmp_path / "c" / "train")["00000001.txt"] == "ü".encode()
    result = read(
        out, tmp_path / "d", to="files", file_feature="left", name_feature="file_name", columns="n"
    )
    assert metadata(result)[0] == {"file_name": "x.jpg", "n": [1]}


def test_converted_feature_is_refused_as_files(tmp_path: Path) -> None:
    write_images(tmp_path / "raw", [f"{number}.png" for number in range(3)])
    build(tmp_path / "raw", tmp_path / "ds", kind="images")
    with pytest.raises(UsageError, match="one bytes or string value; image is uint8"):
        read(tmp_path / "ds", tmp_path / "to", to="files", decode_images=True, resize="4x4")
    schema = Schema((Feature("text", "string"),))
    texts = write_data_set(
        tmp_path / "texts",
        {"train": pa.table([pa.array(["a"], pa.large_string())], schema=to_arrow(schema))},
        schema,
    )
    with pytest.raises(
        UsageError,
        match=r"no feature holds one bytes value.*file_feature= also takes a text feature: text",
    ):
        read(texts, tmp_path / "to", to="files")
