"""Archives give the records of the folder that they were made of; what is damaged or hostile is refused by name."""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import image_samples
import numpy as np
import pytest

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.shards.manifest import load
from recordmill.storage import archives
from recordmill.storage.files import map_file, read_blocks, read_range, stat


def pack(folder: Path, path: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    if path.suffix == ".tar":
        with tarfile.open(path, "w") as tar:
            for one in files:
                tar.add(one, f"./{one.relative_to(folder)}")
    else:
        with zipfile.ZipFile(path, "w", method) as archive:
            for one in files:
                archive.write(one, one.relative_to(folder))
    return path


def images(folder: Path) -> None:
    for name in ("train/cat/a", "train/dog/b", "test/cat/c", "test/dog/d"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(image_samples.encoded("PNG"))
    (folder / ".hidden").write_text("x")


def csv(folder: Path) -> None:
    random = np.random.default_rng(1)
    for name in ("one", "two"):
        lines = [f"{number},{number % 7},text {number}" for number in random.integers(0, 10**6, 3000)]
        (folder / f"{name}.csv").write_text("\n".join(["id,kind,text", *lines]) + "\n")


def jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(f'{{"id": {number}, "tags": ["a"]}}\n' for number in range(2000)))


def records(folder: Path) -> None:
    recordmill.build({"id": np.arange(500)}, folder / "set", num_shards=2)
    for at, path in enumerate(sorted((folder / "set").rglob("*.tfrecord"))):
        path.rename(folder / f"{at}.tfrecord")
    import shutil

    shutil.rmtree(folder / "set")


def parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": np.arange(5000)}), folder / "a.parquet", row_group_size=700)


def arrays(folder: Path) -> None:
    np.savez(folder / "a.npz", id=np.arange(5000), x=np.asfortranarray(np.ones((5000, 3))))
    np.savez_compressed(folder / "b.npz", id=np.arange(50), x=np.ones((50, 3)))


def shards(out: Path) -> dict[str, bytes]:
    folder = out / load(out).parts[-1].folder
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord*")}


@pytest.mark.parametrize("write", [images, csv, jsonl, records, parquet, arrays])
@pytest.mark.parametrize("how", ["tar", "stored", "deflated", "streamed"])
def test_an_archive_is_as_its_folder(write: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    recordmill.build(tmp_path / "in", tmp_path / "expected", name="x", seed=3)
    if how == "streamed":
        if write in (images, parquet, arrays):  # which are no streams: larger members are refused by the kind
            return
        monkeypatch.setattr(archives, "_INFLATED_BYTES", 10)
    method = zipfile.ZIP_STORED if how == "stored" else zipfile.ZIP_DEFLATED
    path = pack(tmp_path / "in", tmp_path / f"a.{'tar' if how == 'tar' else 'zip'}", method)
    recordmill.build(path, tmp_path / "out", name="x", seed=3)
    assert shards(tmp_path / "out") == shards(tmp_path / "expected")
    assert recordmill.verify(tmp_path / "out") == []


def test_records_of_an_archive_are_read(tmp_path: Path) -> None:
    recordmill.build({"id": np.arange(300)}, tmp_path / "set", num_shards=3)
    path = pack(tmp_path / "set", tmp_path / "set.zip")
    assert sorted(recordmill.open(path).to_numpy()["id"].tolist()) == list(range(300))
    recordmill.read(path, tmp_path / "table")
    assert recordmill.verify(path) == []


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_ranges_of_a_member(method: int, streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 9, 5000).astype(np.uint8).tobytes()
    monkeypatch.setattr(archives, "_INFLATED_BYTES", 10 if streamed else 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("before", b"x" * 99)
        archive.writestr("a/b", data)
    path = f"{tmp_path}/a.zip!/a/b"
    whole = read_range(path).tobytes()
    assert (gzip.decompress(whole) if streamed and method else whole) == data
    assert map_file(path).tobytes() == b"".join(block.tobytes() for block in read_blocks(path, 777)) == whole
    assert stat(path).size_bytes == len(whole)
    for start in (0, 1, 9, 10, 11, len(whole) - 9, len(whole) - 8, len(whole) - 1, len(whole), len(whole) + 5):
        for size in (0, 1, 7, 8, 19, len(whole)):
            assert read_range(path, start, start + size).tobytes() == whole[start : start + size], (start, size)


def zipped(**changes: Any) -> bytes:
    """An archive of `a.csv` with these fields of its entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "id,x\n" + "1,2\n" * 100)
        for name, value in changes.items():
            setattr(archive.filelist[0], name, value)
    return buffer.getvalue()


def twice() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", "id,x\n1,2\n")
        archive.writestr("b.csv", "id,x\n3,4\n")
        archive.filelist[1].filename = "a.csv"
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: zipped(flag_bits=1), "a.zip: 'a.csv' is encrypted; unpack it, and give the folder"),
        (lambda: zipped(compress_type=zipfile.ZIP_BZIP2), "is packed by method 12, which is not deflate"),
        (lambda: zipped(CRC=7), "it is not what the archive's directory says"),
        (lambda: zipped(file_size=7), "it is not what the archive's directory says"),
        (lambda: zipped(file_size=1 << 40), "a.csv: gzip"),
        (lambda: zipped(extract_version=99), "a.zip: can't be read as an archive: zip file version 9.9"),
        (lambda: zipped(filename="\0.csv"), "a.zip: can't be read as an archive"),
        (twice, "a.zip: holds 'a.csv' twice"),
        (lambda: zipped()[:60] + b"\xff" * 40 + zipped()[100:], "a.zip"),
        (lambda: zipped(filename="../a.csv"), "a.zip: no file in this folder that holds data (ignored 1 outside"),
        (lambda: zipped(filename="/etc/a.csv"), "ignored 1 outside of the archive: /etc/a.csv"),
    ],
)
def test_what_is_damaged_or_hostile_is_refused(make: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(make())
    with pytest.raises(RecordmillError) as found:
        recordmill.build(tmp_path / "a.zip", tmp_path / "out", max_rejects=0)
    assert says in str(found.value)
    assert not (tmp_path / "out").exists()


def test_links_and_names_outside_are_left_out_and_noted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        kinds = {"a.csv": None, "../b.csv": None, "c.csv": tarfile.SYMTYPE, "d.csv": tarfile.FIFOTYPE}
        for name, kind in kinds.items():
            info, data = tarfile.TarInfo(name), b"id,x\n1,2\n"
            if kind is None:
                info.size = len(data)
            else:
                info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info, io.BytesIO(data if kind is None else b""))
    result = recordmill.build(tmp_path / "a.tar", tmp_path / "out")
    assert sum(result.records.values()) == 1
    notes = load(tmp_path / "out").statistics["notes"]
    assert "ignored 1 outside of the archive: ../b.csv" in notes
    assert "ignored 2 link or device in the archive: c.csv, d.csv" in notes


def test_an_archive_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in")
    path = pack(tmp_path / "in", tmp_path / "a.zip")
    before = stat(f"{path}!/one.csv")
    os.utime(path, ns=(1, 1))
    assert before.is_changed(stat(f"{path}!/one.csv"))
