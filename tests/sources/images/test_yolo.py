"""YOLO files are read with the names, splits and images of their tools."""

from pathlib import Path

import pytest
from kit.annotated_images import edges_of, plan, read, save_image
from kit.files import write_file
from kit.runs import in_flags

from recordmill.base.errors import RecordmillError
from recordmill.sources.common.content import detect_kind
from recordmill.sources.images.source import plan_images
from recordmill.storage.listing import list_inputs


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 50 25 30 20", "50 is not a share of the image; --box-unit pixels"),
        ("0 0.5 0.5 -0.1 0.2", "a negative size"),
        ("0 0.5 0.5 0.1", "3 numbers after class 0"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3 1", "7 numbers after class 0; key points need kpt_shape"),
        ("0.5 0.5 0.5 0.1 0.1", "the class is '0.5'"),
        ("9 0.5 0.5 0.1 0.1", "class 9 has no name in classes.txt"),
        ("cat 0.5 0.5 0.1 0.1", "the class is 'cat'"),
    ],
)
def test_one_bad_line_of_yolo_is_one_reject(
    line: str, message: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "classes.txt", "x\n")
    write_file(tmp_path / "boxes" / "a.txt", f"0 0.25 0.3 0.3 0.4\n{line}\n")
    records, (reject,), _ = read(images, tmp_path / "boxes")
    assert (reject.source, reject.place) == ("a.txt", "line 2")
    assert message in str(reject)
    assert edges_of(records["a.png"]) == [(0.1, 0.1, 0.4, 0.5)]


def test_yolo_numbers_without_names_stay_numbers(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "labels" / "a.txt", "79 0.5 0.5 0.2 0.4\n3 0.1 0.1 0.1 0.1\n")
    record = read(images, tmp_path / "labels")[0]["a.png"]
    assert record["image/object/class/label"] == [79, 3]
    assert record["image/object/class/text"] == ["79", "3"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.yaml", "names: [x, y]\n"),
        ("coco8.yaml", "path: ../c # root\nnames:\n  0: x\n  1: y\n"),
        ("labels/classes.txt", "\ufeffx\ny\n"),
        ("obj.names", "x\ny\n"),
    ],
)
def test_yolo_names_come_from_the_files_of_each_tool(
    name: str, text: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "set" / name, text)
    write_file(tmp_path / "set" / "labels" / "a.txt", "1 0.5 0.5 0.2 0.4\n")
    write_file(tmp_path / "set" / "labels" / "README.roboflow.txt", "Made by Roboflow\n")
    records, rejects, _ = read(images, tmp_path / "set" / "labels")
    assert not rejects
    assert records["a.png"]["image/object/class/text"] == ["y"]


def test_yolo_file_with_a_huge_class_number_is_refused(images: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "boxes" / "data.yaml", "names: {0: a, 1000000000: b}\n")
    write_file(tmp_path / "boxes" / "a.txt", "0 0.5 0.5 0.2 0.4\n")
    with pytest.raises(RecordmillError, match="class numbers are less than 65,536"):
        plan(images, tmp_path / "boxes")


@pytest.mark.parametrize(
    ("shape", "line"), [("[2, 3]", "0.3 0.4 2 0.6 0.5 1"), ("[2, 2]", "0.3 0.4 0.6 0.5")]
)
def test_key_points_of_yolo_are_not_a_polygon(
    shape: str, line: str, images: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "boxes" / "data.yaml", f"names: [x]\nkpt_shape: {shape}\n")
    write_file(tmp_path / "boxes" / "a.txt", f"0 0.5 0.5 0.6 0.4 {line}\n")
    record = read(images, tmp_path / "boxes")[0]["a.png"]
    assert edges_of(record) == [pytest.approx((0.2, 0.3, 0.8, 0.7))]
    assert record["image/object/keypoint/x"] == pytest.approx([0.3, 0.6])
    assert record["image/object/keypoint/y"] == pytest.approx([0.4, 0.5])


@pytest.mark.parametrize(
    ("shape", "found"),
    [("17", "17"), ("[17, 4]", "[17, 4]"), ("[[2], 3, x, 1]", "[a list, 3, 'x', ...]")],
)
def test_wrong_shape_of_key_points_is_named(
    shape: str, found: str, images: Path, tmp_path: Path
) -> None:
    names = write_file(tmp_path / "boxes" / "data.yaml", f"names: [x]\nkpt_shape: {shape}\n")
    write_file(tmp_path / "boxes" / "a.txt", "0 0.5 0.5 0.6 0.4\n")
    with pytest.raises(RecordmillError) as error:
        plan(images, tmp_path / "boxes")
    expected = f"{names}: kpt_shape: must be [number of key points, 2 or 3], not {found}"
    assert str(error.value) == expected


def test_names_that_are_no_list_are_named(images: Path, tmp_path: Path) -> None:
    names = write_file(tmp_path / "boxes" / "data.yaml", "names: cat\n")
    write_file(tmp_path / "boxes" / "a.txt", "0 0.5 0.5 0.6 0.4\n")
    with pytest.raises(RecordmillError) as error:
        plan(images, tmp_path / "boxes")
    expected = f"{names}: names: must be a list or a mapping of class numbers, not 'cat'"
    assert str(error.value) == expected


def test_root_of_a_yolo_data_set_with_splits_is_read(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save_image(tmp_path / "images" / split / "0.jpg")
        write_file(tmp_path / "labels" / split / "0.txt", f"{split == 'val':d} 0.5 0.5 0.2 0.4\n")
    write_file(tmp_path / "labels" / "val" / "gone.txt", "0 0.5 0.5 0.2 0.4\n")
    save_image(tmp_path / "images" / "train" / "gone.jpg")
    write_file(tmp_path / "train.txt", "./images/train/0.jpg\n")
    source = plan(tmp_path / "images", tmp_path)
    (reject,) = source.plan_rejects
    # the image of the other split does not match
    assert "'gone' is not an image of this input" in reject.message
    labels = [
        label
        for unit in source.units
        for chunk in source.read(unit)
        for label in chunk.records["image/object/class/label"].to_pylist()
    ]
    assert labels == [[0], [], [1]]


@pytest.mark.parametrize("count", [2, 5])
def test_labels_of_a_yolo_data_set_are_noted_with_their_option(count: int, tmp_path: Path) -> None:
    for number in range(count):
        save_image(tmp_path / "set" / "images" / "train" / f"{number}.jpg")
    for number in range(2):
        write_file(tmp_path / "set" / "labels" / "train" / f"{number}.txt", "0 0.5 0.5 0.2 0.4\n")
    listing = list_inputs([str(tmp_path / "set")])
    if count == 2:
        with pytest.raises(
            RecordmillError, match=r"data set of YOLO: .*set/images` with --boxes .*set/labels"
        ):
            detect_kind(listing)
    else:
        notes = [in_flags(note) for note in plan_images(listing).notes]
        assert any(f"--boxes {tmp_path}/set/labels" in note for note in notes)


@pytest.mark.parametrize("is_flat", [False, True], ids=["folders", "darknet"])
def test_error_names_the_options_for_a_yolo_data_set_with_mostly_text_files(
    is_flat: bool, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    for number in range(2):
        save_image(root / ("data" if is_flat else "images") / f"{number}.jpg")
        write_file(
            root / ("data" if is_flat else "labels") / f"{number}.txt", "0 0.5 0.5 0.2 0.4\n"
        )
    for name in ("train.txt", "classes.txt", "more.txt"):
        write_file(root / name, "cat\ndog\n")
    images, boxes = (root, root) if is_flat else (root / "images", root / "labels")
    with pytest.raises(RecordmillError) as error:
        detect_kind(list_inputs([str(root)]))
    assert f"build images {images}` with --boxes {boxes}" in str(error.value)
