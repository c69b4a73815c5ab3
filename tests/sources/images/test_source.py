"""Images of a folder become records in order, with their options applied; bad files are rejects
or errors.
"""

import io
import os
from collections import Counter
from pathlib import Path
from typing import Any

import PIL.Image
import pyarrow as pa
import pytest
from kit import image_samples
from kit.files import write_files
from kit.runs import in_flags
from kit.source_reading import read_all, values
from PIL.ImageFile import ImageFile

import recordmill
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common import contract
from recordmill.sources.common.contract import BATCH_BYTES, Chunk, PlanOptions
from recordmill.sources.images import source as images
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import ImageSource, plan_images
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.storage.listing import list_inputs

PNG, JPEG, GIF = (
    image_samples.encoded(name, image_samples.picture().quantize(8) if name == "GIF" else None)
    for name in ("PNG", "JPEG", "GIF")
)


def plan(*inputs: Path, common: PlanOptions | None = None, **options: Any) -> ImageSource:
    return plan_images(
        list_inputs([str(path) for path in inputs], data_extensions=DATA_EXTENSIONS),
        ImageOptions(**options),
        common,
    )


def drain(source: ImageSource) -> tuple[list[dict[str, Any]], list[Reject]]:
    """All rows and rejects, each file of one unit and its row at position 0."""
    rows, rejects = read_all(source)
    covered = [file for unit in source.units for file in range(unit.begin_file, unit.end_file)]
    assert covered == list(range(len(source.files)))
    assert not any(position for _, position, _ in rows)
    return values(rows), rejects


def chunks(source: ImageSource) -> list[Chunk]:
    return [chunk for unit in source.units for chunk in source.read(unit)]


def test_sizes_of_chunks_and_units_do_not_change_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        tmp_path,
        {
            f"{at:03}.png": image_samples.encoded("PNG", image_samples.picture(seed=at))
            for at in range(50)
        },
    )
    whole = drain(plan(tmp_path))
    monkeypatch.setattr(images, "IMAGE_UNIT_BYTES", 5_000)
    monkeypatch.setattr("recordmill.sources.images.reading.BATCH_BYTES", 2_500)
    small = plan(tmp_path)
    assert len(small.units) > 5
    assert max(unit.size_bytes for unit in small.units) <= 5_000
    assert len(chunks(small)) > 10
    assert drain(small) == whole
    monkeypatch.setattr(images, "IMAGE_UNIT_FILES", 3)
    assert max(unit.rows or 0 for unit in plan(tmp_path).units) == 3
    assert drain(plan(tmp_path)) == whole


def test_chunk_of_images_keeps_to_its_size(tmp_path: Path) -> None:
    """Files of 3 MiB: two make a chunk of 8 MiB at most; one of 9 MiB is a chunk of its own."""
    padded = {f"{at}.png": PNG + bytes((9 << 20) if at == 2 else 3 << 20) for at in range(5)}
    source = plan(write_files(tmp_path, padded))
    sizes = [[len(image.as_py()) for image in chunk.records["image"]] for chunk in chunks(source)]
    assert [len(size) for size in sizes] == [2, 1, 2]
    assert all(len(size) == 1 or sum(size) <= BATCH_BYTES for size in sizes)


def test_rejected_images_leave_no_gap_in_a_chunk(tmp_path: Path) -> None:
    bad = {
        "b.jpg": JPEG[:-2],
        "c.png": PNG[:50] + b"?" + PNG[51:],
        "e.gif": b"no image at all",
        "g.webp": b"",
        "h.jpg": b"P6\n1 1\n255\n...",
    }
    good = {"a.png": PNG, "d.gif": GIF, "f.jpg": JPEG, "i.png": PNG}
    source = plan(write_files(tmp_path, {**bad, **good}))
    rows, rejects = drain(source)
    assert {row["source"]: row["image"] for row in rows} == good
    assert [(reject.source, reject.place, reject.reason) for reject in rejects] == [
        ("b.jpg", "", "truncated"),
        ("c.png", "", "crc"),
        ("e.gif", "", "format"),
        ("g.webp", "", "truncated"),
        ("h.jpg", "", "format"),
    ]
    files = [ordinal for chunk in chunks(source) for ordinal in chunk.file_ids.tolist()]
    assert [source.files[ordinal].name for ordinal in files] == sorted(good)


def test_unit_of_only_bad_images_still_yields_a_chunk(tmp_path: Path) -> None:
    rows, rejects = drain(plan(write_files(tmp_path, {"a.png": b"x", "b.png": b"y"})))
    assert (rows, len(rejects)) == ([], 2)


def test_content_determines_the_image_format(tmp_path: Path) -> None:
    names = {
        "a.jpg": PNG,
        "b.jpg": JPEG,
        "noextension": GIF,
        "c.dat": PNG,
        "d.dat": b"what else",
        "e.jpeg": PNG,
    }
    source = plan(write_files(tmp_path, names))
    rows, rejects = drain(source)
    assert {row["source"]: row["format"] for row in rows} == {
        "a.jpg": "PNG",
        "b.jpg": "JPEG",
        "noextension": "GIF",
        "c.dat": "PNG",
        "e.jpeg": "PNG",
    }
    assert not rejects
    totals = sum((Counter(chunk.note_counts) for chunk in chunks(source)), Counter[str]())
    assert totals == {"PNG named .jpg": 1, "PNG named .jpeg": 1, "GIF with palette": 1}
    assert "ignored beside the images: 1 .dat" in source.notes


def test_image_given_by_name_may_have_any_extension(tmp_path: Path) -> None:
    write_files(tmp_path, {"picture.txt": PNG, "a.png": PNG})
    assert len(drain(plan(tmp_path / "picture.txt"))[0]) == 1
    assert len(drain(plan(tmp_path))[0]) == 1


def test_schema_that_images_cannot_meet_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.png": PNG})
    with pytest.raises(UsageError, match="'image' as uint8"):
        plan(tmp_path, common=PlanOptions(schema=Schema((Feature("image", "uint8", (28, 28)),))))
    with pytest.raises(DataError, match="requires 'weight'"):
        plan(
            tmp_path,
            common=PlanOptions(schema=Schema((Feature("weight", "float32", required=True),))),
        )
    with pytest.raises(UsageError, match="names no feature"):
        plan(tmp_path, common=PlanOptions(schema=Schema(())))
    with pytest.raises(
        UsageError, match="--dtype height: this feature comes from the image itself"
    ):
        plan(tmp_path, common=PlanOptions(dtypes={"height": "int32"}))
    absent = Schema((Feature("image", "bytes", required=True), Feature("weight", "float32")))
    assert drain(plan(tmp_path, common=PlanOptions(schema=absent)))[0] == [
        {"image": PNG, "weight": None}
    ]


def test_decode_check_is_stricter_than_structure_check(tmp_path: Path) -> None:
    at = GIF.rindex(b"\0;") - 40
    # inside the LZW data; the blocks stay whole
    damaged = GIF[:at] + bytes(byte ^ 0xFF for byte in GIF[at : at + 30]) + GIF[at + 30 :]
    write_files(tmp_path, {"a.gif": damaged, "b.gif": GIF})
    assert len(drain(plan(tmp_path))[0]) == 2
    rows, rejects = drain(plan(tmp_path, check="decode"))
    assert [row["source"] for row in rows] == ["b.gif"]
    assert [(reject.source, reject.reason) for reject in rejects] == [("a.gif", "decode")]


@pytest.mark.parametrize("check", ["structure", "decode"])
def test_too_many_pixels_are_rejected_before_decoding(tmp_path: Path, check: str) -> None:
    width, height = image_samples.SIZE
    write_files(
        tmp_path,
        {
            "a.png": PNG,
            "b.png": image_samples.encoded("PNG", image_samples.picture(size=(width + 1, height))),
        },
    )
    rows, rejects = drain(plan(tmp_path, check=check, max_pixels=width * height))
    assert [row["source"] for row in rows] == ["a.png"]
    assert [(reject.source, reject.reason) for reject in rejects] == [("b.png", "size")]


def test_pixel_limit_of_pillow_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """max_pixels is the one limit; the module-wide one of Pillow belongs to the user's own code."""
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    write_files(tmp_path, {"a.png": PNG, "b.gif": GIF, "c.jpg": JPEG})
    rows, rejects = drain(plan(tmp_path, check="decode"))
    assert (len(rows), rejects) == (3, [])
    assert not [
        warning
        for warning in recwarn
        if issubclass(warning.category, Image.DecompressionBombWarning)
    ]


def test_image_file_beyond_memory_is_a_reject(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.png": PNG, "b.png": PNG + bytes(5000)})
    source = plan(tmp_path, common=PlanOptions(memory_bytes=4 * 4000))
    assert [(reject.source, reject.reason) for reject in source.plan_rejects] == [("b.png", "size")]
    assert [row["source"] for row in drain(source)[0]] == ["a.png"]


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "remove"])
def test_image_that_changes_after_the_plan_is_an_error(tmp_path: Path, change: str) -> None:
    write_files(tmp_path, {"a.png": PNG, "b.png": PNG})
    source = plan(tmp_path)
    path = tmp_path / "b.png"
    if change == "grow":
        path.write_bytes(PNG + b"more")
    elif change == "shrink":
        path.write_bytes(PNG[:40])
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    with pytest.raises(
        DataError, match=r"b\.png: (changed while it was read|can't be read: No such file)"
    ):
        chunks(source)


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"a,b\n", "b.xml": b"<x/>", "c": b"?"})
    with pytest.raises(
        UsageError, match=r"no image among 3 file\(s\): 1 without extension, 1 \.csv, 1 \.xml"
    ):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": "full"}, "--check full: must be one of structure, decode"),
        ({"labels": "x.csv", "missing": "drop"}, "--missing drop: must be one of reject, ignore"),
        ({"class_from": "names"}, "--class-from names: must be one of"),
        ({"split_from": "x"}, "--split-from x: must be one of"),
        ({"max_pixels": 0}, "--max-pixels 0: must be at least 1"),
        ({"labels_path_column": "file"}, "--labels-path-column needs --labels"),
    ],
)
def test_invalid_image_option_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", {"a.png": b""})
    with pytest.raises(UsageError, match=message):
        recordmill.build(tmp_path / "in", tmp_path / "out", **options)


def test_label_of_images_needs_a_labels_file(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="--label breed: images have a label by their folders, or by a column of --labels FILE",
    ):
        plan(write_files(tmp_path, {"a.png": PNG}), common=PlanOptions(label="breed"))
    with pytest.raises(UsageError, match="--label label: images have a label by their folders"):
        plan(tmp_path, common=PlanOptions(label="label"))


def test_images_are_read_without_a_copy(tmp_path: Path) -> None:
    """The Arrow column's one data buffer is as large as the files, and rejects cost nothing of it
    but its end.
    """
    source = plan(write_files(tmp_path, {"a.png": PNG, "b.png": PNG[:-4], "c.png": PNG}))
    (chunk,) = chunks(source)
    column = chunk.records["image"]
    assert column.buffers()[2].size == 3 * len(PNG) - 4
    assert pa.compute.sum(pa.compute.binary_length(column)).as_py() == 2 * len(PNG)
    assert contract.BATCH_ROWS >= images.IMAGE_UNIT_FILES


def tiff(*sizes: tuple[int, int]) -> bytes:
    pages, into = [image_samples.picture(size=size) for size in sizes], io.BytesIO()
    pages[0].save(into, "TIFF", save_all=True, append_images=pages[1:])
    return into.getvalue()


def test_every_page_of_a_tiff_is_within_max_pixels(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.tif": tiff((8, 8), (4, 9)), "b.tif": tiff((8, 8), (9, 9))})
    rows, rejects = drain(plan(tmp_path, check="decode", max_pixels=64))
    assert [row["source"] for row in rows] == ["a.tif"]
    assert [(reject.source, in_flags(reject.message)) for reject in rejects] == [
        ("b.tif", "9 x 9 pixels are more than 64 (--max-pixels)")
    ]


@pytest.mark.parametrize("check", ["structure", "decode"])
def test_gif_frame_beyond_its_screen_is_within_max_pixels(tmp_path: Path, check: str) -> None:
    """Pillow has the screen grow to it."""
    whole = bytearray(image_samples.encoded("GIF", PIL.Image.new("L", (9, 12))))
    whole[6:10] = bytes((8, 0, 8, 0))
    write_files(
        tmp_path,
        {"a.gif": bytes(whole), "b.gif": image_samples.encoded("GIF", PIL.Image.new("L", (8, 8)))},
    )
    rows, rejects = drain(plan(tmp_path, check=check, max_pixels=64))
    assert [row["source"] for row in rows] == ["b.gif"]
    assert [(reject.source, in_flags(reject.message)) for reject in rejects] == [
        ("a.gif", "12 x 9 pixels are more than 64 (--max-pixels)")
    ]


def test_image_appended_to_a_jpeg_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phone's MPO has some, whose sizes nothing has checked."""
    whole, loaded, load = io.BytesIO(), list[tuple[int, int]](), ImageFile.load
    PIL.Image.new("L", (8, 8)).save(
        whole, "MPO", save_all=True, append_images=[PIL.Image.new("L", (900, 900))]
    )
    monkeypatch.setattr(
        ImageFile, "load", lambda image: (loaded.append(image.size), load(image))[1]
    )
    write_files(tmp_path, {"a.jpg": whole.getvalue()})
    rows, rejects = drain(plan(tmp_path, check="decode", max_pixels=64))
    assert (len(rows), rejects, set(loaded)) == (1, [], {(8, 8)})


def test_jpeg_of_very_many_scans_is_a_reject(tmp_path: Path) -> None:
    """Each passes over all pixels: 20,000 of them in 513 kB took two minutes to decode."""
    whole = io.BytesIO()
    image_samples.picture().save(whole, "JPEG", progressive=True)
    data = whole.getvalue()
    last = data.rindex(b"\xff\xda")
    write_files(
        tmp_path,
        {f"{count}.jpg": data[:-2] + data[last:-2] * count + data[-2:] for count in (9, 600)},
    )
    rows, rejects = drain(plan(tmp_path))
    assert [row["source"] for row in rows] == ["9.jpg"]
    assert "scans; more than 500" in rejects[0].message


def test_image_whose_pixels_exceed_memory_is_a_reject(tmp_path: Path) -> None:
    plain = PIL.Image.new("RGB", (600, 600))
    write_files(tmp_path, {"a.png": PNG, "b.png": image_samples.encoded("PNG", plain)})
    for memory, there in ((1 << 20, ["a.png"]), (4 << 20, ["a.png", "b.png"])):
        rows, rejects = drain(
            plan(tmp_path, common=PlanOptions(memory_bytes=memory), check="decode")
        )
        assert [row["source"] for row in rows] == there
    assert rejects == []
    (reject,) = drain(plan(tmp_path, common=PlanOptions(memory_bytes=1 << 20), check="decode"))[1]
    assert (
        in_flags(reject.message)
        == "takes 2 MiB to decode, more than there is; --memory 3MiB is enough"
    )


@pytest.mark.parametrize(
    ("one", "other"), [("images", "masks"), ("train/JPEGImages", "train/SegmentationClass")]
)
def test_folders_of_images_and_masks_are_not_taken_as_classes(
    tmp_path: Path, one: str, other: str
) -> None:
    root = write_files(
        tmp_path / "in", {f"{folder}/{n}.png": PNG for folder in (one, other) for n in range(3)}
    )
    with pytest.raises(UsageError, match="not like two classes") as refused:
        plan(root)
    said = in_flags(refused.value)
    assert "--class-from folders" in said
    assert len(plan(root, class_from="folders").files) == 6
    pair = plan(root, pair=said.split("--pair ")[1].split()[0])  # which is to be copied
    assert [unit.rows for unit in pair.units] == [3]
    assert pair.schema.label is None


def test_unneeded_table_beside_images_may_be_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "in", {"0.png": PNG, "labels.csv": b"file,label\n0.png,x\n"})
    read = images.read_range

    def read_images(path: str, *where: int) -> Any:
        if path.endswith(".csv"):
            raise PermissionError(13, "Permission denied", path)
        return read(path, *where)

    monkeypatch.setattr(images, "read_range", read_images)
    assert "ignored beside the images: 1 .csv" in plan(root, class_from="none").notes


def test_class_folders_named_like_masks_stay_classes(tmp_path: Path) -> None:
    for names in (("images", "drawings"), ("mask", "no_mask")):
        root = write_files(tmp_path / names[0], {f"{name}/0.png": PNG for name in names})
        assert plan(root).schema["label"].classes == tuple(sorted(names))


def test_table_that_names_images_is_noted_with_its_option(tmp_path: Path) -> None:
    files = {
        "0.png": PNG,
        "1.png": PNG,
        "other.csv": b"a,b\n1,2\n",
        "labels.csv": b"file,label\n0.png,x\n1.png,y\n",
    }
    coco = b'{"images": [{"file_name": "0.png"}], "annotations": [], "categories": []}'
    root = write_files(
        tmp_path / "in", {**files, "coco.json": coco, "about.json": b'{"annotations": []}'}
    )
    notes = list(map(in_flags, plan(root).notes))
    labels = f"{root}/labels.csv"
    assert f"labels.csv lists images but was not used. Add --labels {labels} (labels)" in notes
    assert [note.split()[0] for note in notes if "boxes" in note] == ["coco.json"]
    assert not [note for note in notes if "other.csv" in note]
    labelled = plan(root, labels=labels)
    assert labelled.schema["label"].classes == ("x", "y")
    assert not [note for note in labelled.notes if "names images" in note]


@pytest.mark.parametrize("split", ["", "train/"])
def test_image_to_image_folders_are_refused_and_pair_reads_them(tmp_path: Path, split: str) -> None:
    names = ("0.png", "sub/1.png")
    source = write_files(
        tmp_path / "in", {f"{split}{side}/{n}": PNG for side in ("input", "target") for n in names}
    )
    with pytest.raises(UsageError) as refused:
        recordmill.build(source, tmp_path / "out")
    assert "--pair input,target" in in_flags(refused.value)
    assert recordmill.build(source, tmp_path / "out", pair="input,target").read == 2
    # With other names in one folder these are two classes like any other.
    write_files(source, {f"{split}target/2.png": PNG})
    assert recordmill.build(source, tmp_path / "classes").read == 5
