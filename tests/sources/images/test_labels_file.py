"""Rows of a labels file belong to images, and its columns become features.

Rows and images without a partner are reported.
"""

import csv
import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import image_samples
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import ImageSource, plan_images
from recordmill.storage.listing import list_inputs

PNG = image_samples.encode_image("PNG")
OWN = {"image", "format", "height", "width", "channels", "source"}


def images(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PNG)
    return root


def plan(root: Path, labels: Path | str, text: str | None = None, **options: Any) -> ImageSource:
    if text is not None:
        Path(labels).write_text(text)
    common = PlanOptions(label=options.pop("label", None), dtypes=options.pop("dtypes", {}))
    return plan_images(
        list_inputs([str(root)]), ImageOptions(labels=str(labels), **options), common
    )


def test_dates_in_labels_are_times_except_in_paths_and_declared_text(tmp_path: Path) -> None:
    images(tmp_path, "2024-01-01.png", "2024-01-02.png")
    text = "id,day,seen\n2024-01-01,2023-05-06,2023-05-06T07:08:09Z\n2024-01-02,,2023-05-06T07:08:10.5Z\n"
    for name, body in (("labels.csv", text), ("labels.jsonl", None)):
        if body is None:
            rows = csv.DictReader(io.StringIO(text))
            body = "".join(
                json.dumps({key: value or None for key, value in row.items()}) + "\n"
                for row in rows
            )
        source = plan(tmp_path, tmp_path / name, body)
        assert (source.schema["day"].dtype, source.schema["seen"].dtype) == (
            "timestamp[s]",
            "timestamp[ms, UTC]",
        )
        first, second = (table(source)[f"2024-01-0{number}.png"] for number in (1, 2))
        assert (first["day"], second["day"]) == (datetime.datetime(2023, 5, 6), None)
        assert second["seen"] == datetime.datetime(
            2023, 5, 6, 7, 8, 10, 500_000, datetime.timezone.utc
        )
        text_source = plan(tmp_path, tmp_path / name, dtypes={"day": "string"})
        assert table(text_source)["2024-01-01.png"]["day"] == "2023-05-06"
    list_source = plan(
        tmp_path,
        tmp_path / "lists.csv",
        "id,day\n2024-01-01,2023-05-06\n2024-01-01,2023-05-07\n",
        missing="ignore",
    )
    assert list_source.schema["day"].describe() == "timestamp[s] [?]"
    assert table(list_source)["2024-01-01.png"]["day"] == [
        datetime.datetime(2023, 5, day) for day in (6, 7)
    ]


def table(source: ImageSource) -> dict[str, dict[str, Any]]:
    """Returns the features of each file that don't come from the image itself."""
    rows: dict[str, dict[str, Any]] = {}
    for unit in source.units:
        for chunk in source.read(unit):
            chunk.records.validate(full=True)
            for row in chunk.records.to_pylist():
                rows[row["source"]] = {
                    name: value for name, value in row.items() if name not in OWN
                }
    return rows


def test_one_row_per_file_is_read_as_scalars_with_inferred_dtypes(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png", "c.png")
    text = (
        "file_name,label,age,weight,adult,code,note\n"
        "c.png,dog,3,1.5,true,007,\n"
        "a.png,cat,,2,False,+491,NA\n"
        "b.png,cat,-1,1e3,TRUE,12,hi\n"
    )
    source = plan(tmp_path, tmp_path / "labels.csv", text)
    assert table(source) == {
        "a.png": {
            "label": 0,
            "class_name": "cat",
            "age": None,
            "weight": 2.0,
            "adult": False,
            "code": "+491",
            "note": None,
        },
        "b.png": {
            "label": 0,
            "class_name": "cat",
            "age": -1,
            "weight": 1000.0,
            "adult": True,
            "code": "12",
            "note": "hi",
        },
        "c.png": {
            "label": 1,
            "class_name": "dog",
            "age": 3,
            "weight": 1.5,
            "adult": True,
            "code": "007",
            "note": None,
        },
    }
    assert {
        name: source.schema[name].dtype for name in ("label", "age", "weight", "adult", "code")
    } == {
        "label": "int64",
        "age": "int64",
        "weight": "float32",
        "adult": "bool",
        "code": "string",
    }
    assert source.schema.label == "label"
    assert source.schema["label"].classes == ("cat", "dog")


def test_numbers_that_are_declared_as_strings_keep_their_text(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    text = "file,version\na.png,1.10\nb.png,1e400\n"
    source = plan(tmp_path, tmp_path / "labels.csv", text, dtypes={"version": "string"})
    assert table(source) == {"a.png": {"version": "1.10"}, "b.png": {"version": "1e400"}}


def test_declared_dtypes_override_inferred_ones(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    text = "file,weight,code\na.png,0.1,7\nb.png,0.2,8\n"
    source = plan(
        tmp_path, tmp_path / "labels.csv", text, dtypes={"weight": "float64", "code": "string"}
    )
    assert table(source)["a.png"] == {"weight": 0.1, "code": "7"}
    rounded = plan(tmp_path, tmp_path / "labels.csv")
    assert "weight: 2 value(s) lose digits as float32" in rounded.notes
    assert np.float32(
        table(plan(tmp_path, tmp_path / "labels.csv"))["a.png"]["weight"]
    ) == np.float32(0.1)


def test_jsonl_labels_with_objects_and_lists_become_features(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    rows = [
        {
            "file_name": "a.png",
            "objects": {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "category": ["x", "y"]},
            "score": 0.5,
        },
        {"file_name": "b.png", "objects": {"bbox": [], "category": []}, "score": None},
    ]
    source = plan(
        tmp_path, tmp_path / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
    )
    assert table(source) == {
        "a.png": {
            "objects.bbox": [[1, 2, 3, 4], [5, 6, 7, 8]],
            "objects.category": ["x", "y"],
            "score": 0.5,
        },
        "b.png": {"objects.bbox": [], "objects.category": [], "score": None},
    }
    assert source.schema["objects.bbox"].shape == (None, None)


def test_paths_of_labels_are_resolved_in_order_of_folders(tmp_path: Path) -> None:
    """Paths are relative to the folder of the labels file, or to the INPUT.

    If both fail, the name alone must match, or the name without extension.
    """
    images(tmp_path / "in", "x/1.png", "y/1.png", "x/2.png", "y/3.png")
    (tmp_path / "meta").mkdir()
    labels = tmp_path / "meta" / "labels.csv"
    text = f"path,n\n../in/x/1.png,1\ny/1.png,2\n2.png,3\n{tmp_path}/in/y/3.png,4\n"
    assert {name: row["n"] for name, row in table(plan(tmp_path / "in", labels, text)).items()} == {
        "x/1.png": 1,
        "y/1.png": 2,
        "x/2.png": 3,
        "y/3.png": 4,
    }
    stems = plan(tmp_path / "in", labels, "id,n\n2,5\n3,6\n", missing="ignore")
    assert {name: row["n"] for name, row in table(stems).items()} == {
        "x/1.png": None,
        "x/2.png": 5,
        "y/1.png": None,
        "y/3.png": 6,
    }


def test_label_name_that_two_files_have_is_a_reject(tmp_path: Path) -> None:
    images(tmp_path, "x/1.png", "y/1.png", "y/2.png")
    source = plan(tmp_path, tmp_path / "labels.csv", "file,n\n1.png,1\n2.png,2\n")
    assert [(reject.source, reject.place, reject.reason) for reject in source.plan_rejects] == [
        ("labels.csv", "line 2", "no file"),
        ("x/1.png", "", "no label row"),
        ("y/1.png", "", "no label row"),
    ]
    assert {name: row["n"] for name, row in table(source).items()} == {"y/2.png": 2}


def test_label_rows_without_files_and_files_without_rows_are_rejects_or_ignored(
    tmp_path: Path,
) -> None:
    images(tmp_path, "a.png", "b.png", "c.png")
    text = 'file,n,t\na.png,1,"x\ny"\nzzz.png,2,z\n,3,q\nb.png,4,w\n'
    strict_source = plan(tmp_path, tmp_path / "labels.csv", text)
    assert [in_flags(reject.text) for reject in strict_source.plan_rejects] == [
        "labels.csv: line 4: file 'zzz.png' is not an image of this input; --missing ignore leaves such rows out",
        "labels.csv: line 5: file None is not an image of this input; --missing ignore leaves such rows out",
        "c.png: labels.csv has no row for this file; --missing ignore keeps such files without labels",
    ]
    assert [file.name for file in strict_source.files] == ["a.png", "b.png"]
    assert strict_source.schema["n"].required
    lenient_source = plan(tmp_path, tmp_path / "labels.csv", text, missing="ignore")
    assert lenient_source.plan_rejects == ()
    assert not lenient_source.schema["n"].required
    assert table(lenient_source) == {
        "a.png": {"n": 1, "t": "x\ny"},
        "b.png": {"n": 4, "t": "w"},
        "c.png": {"n": None, "t": None},
    }
    assert "labels.csv: 2 row(s) without a file left out" in lenient_source.notes
    assert "labels.csv: 1 file(s) without a row have no labels" in lenient_source.notes


def test_repeated_label_row_counts_once(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    source = plan(tmp_path, tmp_path / "labels.csv", "file,x\na.png,1\nb.png,2\na.png,1\n")
    assert table(source) == {"a.png": {"x": 1}, "b.png": {"x": 2}}
    assert "labels.csv: 1 row(s) equal another row of their file, and are left out" in source.notes
    boxes = plan(tmp_path, tmp_path / "labels.csv", "file,x\na.png,1\nb.png,2\na.png,1\nb.png,3\n")
    assert table(boxes) == {"a.png": {"x": [1, 1]}, "b.png": {"x": [2, 3]}}


def test_label_lists_may_be_missing_empty_or_full(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png", "c.png", "d.png")
    text = "file,x,y\na.png,1,2\na.png,3,4\nb.png,,\nd.png,5,6\n"
    source = plan(tmp_path, tmp_path / "labels.csv", text, missing="ignore")
    assert table(source) == {
        "a.png": {"x": [1, 3], "y": [2, 4]},
        "b.png": {"x": [], "y": []},
        "c.png": {"x": None, "y": None},
        "d.png": {"x": [5], "y": [6]},
    }


def test_null_in_a_list_of_labels_is_a_reject(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    source = plan(tmp_path, tmp_path / "labels.csv", "file,x,y\na.png,1,2\na.png,3,\nb.png,5,6\n")
    assert [(reject.source, reject.reason) for reject in source.plan_rejects] == [("a.png", "null")]
    assert table(source) == {"b.png": {"x": [5], "y": [6]}}


def test_label_rows_of_a_file_may_be_anywhere(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    source = plan(
        tmp_path, tmp_path / "labels.csv", "file,x\nb.png,1\na.png,2\nb.png,3\na.png,4\nb.png,5\n"
    )
    assert table(source) == {"a.png": {"x": [2, 4]}, "b.png": {"x": [1, 3, 5]}}


def test_label_columns_named_like_image_features_are_renamed(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    source = plan(
        tmp_path,
        tmp_path / "labels.csv",
        "filename,width,height,class\na.png,640,480,cat\n",
        label="class",
    )
    (row,) = table(source).values()
    assert row == {"label": 0, "class_name": "cat", "labels_width": 640, "labels_height": 480}
    renames = "columns with the names of image features were renamed: width is labels_width, height is labels_height"
    assert source.notes[-1] == f"labels.csv: {renames}"


def test_numeric_labels_stay_numbers(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    source = plan(
        tmp_path, tmp_path / "labels.csv", "file,target\na.png,5\nb.png,7\n", label="target"
    )
    assert source.schema["label"].classes is None
    assert table(source) == {"a.png": {"label": 5}, "b.png": {"label": 7}}
    score = plan(
        tmp_path, tmp_path / "labels.csv", "file,target\na.png,5\nb.png,7.5\n", label="target"
    )
    assert (score.schema["label"].dtype, table(score)["b.png"]) == ("float32", {"label": 7.5})


def test_label_comes_from_folders_if_the_labels_file_has_none(tmp_path: Path) -> None:
    images(tmp_path, "cat/a.png", "dog/b.png")
    age_source = plan(tmp_path, tmp_path / "labels.csv", "file,age\ncat/a.png,1\ndog/b.png,2\n")
    assert table(age_source) == {
        "cat/a.png": {"label": 0, "class_name": "cat", "age": 1},
        "dog/b.png": {"label": 1, "class_name": "dog", "age": 2},
    }
    names_source = plan(
        tmp_path, tmp_path / "labels.csv", "file,class_name\ncat/a.png,x\ndog/b.png,y\n"
    )
    assert table(names_source)["cat/a.png"] == {
        "label": 0,
        "class_name": "cat",
        "labels_class_name": "x",
    }
    label_source = plan(
        tmp_path, tmp_path / "labels.csv", "file,label\ncat/a.png,lion\ndog/b.png,wolf\n"
    )
    assert [row["class_name"] for row in table(label_source).values()] == ["lion", "wolf"]


def test_path_column_is_detected_or_set_by_option(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    text = "name,Image,picture\nAnna,a.png,a.png\n"
    assert table(plan(tmp_path, tmp_path / "labels.csv", text))["a.png"] == {
        "name": "Anna",
        "picture": "a.png",
    }
    assert table(plan(tmp_path, tmp_path / "labels.csv", text, labels_path_column="picture"))[
        "a.png"
    ] == {
        "name": "Anna",
        "Image": "a.png",
    }


@pytest.mark.parametrize(
    ("name", "text", "options", "error", "message"),
    [
        (
            "l.csv",
            "file,n\nb.png,1\n",
            {},
            UsageError,
            r"no column holds paths of the images; file of file, n were checked",
        ),
        (
            "l.csv",
            "where,n\nb.png,1\n",
            {},
            UsageError,
            r"none of where, n were checked\..*--labels-path-column names the column",
        ),
        (
            "l.csv",
            "file,n\na.png,1\n",
            {"labels_path_column": "path"},
            UsageError,
            "no column 'path'; it has file, n",
        ),
        (
            "l.csv",
            "file,n\na.png,1\n",
            {"labels_path_column": "n"},
            UsageError,
            "no value of column 'n' is one of the images",
        ),
        (
            "l.csv",
            "file,n\na.png,1\n",
            {"label": "breed"},
            UsageError,
            "--label breed: l.csv has no such column; it has n",
        ),
        (
            "l.csv",
            "file,n\na.png,1,2\n",
            {},
            DataError,
            "l.csv: line 2, row 0: 3 fields, more than the 2 columns",
        ),
        ("l.csv", 'file,n\na.png,"1\n', {}, DataError, "l.csv: line 2, row 0: .* is never closed"),
        ("l.csv", "file,n\n", {}, DataError, "l.csv: holds a header and no rows"),
        (
            "l.csv",
            "file,n,n\na.png,1,2\n",
            {},
            DataError,
            "both named 'n'.* give other names with --names",
        ),
        (
            "l.jsonl",
            '{"file": "a.png"}\n[1]\n',
            {},
            DataError,
            "l.jsonl: line 2: is not a JSON object",
        ),
        (
            "l.jsonl",
            '{"file": "a.png"\n',
            {},
            DataError,
            "l.jsonl: line 1: no line is a JSON object: ends",
        ),
        (
            "l.jsonl",
            '{"file": "a.png", "n": 1}\n{"file": "a.png", "n": "x"}\n',
            {},
            DataError,
            "'n' is a number .l.jsonl: line 1. and a string .l.jsonl: line 2.",
        ),
        (
            "l.jsonl",
            '{"file": "a.png", "n": 1, "n": 2}\n',
            {},
            DataError,
            "l.jsonl: line 1: .*a key twice in one object",
        ),
        (
            "l.jsonl",
            '{"file": "a.png"}\n{"file": "b", "n": "\\ud800"}\n',
            {},
            DataError,
            "l.jsonl: line 2: has half a surrogate pair",
        ),
        ("l.xml", "<a/>", {}, UsageError, r"a \.csv, \.tsv or \.jsonl file is needed"),
    ],
)
def test_unusable_labels_file_is_refused(
    tmp_path: Path,
    name: str,
    text: str,
    options: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    images(tmp_path, "a.png")
    with pytest.raises(error, match=message):
        plan(tmp_path, tmp_path / name, text, **options)


def test_missing_or_undecodable_labels_file_is_refused(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    with pytest.raises(UsageError, match=r"nope\.csv: can't be read: No such file"):
        plan(tmp_path, tmp_path / "nope.csv")
    (tmp_path / "l.csv").write_bytes(b"file,n\na.png,\xe9\n")
    with pytest.raises(DataError, match=r"l\.csv: line 2, row 0: .* is not UTF-8"):
        plan(tmp_path, tmp_path / "l.csv")


def test_labels_files_are_parsed_like_inputs_of_their_kind(tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    expected = {
        "a.png": {"id": "73786976294838206464", "seen": datetime.datetime(2020, 1, 1), "w": 0.5},
        "b.png": {"id": "1", "seen": datetime.datetime(2020, 1, 2), "w": 2.0},
    }
    text = "file;id;seen;w\na.png;73786976294838206464;2020-01-01;0.5\nb.png;1;2020-01-02;2\n"
    (tmp_path / "l.csv").write_bytes(text.encode("utf-16"))
    assert table(plan(tmp_path, tmp_path / "l.csv", labels_path_column="file")) == expected
    rows = [{"file": file, **row, "id": int(row["id"])} for file, row in expected.items()]  # type: ignore[call-overload]
    text = "".join(json.dumps(row, default=lambda day: f"{day:%Y-%m-%d}") + "\n" for row in rows)
    assert table(plan(tmp_path, tmp_path / "l.jsonl", text, labels_path_column="file")) == expected


def test_label_row_is_reported_with_its_line_despite_quoted_line_breaks(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    source = plan(tmp_path, tmp_path / "l.csv", 'file,n\na.png,"x\ny"\n\ngone.png,z\n')
    assert [(reject.place, reject.reason) for reject in source.plan_rejects] == [
        ("line 5", "no file")
    ]


def test_columns_renamed_because_of_the_label_are_noted(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    source = plan(
        tmp_path, tmp_path / "l.csv", "file,kind,label,class_name\na.png,cat,7,x\n", label="kind"
    )
    assert {"label", "class_name", "labels_label", "labels_class_name"} <= {*source.schema.names}
    renames = "label is labels_label, class_name is labels_class_name"
    assert (
        source.notes[-1]
        == f"l.csv: columns with the names of image features were renamed: {renames}"
    )


def build_with_table(folder: Path, table: str, text: bytes, **options: Any) -> dict[str, Any]:
    """Builds 0.png, 1.png and 2.png with a table of labels or boxes.

    Returns:
        The columns of the records by name, and the notes as `notes`.
    """
    (folder / "in").mkdir(exist_ok=True)
    for number in range(3):
        data = image_samples.encode_image("PNG", image_samples.picture(seed=number))
        (folder / "in" / f"{number}.png").write_bytes(data)
    (folder / table).write_bytes(text)
    option = "boxes" if "boxes" in table else "labels"
    result = recordmill.build(
        folder / "in",
        folder / "out",
        overwrite=True,
        shuffle=False,
        **{option: folder / table},
        **options,
    )
    return {"notes": result.notes, **recordmill.open(folder / "out").to_table().to_pydict()}


def test_blanks_after_the_commas_of_a_labels_file_are_trimmed(tmp_path: Path) -> None:
    text = b"filename, label, n\n0.png, a, 1\n1.png, b, 2\n2.png,a , 3\n"
    columns = build_with_table(tmp_path, "labels.csv", text)
    assert columns["class_name"] == ["a", "b", "a"]
    assert columns["n"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("table", "text", "options"),
    [
        ("labels.csv", b"0.png,a\n1.png,b\n2.png,a\n", {}),
        ("labels.txt", b"0.png a\n1.png   b\n2.png a\n", {"delimiter": " "}),
        (
            "labels.csv",
            b"made by hand\n0.png!a\n1.png!b\n2.png!a\n",
            {"delimiter": "!", "skip_lines": 1},
        ),
    ],
)
def test_labels_file_without_a_header_is_read_with_csv_options(
    tmp_path: Path, table: str, text: bytes, options: dict[str, Any]
) -> None:
    columns = build_with_table(
        tmp_path, table, text, header=False, names="filename,label", **options
    )
    assert columns["class_name"] == ["a", "b", "a"]


def test_encoding_applies_to_a_labels_file(tmp_path: Path) -> None:
    text = "filename,label\n0.png,é\n1.png,b\n2.png,é\n".encode("latin-1")
    assert build_with_table(tmp_path, "labels.csv", text, encoding="latin-1")["class_name"] == [
        "é",
        "b",
        "é",
    ]


def test_csv_options_apply_to_a_table_of_boxes(tmp_path: Path) -> None:
    text = b"".join(b"%d.png! 1! 1! 3! 3! a\n" % number for number in range(3))
    columns = build_with_table(
        tmp_path,
        "boxes.csv",
        text,
        header=False,
        names="filename,xmin,ymin,xmax,ymax,class",
        delimiter="!",
    )
    assert [len(values) for values in columns["image/object/bbox/xmin"]] == [1, 1, 1]


def test_csv_options_are_refused_for_other_labels_files(tmp_path: Path) -> None:
    for table in ("labels.jsonl", "boxes.json"):
        with pytest.raises(UsageError, match="is only for CSV files, not for"):
            build_with_table(tmp_path, table, b'{"filename": "0.png"}\n', delimiter=";")
    with pytest.raises(UsageError, match="needs --labels or --boxes"):
        recordmill.build(tmp_path / "in", tmp_path / "out2", kind="images", delimiter=";")


def test_first_row_that_names_an_image_suggests_no_header(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        build_with_table(tmp_path, "labels.csv", b"0.png,a\n1.png,b\n2.png,a\n")
    assert "use --no-header, and name the columns with --names" in in_flags(error.value)


def test_only_column_of_image_names_is_the_path_column(tmp_path: Path) -> None:
    text = b",samples,y\n0,/far/0.png,7\n1,/far/1.png,8\n2,/far/2.png,9\n"
    assert build_with_table(tmp_path, "labels.csv", text)["y"] == [7, 8, 9]


def test_different_rows_of_one_image_are_noted(tmp_path: Path) -> None:
    text = b"filename,label\n0.png,a\n0.png,b\n1.png,b\n2.png,a\n"
    notes = build_with_table(tmp_path, "labels.csv", text)["notes"]
    assert any("1 file(s) have several rows that differ, such as 0.png" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        (
            "a.csv",
            "filename,xmin,ymin,xmax,ymax,class\n0.png,1,1,3,3,a\n1.png,1,1,3,3,a\n",
            "boxes",
        ),
        ("a.csv", "id,label\n0,x\n1,y\n2,x\n", "labels"),
        (
            "metadata.jsonl",
            '{"file_name":"0.png","objects":{"bbox":[[1,1,2,2]],"categories":[0]}}\n',
            "boxes",
        ),
        ("metadata.jsonl", '{"file_name":"0.png","annotations":"none"}\n', "labels"),
    ],
)
def test_note_on_a_table_next_to_images_proposes_a_working_option(
    tmp_path: Path, name: str, text: str, option: str
) -> None:
    build_with_table(tmp_path, "labels.csv", b"filename,label\n0.png,a\n1.png,b\n2.png,a\n")
    path = tmp_path / "in" / name
    path.write_text(text)
    result = recordmill.build(tmp_path / "in", tmp_path / "noted", kind="images")
    assert any(f"{option}=" in note and "was not used" in note for note in result.notes)
    options = {"missing": "ignore"} if option == "labels" else {}
    recordmill.build(tmp_path / "in", tmp_path / "read", kind="images", **{option: path}, **options)


def split_images(root: Path) -> None:
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        image_samples.picture(size=(9, 8)).save(root / split / "0.png")


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv", "_classes.csv"])
def test_each_split_has_its_own_labels_file(name: str, tmp_path: Path) -> None:
    split_images(tmp_path / "in")
    for split in ("train", "test"):
        row = {"file_name": "0.png", "text": f"of {split}"}
        lines = ["file_name,text", ",".join(row.values())]
        if name.endswith("jsonl"):
            lines = [json.dumps(row)]
        (tmp_path / "in" / split / name).write_text("\n".join(lines))
    recordmill.build(tmp_path / "in", tmp_path / "out", labels=tmp_path / "in")
    for split in ("train", "test"):
        (row,) = recordmill.open(tmp_path / "out", split=split)
        assert row["text"] == f"of {split}"


def test_columns_of_several_labels_files_are_joined_by_name(tmp_path: Path) -> None:
    split_images(tmp_path / "in")
    tables = {"train": "file_name,size,label\n0.png,1,a\n", "test": "file_name,size\n0.png,1.5\n"}
    for split, text in tables.items():
        (tmp_path / "in" / split / "labels.csv").write_text(text)
    (tmp_path / "in" / "sample_submission.csv").write_text("file_name,size\nx.png,0\n")
    recordmill.build(tmp_path / "in", tmp_path / "out", labels=tmp_path / "in")
    rows = {split: next(iter(recordmill.open(tmp_path / "out", split=split))) for split in tables}
    assert (rows["train"]["size"], rows["train"]["class_name"]) == (1, "a")
    assert (rows["test"]["size"], rows["test"]["class_name"]) == (1.5, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file_name,size\n0.png,large\n",
            "column 'size' is int64 in test/a.csv and large_string in train/a.csv",
        ),
        ("file_name,size\n0.png,1\nno.png,2\n", "train/a.csv: line 3: file_name 'no.png' is no"),
        ("x,size\n1,1\n", "train/a.csv: no column holds paths of the images"),
        (None, "the folder has no .csv, .tsv or .jsonl file"),
    ],
    ids=["types", "unmatched", "paths", "none"],
)
def test_message_on_one_of_several_labels_files_names_it(
    text: str | None, message: str, tmp_path: Path
) -> None:
    split_images(tmp_path / "in")
    if text is not None:
        (tmp_path / "in" / "test" / "a.csv").write_text("file_name,size\n0.png,1\n")
        (tmp_path / "in" / "train" / "a.csv").write_text(text)
    with pytest.raises(RecordmillError) as error:
        recordmill.build(tmp_path / "in", tmp_path / "out", labels=tmp_path / "in", kind="images")
    assert message in str(error.value)
