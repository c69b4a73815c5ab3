"""The label map of TensorFlow's Object Detection API.

A label map is a text file that assigns class names to class numbers.
"""

from __future__ import annotations

from recordmill.schemas.feature import Schema

LABEL_MAP_NAME = "label_map.pbtxt"
_OBJECT_LABEL = "image/object/class/label"
_BACKGROUND = "background"  # class 0 of the API, which a label map does not list


def label_map_files(schema: Schema) -> dict[str, str]:
    """Returns the label map of a schema, as {file name: content}.

    The ids in the map are the class numbers of the records.

    Returns:
        An empty dict if the schema has no object classes.
    """
    classes = schema[_OBJECT_LABEL].classes if _OBJECT_LABEL in schema else None
    if not classes:
        return {}
    from google.protobuf.text_encoding import CEscape

    items = [
        f'item {{\n  id: {number}\n  name: "{CEscape(name.encode("utf-8", "backslashreplace"), as_utf8=True)}"\n}}\n'
        for number, name in enumerate(classes)
        if (number, name) != (0, _BACKGROUND)
    ]
    return {LABEL_MAP_NAME: "".join(items)}
