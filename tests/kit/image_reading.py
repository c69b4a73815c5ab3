"""Plans of image files, and their records."""

from pathlib import Path
from typing import Any

from kit import image_samples
from kit.source_reading import read_all, values
from recordmill.base.errors import Reject
from recordmill.sources.common.contract import Chunk, PlanOptions
from recordmill.sources.images.options import ImageOptions
from recordmill.sources.images.source import ImageSource, plan_images
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.storage.listing import list_inputs

PNG, JPEG, GIF = (
    image_samples.encode_image(name, image_samples.picture().quantize(8) if name == "GIF" else None)
    for name in ("PNG", "JPEG", "GIF")
)


def plan(*inputs: Path, common: PlanOptions | None = None, **options: Any) -> ImageSource:
    return plan_images(
        list_inputs([str(path) for path in inputs], data_extensions=DATA_EXTENSIONS),
        ImageOptions(**options),
        common,
    )


def drain(source: ImageSource) -> tuple[list[dict[str, Any]], list[Reject]]:
    """Returns all rows and rejects.

    Checks that each file belongs to one unit, and that its row is at position 0.
    """
    rows, rejects = read_all(source)
    covered = [file for unit in source.units for file in range(unit.begin_file, unit.end_file)]
    assert covered == list(range(len(source.files)))
    assert not any(position for _, position, _ in rows)
    return values(rows), rejects


def chunks(source: ImageSource) -> list[Chunk]:
    return [chunk for unit in source.units for chunk in source.read(unit)]
