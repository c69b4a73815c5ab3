"""The types of the native library are those of its header."""

from __future__ import annotations

from pathlib import Path

from recordmill.base import native
from recordmill.base.library import read_header, stub_of

ROOT = Path(__file__).parents[2]


def test_the_stub_is_made_from_the_header() -> None:
    header = read_header((ROOT / "native" / "recordmill.h").read_text(encoding="utf-8"))
    assert Path(native.__file__).with_suffix(".pyi").read_text(encoding="utf-8") == stub_of(header), (
        "run native/make_stub.py"
    )


def test_the_library_was_built_from_the_header() -> None:
    header = read_header((ROOT / "native" / "recordmill.h").read_text(encoding="utf-8"))
    names = {function.name for function in header.functions} | {*header.constants}
    assert names <= vars(native).keys(), "pip install -e ."
