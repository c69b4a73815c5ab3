"""File names from records are safe, distinct and have the right extension."""

import os.path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recordmill.records.writers.files import (
    MAX_COMPONENT_BYTES,
    MAX_NAME_BYTES,
    add_extension,
    detect_extension,
    make_alternative_name,
    to_safe_name,
)

PARTS = st.one_of(
    st.sampled_from(["..", ".", "", "a", "train", "val", "C:", "x" * 254, "ü" * 130]),
    st.text(max_size=6),
)
NAMES = st.one_of(st.text(max_size=12), st.lists(PARTS, min_size=1, max_size=5).map("/".join))


@given(name=NAMES, split=st.sampled_from([None, "train", "validation", "fold1"]))
@example(name="..", split=None)
@example(name="train/..", split="train")
@example(name="./C:x", split=None)
@example(name="train/C:x", split="train")
def test_safe_name_stays_below_its_folder(name: str, split: str | None) -> None:
    safe = to_safe_name(name, split)
    if safe is None:
        return
    assert os.path.normpath(safe) == safe
    assert not os.path.isabs(safe)
    assert safe not in ("", ".")
    parts = safe.split("/")
    assert ".." not in parts
    assert not set(safe) & set("\0\n\\")
    assert max(len(part.encode()) for part in parts) <= MAX_COMPONENT_BYTES
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert to_safe_name(safe) == safe
    if split is None:
        assert safe == os.path.normpath(name)


@pytest.mark.parametrize(
    "name",
    [
        "3/0217.png",
        "a b/ü.JPG",
        ".hidden",
        "a.b.c",
        "ab:c.jpg",
        "x" * 255,
        "-",
        "..a",
        "a..",
        "metadata.jsonl",
        "~",
    ],
)
def test_usual_file_name_is_not_changed(name: str) -> None:
    assert to_safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "./",
        "/",
        "/etc/passwd",
        "..",
        "a/..",
        "../a",
        "a/../b",
        "a\\b",
        "C:\\a",
        "c:a",
        "D:/a",
        "a/",
        "a\0",
        "a\nb",
        "\x7f",
        "x" * 256,
        "ü" * 128,
    ],
)
def test_unsafe_file_name_is_none(name: str) -> None:
    assert to_safe_name(name) is None
    assert to_safe_name("/".join(["x" * 200] * 6)) is None


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("train/cat/1.jpg", "train", "cat/1.jpg"),
        ("val/cat/1.jpg", "validation", "cat/1.jpg"),
        ("images/Test/cat/1.jpg", "test", "images/cat/1.jpg"),
        ("train2017/1.jpg", "train", "1.jpg"),
        # complete names have priority over words in names
        ("my-test.set/train/1.jpg", "train", "my-test.set/1.jpg"),
        # the outermost folder determines the split
        ("train/val/1.jpg", "validation", "train/val/1.jpg"),
        ("test/1.jpg", "train", "test/1.jpg"),
        ("fold1/1.jpg", "fold1", "1.jpg"),
        ("train", "train", "train"),  # this is a file
        ("cat/train.jpg", "train", "cat/train.jpg"),
    ],
)
def test_folder_of_the_split_is_left_out_of_a_file_name(
    name: str, split: str, expected: str
) -> None:
    assert to_safe_name(name, split) == expected
    assert to_safe_name(name) == name


@given(name=NAMES, number=st.integers(0, 10**12), attempt=st.integers(0, 3))
def test_alternative_name_is_different_and_safe(name: str, number: int, attempt: int) -> None:
    safe = to_safe_name(name)
    alternative = None if safe is None else make_alternative_name(safe, number, attempt)
    if safe is None or alternative is None:
        return
    assert alternative != safe
    assert to_safe_name(alternative) == alternative
    assert os.path.dirname(alternative) == os.path.dirname(safe)
    assert str(number) in alternative
    assert alternative != make_alternative_name(safe, number, attempt + 1)
    assert alternative != make_alternative_name(safe, number + 1, attempt)


def test_alternative_name_keeps_the_extension() -> None:
    assert make_alternative_name("a.b/c.tar.gz", 5, 0) == "a.b/c.tar-5.gz"
    assert make_alternative_name("a.b/c", 5, 0) == "a.b/c-5"
    assert make_alternative_name(".hidden", 5, 0) == ".hidden-5"
    assert make_alternative_name("x" * 254, 5, 0) is None


def test_extension_follows_the_content() -> None:
    heads = {
        b"\xff\xd8\xff\xe0": "jpg",
        b"\x89PNG\r\n\x1a\n": "png",
        b"GIF89a": "gif",
        b"RIFF\0\0\0\0WEBPVP8 ": "webp",
        b"II*\0": "tif",
        b"BM\0": "bin",
        b"": "bin",
    }
    assert {head: detect_extension(head, False) for head in heads} == heads
    assert detect_extension(b"text", True) == "txt"
    assert [
        add_extension(name, "jpg") for name in ("a/b.c/d", "d.jpeg", "d.JPG", "d.txt", ".jpg")
    ] == [
        "a/b.c/d.jpg",
        "d.jpeg",
        "d.JPG",
        "d.txt.jpg",
        ".jpg.jpg",
    ]
    assert [add_extension(name, "txt") for name in ("a", "a.md", "a.")] == [
        "a.txt",
        "a.md",
        "a..txt",
    ]
