"""Samples of WebDataset, in tars, zips and folders, become records; unreadable ones are rejects."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import image_samples
from kit.files import npy, shard_bytes
from kit.runs import WAYS_TO_BUILD, in_flags, rejects_of
from kit.source_reading import read_all, values

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.pipelines.build_source import detect_input_kind
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.images.options import SampleOptions
from recordmill.sources.images.samples import plan_samples
from recordmill.storage import archives
from recordmill.storage.listing import list_inputs

Members = Iterable[tuple[str, bytes]]


def tar(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, data in members:
            (member := tarfile.TarInfo(name)).size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def sample(number: int, image: str = "jpg") -> dict[str, bytes]:
    """Returns the files of one sample by ending. Every third sample has no text."""
    metadata = {"width": number, "tags": ["a"] * (number % 3), "geo": {"lat": number / 2}}
    picture = image_samples.encode_image("JPEG", image_samples.picture(seed=number))
    return {
        **({image: picture, "seg.png": image_samples.encode_image("PNG")} if image else {}),
        "cls": b"%d\n" % (number % 4),
        "json": json.dumps(metadata).encode(),
        "flac": b"fLaC%d" % number,
        **({"txt": f"größe {number}".encode()} if number % 3 else {}),
        "npy": npy(np.full((2, 3), number, np.float32)),
    }


def members(numbers: Iterable[int], image: str = "jpg") -> Members:
    return (
        (f"{n:03}.{ending}", data) for n in numbers for ending, data in sample(n, image).items()
    )


def expected_record(number: int, source: str, image: str = "jpg") -> dict[str, Any]:
    """Returns the record of a sample."""
    files, width_name = sample(number, image), ("json_width" if image else "width")
    image_features = (
        {"image": files[image], "format": "JPEG", "height": 17, "width": 23, "channels": 3}
        if image
        else {}
    )
    return {
        **image_features,
        **({"seg.png": files["seg.png"]} if image else {}),
        "source": source,
        "label": number % 4,
        width_name: number,
        "tags": ["a"] * (number % 3),
        "geo.lat": number / 2,
        "flac": files["flac"],
        "text": f"größe {number}" if number % 3 else None,
        "npy": [[number] * 3] * 2,
    }


def rows(out: Path) -> dict[str, dict[str, Any]]:
    records = (
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in row.items()
        }
        for row in recordmill.open(out)
    )
    return {row["source"]: row for row in records}


@pytest.mark.parametrize("image", ["jpg", ""])
def test_sample_becomes_a_record_of_its_files(image: str, tmp_path: Path) -> None:
    for index, split in enumerate(("train-0", "train-1", "val-0")):
        (tmp_path / "in").mkdir(exist_ok=True)
        tar(tmp_path / "in" / f"{split}.tar", members(range(index * 20, index * 20 + 20), image))
    first_ending = image or "cls"
    expected_rows = {}
    for number in range(60):
        name = f"{('train-0', 'train-1', 'val-0')[number // 20]}/{number:03}.{first_ending}"
        expected_rows[name] = expected_record(number, name, image)
    outs = []
    for index, options in enumerate(WAYS_TO_BUILD):
        outs.append(tmp_path / f"out{index}")
        result = recordmill.build(tmp_path / "in", outs[-1], name="x", num_shards=2, **options)
        assert (result.kind, result.records) == ("webdataset", {"train": 40, "validation": 20})
    assert rows(outs[0]) == expected_rows
    ds = recordmill.open(outs[0])
    assert (ds.schema.label, ds.schema["npy"].shape, ds.schema["text"].required) == (
        "label",
        (2, 3),
        False,
    )
    shards = [shard_bytes(out) for out in outs]
    assert all(shard == shards[0] for shard in shards)
    folder = tmp_path / "loose"
    for name in expected_rows:
        number = int(name.split("/")[1][:3])
        for ending, data in sample(number, image).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).with_name(f"{number:03}.{ending}").write_bytes(data)
    recordmill.build(folder, tmp_path / "of_folder", kind="webdataset", name="x", num_shards=2)
    assert shard_bytes(tmp_path / "of_folder") == shards[0]
    paths = [str(path) for path in sorted((tmp_path / "in").iterdir())]
    assert recordmill.build(paths, tmp_path / "of_each").records == {"train": 40, "validation": 20}


PICKLE = npy(np.array([{}], object), allow_pickle=True)
HUGE = npy(np.zeros(3)).replace(b"(3,), }          ", b"(99999999999,), }")


@pytest.mark.parametrize(
    ("ending", "data", "message"),
    [
        ("cls", b"cat", ".cls: invalid literal for int()"),
        ("cls", str(2**64).encode(), ".cls: 1.84467441e+19 does not fit int64"),
        ("json", b'{"width": oops}', ".json: "),
        ("json", b"[1]", ".json: is not a JSON object; --dtype json=string keeps it as text"),
        ("json", b"[" * 99_999, ".json: "),
        ("txt", b"\xff", ".txt: 'utf-8' codec can't decode byte 0xff"),
        ("npy", PICKLE, "Python objects, which only unpickling reads"),
        ("npy", HUGE, ".npy: is cut off: it has 152 bytes"),
        ("npy", b"\x93NUMPY\1\0", ".npy: is not a NumPy file, or it is damaged"),
        ("npy", npy(np.zeros((2, 4), np.float32)), "does not have the shape of float32 [2, 3]"),
        ("jpg", b"\xff\xd8\xff", ""),
        ("jpg", None, "the sample has no image"),
    ],
)
def test_sample_that_cannot_be_read_is_a_reject(
    ending: str, data: bytes | None, message: str, tmp_path: Path
) -> None:
    files = dict(members(range(9)))
    if data is None:
        del files["004.jpg"], files["004.seg.png"]
    else:
        files[f"004.{ending}"] = data
    path = tar(tmp_path / "a.tar", files.items())
    dtypes = {"npy": "float32[2,3]"} if "shape" in message else {}
    source = plan_samples(list_inputs([str(path)]), SampleOptions(), PlanOptions(dtypes=dtypes))
    result_rows, rejects = read_all(source)
    (reject,) = (*source.plan_rejects, *rejects)
    assert reject.source.startswith("004.")
    assert message in in_flags(reject.message)
    assert [row["source"] for row in values(result_rows)] == [
        f"{n:03}.jpg" for n in range(9) if n != 4
    ]


NO_FORM = r"'x' is .*keeps .json as text"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {4: '"a"'},
            ".json: x is a string, where most have a number; --dtype json=string keeps .json as text",
        ),
        ({4: "[1]", 5: "true"}, ".json: x is "),
        ({4: str(2**70)}, ".json: x is a number beyond int64, where most have a number"),
        ({4: '"\\ud800"'}, ".json: 'utf-8' codec can't encode"),
        (
            dict.fromkeys(range(9), '{"y": [1]}') | {4: '{"y": [1, "b"]}'},
            ".json: x.y.[] is a string, where most have",
        ),
        (dict.fromkeys(range(9), "null") | {3: "1", 4: '"a"'}, NO_FORM),
        (dict.fromkeys(range(4), '"a"') | {8: "null"}, NO_FORM),
    ],
)
@pytest.mark.parametrize("batch_files", [1, 100])
def test_sample_whose_json_differs_in_form_is_a_reject(
    values: dict[int, str],
    message: str,
    batch_files: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recordmill.sources.images.samples.BATCH_FILES", batch_files)
    documents = {n: b'{"x": %s}' % values.get(n, str(n)).encode() for n in range(9)}
    pairs = [
        (f"{n}.{end}", documents[n] if end == "json" else b"1")
        for n in range(9)
        for end in ("cls", "json")
    ]
    path = tar(tmp_path / "a.tar", pairs)
    if message == NO_FORM:
        with pytest.raises(
            RecordmillError, match=message if batch_files > 1 else "declare its type"
        ):
            recordmill.build(path, tmp_path / "out")
        recordmill.build(path, tmp_path / "out", dtypes={"json": "string"})
        assert {row["json"].encode() for row in recordmill.open(tmp_path / "out")} == {
            *documents.values()
        }
        return
    bad = [4, 5][: len(values) if len(values) < 9 else 1]
    with pytest.raises(RecordmillError, match="--max-rejects"):
        recordmill.build(path, tmp_path / "out")
    result = recordmill.build(path, tmp_path / "out", max_rejects=2)
    rejects = rejects_of(result)
    assert [reject["source"] for reject in rejects] == [f"{n}.cls" for n in bad]
    # in rejects files, options are keywords
    message = message.replace("--dtype json=string", 'dtypes={"json": "string"}')
    assert all(message in reject["message"] for reject in rejects)
    ds = recordmill.open(tmp_path / "out")
    assert sorted(row["source"] for row in ds) == [f"{n}.cls" for n in range(9) if n not in bad]
    assert ds.schema[ds.schema.names[-1]].required == ("codec" not in message)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["0.jpg", "0.cls", "1.jpg", "1.cls"], "webdataset"),
        (
            [
                "0.jpg",
                "0.cls",
                "1.jpg",
                "1.cls",
                "README.txt",
                "2.jpg",
                "2.cls",
                "3.jpg",
                "3.cls",
                "4.jpg",
                "4.cls",
                "5.jpg",
                "5.cls",
            ],
            "webdataset",
        ),
        (["0.jpg", "1.jpg", "2.jpg"], "images"),
        (
            ["images/0.jpg", "images/1.jpg", "images/2.jpg", "labels/0.txt", "labels/1.txt"],
            "images",
        ),
    ],
)
def test_samples_are_detected_from_the_names_in_tars(
    names: list[str], kind: str, tmp_path: Path
) -> None:
    data = {"jpg": image_samples.encode_image("JPEG"), "cls": b"1", "txt": b"0 0.5 0.5 0.1 0.1\n"}
    listing = list_inputs(
        [str(tar(tmp_path / "a.tar", ((name, data[name[-3:]]) for name in names)))]
    )
    assert detect_input_kind(listing)[0] == kind


def test_images_of_samples_are_resized_like_loose_ones(tmp_path: Path) -> None:
    files = {
        f"{n}.jpg": image_samples.encode_image("JPEG", image_samples.picture(seed=n))
        for n in range(9)
    }
    (tmp_path / "loose").mkdir()
    for name, data in files.items():
        (tmp_path / "loose" / name).write_bytes(data)
    path = tar(
        tmp_path / "a.tar.gz", [*files.items(), *((f"{n}.cls", b"%d" % n) for n in range(9))]
    )
    options: dict[str, Any] = {"resize": "8x10", "resize_mode": "crop", "reencode": "webp:80"}
    recordmill.build(tmp_path / "loose", tmp_path / "expected", **options)
    result = recordmill.build(path, tmp_path / "out", **options)
    assert "images are resized to 8 x 10 (crop)" in " ".join(result.notes)
    result_rows, expected_rows = rows(tmp_path / "out"), rows(tmp_path / "expected")
    assert {
        name: {**row, "label": int(name[0])} for name, row in expected_rows.items()
    } == result_rows
    assert {row["format"] for row in result_rows.values()} == {"WebP"}
    with pytest.raises(RecordmillError, match="--resize: the samples have no images"):
        recordmill.build(
            tar(tmp_path / "b.tar", members(range(3), "")), tmp_path / "other", resize="8x8"
        )


@pytest.mark.parametrize(
    ("endings", "kind"),
    [(("jpg", "cls"), "webdataset"), (("jpg", "xml"), "images")],
)
def test_samples_in_a_zip_are_detected_by_their_class_files(
    endings: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    data = {"jpg": image_samples.encode_image("JPEG"), "cls": b"1", "xml": b"<annotation/>"}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(4):
            for ending in endings:
                archive.writestr(f"{number}.{ending}", data[ending])
    assert detect_input_kind(list_inputs([str(tmp_path / "a.zip")]))[0] == kind
    if kind == "webdataset":
        assert recordmill.build(tmp_path / "a.zip", tmp_path / "out").records == {"train": 4}


def test_large_deflated_member_of_a_sample_is_a_reject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MAX_INFLATED_BYTES", 100)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(2):
            archive.writestr(f"{number}.cls", "1")
            archive.writestr(f"{number}.html", "x" * (10 + 200 * number))
            archive.writestr(f"{number}.png", image_samples.encode_image("PNG"))
    result = recordmill.build(tmp_path / "a.zip", tmp_path / "out", max_rejects=1)
    assert recordmill.open(result.out).to_table()["html"].to_pylist() == [b"x" * 10]
    (reject,) = rejects_of(result)
    assert ".html: is large and compressed: unpack the archive" in str(reject)
