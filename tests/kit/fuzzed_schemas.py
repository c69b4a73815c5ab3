"""Feature names for random records, and schemas that fit them or almost fit."""

from kit.wire_writer import BYTES, FLOAT, INT64
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema

KINDS = {
    "i": INT64,
    "f": FLOAT,
    "b": BYTES,
    "list/of/ints": INT64,
    "a/longer/name/of/floats": FLOAT,
    "bs": BYTES,
    "": INT64,
}
FLAT = Schema(
    (
        Feature("i", "int64"),
        Feature("f", "float32"),
        Feature("b", "bytes"),
        Feature("list/of/ints", "int64", (None,)),
        Feature("a/longer/name/of/floats", "float32", (None,)),
        Feature("bs", "bytes", (None,)),
        Feature("", "int64", (None,)),
    )
)
# One feature per schema, because hardly any random record would fit several.
NARROW = tuple(
    Schema((feature,))
    for feature in (
        Feature("bs", "string", (None,)),
        Feature("b", "string"),
        Feature("b", "string", (2,)),
        Feature("i", "int8", (None,)),
        Feature("i", "uint32"),
        Feature("f", "float32", (2, 2)),
        Feature("list/of/ints", "uint16", (3,)),
        Feature("a/longer/name/of/floats", "float32", (None, 2)),
        Feature("", "bool"),
        Feature("", "int64", required=True),
    )
)
STEPPED = Schema(
    (
        Feature("i", "int64", (None,)),
        Feature("b", "bytes"),
        Feature("f", "float32", (None,), per_step=True),
        Feature("list/of/ints", "int64", (None, None), per_step=True),
        Feature("bs", "bytes", (None, None), per_step=True),
        Feature("a/longer/name/of/floats", "float32", (None, 2), per_step=True),
    ),
    message=SEQUENCE_EXAMPLE,
)
