"""Detection of file formats from the first bytes of a file or value.

* `sniff_image` detects the image formats that recordmill reads.
* `sniff_unsupported_image` detects other image formats.
* `sniff_file_format` detects all other known formats.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# bytes that are enough to detect an image format
IMAGE_HEAD_BYTES = 16
# bytes that are enough to detect any other format: a tar header is the longest
FORMAT_HEAD_BYTES = 512
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IMAGE_MAGICS = (
    *(
        (b"\xff\xd8\xff", "JPEG"),
        (PNG_SIGNATURE, "PNG"),
        (b"GIF87a", "GIF"),
        (b"GIF89a", "GIF"),
        (b"BM", "BMP"),
    ),
    *((b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"II+\0", "TIFF"), (b"MM\0+", "TIFF")),
)
# Bytes 14 and 15 of a BMP: the size of its second header. Text may also begin with BM, but does
# not have one of these values there.
_BMP_HEADERS = frozenset(bytes((size, 0)) for size in (12, 16, 40, 52, 56, 64, 108, 124))
_UNSUPPORTED_IMAGE_MAGICS = (
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\0\0\1\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"%!PS", "EPS"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"DDS ", "DDS"),
    (b"qoif", "QOI"),
    (b"v/1\1", "OpenEXR"),
)
_HEIF_BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
}
# The header of a PNM image, which may be cut off. A table can begin with P1, too, but then does not
# continue like this.
_PNM = re.compile(
    rb"P([1-6][ \r\n]+(#|\d+[ \r\n]+\d+[ \r\n]|\d*[ \r\n]*\d*$)|7[\r\n]|[fF][ \r\n]+\d)"
)
_PLAIN_PNM = re.compile(rb"P.\s+(#|[\d\s]*$)")
# Control characters that do not occur in text.
_CONTROL_CHARS = bytes({*range(32)} - {*b"\t\n\r\f\x1a\x1b"})


class FileFormat(NamedTuple):
    """A file format that is not an image.

    Attributes:
        name: Name of the format.
        magic: The bytes at `offset` that identify it.
        description: A description of the format for messages, with a remedy. "" for formats that
            recordmill reads.
        offset: The offset of `magic` in the file.
        is_sure: Whether no text begins with `magic`, so that the rest of the head needs no check.
    """

    name: str
    magic: bytes
    description: str = ""
    offset: int = 0
    is_sure: bool = False


ARROW_FILE, ARROW_STREAM = "Arrow", "Arrow stream"
_FILE_FORMATS = (
    FileFormat("gzip", b"\x1f\x8b\x08", is_sure=True),
    FileFormat("zstd", b"\x28\xb5\x2f\xfd", is_sure=True),
    FileFormat("xz", b"\xfd7zXZ\0", is_sure=True),
    # A TFRecord file. Its first record is an Event with the time and this version.
    FileFormat(
        "TensorBoard", b"brain.Event:", "a log of TensorBoard, which has no data", 23, is_sure=True
    ),
    FileFormat("PDF", b"%PDF-", "a PDF document; take its text out first", is_sure=True),
    FileFormat(
        "zip",
        b"PK\x03\x04",
        "a ZIP archive or an Office document; give it as INPUT by itself, as a .zip, or save it as CSV",
        0,
        True,
    ),
    FileFormat(
        "Office",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office document; save it as CSV or text",
    ),
    FileFormat("Parquet", b"PAR1", "a Parquet file; use `build parquet`", is_sure=True),
    FileFormat(ARROW_FILE, b"ARROW1", "an Arrow file; use `build arrow`", is_sure=True),
    FileFormat(ARROW_STREAM, b"\xff\xff\xff\xff", "an Arrow stream; use `build arrow`"),
    FileFormat(
        "Feather 1",
        b"FEA1",
        "a Feather file of version 1; read it with an old pyarrow.feather, and write it with version=2",
    ),
    *(
        FileFormat(
            "pickle",
            magic,
            "a pickle, which may run programs and is never loaded; save its arrays with numpy.savez, or its table as Parquet",
        )
        for magic in (b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95")
    ),
    *(
        FileFormat(
            "MATLAB",
            b"MATLAB %s MAT-file" % version,
            "a MATLAB file; load it with scipy.io or h5py, and give its arrays to recordmill.build",
        )
        for version in (b"5.0", b"7.3")
    ),
    FileFormat(
        "RecordIO",
        b"\x0a\x23\xd7\xce",
        "a RecordIO file of MXNet (.rec); unpack it with mxnet.recordio, and build from the images",
    ),
    # The type of the values, and their number of dimensions.
    *(
        FileFormat(
            "idx",
            bytes((0, 0, dtype, dimensions)),
            "an idx file, as those of MNIST; in Python give its array to recordmill.build",
        )
        for dtype in (0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E)
        for dimensions in range(1, 5)
    ),
    FileFormat(
        "SQLite", b"SQLite format 3\0", "an SQLite database; export its tables as CSV", is_sure=True
    ),
    FileFormat("ELF", b"\x7fELF", "a program (ELF)"),
    FileFormat("Mach-O", b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
    FileFormat("Java or Mach-O", b"\xca\xfe\xba\xbe", "a program (Java or Mach-O)"),
    FileFormat(
        "HDF5", b"\x89HDF\r\n\x1a\n", "an HDF5 file; in Python give its arrays to recordmill.build"
    ),
    FileFormat("npy", b"\x93NUMPY", "a NumPy array; use `build numpy`"),
    FileFormat("Avro", b"Obj\x01", "an Avro file; convert it to Parquet"),
    FileFormat("ORC", b"ORC", "an ORC file; convert it to Parquet"),
    FileFormat("7-Zip", b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
    FileFormat("RAR", b"Rar!\x1a\x07", "a RAR archive; unpack it"),
    FileFormat("Ogg", b"OggS", "an Ogg recording"),
    FileFormat("FLAC", b"fLaC", "a FLAC recording"),
    FileFormat("MP3", b"ID3", "an MP3 recording"),
    FileFormat("Matroska", b"\x1aE\xdf\xa3", "a Matroska or WebM film"),
    FileFormat("MP4", b"ftyp", "an MP4 film", 4),
    FileFormat(
        "tar",
        b"ustar",
        "a tar archive; give it as INPUT by itself, as a .tar that is not compressed",
        257,
    ),
    FileFormat("WAV", b"WAVE", "a WAVE recording", 8),
)


def sniff_image(head: bytes) -> str | None:
    r"""Returns the name of a supported image format, or None.

    Args:
        head: The first IMAGE_HEAD_BYTES of a file, or all of a shorter one.

    >>> sniff_image(b"GIF89a\x01\x00"), sniff_image(b"<html>")
    ('GIF', None)
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    for start, name in _IMAGE_MAGICS:
        if head.startswith(start):
            return (
                name
                if name != "BMP" or head[6:10] == b"\0\0\0\0" or head[14:16] in _BMP_HEADERS
                else None
            )
    return None


def sniff_unsupported_image(head: bytes) -> str | None:
    """Returns the name of an image format that recordmill does not read, or None.

    Args:
        head: At least the first IMAGE_HEAD_BYTES. More bytes help to distinguish the pixels of a
            PNM file from numbers in a text.
    """
    for start, name in _UNSUPPORTED_IMAGE_MAGICS:
        if head.startswith(start):
            return name
    if _PNM.match(head) and (head[1:2] not in b"123" or _PLAIN_PNM.match(head[:FORMAT_HEAD_BYTES])):
        return "PNM"
    return _HEIF_BRANDS.get(head[8:12]) if head[4:8] == b"ftyp" else None


def sniff_file_format(head: bytes) -> FileFormat | None:
    r"""Returns the format of a file that is not an image, or None.

    None means that the format is unknown or that the file may be text.

    Args:
        head: The first FORMAT_HEAD_BYTES of a file, or all of a shorter one.

    >>> sniff_file_format(b"%PDF-1.7\n").description, sniff_file_format(b"ORCHID\n")
    ('a PDF document; take its text out first', None)
    """
    head = head[:FORMAT_HEAD_BYTES]
    match = next(
        (
            file_format
            for file_format in _FILE_FORMATS
            if head.startswith(file_format.magic, file_format.offset)
        ),
        None,
    )
    return None if match is None or (not match.is_sure and may_be_text(head)) else match


def needs_random_access(head: bytes) -> bool:
    """Returns whether a file in this format is read at arbitrary offsets.

    Text, TFRecord files and compressed files are read from start to end.

    Args:
        head: The first FORMAT_HEAD_BYTES of a file, or all of a shorter one.
    """
    if sniff_image(head) is not None or sniff_unsupported_image(head) is not None:
        return True
    file_format = sniff_file_format(head)
    # The formats without a description are compressions.
    return file_format is not None and bool(file_format.description)


def may_be_text(head: bytes) -> bool:
    """Returns whether the first FORMAT_HEAD_BYTES have no control characters.

    A control character does not occur in text of any 8-bit encoding. Line breaks, tabs and the like
    are not counted.
    """
    head = head[:FORMAT_HEAD_BYTES]
    return len(head.translate(None, _CONTROL_CHARS)) == len(head)
