"""Small images of every supported format and colour mode, made by Pillow."""

import io
from typing import Any

import numpy as np
from PIL import Image

SIZE = (23, 17)  # width, height: odd, so that rows need padding


def picture(mode: str = "RGB", size: tuple[int, int] = SIZE, seed: int = 0) -> Image.Image:
    """Returns an image with some texture in every channel."""
    width, height = size
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, (height, width), np.uint16))
    noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    if mode in ("RGBA", "LA"):
        image = noise.convert(mode)
        image.putalpha(Image.fromarray(rng.integers(0, 256, (height, width), np.uint8)))
        return image
    return noise.convert(mode)


def encode_image(name: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """Encodes an image in Pillow's format `name`."""
    buffer = io.BytesIO()
    (image or picture()).save(buffer, name, **options)
    return buffer.getvalue()


def samples() -> dict[str, tuple[bytes, tuple[str, int, int, str, bool]]]:
    """Returns a file of each kind, and the expected contents of its header.

    The header contains (format, channels, bits, colour, has_more_frames).
    """
    frames = [picture(seed=seed) for seed in range(1, 3)]
    flat = [frame.quantize(16) for frame in frames]
    files = {
        "jpeg": (encode_image("JPEG"), ("JPEG", 3, 8, "rgb", False)),
        "jpeg-progressive": (encode_image("JPEG", progressive=True), ("JPEG", 3, 8, "rgb", False)),
        "jpeg-restarts": (
            encode_image("JPEG", restart_marker_blocks=1),
            ("JPEG", 3, 8, "rgb", False),
        ),
        "jpeg-gray": (encode_image("JPEG", picture("L")), ("JPEG", 1, 8, "gray", False)),
        "jpeg-cmyk": (encode_image("JPEG", picture("CMYK")), ("JPEG", 4, 8, "cmyk", False)),
        "jpeg-exif": (
            encode_image("JPEG", exif=_exif_with_thumbnail()),
            ("JPEG", 3, 8, "rgb", False),
        ),
        "png": (encode_image("PNG"), ("PNG", 3, 8, "rgb", False)),
        "png-gray": (encode_image("PNG", picture("L")), ("PNG", 1, 8, "gray", False)),
        "png-1bit": (encode_image("PNG", picture("1")), ("PNG", 1, 1, "gray", False)),
        "png-16bit": (encode_image("PNG", picture("I;16")), ("PNG", 1, 16, "gray", False)),
        "png-palette": (
            encode_image("PNG", picture().quantize(256)),
            ("PNG", 3, 8, "palette", False),
        ),
        "png-palette-alpha": (
            encode_image("PNG", picture().quantize(256), transparency=0),
            ("PNG", 4, 8, "palette", False),
        ),
        "png-alpha": (encode_image("PNG", picture("RGBA")), ("PNG", 4, 8, "rgba", False)),
        "png-gray-alpha": (encode_image("PNG", picture("LA")), ("PNG", 2, 8, "gray+alpha", False)),
        "apng": (
            encode_image("PNG", save_all=True, append_images=frames),
            ("PNG", 3, 8, "rgb", True),
        ),
        "gif": (encode_image("GIF", picture().quantize(32)), ("GIF", 3, 8, "palette", False)),
        "gif-animated": (
            encode_image("GIF", picture().quantize(16), save_all=True, append_images=flat),
            ("GIF", 3, 8, "palette", True),
        ),
        "bmp": (encode_image("BMP"), ("BMP", 3, 8, "rgb", False)),
        "bmp-palette": (
            encode_image("BMP", picture().quantize(16)),
            ("BMP", 3, 8, "palette", False),
        ),
        "bmp-1bit": (encode_image("BMP", picture("1")), ("BMP", 3, 8, "palette", False)),
        "webp": (encode_image("WEBP"), ("WebP", 3, 8, "rgb", False)),
        "webp-lossless": (encode_image("WEBP", lossless=True), ("WebP", 3, 8, "rgb", False)),
        "webp-alpha": (encode_image("WEBP", picture("RGBA")), ("WebP", 4, 8, "rgba", False)),
        "webp-animated": (
            encode_image("WEBP", save_all=True, append_images=frames),
            ("WebP", 3, 8, "rgb", True),
        ),
        "tiff": (encode_image("TIFF"), ("TIFF", 3, 8, "rgb", False)),
        "tiff-lzw": (encode_image("TIFF", compression="tiff_lzw"), ("TIFF", 3, 8, "rgb", False)),
        "tiff-16bit": (encode_image("TIFF", picture("I;16")), ("TIFF", 1, 16, "gray", False)),
        "tiff-cmyk": (encode_image("TIFF", picture("CMYK")), ("TIFF", 4, 8, "cmyk", False)),
        "tiff-palette": (
            encode_image("TIFF", picture().quantize(256)),
            ("TIFF", 3, 8, "palette", False),
        ),
        "tiff-alpha": (encode_image("TIFF", picture("RGBA")), ("TIFF", 4, 8, "rgba", False)),
        "tiff-pages": (
            encode_image("TIFF", save_all=True, append_images=frames),
            ("TIFF", 3, 8, "rgb", True),
        ),
        "tiff-big": (encode_image("TIFF", big_tiff=True), ("TIFF", 3, 8, "rgb", False)),
    }
    return dict(files)


def _exif_with_thumbnail() -> bytes:
    """Returns an APP1 segment that contains a complete JPEG.

    A reader must not mistake the EOI marker of that JPEG for the end of the image.
    """
    return b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + encode_image("JPEG", picture(size=(8, 8)))


def noise_image(size: tuple[int, int], seed: int, name: str = "PNG", mode: str = "RGB") -> bytes:
    """Returns noise of (width, height) pixels, encoded in Pillow's format `name`."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return encode_image(name, Image.fromarray(noise).convert(mode))


def pixels_of(image: bytes, mode: str = "RGB") -> np.ndarray[Any, Any]:
    """Returns the pixels that Pillow decodes, [height, width, channels]."""
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]
