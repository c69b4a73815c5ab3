"""Which features of a data set are encoded images, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping

from recordmill.base.errors import UsageError
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.options import Images, Spec, Wanted, wanted_images
from recordmill.records.columns.decode_images import looks_like_image

_SNIFFED = 16  # records looked at to tell which features are images


def with_images(
    dataset: Fetchable, spec: Spec | None, channels: int, antialias: bool
) -> tuple[Fetchable, Wanted | None]:  # fmt: skip
    """What a call's `decode_images=`, `channels=` and `antialias=` say, or else what the data set was opened with; and
    the data set with its images as they are stored, which such calls decode by themselves.

    Raises:
        UsageError: a value that is none of an image.
    """
    given = wanted_images(spec, channels, antialias)
    return (dataset.encoded, dataset.images if given is None else given) if dataset.images else (dataset, given)


def images_by_feature(dataset: Fetchable, wanted: Wanted | None) -> dict[str, Images]:
    """By name. Where no name is said, these are the bytes features that are images in the first records.

    Raises:
        UsageError: there is none, or what is named is none that is read.
    """
    if wanted is None:
        return {}
    candidates = [feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape]
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in candidates:
                raise UsageError(
                    f"decode_images: {name!r} is no bytes feature that is read; there are {_listed(candidates)}"
                )
        return dict(wanted)
    head = dataset.head(_SNIFFED)
    names = [
        name
        for name in candidates
        if any(value is not None and looks_like_image(value) for value in head[name].to_pylist())
    ]
    if not names and len(head):
        raise UsageError(
            f"decode_images: no feature holds encoded images; the bytes features are {_listed(candidates)}"
        )
    return dict.fromkeys(names, wanted)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
