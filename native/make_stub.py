"""Writes src/recordmill/base/native.pyi from recordmill.h. Run it after a change of the header."""

from pathlib import Path

from recordmill.base.library import make_stub, read_header

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    header = read_header((ROOT / "native" / "recordmill.h").read_text(encoding="utf-8"))
    (ROOT / "src" / "recordmill" / "base" / "native.pyi").write_text(
        make_stub(header), encoding="utf-8"
    )
