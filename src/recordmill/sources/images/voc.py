"""Parser of Pascal VOC's XML and of CVAT's, and of VOC's lists of splits.

VOC counts pixels from 1, and the box includes its last pixel. Sources: the development kit of
VOC2012.
"""

from __future__ import annotations

import os.path
from typing import Any, NoReturn

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.messages import as_message
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.images.annotation_rows import (
    MAX_ANNOTATION_BYTES,
    PIXELS,
    SHARES,
    AnnotationRows,
    BadRow,
    ImageRow,
    ParseSettings,
    to_class,
    to_number,
    to_size,
    to_text,
    to_whole,
)
from recordmill.sources.images.foreign_annotations import shape_edges
from recordmill.storage.file_table import FileTable, InputFile, encode_column
from recordmill.storage.files import read_range
from recordmill.storage.folders import is_file, join

_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MAX_DEPTH = 64
_SPLIT_LISTS = ("train", "val", "test")  # trainval.txt has the names of two of them again
_SPLIT_FOLDER = ("ImageSets", "Main")
_MAX_LIST_BYTES = 256 << 20  # 256 MiB: more than 10^7 names


def parse_voc(rows: AnnotationRows, file: InputFile, settings: ParseSettings) -> None:
    """Reads the boxes of an XML file of VOC or CVAT.

    A file of VOC describes one image, and a file of CVAT many.

    Raises:
        DataError: The file is not such XML.
    """
    root = _parse_xml(read_range(file.path, max_bytes=MAX_ANNOTATION_BYTES).tobytes(), file.name)
    rows.unit = PIXELS
    if root.tag == "annotations":
        if root.find("track") is not None:
            raise DataError(
                "has tracks of a video; export `CVAT for images` or COCO there", source=file.name
            )
        _read_cvat(rows, root)
        return
    if root.tag.lower() != "annotation":
        raise DataError(
            f"is no annotation of Pascal VOC or CVAT: its root is <{root.tag[:60]}>",
            source=file.name,
        )
    stem = file.name.rpartition("/")[2].rpartition(".")[0]
    stated_name = (root.findtext("filename") or "").strip()
    try:
        size = to_size(root.findtext("size/width"), root.findtext("size/height"))
    except BadRow as error:
        raise DataError(f"states no size of the image: {error}", source=file.name) from None
    image = rows.add_image(ImageRow(stem, "", size, is_stem=True, other_name=stated_name))
    shift = 0 if settings.unit == SHARES else 1
    for number, element in enumerate(root.iter("object"), 1):
        place = f"object {number}"
        try:
            if (box := element.find("bndbox")) is None:
                raise BadRow("lacks 'bndbox'")
            left, top, right, bottom = (to_number(_child_text(box, edge), edge) for edge in _EDGES)
            difficult, truncated = (
                to_whole((element.findtext(name) or "").strip() or 0, name)
                for name in ("difficult", "truncated")
            )
            rows.add_box(
                image,
                (left - shift, top - shift, right, bottom),
                to_class(_child_text(element, "name")),
                place,
                difficult=difficult,
                truncated=truncated,
                view=element.findtext("pose") or "Unspecified",
            )
        except BadRow as error:
            rows.reject(place, as_message(error), stated_name or stem)


def _read_cvat(rows: AnnotationRows, root: Any) -> None:
    rows.format_name = "CVAT"
    for number, element in enumerate(root.iter("image"), 1):
        place = f"image {element.get('id', number)}"[:60]
        name = element.get("name", "")
        try:
            size = to_size(element.get("width"), element.get("height"))
            image = rows.add_image(ImageRow(to_text(name, "the name"), place, size))
        except BadRow as error:
            rows.reject(place, as_message(error), name, "no file")
            continue
        for position, shape in enumerate(element, 1):
            if shape.tag in ("tag", "attribute"):
                continue
            shape_place = f"{place}, shape {position}"
            try:
                if shape.tag == "box":
                    if float(to_number(shape.get("rotation") or 0, "rotation")):
                        raise BadRow("is a rotated box")
                    names = ("xtl", "ytl", "xbr", "ybr")
                    left, top, right, bottom = (to_number(shape.get(edge), edge) for edge in names)
                else:
                    points = [
                        (to_number(x, "x"), to_number(y, "y"))
                        for x, _, y in (
                            point.partition(",")
                            for point in (shape.get("points") or "").split(";")
                            if point
                        )
                    ]
                    left, top, right, bottom = shape_edges(shape.tag, points)
                rows.add_box(
                    image, (left, top, right, bottom), to_class(shape.get("label")), shape_place
                )
            except BadRow as error:
                rows.reject(shape_place, as_message(error), name)


def _child_text(element: Any, name: str) -> str:
    if (text := element.findtext(name)) is None:
        raise BadRow(f"lacks {name!r}")
    return str(text).strip()


def _parse_xml(data: bytes, name: str) -> Any:
    """Returns the root element of an XML document.

    Raises:
        DataError: The document is not XML, declares entities, or is nested too deeply.
    """
    from xml.etree.ElementTree import TreeBuilder
    from xml.parsers import expat

    builder, depth = TreeBuilder(), 0

    def refuse_entity(*_: Any) -> NoReturn:
        raise DataError("declares entities, which annotations have not", source=name)

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise DataError("is nested too deeply", source=name)
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.EntityDeclHandler = refuse_entity
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except DataError:  # which is a ValueError
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise DataError(f"is not XML: {str(error)[:100]}", source=name) from None
    return builder.close()


def read_image_set_splits(
    folder: str, files: FileTable
) -> tuple[pa.DictionaryArray | None, list[str]]:
    """Reads the split of each image from the lists of Pascal VOC.

    Args:
        folder: Folder of the annotations, which is next to `ImageSets`, or the folder above.
        files: The images.

    Returns:
        (split of each image, notes). The splits are None if there are no lists, or if some image is
        in none or in several of them.
    """
    above = folder.rstrip("/").rpartition("/")[0]
    lists = {
        name: path
        for parent in (folder, above)
        for name in _SPLIT_LISTS
        if parent and is_file(path := join(parent, *_SPLIT_FOLDER, f"{name}.txt"))
    }
    if not lists:
        return None, []
    splits: dict[str, set[str]] = {}
    for name, path in lists.items():
        for line in (
            read_range(path, max_bytes=_MAX_LIST_BYTES)
            .tobytes()
            .decode("utf-8", "replace")
            .splitlines()
        ):
            if words := line.split():
                splits.setdefault(words[0], set()).add(SPLIT_WORDS[name])
    stems = [os.path.splitext(name.rpartition("/")[2])[0] for name in files.names()]
    image_splits = [splits.get(stem, set()) for stem in stems]
    single = sum(len(names) == 1 for names in image_splits)
    if single < len(files):
        return None, [
            f"ImageSets/Main has {single:,} of {len(files):,} images in exactly one list, so it makes no splits"
        ]
    column = encode_column((min(names) for names in image_splits), len(files))
    return column, ["splits by ImageSets/Main"]
