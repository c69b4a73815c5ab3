"""The extensions of image files, and the format that each promises; importing it loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping

EXTENSIONS: Mapping[str, str] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif", "jif", "mpo"), "JPEG"),
    **dict.fromkeys(("png", "apng"), "PNG"),
    **dict.fromkeys(("bmp", "dib"), "BMP"),
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    "gif": "GIF",
    "webp": "WebP",
}
