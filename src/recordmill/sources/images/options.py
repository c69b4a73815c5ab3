"""Options of image files, and of samples in WebDataset archives."""

from __future__ import annotations

import os
from typing import Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.options.declare import declare, redeclare
from recordmill.records.images.header import MAX_PIXELS
from recordmill.sources.common.options import ClassOptions, InputOptions
from recordmill.sources.csv.options import CsvDialect


class ImageOptions(ClassOptions, CsvDialect, heading="images", decides=True):
    """Options of image files, and the notation of their labels and boxes as CSV.

    Attributes:
        check: `decode` decodes every frame with Pillow, which takes 4 to 12 bytes of memory per
            pixel.
        max_pixels: Largest height x width. The header of an image is enough to know it, so a larger
            image is not decoded.
        missing: For labels without a file and files without labels. `reject` makes both rejects.
            `ignore` drops these labels, and keeps these files without labels.
        resize_mode: `stretch` changes the ratio of the sides. `crop` (around the middle) and `pad`
            (with black) keep it.
    """

    labels: str | os.PathLike[str] | None = declare(
        "CSV or JSONL file with a row per image: its path, and columns that become features; or a folder of such "
        "files, such as one per split",
        default=None,
        metavar="PATH",
        common=True,
    )
    labels_path_column: str | None = declare(
        "column with the paths of the images",
        default=None,
        default_text="file_name, filename, path, image, ...",
        metavar="COLUMN",
        needs=(("labels", None),),
    )
    pair: str | None = declare(
        "two folders, as in images,masks; files with the same name become one record, and the second feature has the name of its folder. images,masks/*_mask pairs a.jpg with a_mask.png",
        default=None,
        metavar="A,B",
    )
    boxes: str | os.PathLike[str] | None = declare(
        "bounding boxes: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder of such files or of .xml (Pascal VOC, CVAT), .json (LabelMe) or .txt (YOLO); features are named as in the Object Detection API",
        default=None,
        metavar="PATH",
        common=True,
        excludes=(("labels", None),),
    )
    box_unit: Literal["auto", "pixels", "shares"] = declare(
        "unit of boxes: pixels, or shares of the width and height; auto is the unit of the format, and is detected for tables",
        default="auto",
        needs=(("boxes", None),),
    )
    label_offset: int = declare(
        "number of the first class of objects; with 1, the number 0 is the background",
        default=0,
        needs=(("boxes", None),),
    )
    missing: Literal["reject", "ignore"] = declare(
        "what to do with rows without a file and files without a row",
        default="reject",
        needs=(("labels", None),),
    )
    check: Literal["structure", "decode"] = declare(
        "check of images: structure checks that a file is complete, decode also decodes every pixel",
        default="structure",
    )
    max_pixels: int = declare(
        "reject images with more pixels, before decoding them", default=MAX_PIXELS
    )
    resize: str | tuple[int, int] | None = declare(
        "resize images, their masks and boxes to this size, and turn images upright",
        default=None,
        metavar="HxW",
    )
    resize_mode: Literal["stretch", "crop", "pad"] = declare(
        "how to resize: stretch, crop to the middle, or pad with black",
        default="stretch",
        needs=(("resize", None),),
    )
    reencode: str | None = declare(
        "encode images again as jpeg:QUALITY, webp:QUALITY or png, upright and without metadata",
        default=None,
        default_text="only resized images, in their own format",
        metavar="FORMAT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dialect and self.labels is None and self.boxes is None:
            name, value = next(iter(self.dialect.items()))
            raise UsageError(
                "{option} needs {labels} or {boxes}",
                option=option(name, value),
                labels=option("labels"),
                boxes=option("boxes"),
            )
        if self.label_offset not in (0, 1):
            raise UsageError(
                "{label_offset}: must be 0, or 1 for a background class before them",
                label_offset=option("label_offset", self.label_offset),
            )
        if self.max_pixels < 1:
            raise UsageError(
                "{max_pixels}: must be at least 1", max_pixels=option("max_pixels", self.max_pixels)
            )


class SampleOptions(InputOptions):
    """Options of samples."""

    resize: str | tuple[int, int] | None = redeclare(ImageOptions)
    resize_mode: Literal["stretch", "crop", "pad"] = redeclare(ImageOptions)
    reencode: str | None = redeclare(ImageOptions)

    @property
    def image_options(self) -> ImageOptions:
        """The options of the images in the samples. Their folders are not classes."""
        return ImageOptions(class_from="none", **vars(self))
