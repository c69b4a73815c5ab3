"""The first bytes of a file to what it is, where that is nothing that any kind of input reads: PDF, archives, programs,
databases. `refusal` says it for kinds that read text.
"""

from __future__ import annotations

from recordmill.records.images.check import sniff_foreign, sniff_image

# what a file begins with, what that is, and what helps
_STARTS = (
    (b"%PDF-", "a PDF document; take its text out first"),
    (b"PK\x03\x04", "a ZIP archive or an Office document; unpack it, or save it as CSV or text"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document; save it as CSV or text"),
    (b"PAR1", "a Parquet file; use `build parquet`"),
    (b"ARROW1", "an Arrow file; give its table to recordmill.build"),
    (b"SQLite format 3\0", "an SQLite database; export its tables as CSV"),
    (b"\x7fELF", "a program (ELF)"),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
    (b"\xca\xfe\xba\xbe", "a program (Java or Mach-O)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file; give its arrays to recordmill.build"),
    (b"\x93NUMPY", "a NumPy array; give it to recordmill.build"),
    (b"Obj\x01", "an Avro file; convert it to Parquet"),
    (b"ORC", "an ORC file; convert it to Parquet"),
    (b"BZh", "bzip2; decompress it first, or use gzip or zstd"),
    (b"\xfd7zXZ\0", "xz; decompress it first, or use gzip or zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it"),
    (b"OggS", "an Ogg recording"),
    (b"fLaC", "a FLAC recording"),
    (b"ID3", "an MP3 recording"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM film"),
)
_SURE = (b"%PDF-", b"PK\x03\x04", b"SQLite format 3\0", b"PAR1", b"ARROW1")  # even where all that follows is ASCII
_INSIDE = ((4, b"ftyp", "an MP4 film"), (257, b"ustar", "a tar archive; unpack it"), (8, b"WAVE", "a WAVE recording"))
_NO_TEXT = bytes({*range(32)} - {*b"\t\n\r\f\x1a\x1b"})  # control characters that text lacks
LOOKED_AT = 512  # bytes: a tar header


def foreign_format(head: bytes) -> str:
    """What a file that begins so is, if it is none that is read here; empty if that is not known.

    >>> foreign_format(b"%PDF-1.7\\n"), foreign_format(b"%PDX")
    ('a PDF document; take its text out first', '')
    """
    head = head[:LOOKED_AT]
    if not head.startswith(_SURE) and _may_be_text(head):
        return ""
    found = next((what for start, what in _STARTS if head.startswith(start)), "")
    return found or next((what for at, mark, what in _INSIDE if head[at:].startswith(mark)), "")


def refusal(head: bytes) -> str:
    """What a file that begins so is, if that is surely no text; empty if it may be text."""
    if found := foreign_format(head):
        return found
    image = None if _may_be_text(head[:LOOKED_AT]) else sniff_image(head) or sniff_foreign(head)
    return f"a {image} image; use `build images`" if image else ""


def _may_be_text(head: bytes) -> bool:
    """Whether it holds no control character that text of any 8-bit encoding lacks."""
    return len(head.translate(None, _NO_TEXT)) == len(head)
