"""`read --to files` returns the files that were built, and no name leads out of OUT."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.files import tree
from kit.image_sets import (
    JPEG,
    PNG,
    SCHEMA,
    check_image_files,
    metadata,
    table,
    write_image_set,
    write_images,
)
from kit.runs import WAYS_TO_READ, read_in_each_way

from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.pipelines.build import build
from recordmill.pipelines.read import read
from recordmill.records.writers import files as file_names
from recordmill.records.writers.files import FileLayout, FilesWriter

PIECE_BYTES = 10_000


def test_images_survive_a_round_trip_with_names_and_labels(tmp_path: Path) -> None:
    names = [
        f"{label}/{number:03d}.{ending}"
        for label in ("cat", "dog", "a b/ü")
        for number, ending in enumerate(["png", "jpg", "JPEG"] * 20)
    ]
    write_images(tmp_path / "raw", names)
    build(tmp_path / "raw", tmp_path / "ds", kind="images", num_shards=3)
    result = read(tmp_path / "ds", tmp_path / "back", to="files")
    assert result.files == {"train": (tmp_path / "back" / "train",)}
    assert (result.read, result.written) == (180, 180)
    back = tree(tmp_path / "back" / "train")
    lines = metadata(result)
    del back["metadata.jsonl"]
    assert back == tree(tmp_path / "raw")
    assert {line["file_name"]: line["class_name"] for line in lines} == {
        name: name.rpartition("/")[0] for name in names
    }
    assert list(lines[0]) == [
        "file_name",
        "format",
        "height",
        "width",
        "channels",
        "label",
        "class_name",
        "source",
    ]
    assert result.notes[-1] == "the files are 'image', named by 'source'"

    # The files that were read can be built and read again.
    build(tmp_path / "back", tmp_path / "again", kind="images", num_shards=3)
    second = read(tmp_path / "again", tmp_path / "back2", to="files")
    second_back = tree(tmp_path / "back2" / "train")
    del second_back["metadata.jsonl"]
    assert second_back == back
    assert {line["file_name"]: line["label"] for line in metadata(second)} == {
        line["file_name"]: line["label"] for line in lines
    }


def test_split_folders_become_folders_again(tmp_path: Path) -> None:
    raw = [
        f"{split}/{label}/{number}.png"
        for split in ("train", "val", "Test")
        for label in ("cat", "dog")
        for number in range(4)
    ]
    write_images(tmp_path / "raw", raw)
    build(tmp_path / "raw", tmp_path / "ds", kind="images")
    result = read(tmp_path / "ds", tmp_path / "back", to="files")
    expected = {
        name.replace("val/", "validation/").replace("Test/", "test/"): data
        for name, data in tree(tmp_path / "raw").items()
    }
    files = {
        name: data
        for name, data in tree(tmp_path / "back").items()
        if not name.endswith((".jsonl", "_read.json"))
    }
    assert files == expected
    rebuilt = build(tmp_path / "back", tmp_path / "again", kind="images")
    assert rebuilt.schema.features == result.schema.features
    assert read(tmp_path / "again", tmp_path / "back2", to="files").records == {
        "train": 8,
        "validation": 8,
        "test": 8,
    }
    assert {line["source"] for line in metadata(result, "test")} == {
        name for name in raw if name.startswith("Test/")
    }


def test_class_named_like_a_split_keeps_its_folder(tmp_path: Path) -> None:
    names: list[str | None] = ["train/1.jpg", "bus/1.jpg", "test/1.jpg"]
    result = read(write_image_set(tmp_path, names), tmp_path / "to", to="files")
    assert check_image_files(result, table(names)) == names


ODD: list[str | None] = [
    "a.jpg",
    "a.jpg",
    "a.jpg",
    None,
    "",
    "/etc/passwd",
    "../up.jpg",
    "a\0b",
    "x" * 300,
    "C:\\x.jpg",
    "d",
    "d/e.jpg",
    "f/g.jpg",
    "f",
    "A.jpg",
    "metadata.jsonl",
    "metadata.jsonl/x.jpg",
    "./h.jpg",
    "h.jpg",
    "i//j.jpg",
    "a-1.jpg",
    "00000003.jpg",
    "no extension",
    "a\nb",
    "up/../../x",
    "..",
]


def test_files_of_odd_names_are_complete_and_below_out(tmp_path: Path) -> None:
    rows = table(ODD)
    result = read(
        write_image_set(tmp_path, ODD), tmp_path / "to", to="files", name_feature="source"
    )
    names = check_image_files(result, rows)
    by_source = list(zip(ODD, names, strict=True))
    assert by_source[:4] == [
        ("a.jpg", "a.jpg"),
        ("a.jpg", "a-1.jpg"),
        ("a.jpg", "a-2.jpg"),
        (None, "00000003.jpg"),
    ]
    assert dict(by_source[4:]) == {
        "": "00000004.jpg",
        "/etc/passwd": "00000005.jpg",
        "../up.jpg": "00000006.jpg",
        "a\0b": "00000007.jpg",
        "x" * 300: "00000008.jpg",
        "C:\\x.jpg": "00000009.jpg",
        "d": "d",
        "d/e.jpg": "00000011.jpg",
        "f/g.jpg": "f/g.jpg",
        "f": "f-13",
        "A.jpg": "A.jpg",
        "metadata.jsonl": "metadata-15.jsonl",
        "metadata.jsonl/x.jpg": "00000016.jpg",
        "./h.jpg": "h.jpg",
        "h.jpg": "h-18.jpg",
        "i//j.jpg": "i/j.jpg",
        "a-1.jpg": "a-1-20.jpg",
        "00000003.jpg": "00000003-21.jpg",
        "no extension": "no extension",
        "a\nb": "00000023.jpg",
        "up/../../x": "00000024.jpg",
        "..": "00000025.jpg",
    }
    assert [line["source"] for line in metadata(result)] == ODD
    assert result.notes[-3:] == (
        "train: 1 record without 'source': the record's number names the file",
        "train: 11 records whose 'source' is not a safe file name (absolute, '..', too "
        "long, ...): the record's number names the file",
        "train: 7 records whose file name was already used: the record's number was added to it",
    )
    assert {path.name for path in tmp_path.iterdir()} == {"to", "out"}


NAMES = st.lists(
    st.one_of(
        st.none(),
        st.lists(
            st.sampled_from(
                [
                    "a",
                    "b",
                    "..",
                    ".",
                    "",
                    "A",
                    "0001",
                    "00000001.jpg",
                    "metadata.jsonl",
                    "a-1",
                    "x" * 255,
                ]
            ),
            min_size=1,
            max_size=3,
        ).map("/".join),
        st.text(max_size=8),
    ),
    max_size=25,
)


@settings(max_examples=75)
@given(names=NAMES, batch_rows=st.integers(1, 9), extend=st.booleans())
def test_files_of_arbitrary_names_have_distinct_safe_names(
    tmp_path_factory: pytest.TempPathFactory, names: list[str | None], batch_rows: int, extend: bool
) -> None:
    folder = tmp_path_factory.mktemp("names")
    rows = table(names)
    layout = FileLayout("image", "source", extend, ("source", "id"))
    outputs = []
    for out, step in ((folder / "1", batch_rows), (folder / "2", 1000)):
        writer = FilesWriter(out, SCHEMA, layout, "train")
        for start in range(0, len(names), step):
            for batch in rows.slice(start, step).to_batches():
                writer.write(batch)
        writer.close()
        assert writer.rows == len(names)
        outputs.append(tree(out))
    assert outputs[0] == outputs[1]
    assert {path.name for path in folder.iterdir()} == {"1", "2"}
    lines = [
        json.loads(line) for line in outputs[0].pop("metadata.jsonl").decode().split("\n")[:-1]
    ]
    assert {line["file_name"]: line["id"] - 100 for line in lines} == {
        name: int(data.removeprefix(JPEG)) for name, data in outputs[0].items()
    }
    assert len(outputs[0]) == len(names)
    if not extend:
        assert [line["file_name"] for line in lines] == names_in_memory(names)


def names_in_memory(names: list[str | None]) -> list[str]:
    """Returns the file names of records, computed without a file system.

    Uses a set of files and a set of folders.
    """
    files, folders, result = {"metadata.jsonl"}, set[str](), []
    for row, original in enumerate(names):
        safe_name = None if original is None else file_names.to_safe_name(original)
        numbered = f"{row:08d}.jpg"
        for base in (safe_name, numbered):
            name, attempt = base, 0
            parents = (
                []
                if base is None
                else [base[:end] for end, letter in enumerate(base) if letter == "/"]
            )
            if base is None or files & set(parents):
                continue
            while name is not None and name in files | folders:
                name, attempt = file_names.make_alternative_name(base, row, attempt), attempt + 1
            if name is not None:
                files.add(name)
                folders.update(parents)
                result.append(name)
                break
    return result


def test_files_do_not_depend_on_threads_and_runner(tmp_path: Path) -> None:
    names: list[str | None] = [
        [f"c{row % 3}/{row % 200}.jpg", f"{row}", None, "../x"][row % 4] for row in range(600)
    ]
    values = [None if row % 50 == 7 else JPEG * (row % 9) + str(row).encode() for row in range(600)]
    option_sets = [*WAYS_TO_READ, {"threads": 3, "file_size": 5000}]
    results = read_in_each_way(
        write_image_set(tmp_path, names, values),
        tmp_path,
        option_sets,
        to="files",
        name_feature="source",
    )
    for result in results:
        assert len(check_image_files(result, table(names, values))) == 600
    (notes,) = {result.notes for result in results}
    assert (
        "train: 12 records without 'image': no file, and file_name is null in metadata.jsonl"
        in notes
    )


def test_files_without_a_name_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_names, "MAX_FOLDER_FILES", 4)
    values: list[bytes | None] = [
        JPEG,
        PNG,
        b"GIF89a....",
        b"II*\0....",
        b"RIFF\0\0\0\0WEBPVP8 ",
        b"anything else",
        b"",
        JPEG,
        PNG,
    ]
    names: list[str | None] = [f"{row}.jpg" for row in range(9)]
    result = read(
        write_image_set(tmp_path, names, values), tmp_path / "to", to="files", name_feature=""
    )
    assert check_image_files(result, table(names, values)) == [
        "00000000.jpg",
        "00000001.png",
        "00000002.gif",
        "00000003.tif",
        "0001/00000004.webp",
        "0001/00000005.bin",
        "0001/00000006.bin",
        "0001/00000007.jpg",
        "0002/00000008.png",
    ]
    assert (
        read(
            write_image_set(tmp_path / "b", names, values),
            tmp_path / "to2",
            to="files",
            name_feature="id",
        ).written
        == 9
    )
    assert sorted(tree(tmp_path / "to2" / "train"))[:3] == ["100.jpg", "101.png", "102.gif"]


def test_read_to_files_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write_image_set(tmp_path, ["a.jpg", "../b.jpg"])
    assert (
        main(
            [
                "read",
                str(out),
                "--to",
                "files",
                "--file-feature",
                "image",
                "--name-feature",
                "source",
                "--dry-run",
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert "2 records (train 2) would be written to 1 folder of files" in output
    assert "note: the files are 'image', named by 'source'" in output
    assert (
        main(
            [
                "read",
                str(out),
                "--to",
                "files",
                "--name-feature",
                "source",
                "--out",
                str(tmp_path / "to"),
            ]
        )
        == 0
    )
    assert "note: train: 1 record whose 'source' is not a safe file name" in capsys.readouterr().err
    assert sorted(tree(tmp_path / "to" / "train")) == ["00000001.jpg", "a.jpg", "metadata.jsonl"]
    assert (
        main(
            [
                "read",
                str(out),
                "--to",
                "files",
                "--file-feature",
                "id",
                "--out",
                str(tmp_path / "to2"),
            ]
        )
        == 2
    )


def test_read_killed_while_replacing_a_result_is_completed_by_the_next(
    tmp_path: Path,
) -> None:
    out, to = write_image_set(tmp_path, ["a/1.jpg", "b.jpg"]), tmp_path / "to"
    read(out, to, to="files")
    (to / "train" / "b.jpg").unlink()  # as another program may do
    source = f"""
import os, recordmill.exporting.publish as publish, recordmill.pipelines.read as module
publish._remove_result = lambda *args: os.kill(os.getpid(), 9)
module.read({str(out)!r}, {str(to)!r}, to="files", name_feature="", overwrite=True)
"""
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == -signal.SIGKILL
    assert not (to / "_read.json").exists()
    (to / "mine.txt").write_text("put there by somebody")
    with pytest.raises(UsageError, match="already holds the result of a read"):
        read(out, to, to="files")
    assert sorted(tree(to / "train")) == ["00000000.jpg", "00000001.jpg", "metadata.jsonl"]
    assert not list(to.glob("_run-*"))
    read(out, to, to="files", overwrite=True)
    assert (to / "mine.txt").read_text() == "put there by somebody"
    (to / "mine.txt").unlink()
    assert sorted(tree(to)) == [
        "_read.json",
        "train/a/1.jpg",
        "train/b.jpg",
        "train/metadata.jsonl",
    ]
