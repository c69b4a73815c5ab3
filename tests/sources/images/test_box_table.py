"""A table of boxes has one unit, and a row that does not fit is refused with a remedy."""

from pathlib import Path

import pytest
from kit.annotated_images import HEADER, edges_of, plan, read
from kit.files import write_file

from recordmill.base.errors import RecordmillError


def test_edges_slightly_outside_0_to_1_are_shares_and_clipped(images: Path, tmp_path: Path) -> None:
    text = HEADER + "a.png,0.1,0.1,1.001,0.4,x\nb.png,-0.0005,0.1,0.2,0.4,x\n"
    records, rejects, notes = read(images, write_file(tmp_path / "b.csv", text))
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 1, 0.4)]
    assert edges_of(records["b.png"]) == [(0, 0.1, 0.2, 0.4)]
    assert "border, clipped: 2" in notes


def test_table_that_mixes_units_is_refused_with_the_row(images: Path, tmp_path: Path) -> None:
    rows = "a.png,0.1,0.1,0.5,0.4,x\nb.png,10,5,30,20,x\nc.png,10,5,30,20,x\n"
    boxes = write_file(tmp_path / "b.csv", HEADER + rows)
    with pytest.raises(RecordmillError, match=r"b.csv: line 2: \[0.1, .* --box-unit pixels"):
        plan(images, boxes)
    records, _, _ = read(images, boxes, box_unit="pixels")
    assert edges_of(records["a.png"]) == [(0.001, 0.002, 0.005, 0.008)]


def test_tables_have_a_unit_each(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "1.csv", HEADER + "a.png,0.1,0.1,0.5,0.4,x\n")
    write_file(tmp_path / "boxes" / "2.csv", HEADER + "b.png,10,5,50,20,x\n")
    records, _, _ = read(images, tmp_path / "boxes")
    assert edges_of(records["a.png"]) == edges_of(records["b.png"]) == [(0.1, 0.1, 0.5, 0.4)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.png,1,1,5,5,", "has no class"),
        ("a.png,9,1,5,5,x", "xmax 5 is less than xmin 9"),
        ("a.png,1,1,,5,x", "xmax is empty"),
        ("a.png,1,one,5,5,x", "'one', not a finite number"),
        (",1,1,5,5,x", "image is empty"),
        ("z.png,1,1,5,5,x", "'z.png' is not an image of this input; its 1 box(es) are left out"),
    ],
)
def test_one_bad_row_of_a_table_is_one_reject(
    row: str, message: str, images: Path, tmp_path: Path
) -> None:
    text = HEADER + f"b.png,10,5,40,25,x\n{row}\n"
    records, (reject,), _ = read(images, write_file(tmp_path / "b.csv", text))
    assert (reject.source, reject.place) == ("b.csv", "line 3")
    assert message in reject.message
    assert edges_of(records["b.png"]) == [(0.1, 0.1, 0.4, 0.5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png,10,5,40,25,x\nb.png,,,,,\n", None),
        ("TRAIN,gs://b/a.png,x,0.1,0.1,,,0.4,0.5,,\n", None),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\na,x,0.1,0.4,0.1,0.5\n", None),
        ("path,x,y,w,h,class\nk\\a.png,10,5,30,20,x\n", None),
        ('image_id,width,height,bbox,source\na,100,50,"[10, 5, 30, 20]",x\n', "Add a column"),
        (
            '#filename,region_shape_attributes,region_attributes\na.png,"{""name"":""rect"",""x"":10,""y"":5,'
            '""width"":30,""height"":20}","{""class"":""x""}"\n',
            None,
        ),
    ],
)
def test_table_of_another_tool_is_read_or_refused_with_a_remedy(
    text: str, message: str | None, images: Path, tmp_path: Path
) -> None:
    boxes = write_file(tmp_path / "b.csv", text)
    if message is not None:
        with pytest.raises(RecordmillError, match=message):
            plan(images, boxes)
        return
    records, rejects, _ = read(images, boxes)
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]
    assert records["a.png"]["image/object/class/text"] == ["x"]


def test_number_that_is_too_large_in_a_table_of_boxes_is_a_reject(
    images: Path, tmp_path: Path
) -> None:
    rows = ["filename,xmin,ymin,xmax,ymax,class", "a.png,10,5,1e400,25,x", "a.png,10,5,40.0,25,x"]
    write_file(tmp_path / "b.csv", "\n".join(rows))
    records, rejects, _ = read(images, tmp_path / "b.csv")
    assert [str(reject) for reject in rejects] == [
        "b.csv: line 2: xmax is '1e400', not a finite number (image 'a.png')"
    ]
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_columns_of_the_box_size_are_not_the_image_size(images: Path, tmp_path: Path) -> None:
    text = "image,xmin,ymin,xmax,ymax,width,height,class\na.png,10,5,40,25,30,20,x\n"
    records, rejects, _ = read(images, write_file(tmp_path / "b.csv", text))
    assert not rejects
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]
