"""An archive has the records of its folder.

Damaged and hostile archives are refused by name.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit import image_samples
from kit.files import shard_bytes, zstd
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.shards.manifest import load_manifest
from recordmill.storage import archives
from recordmill.storage.files import map_file, read_blocks, read_range, stat


def pack(folder: Path, path: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if archives.is_tar(path.name):
        with tarfile.open(
            path, f"w:{path.suffix[1:] if path.suffix[1:] in ('gz', 'bz2', 'xz') else ''}"
        ) as tar:
            for file in files:
                tar.add(file, f"./{file.relative_to(folder)}")
        if path.suffix == ".zst":
            path.write_bytes(zstd(path.read_bytes()))
    else:
        with zipfile.ZipFile(path, "w", method) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
    return path


def images(folder: Path) -> None:
    for name in ("train/cat/a", "train/dog/b", "test/cat/c", "test/dog/d"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(image_samples.encode_image("PNG"))
    (folder / ".hidden").write_text("x")


def csv(folder: Path) -> None:
    random = np.random.default_rng(1)
    for name in ("one", "two"):
        lines = [
            f"{number},{number % 7},text {number}" for number in random.integers(0, 10**6, 3000)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["id,kind,text", *lines]) + "\n")


def jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text(
        "".join(f'{{"id": {number}, "tags": ["a"]}}\n' for number in range(2000))
    )


def records(folder: Path) -> None:
    recordmill.build({"id": np.arange(500)}, folder / "set", num_shards=2)
    for number, path in enumerate(sorted((folder / "set").rglob("*.tfrecord"))):
        path.rename(folder / f"{number}.tfrecord")
    import shutil

    shutil.rmtree(folder / "set")


def parquet(folder: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": np.arange(5000)}), folder / "a.parquet", row_group_size=700)


def arrays(folder: Path) -> None:
    np.savez(folder / "a.npz", id=np.arange(5000), x=np.asfortranarray(np.ones((5000, 3))))
    np.savez_compressed(folder / "b.npz", id=np.arange(50), x=np.ones((50, 3)))


@pytest.mark.parametrize("write", [images, csv, jsonl, records, parquet, arrays])
@pytest.mark.parametrize(
    "form", ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "not deflated", "deflated", "large"]
)
def test_build_of_an_archive_equals_the_build_of_its_folder(
    write: Any, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    recordmill.build(tmp_path / "in", tmp_path / "expected", name="x", seed=3)
    if form == "large":
        monkeypatch.setattr(archives, "_MAX_INFLATED_BYTES", 10)
    method = zipfile.ZIP_STORED if form == "not deflated" else zipfile.ZIP_DEFLATED
    path = pack(tmp_path / "in", tmp_path / f"a.{form if 'tar' in form else 'zip'}", method)
    recordmill.build(path, tmp_path / "out", name="x", seed=3)
    assert shard_bytes(tmp_path / "out") == shard_bytes(tmp_path / "expected")
    assert recordmill.verify(tmp_path / "out") == []


def test_archive_is_read_by_a_beam_runner(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    for name in ("a.zip", "a.tar.gz"):
        path = pack(tmp_path / "in", tmp_path / name)
        recordmill.build(path, tmp_path / f"{name} one", name="x")
        recordmill.build(path, tmp_path / f"{name} other", name="x", runner="DirectRunner")
        assert shard_bytes(tmp_path / f"{name} one") == shard_bytes(tmp_path / f"{name} other")


def test_data_set_in_an_archive_is_opened_read_and_verified(tmp_path: Path) -> None:
    recordmill.build({"id": np.arange(300)}, tmp_path / "set", num_shards=3)
    for name in ("set.zip", "set.tar.zst"):
        path = pack(tmp_path / "set", tmp_path / name)
        assert sorted(recordmill.open(path).to_numpy()["id"].tolist()) == list(range(300))
        recordmill.read(path, tmp_path / f"table of {name}")
        assert recordmill.verify(path) == []


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_any_range_of_a_zip_member_is_read(
    method: int, streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(0).integers(0, 9, 5000).astype(np.uint8).tobytes()
    monkeypatch.setattr(archives, "_MAX_INFLATED_BYTES", 10 if streamed else 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("before", b"x" * 99)
        archive.writestr("a/b", data)
    path = f"{tmp_path}/a.zip!/a/b"
    content = read_range(path).tobytes()
    assert (gzip.decompress(content) if streamed and method else content) == data
    assert (
        map_file(path).tobytes()
        == b"".join(block.tobytes() for block in read_blocks(path, 777))
        == content
    )
    assert stat(path).size_bytes == len(content)
    for start in (
        0,
        1,
        9,
        10,
        11,
        len(content) - 9,
        len(content) - 8,
        len(content) - 1,
        len(content),
        len(content) + 5,
    ):
        for size in (0, 1, 7, 8, 19, len(content)):
            assert (
                read_range(path, start, start + size).tobytes() == content[start : start + size]
            ), (
                start,
                size,
            )


def make_zip(**changes: Any) -> bytes:
    """Returns a ZIP archive of `a.csv`.

    Args:
        changes: Changed fields of its directory entry.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "id,x\n" + "1,2\n" * 100)
        for name, value in changes.items():
            setattr(archive.filelist[0], name, value)
    return buffer.getvalue()


def make_damaged_zip(name: str) -> bytes:
    """Returns a ZIP archive with a changed bit in its stored member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            name,
            image_samples.encode_image("BMP") if name == "a.bmp" else "id,x\n" + "1,2\n" * 3000,
        )
    data = bytearray(buffer.getvalue())
    data[1000] ^= 1
    return bytes(data)


def make_zip_with_duplicate() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", "id,x\n1,2\n")
        archive.writestr("b.csv", "id,x\n3,4\n")
        archive.filelist[1].filename = "a.csv"
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_zip(flag_bits=1),
            "a.zip: 'a.csv' is encrypted; unpack it, and give the folder",
        ),
        (
            lambda: make_zip(compress_type=zipfile.ZIP_BZIP2),
            "is packed by method 12, which is not deflate",
        ),
        (lambda: make_zip(CRC=7), "it is not what the archive's directory says"),
        (lambda: make_damaged_zip("a.csv"), "it is not what the archive's directory says"),
        (
            lambda: make_damaged_zip("a.bmp"),
            "a.bmp: can't be read: is damaged: it is not what the archive's directory says",
        ),
        (lambda: make_zip(file_size=7), "it is not what the archive's directory says"),
        (lambda: make_zip(file_size=1 << 40), "a.csv: gzip"),
        (
            lambda: make_zip(extract_version=99),
            "a.zip: can't be read as an archive: zip file version 9.9",
        ),
        # Python versions read such names in two ways
        (lambda: make_zip(filename="\0.csv"), "a.zip: "),
        (make_zip_with_duplicate, "a.zip: holds 'a.csv' twice"),
        (lambda: make_zip()[:60] + b"\xff" * 40 + make_zip()[100:], "a.zip"),
        (
            lambda: make_zip(filename="../a.csv"),
            "a.zip: no file in this folder that holds data (ignored 1 outside",
        ),
        (lambda: make_zip(filename="/etc/a.csv"), "ignored 1 outside of the archive: /etc/a.csv"),
    ],
)
def test_damaged_or_hostile_zip_is_refused(make: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(make())
    with pytest.raises(RecordmillError) as error:
        recordmill.build(tmp_path / "a.zip", tmp_path / "out", max_rejects=0)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_links_devices_and_outside_names_of_a_tar_are_ignored_and_noted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        kinds = {
            "a.csv": None,
            "../b.csv": None,
            "c.csv": tarfile.SYMTYPE,
            "d.csv": tarfile.FIFOTYPE,
        }
        for name, kind in kinds.items():
            info, data = tarfile.TarInfo(name), b"id,x\n1,2\n"
            if kind is None:
                info.size = len(data)
            else:
                info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info, io.BytesIO(data if kind is None else b""))
    result = recordmill.build(tmp_path / "a.tar", tmp_path / "out")
    assert sum(result.records.values()) == 1
    notes = load_manifest(tmp_path / "out").statistics["notes"]
    assert "ignored 1 outside of the archive: ../b.csv" in notes
    assert "ignored 2 link or device in the archive: c.csv, d.csv" in notes


def test_change_of_an_archive_changes_the_state_of_its_members(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    path = pack(tmp_path / "in", tmp_path / "a.zip")
    state = stat(f"{path}!/one.csv")
    os.utime(path, ns=(1, 1))
    assert state.is_changed(stat(f"{path}!/one.csv"))


def make_tar(size: int = 0) -> bytes:
    """Returns a tar of two tables and a member of `size` zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in (
            ("a.csv", b"id,x\n1,2\n"),
            ("zeros.bin", bytes(size)),
            ("b.csv", b"id,x\n3,4\n"),
        ):
            (info := tarfile.TarInfo(name)).size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_tar_with_long_name(size: int) -> bytes:
    """Returns a tar with a header that announces a member name of `size` bytes."""
    (info := tarfile.TarInfo("././@LongLink")).type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf() + bytes(size)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (
            "a.tar.gz",
            lambda tar: gzip.compress(tar)[:-9],
            "a.tar.gz: byte {size} of the file: truncated: the gzip data",
        ),
        (
            "a.tgz",
            lambda tar: gzip.compress(tar)[:50] + b"\xff" * 99,
            "a.tgz: gzip member at byte 0 of the file: gzip ",
        ),
        (
            "a.tar.bz2",
            lambda tar: bz2.compress(tar)[:-9],
            "byte {size} of the file: truncated: the bz2 data",
        ),
        (
            "a.tar.xz",
            lambda tar: lzma.compress(tar)[:-9],
            "byte {size} of the file: truncated: the xz data",
        ),
        (
            "a.tar.gz",
            lambda _: gzip.compress(b"id,x\n1,2\n"),
            "a.tar.gz: can't be read as an archive: ",
        ),
        (
            "a.tar.gz",
            lambda tar: gzip.compress(tar[:1000]),
            "can't be read as an archive: unexpected end of data",
        ),
        (
            "a.tar",
            lambda tar: tar[:1024] + b"\xff" * 9 + tar[1033:],
            "a.tar: can't be read as an archive: at byte 1024 no",
        ),
        (
            "a.tar.gz",
            lambda _: gzip.compress(make_tar_with_long_name(2 << 20)),
            "the header at byte 0 takes more than 1,048,",
        ),
        ("a.tar.gz", lambda _: gzip.compress(make_tar(80 << 20)), "a.tar.gz: byte"),
        ("a.tar.zst", lambda _: zstd(make_tar(80 << 20)), "above the limit of 1000 times"),
    ],
)
def test_damaged_or_exploding_tar_is_refused(
    name: str, make: Any, message: str, tmp_path: Path
) -> None:
    size = (tmp_path / name).write_bytes(make(make_tar(100_000)))
    for _ in range(2):  # the result is the same if a failed build left something
        with pytest.raises(RecordmillError) as error:
            recordmill.build(tmp_path / name, tmp_path / "out", max_rejects=0)
        assert message.format(size=size) in str(error.value)
    assert not (tmp_path / "out").exists()


def test_compressed_tar_is_decompressed_once_per_build_into_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    paths = [pack(tmp_path / "in", tmp_path / f"{name}.tar.gz") for name in ("a", "b")]
    calls = []
    monkeypatch.setattr(archives, "_MAX_DECOMPRESSED_FILES", 1)
    recordmill.build(str(tmp_path / "?.tar.gz"), tmp_path / "expected", name="x")
    monkeypatch.undo()
    decompressed = archives._decompress
    monkeypatch.setattr(
        archives, "_decompress", lambda *args: calls.append(args[0]) or decompressed(*args)
    )
    for _ in range(2):
        recordmill.build(str(tmp_path / "?.tar.gz"), tmp_path / "out", name="x", overwrite=True)
        assert shard_bytes(tmp_path / "out") == shard_bytes(tmp_path / "expected")
        assert not archives._decompressed_files
    assert sorted(calls) == sorted([str(path) for path in paths] * 2)
    monkeypatch.setattr(
        archives, "write_all", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    )
    with pytest.raises(
        RecordmillError,
        match=r"No space left on device in .* \(of TMPDIR\), where it is decompressed",
    ):
        recordmill.build(paths, tmp_path / "out", overwrite=True)


def make_csv_tar(*rows: int, folder: str = "d/") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for row in rows:
            data = f"a,b\n{row},{row}\n".encode()
            (info := tarfile.TarInfo(f"{folder}{row}.csv")).size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def write_zip(names: list[str], path: Path, content: bytes = b"a,b\n1,2\n") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_concatenated_tars_have_the_members_of_both(name: str, tmp_path: Path) -> None:
    pack_bytes = gzip.compress if name.endswith("gz") else bytes
    (tmp_path / name).write_bytes(
        pack_bytes(make_csv_tar(0, 1)) + pack_bytes(make_csv_tar(2, 3, 4))
    )
    recordmill.build(tmp_path / name, tmp_path / "out", shuffle=False)
    assert recordmill.open(tmp_path / "out").to_numpy()["a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("garbage", [b"garbage", b"x" * 512, make_csv_tar(7)[:1024] + b"x" * 600])
def test_tar_with_garbage_after_its_end_is_refused(garbage: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_csv_tar(0, 1) + garbage)
    with pytest.raises(UsageError, match=r"a.tar: can't be read as an archive: at byte \d+ no "):
        recordmill.build(tmp_path / "a.tar", tmp_path / "out")


def test_zip_names_with_backslashes_or_double_slashes_are_in_folders(
    tmp_path: Path,
) -> None:
    image = image_samples.encode_image("PNG")
    names = ["in\\cat\\", "in\\cat\\0.png", "in/cat//1.png", "in/./dog/2.png", "./in/dog/3.png"]
    write_zip(names, tmp_path / "a.zip", image)
    ds = recordmill.open(recordmill.build(tmp_path / "a.zip", tmp_path / "out").out)
    assert sorted(ds.to_numpy()["source"].tolist()) == [
        "in/cat/0.png",
        "in/cat/1.png",
        "in/dog/2.png",
        "in/dog/3.png",
    ]
    assert ds.schema["label"].classes == ("cat", "dog")


@pytest.mark.parametrize("name", ["..\\a.csv", "b\\..\\..\\a.csv", "\\a.csv", "b//../../a.csv"])
def test_zip_name_that_leaves_the_archive_is_ignored_and_noted(name: str, tmp_path: Path) -> None:
    write_zip(["b.csv", name], tmp_path / "a.zip")
    result = recordmill.build(tmp_path / "a.zip", tmp_path / "out")
    assert sum(result.records.values()) == 1
    notes = load_manifest(result.out).statistics["notes"]
    assert any("outside of the archive" in note for note in notes)


def test_truncated_zip_is_refused_as_cut_off(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    path = pack(tmp_path / "in", tmp_path / "a.zip")
    path.write_bytes(path.read_bytes()[:-300])
    for source in (path, str(tmp_path / "*.zip")):
        with pytest.raises(UsageError, match=r"a\.zip: the ZIP archive is cut off .* download it"):
            recordmill.build(source, tmp_path / "out")


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_archive_in_parts_has_the_classes_of_its_folder(ending: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for part in range(3):
        for folder in ("cat", "dog"):
            path = tmp_path / f"in{part}" / folder / f"{part}.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(image_samples.encode_image("PNG", seed=part))
        pack(tmp_path / f"in{part}", tmp_path / "parts" / f"part-{part}.{ending}")
    files = sorted((tmp_path / "parts").iterdir())
    (tmp_path / "list.txt").write_text("".join(f"parts/{path.name}\n" for path in files))
    for number, source in enumerate(
        (files, tmp_path / "parts", str(tmp_path / "parts" / "*"), f"@{tmp_path / 'list.txt'}")
    ):
        result = recordmill.build(source, tmp_path / f"out{number}")
        ds = recordmill.open(result.out)
        assert ds.schema["label"].classes == ("cat", "dog")
        assert sum(result.records.values()) == 6
        assert sorted(ds.to_numpy()["label"].tolist()) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_class_names_come_from_archives_of_one_class_each(ending: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for name in ("cat", "dog"):
        path = tmp_path / name / "a.png"
        path.parent.mkdir()
        path.write_bytes(image_samples.encode_image("PNG"))
        pack(tmp_path / name, tmp_path / "parts" / f"{name}.{ending}")
    for number, source in enumerate((sorted((tmp_path / "parts").iterdir()), tmp_path / "parts")):
        ds = recordmill.open(recordmill.build(source, tmp_path / f"out{number}").out)
        assert ds.schema["label"].classes == ("cat", "dog")


def test_archives_named_like_splits_are_splits(tmp_path: Path) -> None:
    images(tmp_path / "in")
    (tmp_path / "parts").mkdir()
    for split in ("train", "test"):
        pack(tmp_path / "in" / split, tmp_path / "parts" / f"{split}.zip")
    result = recordmill.build(tmp_path / "parts", tmp_path / "out")
    assert result.records == {"train": 2, "test": 2}
    assert recordmill.open(result.out).schema["label"].classes == ("cat", "dog")


def test_zip_and_tar_of_the_same_name_are_both_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    (tmp_path / "parts").mkdir()
    for ending in ("zip", "tar"):
        pack(tmp_path / "in", tmp_path / "parts" / f"a.{ending}")
    result = recordmill.build(tmp_path / "parts", tmp_path / "out")
    assert sum(result.records.values()) == 12_000


def test_many_compressed_tars_are_read_with_few_file_descriptors(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(80):
        (tmp_path / "in" / f"{number:02d}.tar.gz").write_bytes(gzip.compress(make_csv_tar(number)))
    command = (
        f"ulimit -n 64; exec {sys.executable} -m recordmill build {tmp_path / 'in'} --out"
        f" {tmp_path / 'out'}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(recordmill.open(tmp_path / "out")) == 80


def test_damaged_large_zip_member_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    parquet(tmp_path / "in")
    path = pack(tmp_path / "in", tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(archives, "_MAX_INFLATED_BYTES", 10)
    with pytest.raises(RecordmillError, match=r"a\.parquet.*is damaged"):
        recordmill.build(path, tmp_path / "out")


def test_concatenated_zips_are_refused_and_a_zip_after_a_program_is_read(tmp_path: Path) -> None:
    parts = [write_zip([f"{name}.csv"], tmp_path / f"{name}.zip").read_bytes() for name in "ab"]
    (tmp_path / "joined.zip").write_bytes(b"".join(parts))
    with pytest.raises(UsageError, match=r"joined\.zip: two ZIP archives are joined in this file"):
        recordmill.build(tmp_path / "joined.zip", tmp_path / "out")
    (tmp_path / "program.zip").write_bytes(b"#!/bin/sh\n" * 10 + parts[0])
    assert recordmill.build(tmp_path / "program.zip", tmp_path / "out").records == {"train": 1}


def test_archives_next_to_readme_and_checksums_are_read(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for part in range(2):
        images(tmp_path / f"in{part}")
        pack(tmp_path / f"in{part}" / "train", tmp_path / "parts" / f"part-{part}.zip")
    for name in ("README.md", "LICENSE", "SHA256SUMS", "part-0.zip.md5"):
        (tmp_path / "parts" / name).write_text("about the archives\n")
    result = recordmill.build(tmp_path / "parts", tmp_path / "out")
    assert sum(result.records.values()) == 4
    assert recordmill.open(result.out).schema["label"].classes == ("cat", "dog")


def test_zip_next_to_its_metadata_is_read_with_it_as_labels(tmp_path: Path) -> None:
    """Hugging Face stores images this way: images.zip and metadata.jsonl in one folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name in ("0.png", "1.png"):
            archive.writestr(name, image_samples.encode_image("png"))
    metadata = folder / "metadata.jsonl"
    lines = [json.dumps({"file_name": f"{number}.png", "text": f"t{number}"}) for number in (0, 1)]
    metadata.write_text("\n".join(lines))
    result = recordmill.build(folder, tmp_path / "unused")
    assert any(f"Add --labels {metadata} (labels)" in in_flags(note) for note in result.notes)
    recordmill.build(folder, tmp_path / "out", labels=metadata)
    texts = {row["source"]: row["text"] for row in recordmill.open(tmp_path / "out")}
    assert texts == {"images/0.png": "t0", "images/1.png": "t1"}
