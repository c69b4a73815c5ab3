"""Parser of YOLO's text files.

Sources: docs.ultralytics.com/datasets/detect, /pose and /segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recordmill.base.documents import describe_value
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.sources.images.annotation_rows import (
    MAX_ANNOTATION_BYTES,
    MAX_CLASSES,
    PIXELS,
    SHARES,
    AnnotationRows,
    BadRow,
    ImageRow,
    KeyPoint,
    ParseSettings,
    to_number,
    to_text,
    to_whole,
)
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import read_range
from recordmill.storage.folders import is_file, join, list_names_if_present
from recordmill.storage.yaml_file import read_yaml

_YAML_NAMES = ("data.yaml", "dataset.yaml", "data.yml")
_TEXT_NAMES = ("classes.txt", "obj.names", "names.txt", "predefined_classes.txt")
_MAX_YAML_FILES = 8  # YAML files that are searched for class names
_MAX_KEYPOINTS = 1024  # per box
_MAX_SHARE = 2  # a number above twice the width or height is in pixels
_CONFIDENCE_NOTE = "confidences of boxes, left out"


def is_label_name(name: str) -> bool:
    """Returns whether a text file with this name may contain boxes.

    The result is False for names such as classes.txt or a readme.
    """
    base = name.rpartition("/")[2].lower()
    return base not in _TEXT_NAMES and not base.startswith("readme")


def parse_yolo(rows: AnnotationRows, file: InputFile, settings: ParseSettings) -> None:
    """Reads the boxes of a text file with one box per line.

    Raises:
        DataError: The file is not UTF-8.
    """
    try:
        text = read_range(file.path, max_bytes=MAX_ANNOTATION_BYTES).tobytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 (byte {error.start})", source=file.name) from None
    stem = file.name.rpartition(".")[0]
    image = rows.add_image(ImageRow(stem.rpartition("/")[2], "", is_stem=True))
    rows.unit, rows.has_numbers = SHARES, settings.class_names is None
    rows.classes = settings.class_names
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.split()):
            continue
        place = f"line {number}"
        try:
            _add_line(rows, image, words, settings, place)
        except BadRow as error:
            rows.reject(place, Message("is not a box: {error}", error=error), stem)


def is_file_list(file: InputFile) -> bool:
    """Returns whether a text file lists paths of images, as train.txt does."""
    try:
        data = read_range(file.path, max_bytes=MAX_ANNOTATION_BYTES).tobytes()
    except (OSError, DataError):
        return False
    lines = [line for line in data.splitlines() if line.strip()]
    return bool(lines) and all(
        line.rpartition(b".")[2].strip().isalpha() and not line[:1].isspace() for line in lines
    )


def _add_line(
    rows: AnnotationRows, image: int, words: Sequence[str], settings: ParseSettings, place: str
) -> None:
    number = to_whole(words[0], "the class", MAX_CLASSES - 1)
    values = [to_number(word, "a value") for word in words[1:]]
    if (names := settings.class_names) is None:
        name = str(number)
    elif number < len(names):
        name = names[number]
    else:
        raise BadRow(f"class {number} has no name in {settings.names_file}, which has {len(names)}")
    keypoints: tuple[KeyPoint, ...] = ()
    if settings.keypoint_shape is not None:
        count, size = settings.keypoint_shape
        if len(values) not in (4 + count * size, 5 + count * size):
            raise BadRow(
                f"{len(values)} numbers after class {number}; kpt_shape [{count}, {size}] has "
                f"{4 + count * size}"
            )
        points = values[4 : 4 + count * size]
        keypoints = tuple(
            (point[0], point[1], to_whole(point[2], "visibility", 2) if size == 3 else 2)
            for point in (points[start : start + size] for start in range(0, len(points), size))
        )
        rows.counts[_CONFIDENCE_NOTE] += len(values) > 4 + count * size
        values = values[:4]
    elif len(values) == 5:
        rows.counts[_CONFIDENCE_NOTE] += 1
        values = values[:4]
    elif len(values) < 4 or len(values) % 2:
        hint = "; key points need kpt_shape in data.yaml" if len(values) > 5 else ""
        raise BadRow(f"{len(values)} numbers after class {number}{hint}")
    if settings.unit != PIXELS and (large := max(map(abs, values))) > _MAX_SHARE:
        pixels = option("box_unit", PIXELS)
        raise BadRow(
            Message(
                "{large} is not a share of the image; {pixels} reads pixels",
                large=f"{large:g}",
                pixels=pixels,
            )
        )
    if len(values) == 4:
        x, y, width, height = values
        if min(width, height) < 0:
            raise BadRow(f"a negative size: {width:g} x {height:g}")
        edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    else:  # the corners of a polygon
        edges = min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])
    rows.add_box(image, edges, name, place, keypoints)


def find_yolo_names(folder: str) -> tuple[list[str] | None, str, tuple[int, int] | None]:
    """Finds the file with the class names of YOLO annotations.

    The file is in the folder of the annotations, or up to two folders above. A YAML file may have
    any name if it contains `names`.

    Args:
        folder: Folder of the annotations.

    Returns:
        (class names by class number or None, name of the file or "", (key points per box, values
        per key point) or None).

    Raises:
        UsageError: A file is malformed, or has too many names.
    """
    above = folder.rstrip("/").rpartition("/")[0]
    parents = [parent for parent in (folder, above, above.rpartition("/")[0]) if parent]
    for parent in parents:
        for name in _YAML_NAMES:
            if is_file(path := join(parent, name)):
                return _read_yaml_names(path)
        for name in _TEXT_NAMES:
            if is_file(path := join(parent, name)):
                return _read_text_names(path), name, None
        other_names = [
            name
            for name in sorted(list_names_if_present(parent))
            if name.lower().endswith((".yaml", ".yml"))
        ]
        for name in other_names[:_MAX_YAML_FILES]:
            try:
                class_names = _read_yaml_names(join(parent, name))
            except UsageError:  # it is not known to be of this data set
                continue
            if class_names[0] is not None:
                return class_names
    return None, "", None


def _read_text_names(path: str) -> list[str]:
    try:
        text = read_range(path, max_bytes=MAX_ANNOTATION_BYTES).tobytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 (byte {error.start})") from None
    names = [line.strip() for line in text.splitlines() if line.strip()]
    return _check_names(path, names)


def _read_yaml_names(path: str) -> tuple[list[str] | None, str, tuple[int, int] | None]:
    content = read_yaml(path, path, "names")
    names, base = content.get("names"), path.rpartition("/")[2]
    shape = _read_keypoint_shape(path, content.get("kpt_shape"))
    if names is None:
        return None, base, shape
    if isinstance(names, Mapping):
        numbers = [number for number in names if type(number) is int and number >= 0]
        if len(numbers) < len(names):
            wrong = next(name for name in names if name not in numbers)
            raise UsageError(f"{path}: names: {describe_value(wrong)} is not a class number")
        if max(numbers, default=0) >= MAX_CLASSES:
            raise UsageError(f"{path}: names: class numbers are less than {MAX_CLASSES:,}")
        names = [names.get(number, number) for number in range(max(numbers, default=-1) + 1)]
    if not isinstance(names, list):
        raise UsageError(
            f"{path}: names: must be a list or a mapping of class numbers, "
            f"not {describe_value(names)}"
        )
    return _check_names(path, names), base, shape


def _check_names(path: str, names: Sequence[Any]) -> list[str]:
    if len(names) > MAX_CLASSES:
        raise UsageError(f"{path}: has {len(names):,} names, and at most {MAX_CLASSES:,} are read")
    try:
        texts = [to_text(name, "a name") for name in names]
    except BadRow as error:
        raise UsageError("{path}: names: {error}", path=path, error=error) from None
    return texts


def _read_keypoint_shape(path: str, shape: Any) -> tuple[int, int] | None:
    if shape is None:
        return None
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or any(type(size) is not int for size in shape)
        or not (0 < shape[0] <= _MAX_KEYPOINTS and shape[1] in (2, 3))
    ):
        found = describe_value(shape)
        if isinstance(shape, list):
            found = f"[{', '.join(map(describe_value, shape[:3]))}{', ...' * (len(shape) > 3)}]"
        raise UsageError(f"{path}: kpt_shape: must be [number of key points, 2 or 3], not {found}")
    return shape[0], shape[1]
