"""Conversions as people write them (`image=float32[64,64,3]`, `boxes=[-1,4]`, `tokens=128:0`) to the steps of
`records.columns.convert`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from recordmill.base.errors import UsageError
from recordmill.exporting.choices.resolve import AnyImages, AnyTensor, Unresolved
from recordmill.records.columns.convert import DecodeRaw, DecodeTensor, MakeRagged, Pad, Reshape, Step
from recordmill.records.columns.decode_images import MODES
from recordmill.schemas.feature import ITEM_BYTES

_TYPED = re.compile(r"(?s)(.+)=([<>]?)(\w+)(?:\[([-\d,\s]*)\])?")
_SHAPED = re.compile(r"(?s)(.+)=\[([-\d,\s]*)\]")
_PADDED = re.compile(r"(?s)(.+?)=(\d+):(.*)")
_MAX_RESIZED = 1 << 24  # 16 million pixels
Specs = Sequence[str] | str | None


def parse_steps(
    *,
    decode_tensor: Specs = None,
    decode_raw: Specs = None,
    reshape: Specs = None,
    pad: Specs = None,
    pad_or_cut: Specs = None,
    ragged: Specs = None,
) -> tuple[Step | Unresolved, ...]:
    """The steps in the order in which they are done: decode, reshape, pad or make ragged.

    Raises:
        UsageError: one is not written as it must be, or a feature is decoded, reshaped or padded twice.
    """
    decoded = [*map(_tensor, _listed(decode_tensor)), *map(_raw, _listed(decode_raw))]
    shaped: list[Step] = [*map(_reshape, _listed(reshape))]
    padded: list[Step] = [
        *(_pad(text, "--pad", False) for text in _listed(pad)),
        *(_pad(text, "--pad-or-cut", True) for text in _listed(pad_or_cut)),
    ]
    padded += [MakeRagged(name.strip()) for text in _listed(ragged) for name in text.split(",")]
    for what, group in (("decoded", decoded), ("reshaped", shaped), ("padded or made ragged", padded)):
        names = [step.feature for step in group]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"feature {twice[0]!r} is to be {what} twice")
    return (*decoded, *shaped, *padded)


def parse_images(
    features: Sequence[str] | str | bool | None,
    resize: str | tuple[int, int] | None,
    channels: int | None,
    *,
    ragged: bool,
) -> tuple[AnyImages, ...]:
    """The steps of `--decode-images [FEATURE,...] --resize HxW --channels N`; features True: those that hold images.

    ragged: whether images of several sizes can be written.

    Raises:
        UsageError: a size or a number of channels that can't be served.
    """
    if not features:
        if resize is not None or channels is not None:
            raise UsageError(f"{'--resize' if resize is not None else '--channels'} needs --decode-images")
        return ()
    channels = 3 if channels is None else channels
    if channels not in MODES:
        raise UsageError(f"--channels {channels}: 1 (gray), 3 (RGB) or 4 (RGBA)")
    size = _size(resize)
    if size is not None and not (0 < size[0] * size[1] <= _MAX_RESIZED):
        raise UsageError(f"--resize {resize}: 1 to {_MAX_RESIZED} pixels")
    if features is True:
        return (AnyImages(None, size, channels, ragged),)
    names = features.split(",") if isinstance(features, str) else features
    return tuple(AnyImages(name.strip(), size, channels, ragged) for name in dict.fromkeys(names))


def _size(resize: str | tuple[int, int] | None) -> tuple[int, int] | None:
    if resize is None or not isinstance(resize, str):
        return resize
    match = re.fullmatch(r"(\d+)[xX×](\d+)", resize.strip())
    if match is None:
        raise UsageError(f"--resize {resize}: HEIGHTxWIDTH in pixels, as in 224x224")
    return int(match[1]), int(match[2])


def _listed(specs: Specs) -> Sequence[str]:
    return [specs] if isinstance(specs, str) else specs or ()


def _raw(text: str) -> DecodeRaw:
    match = _TYPED.fullmatch(text)
    if match is None or match[3] not in ITEM_BYTES:
        raise UsageError(
            f"--decode-raw {text}: FEATURE=DTYPE[SHAPE], as in depth=float32[256,256], or >float32[...] if "
            f"it is big-endian; {_KNOWN}"
        )
    return DecodeRaw(match[1], match[3], _shape(match[4] or "", f"--decode-raw {text}"), match[2] == ">")


_KNOWN = f"a dtype is one of {', '.join(ITEM_BYTES)}"


def _tensor(text: str) -> DecodeTensor | Unresolved:
    match = _TYPED.fullmatch(text)
    if match is None:
        return AnyTensor(text)
    if match[2] or match[3] not in ITEM_BYTES:
        raise UsageError(
            f"--decode-tensor {text}: FEATURE, or FEATURE=DTYPE[SHAPE] as in depth=float32[-1,4]; {_KNOWN}"
        )
    return DecodeTensor(match[1], match[3], _shape(match[4] or "", f"--decode-tensor {text}"))


def _reshape(text: str) -> Reshape:
    match = _SHAPED.fullmatch(text)
    if match is None:
        raise UsageError(f"--reshape {text}: FEATURE=[SHAPE], as in boxes=[-1,4]")
    return Reshape(match[1], _shape(match[2], f"--reshape {text}", anywhere=True))


def _pad(text: str, option: str, cut: bool) -> Pad:
    match = _PADDED.fullmatch(text)
    if match is None or int(match[2]) < 1:
        raise UsageError(f"{option} {text}: FEATURE=LENGTH:VALUE, as in tokens=128:0")
    return Pad(match[1], int(match[2]), match[3], cut)


def _shape(text: str, option: str, anywhere: bool = False) -> tuple[int | None, ...]:
    """The numbers of a shape; -1 is None, in the first place only unless anywhere."""
    try:
        sizes = [int(size) for size in text.split(",")] if text.strip() else []
    except ValueError:
        raise UsageError(f"{option}: a shape is numbers with commas between them, as in [28,28]") from None
    if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1 or (-1 in sizes[1:] and not anywhere):
        raise UsageError(
            f"{option}: dimensions are 1 or more; one may be -1, which "
            f"varies{'' if anywhere else ', if it is the first'}"
        )
    return tuple(None if size == -1 else size for size in sizes)
