"""Label maps have the class numbers of the records.

The Object Detection API expects these numbers.
"""

import pytest

from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.derived_files import LABEL_MAP_NAME, make_label_map_files


def label_map(*classes: str) -> str:
    feature = Feature("image/object/class/label", "int64", shape=(None,), classes=classes)
    return make_label_map_files(Schema((feature,)))[LABEL_MAP_NAME]


def test_label_map_has_the_class_numbers_of_the_records() -> None:
    assert label_map("background", "cat", 'a "dog"') == (
        'item {\n  id: 1\n  name: "cat"\n}\nitem {\n  id: 2\n  name: "a \\"dog\\""\n}\n'
    )
    assert label_map("cat").startswith("item {\n  id: 0\n")


@pytest.mark.parametrize("name", ["image/object/class/text", "label"])
def test_schema_without_object_classes_has_no_label_map(name: str) -> None:
    assert make_label_map_files(Schema((Feature(name, "int64", classes=("x",)),))) == {}
